"""Layers that alternate, as the store holds them: two kinds that are made alike are the model without a pattern, and
layers with experts and without are where the pattern has them."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.memory import memory_of
from stagedb.models import Card
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing import profile_job
from stagedb.traces.set_validation import validate_traces
from tests import lowered
from tests.ir.tiny import card

OPS = (
    "name", "index", "chunk", "position", "layer", "block", "order", "runs", "flops", "bytes_read", "bytes",
    "temporary", "size", "result",
)  # fmt: skip

PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "one stage": ("llama", {"dp": 2, "tp": 2}),
    "stages that hold both, recomputed": ("llama", {"pp": 2, "zero": 3, "dp": 2, "recompute": "full"}),
    "every second layer recomputed": ("llama", {"pp": 2, "recompute": "full", "recompute_every": 2}),
    "first layers recomputed": ("llama", {"pp": 2, "recompute": "full", "recompute_first": 2}),
    "virtual stages": ("moe", {"pp": 2, "virtual_stages": 3, "schedule": "interleaved", "dp": 2, "ep": 2, "zero": 3}),
    "megatron, buffers": ("moe", {"recipe": "megatron", "pp": 2, "dp": 2, "tp": 2, "sp": True, "zero": 1, "ep": 2}),
    "rings": ("llama", {"cp": 2, "cp_kind": "ring-alltoall", "pp": 3}),
}


def alternating(model: Card) -> Card:
    """The model with every second layer of a kind that differs from the others in nothing but its name."""
    kind = model.kinds["layer"].to_dict()
    return dataclasses.replace(model, pattern=("odd", "even"), layer_kinds={"odd": kind, "even": kind})  # type: ignore[arg-type]


def renamed(value: Any) -> Any:
    """A value with the names of the alternating kinds as that of the plain one."""
    if isinstance(value, str):
        return value.replace("odd", "layer").replace("even", "layer")
    if isinstance(value, Mapping):
        return {renamed(key): renamed(each) for key, each in value.items()}
    return tuple(map(renamed, value)) if isinstance(value, tuple | list) else value


def rows(model: Card, words: Mapping[str, Any]) -> tuple[Mapping[Any, Any], set[Any], Mapping[Any, Any]]:
    """The ops of a plan by class and place, the edges between such places, and the weights of buckets."""
    copied = lowered.copied_rows(model, **words)
    place = {id: (number, op["index"]) for number, of in copied.ops.items() for id, op in of.items()}
    every = {id: op for of in copied.ops.values() for id, op in of.items()}
    ops = {place[id]: renamed([op[column] for column in OPS]) for id, op in every.items()}
    edges = {(place[source], place[target], kind) for of in copied.edges.values() for source, target, kind in of}
    return ops, edges, renamed(lowered.program(model, **words).carried)


@pytest.mark.parametrize("name", list(PLANS))
def test_kinds_that_are_made_alike_make_the_plain_model(name: str) -> None:
    style, plan = PLANS[name]
    plain = card(style, layers=6, kv_heads=4)
    words = {"seq_len": 8, "global_batch_size": 8, **plan}
    both = plain, alternating(plain)
    found = [rows(each, words) for each in both]
    assert found[0] == found[1]
    assert all(found[0][:2])
    programs = [lowered.program(each, **words) for each in both]
    kinds = {block for each in programs[1].workload.classes for block in each.origins.block}
    assert {"odd", "even"} <= kinds and "layer" not in kinds
    memory = [[(list(each.ends()), list(each.peaks())) for each in memory_of(program)] for program in programs]
    assert memory[0] == memory[1]
    at_peak = [
        [[(one.name, one.layer, one.count, one.bytes) for one in each.alive()] for each in memory_of(program)]
        for program in programs
    ]
    assert [sorted(map(renamed, each)) for each in at_peak[1]] == [sorted(each) for each in at_peak[0]]
    steps = [profile_job(program.workload, load_system("h100")).step for program in programs]
    assert steps[0] == steps[1] > 0


SPARSE: dict[str, Any] = {
    "pp": 2, "tp": 2, "dp": 2, "ep": 2, "sp": True, "zero": 3, "seq_len": 8, "global_batch_size": 16,
    "recompute": "full", "layers_per_stage": (3, 5), "micro_batch_size": 2,
}  # fmt: skip


def sparse(layers: int = 8) -> Card:
    return dataclasses.replace(card("moe", layers=layers), pattern=("dense", "layer"))


def test_stages_hold_both_kinds_in_the_order_of_the_pattern(store: Store) -> None:
    instance = Stagedb(store).instantiate(sparse(), **SPARSE)
    found = store.query(
        "MATCH (c:RankClass {instance: $id})-[:RUNS]->(o:Op) WHERE o.layer IS NOT NULL "
        "RETURN DISTINCT c.stages[0] AS stage, c.first_layers[0] + o.layer AS layer, o.position, o.block "
        "ORDER BY stage, layer",
        {"id": instance.id},
    ).rows
    assert [(stage, layer, block) for stage, layer, _, block in found] == [
        (int(layer >= 3), layer, ("dense", "layer")[layer % 2]) for layer in range(8)
    ]
    assert [position for *_, position, _ in found] == [1, 2, 3, 0, 1, 2, 3, 4]


def test_values_flow_between_all_neighbours_of_a_stage(store: Store) -> None:
    """What the last operator of a layer's forward makes is read by the next layer, and its gradient comes back."""
    instance = Stagedb(store).instantiate(sparse(), **SPARSE)
    rows = store.query(
        "MATCH (a:Op {instance: $id})-[:DEP {kind: 'data'}]->(b:Op) "
        "WHERE a.position <> b.position AND a.block IN ['dense', 'layer'] AND b.block IN ['dense', 'layer'] "
        "AND a.template = b.template AND a.template IN ['forward', 'input_gradient'] "
        "RETURN DISTINCT a.class, a.template, a.position, b.position",
        {"id": instance.id},
    ).rows
    for stage, positions in ((0, range(1, 4)), (1, range(5))):
        onward = {(a, b) for number, template, a, b in rows if (number, template) == (stage, "forward")}
        assert onward == {(at, at + 1) for at in positions[:-1]}
        back = {(a, b) for number, template, a, b in rows if (number, template) == (stage, "input_gradient")}
        assert back == {(at + 1, at) for at in positions[:-1]}


def test_each_layer_of_any_kind_is_a_unit_of_sharding(store: Store) -> None:
    instance = Stagedb(store).instantiate(sparse(), **SPARSE)
    rows = store.query(
        "MATCH (o:Op {instance: $id})-[c:CARRIES]->(t:SymTensor) WHERE o.name STARTS WITH 'bucket.parameters.gather' "
        "RETURN o.class, o.name, collect(DISTINCT c.layer), collect(DISTINCT t.block)",
        {"id": instance.id},
    ).rows
    units = sorted((number, layers[0], blocks[0]) for number, _, layers, blocks in rows if layers != [])
    of_experts = [(number, layer) for number, layer, block in units if block == "layer"]
    assert all(len(layers) <= 1 and len(blocks) == 1 for _, _, layers, blocks in rows if layers)
    # A layer with experts has a bucket for them and one for the rest. Experts on a single rank of edp have none.
    assert {(number, layer) for number, layer, block in units if block == "dense"} == {(0, 0), (0, 2), (1, 1), (1, 3)}
    assert set(of_experts) == {(0, 1), (1, 0), (1, 2), (1, 4)}


def test_traces_of_alternating_layers_are_valid(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    instance = db.instantiate(sparse(), **{**SPARSE, "virtual_stages": 2, "layers_per_stage": (4, 4)})
    db.export(instance.id, out=tmp_path / "set")
    report = validate_traces(tmp_path / "set")
    assert report.faults == ()
    assert db.profile(instance.id).info.step > 0
    assert len(db.memory(instance.id).peaks.rows) == instance.classes
