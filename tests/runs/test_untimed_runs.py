"""Runs of files without times: what they have is there, times are not, and what needs times is refused."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import checking
from stagedb.api.client import Stagedb
from stagedb.api.importing import trace_files
from stagedb.api.querying import _named, short
from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, TraceFileError
from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.rank_trace import NONE, RankTrace, RecordedCollective
from stagedb.runs.run_files import RunFiles
from stagedb.store import Statement, Store, load
from stagedb.store.run_labels import RUN_LABELS
from stagedb.store.saved_queries import of_run
from tests.api.test_client import CARD
from tests.runs.execution_traces import ANNOTATION, PROFILER, CallTree, linear_step
from tests.runs.recordings import training_step
from tests.runs.test_chakra_runs import node, write

GLOO = Path(__file__).parent / "gloo"

TIMES = {
    label.name: {each.name for each in label.properties if (each.unit or "").startswith("ns")} for label in RUN_LABELS
}


def untimed(*paths: Path) -> UntimedRun:
    run = RunFiles.of(trace_files(paths)).read()
    assert isinstance(run, UntimedRun)
    return run


def steps(directory: Path, *widths: int, schema: str = "1.1.0-chakra.0.0.4") -> list[Path]:
    made = [linear_step(rank, max(len(widths), 2), width) for rank, width in enumerate(widths)]
    return [each.write(directory / f"rank{rank}.et.json", schema) for rank, each in enumerate(made)]


def rows(db: Stagedb, query: str) -> list[tuple[Any, ...]]:
    return [tuple(each.values()) for each in db.query(query, run="mine")]


@pytest.mark.parametrize("schema", ["1.0.1", "1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_an_execution_trace_is_a_run_with_its_ops_and_without_times(store: Store, tmp_path: Path, schema: str) -> None:
    db = Stagedb(store)
    run = db.import_run(*steps(tmp_path, 8, 8, schema=schema), name="mine")
    assert str(run).endswith("mine: 2 ranks, 1 step, 16 ops, without times")
    assert (run.step, run.busy, run.times) == (None, None, None)
    ops = rows(
        db,
        "MATCH (:Run {id: $run})-[:HAS_LANE]->(l)-[:HAS_OP_TIME]->(o) RETURN o.index AS i, o.name AS n, o.kind AS k, "
        "o.phase AS p, o.shapes AS s, o.dtype AS d, o.caller AS c, o.stream AS t, o.block AS b, o.step_number AS q "
        "ORDER BY i",
    )
    ddp = "DistributedDataParallel.forward"
    assert ops == [
        (0, "aten::t", "other", "forward", "[[8,6]]", "Float", "aten::linear", "thread 0", ddp, 3),
        (1, "aten::addmm", "matmul", "forward", "[[8],[4,6],[6,8]]", "Float", "aten::linear", "thread 0", ddp, 3),
        (2, "aten::relu", "other", "forward", "[[4,8]]", "Float", None, "thread 0", ddp, 3),
        (3, "aten::clone", "other", "backward", "[[4,8]]", "Float", "AddmmBackward0", "thread 1", "", 3),
        (4, "aten::mm", "matmul", "backward", "[[4,8],[4,6]]", "Float", "AddmmBackward0", "thread 1", "", 3),
        (5, "record_param_comms", "all_reduce", "backward", "[[[8,6]],[],[],[],[],[],[],[],[],[]]", "Float",
         "c10d::allreduce_", "thread 1", "", 3),
        (6, "aten::_foreach_add_", "other", "optimizer", "[[[8,6]],[[8,6]],[]]", "Float", None, "thread 0",
         "Optimizer.step#SGD.step", 3),
        (7, "aten::t", "other", "forward", "[[8,6]]", "Float", None, "thread 0", "", 3),
    ]  # fmt: skip
    (facts,) = rows(
        db,
        "MATCH (r:Run {id: $run})-[:HAS_RANK]->(k {rank: 1})-[:IN_LANE]->(l) "
        "RETURN r.tool AS t, r.steps AS s, k.categories AS c, k.events AS e, k.ops AS o, l.members AS m",
    )
    assert facts == ("execution trace", 1, ["node"], [22], 8, [0, 1])
    assert checking.check(store, lambda line: None) == ()


def test_order_dependencies_and_members_are_in_the_graph(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*steps(tmp_path, 8, 8), name="mine")
    between = (
        "MATCH (:Run {{id: $run}})-[:HAS_LANE]->()-[:HAS_OP_TIME]->(a)-[:{}]->(b) "
        "RETURN a.index AS a, b.index AS b ORDER BY a, b"
    )
    # Five ops are on one thread and three on the other: each but the last has a successor.
    assert rows(db, between.format("NEXT")) == [(0, 1), (1, 2), (2, 6), (3, 4), (4, 5), (6, 7)]
    # The weight's gradient is reduced in place, the weight is written through a list, and then read as a view.
    assert rows(db, between.format("DEPENDS_ON")) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6)]
    (call,) = rows(
        db,
        "MATCH (:Run {id: $run})-[:HAS_COLLECTIVE]->(c)-[m:HAS_MEMBER]->(o) WITH c, m, o ORDER BY m.rank "
        "RETURN c.kind AS k, c.axis AS a, c.sequence AS s, c.group_size AS g, c.group AS ranks, c.members AS m, "
        "c.message AS b, collect(m.rank) AS r, collect(o.index) AS i",
    )
    assert call == ("all_reduce", "default_pg", 41, 2, "0-1", [0, 1], 4 * 48, [0, 1], [5, 5])


def test_no_property_is_a_time(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(*steps(tmp_path, 8, 6), name="mine")
    for label, times in TIMES.items():
        kept = {"id"} if label == "Run" else {"run"}
        nodes = db.query(f"MATCH (n:{label}) WHERE n.{kept.pop()} = $id RETURN DISTINCT keys(n) AS k", {"id": run.id})
        assert not times & {key for row in nodes for key in row["k"]}, label
    assert rows(db, "MATCH (:Run {id: $run})-[r]->() RETURN DISTINCT type(r) AS t ORDER BY t") == [
        ("HAS_COLLECTIVE",), ("HAS_LANE",), ("HAS_RANK",)
    ]  # fmt: skip
    ops, members = db.run_ops("mine").to_pandas(), db.run_collectives("mine").to_pandas()
    assert len(ops) == 16 and set(ops["shapes"]) >= {"[[8],[4,6],[6,8]]", "[[6],[4,6],[6,6]]"}
    for name in ("start", "duration", "launched", "work", "gap"):
        assert ops[name].isna().all(), name
    assert list(members["message"]) == [4 * 48, 4 * 36]
    for name in ("start", "ready", "end", "waits", "last"):
        assert members[name].isna().all(), name


def needs_times(statement: Statement) -> bool:
    return any(field.unit == "ns" and not field.type.endswith("?") for field in statement.columns)


def about_runs() -> list[Statement]:
    """The named queries that answer about runs, each as it is asked about one."""
    found = (each if "run" in {field.name for field in each.params} else of_run(each) for each in map(load, _named()))
    return [each for each in found if each is not None]


def test_questions_about_times_are_refused_and_those_that_count_are_not(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*steps(tmp_path, 8, 8), name="mine")
    asked = Counter[bool]()
    for statement in about_runs():
        other = {"other": "mine"} if "other" in {field.name for field in statement.params} else {}
        asked[needs_times(statement)] += 1
        if needs_times(statement):
            with pytest.raises(UsageError, match=r"has no times: .* Import the profiler's traces of the same ranks"):
                db.query(short(statement), other, run="mine")
        else:
            db.query(short(statement), other, run="mine")
    assert asked[True] > 10 and asked[False] >= 3
    assert [tuple(each.values()) for each in db.query("collectives_by_group", run="mine")] == [
        ("default_pg", "all_reduce", "backward", "Float", 2, 2, 2 * 4 * 48)
    ]
    found = [(each["module"], each["operator"], each["calls"]) for each in db.query("ops_by_module", run="mine")]
    assert ("Optimizer.step#SGD.step", "aten::_foreach_add_", 2) in found and len(found) == 8


USES: dict[str, Callable[[Stagedb, Path], object]] = {
    "replay": lambda db, out: db.replay_run("mine"),
    "timeline": lambda db, out: db.timeline_run("mine", out=out),
    "report": lambda db, out: db.report_run("mine", out=out),
    "export": lambda db, out: db.export_run("mine", out=out),
    "diff": lambda db, out: db.diff("mine", "mine"),
    "iterations": lambda db, out: db.iterations("mine"),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_made_of_times_is_refused(embedded_store: Store, tmp_path: Path, use: str) -> None:
    db = Stagedb(embedded_store)
    db.import_run(*steps(tmp_path, 8, 8), name="mine")
    with pytest.raises(UsageError, match=r"has no times: .* What it ran is counted by .*collectives_by_group"):
        USES[use](db, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_times_has_a_place_like_others(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    files = steps(tmp_path, 8, 8)
    run = db.import_run(*files, name="mine")
    assert not db.import_run(*files).new
    (row,) = db.ls("runs")
    assert (row["name"], row["ranks"], row["step"]) == ("mine", 2, None)
    counted = db.query("ops_by_module", run="mine").rows
    db.dump(tmp_path / "some.dump", "mine")
    db.rm("mine")
    assert db.load(tmp_path / "some.dump") == 1
    assert db.query("ops_by_module", run="mine").rows == counted and db.show("mine").id == run.id
    assert checking.check(store, lambda line: None) == ()


def test_ranks_with_the_same_ops_are_a_lane(tmp_path: Path) -> None:
    assert [each.ranks for each in untimed(*steps(tmp_path, 8, 8, 6, 8)).lanes] == [(0, 1, 3), (2,)]
    # The same ops, and one of them reads another tensor.
    made = linear_step(1)
    (relu,) = (each for each in made.nodes if each["name"] == "aten::relu")
    relu["inputs"]["values"][0][:2] = [99, 99]
    files = [linear_step(0).write(tmp_path / "a.json"), made.write(tmp_path / "b.json")]
    assert [each.ranks for each in untimed(*files).lanes] == [(0,), (1,)]


def test_a_collective_without_a_group_is_that_of_its_rank_alone(tmp_path: Path) -> None:
    """With times their ends show whether ranks ran it together; without times nothing does."""
    files = steps(tmp_path, 8, 8)
    named = untimed(*files)
    assert [len(each.members) for each in named.calls] == [2]
    text = files[0].read_text(), files[1].read_text()
    for path, each in zip(files, text, strict=True):
        each = each.replace('"pg_name"', '"other_name"').replace("pg_size", "no_size").replace("global_rank_", "no_")
        path.write_text(each.replace("[], [], 0, 1, 2]", "[], []]"))
    assert [len(each.members) for each in untimed(*files).calls] == [1, 1]


def sent(trace: RankTrace) -> Counter[tuple[str, str, int | None]]:
    """What a rank communicates, with its type and elements."""
    column = trace.ops.collective
    found: list[RecordedCollective] = [trace.collectives[place] for place in column[column != NONE].tolist()]
    return Counter((each.kind, each.dtype, each.sent) for each in found)


@pytest.mark.parametrize("name", ["ep", "fsdp-tp", "hsdp", "pp-fsdp", "tp"])
def test_collectives_are_those_of_the_trace_with_its_profile(name: str) -> None:
    """The execution traces of recorded runs alone, and with the profiles of their ranks."""
    every = sorted((GLOO / name).glob("rank*.json.gz"))
    alone = untimed(*(each for each in every if each.name.endswith(".et.json.gz")))
    both = RunFiles.of(every).read()
    assert isinstance(both, MeasuredRun) and alone.ranks.keys() == both.ranks.keys()
    assert Counter(map(str, map(sent, alone.ranks.values()))) == Counter(map(str, map(sent, both.ranks.values())))


def test_nodes_of_chakra_without_durations_keep_order_and_dependencies(store: Store, tmp_path: Path) -> None:
    for rank in range(2):
        write(
            tmp_path / f"job.{rank}.json",
            node(4, "mm", 4, 0, data_deps=[2], is_cpu_op=False),
            node(2, "embedding", 4, 0, is_cpu_op=False),
            node(9, "reduce", 7, 0, ctrl_deps=[4], is_cpu_op=False, comm_type=0, comm_size=64, pg_name="1"),
            node(11, "launch", 4, 0, data_deps=[9, 2], is_cpu_op=True),
        )
    db = Stagedb(store)
    run = db.import_run(*sorted(tmp_path.glob("job.*.json")), name="mine")
    assert (run.step, run.ops, run.tool, run.world) == (None, 8, "chakra", 2)
    found = rows(
        db,
        "MATCH (:Run {id: $run})-[:HAS_LANE]->()-[:HAS_OP_TIME]->(o) OPTIONAL MATCH (o)-[:DEPENDS_ON]->(p) "
        "WITH o, p ORDER BY p.index RETURN o.index AS i, o.name AS n, o.kind AS k, o.processor AS d, o.message AS b, "
        "collect(p.index) AS p ORDER BY i",
    )
    assert [each[1] for each in found] == ["embedding", "mm", "reduce", "launch"]
    assert [each[5] for each in found] == [[], [0], [1], [0, 2]]
    assert [(each[2], each[3], each[4]) for each in found][1:] == [
        ("matmul", "device", 0), ("all_reduce", "device", 64), ("other", "host", 0)
    ]  # fmt: skip
    assert checking.check(store, lambda line: None) == ()


def test_traces_of_a_plan_are_a_run_with_their_nodes_and_bytes(store: Store, tmp_path: Path) -> None:
    """What a plan sends is what its traces send, rank by rank, through a file in between."""
    db = Stagedb(store)
    done = db.export(model=CARD, tp=2, dp=2, ranks=4, seq_len=64, global_batch_size=4, out=tmp_path / "set")
    run = db.import_run(tmp_path / "set", name="mine")
    assert (run.step, run.ops, run.job_ranks) == (None, done.nodes, 4)
    planned: Counter[str] = Counter()
    for each in db.query("bytes_by_axis"):
        planned[each["kind"]] += each["bytes"]
    seen: Counter[str] = Counter()
    for each in db.query("collectives_by_group", run="mine"):
        seen[each["kind"]] += each["bytes"]
    assert seen == planned and seen.total() > 0
    assert done.instance is not None
    found = db.match("mine", done.instance.id)
    assert (found.matched, found.changed, found.missing, found.extra) == (found.planned, 0, 0, 0)
    # A trace of Chakra counts bytes, and not elements of a type.
    assert found.planned > 100 and {each["finding"] for each in db.query("run_against_plan", run="mine")} == {"format"}
    with pytest.raises(UsageError, match="does not follow from its files, which have no times: name an instance"):
        db.match("mine")


def test_files_that_are_no_run_without_times_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    timed = write(tmp_path / "mixed" / "b.0.json", node(1, "mm"))
    other = write(tmp_path / "mixed" / "b.1.json", node(1, "mm", took=0))
    with pytest.raises(
        TraceFileError, match=r"b\.1\.json has no node with a duration, and others of its set have some"
    ):
        untimed(timed, other)
    nothing = CallTree()
    nothing.add(f"{PROFILER}process]", 1, scope=ANNOTATION)
    with pytest.raises(TraceFileError, match=r"empty\.json has no operator"):
        untimed(nothing.write(tmp_path / "empty.json"))
    with pytest.raises(UsageError, match="two of the traces are of rank 0"):
        untimed(linear_step(0).write(tmp_path / "one.json"), linear_step(0, width=4).write(tmp_path / "two.json"))
    with pytest.raises(UsageError, match="has no profiler trace of its rank"):
        RunFiles.of([training_step(0).write(tmp_path), linear_step(0).write(tmp_path / "et.json")]).read()
