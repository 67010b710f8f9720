"""Instances read from a store and exported: the same on both engines, sound, and as the plain encoder has them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store, load, names, write_graph
from stagedb.store.contents.exports import export
from stagedb.store.contents.instance_digests import write_class_digests
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.profiles import record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.timing import profile_job
from stagedb.traces import Request, validate_traces
from tests.instances.small_graph import small_graph
from tests.instances.test_engines import OPTIONS, example
from tests.timing.plain import PLAIN
from tests.traces.plain import parse, plain_nodes

EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=512, global_batch_size=8)


def made(store: Store, plan: Plan = EIGHT, layers: int = 2) -> str:
    graph = small_graph(hidden=64, layers=layers, key=f"small-{layers}")
    write_graph(store, graph)
    return instantiate(store, graph.key, plan)


def test_an_exported_instance_runs(store: Store, tmp_path: Path) -> None:
    instance = made(store)
    done = export(store, instance, Request(tmp_path / "traces", replay=True))
    assert done.replayed
    assert (done.world, done.files) == (8, 8)
    assert list(done.seconds) == ["read", "encode", "write", "bundle", "replay"]
    workload = read_workload(store, instance)
    assert (workload.model, workload.degrees) == ("toy", (2, 1, 2, 2))
    for rank in range(8):
        _, nodes = parse((tmp_path / "traces" / f"toy.{rank}.et").read_bytes())
        assert nodes == plain_nodes(workload, rank)


@pytest.mark.parametrize("store", ["neo4j"], indirect=True)
def test_engines_give_the_same_columns(store: Store, embedded_store: Store) -> None:
    def flat(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {field.name: flat(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [flat(each) for each in value] if isinstance(value, tuple) else value

    both = [flat(read_workload(each, made(each))) for each in (store, embedded_store)]
    assert both[0] == both[1]


@pytest.mark.parametrize("style", ["llama", "gpt"])
@pytest.mark.parametrize("options", OPTIONS, ids=["torch", "torch-sp", "megatron"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_models_run(embedded_store: Store, tmp_path: Path, style: str, options: GraphOptions, schedule: str) -> None:
    graph, plan = example(style, options)
    plan = dataclasses.replace(plan, schedule=schedule, seq_len=512)
    if graph.sizes.get("P", 512) < 512:
        graph = dataclasses.replace(graph, sizes={**graph.sizes, "P": 512})
    write_graph(embedded_store, graph)
    instance = instantiate(embedded_store, graph.key, plan)
    out = tmp_path / "traces"
    export(embedded_store, instance, Request(out))
    report = validate_traces(out)
    assert report.faults == ()
    assert report.replayed
    workload = read_workload(embedded_store, instance)
    rank = plan.world - 1
    _, nodes = parse((out / f"{graph.name}.{rank}.et").read_bytes())
    assert nodes == plain_nodes(workload, rank)


@pytest.mark.parametrize(
    "words", [{"schedule": "interleaved"}, {"schedule": "breadth-first"}, {"schedule": "breadth-first", "pp": 4}]
)
def test_chunks_run(embedded_store: Store, tmp_path: Path, words: dict[str, Any]) -> None:
    plan = dataclasses.replace(EIGHT, virtual_stages=2, **words)
    export(embedded_store, made(embedded_store, plan, layers=8), Request(tmp_path / "traces"))
    report = validate_traces(tmp_path / "traces")
    assert report.faults == ()
    assert report.replayed
    assert report.files == plan.world


def parameters(store: Store, statement: str, instance: str) -> dict[str, object]:
    """What a statement is asked with, of an instance's first class; it is profiled where that is asked about."""
    wanted = {field.name for field in load(statement).params}
    values: dict[str, object] = {"instance": instance, "class": 0}
    if "profile" in wanted:
        values["profile"], _ = record_profile(store, profile_job(read_workload(store, instance), PLAIN))
    return {name: values[name] for name in wanted}


def test_an_unknown_instance_is_refused(embedded_store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stagedb ls"):
        export(embedded_store, "nothing", Request(tmp_path / "traces"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("store", ["neo4j"], indirect=True)
@pytest.mark.parametrize("statement", [name for name in names() if name.startswith("workload/")])
def test_statements_seek_by_an_index(store: Store, statement: str) -> None:
    """None scans what belongs to other instances, or expands one node into all others."""
    loaded = load(statement)
    given = parameters(store, statement, made(store))
    with store._session("READ") as session:
        plan = session.run(f"EXPLAIN {loaded.text}", given).consume().plan
    assert plan is not None
    found = operators(plan)
    assert not {name for name in found if "Scan" in name or "CartesianProduct" in name}
    assert any("IndexSeek" in name for name in found)


@pytest.mark.parametrize("store", ["neo4j"], indirect=True)
@pytest.mark.parametrize("statement", [name for name in names() if name.startswith("workload/")])
@pytest.mark.parametrize("grows", [{"dp": 16}, {"global_batch_size": 512}, {"layers": 32}])
def test_statements_grow_linearly(store: Store, statement: str, grows: dict[str, int]) -> None:
    """Eight times the ranks, micro-batches or layers are at most eight times the work in the database."""
    dp, layers = grows.get("dp", 2), grows.get("layers", 4)
    small, large = (
        work(store, statement, made(store, dataclasses.replace(EIGHT, dp=dp_, global_batch_size=batch), layers=layers_))
        for dp_, batch, layers_ in ((2, 64, 4), (dp, grows.get("global_batch_size", 64), layers))
    )
    assert large <= 8 * small + 50


def work(store: Store, statement: str, instance: str) -> int:
    """What Neo4j counts as touched in the store."""
    loaded = load(statement)
    given = parameters(store, statement, instance)
    with store._session("READ") as session:
        profile = session.run(f"PROFILE {loaded.text}", given).consume().profile
    assert profile is not None
    return hits(profile)


def hits(profile: dict[str, Any]) -> int:
    return int(profile["args"].get("DbHits", 0)) + sum(map(hits, profile.get("children", ())))


def operators(plan: dict[str, Any]) -> set[str]:
    return {plan["operatorType"].split("@")[0]}.union(*(operators(child) for child in plan.get("children", ())))


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (:RankClass {id: $class})-[:RUNS]->(o:Op {kind: 'matmul'}) WITH o LIMIT 1 SET o.flops = o.flops + 512",
        "MATCH (:RankClass {id: $class})-[:RUNS]->(o:Op) WHERE o.comm_bytes > 0 WITH o LIMIT 1 SET o.comm_bytes = 512",
        "MATCH (:RankClass {id: $class})-[:RUNS]->(:Op)-[d:DEP {kind: 'data'}]->(:Op) WITH d LIMIT 1 DELETE d",
    ],
    ids=["FLOPs", "bytes", "an edge"],
)
def test_traces_are_those_of_the_stored_copy(
    store: Store, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed in the store, with its digests, changes the traces; and nothing is lowered in memory for them."""
    instance = made(store)

    def refused(*given: object) -> None:
        pytest.fail("an export was lowered in memory")

    monkeypatch.setattr("stagedb.lowering.program.lower", refused)
    monkeypatch.setattr("stagedb.lowering.program.copy_rows", refused)
    export(store, instance, Request(out=tmp_path / "before"))
    with store._session("WRITE") as session:
        session.run(text, {"class": f"{instance}/0"}).consume()
    with pytest.raises(StagedbError, match="changed after"):
        export(store, instance, Request(out=tmp_path / "refused"))
    write_class_digests(store, instance)
    export(store, instance, Request(out=tmp_path / "after"))
    before, after = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).glob("*.et"))}
        for name in ("before", "after")
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed
    numbers = read_workload(store, instance).ranks.number
    assert changed == {name for name in before if numbers[int(name.split(".")[-2])] == 0}
