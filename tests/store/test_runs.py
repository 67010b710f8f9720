"""A run in the store: written once, found by its files, asked like a profile, removed, dumped and loaded."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api import checking, removing
from stagedb.api.client import Stagedb
from stagedb.api.querying import _named, short
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, current_user, load
from stagedb.store.saved_queries import of_run
from stagedb.store.statements import Statement
from tests.conftest import empty
from tests.runs.nsight_exports import two_processes, write_export
from tests.runs.recordings import Recording, step

ABOUT_RUNS = [statement for statement in map(load, _named()) if of_run(statement) is not None]


def three(directory: Path, late: int = 14_000) -> list[Path]:
    """The traces of three ranks, of which the last one is late."""
    return [step(rank, 3, rank * 1_000_000, late if rank == 2 else 0).write(directory) for rank in range(3)]


def test_a_run_is_imported_once_and_found_by_its_files(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    paths = three(tmp_path)
    made = db.import_run(*paths, name="mine")
    assert (made.new, made.names, made.world, made.job_ranks, made.steps) == (
        True,
        (f"{current_user()}/mine",),
        3,
        3,
        1,
    )
    assert (made.step, made.ops, made.busy, made.exposed, made.devices) == (65_000, 9, 30_000, 30_333, ("GPU",))
    again = db.import_run(tmp_path, name="other")
    assert (again.id, again.new, sorted(again.names)) == (
        made.id,
        False,
        [f"{current_user()}/{n}" for n in ("mine", "other")],
    )
    # A part of the files is another run.
    part = db.import_run(*paths[:2])
    assert part.id != made.id and part.world == 2 and part.job_ranks == 3
    assert {each.id for each in db.runs()} == {made.id, part.id}


def test_a_run_has_its_ops_ranks_and_collectives(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*three(tmp_path))
    ops = db.query(
        "MATCH (:Run {id: $run})-[:HAS_LANE]->(l:RunLane)-[:HAS_OP_TIME]->(o:RunOp) "
        "RETURN l.members AS members, o.kind AS kind, o.durations AS durations ORDER BY members, o.index"
    )
    assert [tuple(each.values()) for each in ops] == [
        ([0, 1, 2], "matmul", [10_000, 10_000, 10_000]),
        ([0, 1, 2], "all_reduce", [35_000, 35_000, 21_000]),
        ([0, 1, 2], "matmul", [20_000, 20_000, 20_000]),
    ]
    waits = db.query(
        "MATCH (:Run {id: $run})-[:HAS_COLLECTIVE]->(c)-[m:HAS_MEMBER]->(:RunOp) "
        "RETURN c.last AS last, m.rank AS rank, m.waits AS waits ORDER BY rank"
    )
    assert [tuple(each.values()) for each in waits] == [(2, 0, 14_000), (2, 1, 14_000), (2, 2, 0)]
    offsets = db.query("MATCH (:Run {id: $run})-[:HAS_RANK]->(r) RETURN r.offset AS offset ORDER BY r.rank")
    assert [each["offset"] for each in offsets] == [0, 1_000_000, 2_000_000]
    following = db.query(
        "MATCH (:Run {id: $run})-[:HAS_LANE]->()-[:HAS_OP_TIME]->(a)-[:NEXT]->(b) RETURN a.index AS a, b.index AS b"
    )
    assert [tuple(each.values()) for each in following] == [(0, 2)]


@pytest.mark.parametrize("statement", ABOUT_RUNS, ids=short)
def test_questions_about_profiles_are_answered_for_runs(statement: Statement, store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*three(tmp_path), name="mine")
    other: dict[str, Any] = {}
    if "other" in {field.name for field in statement.params}:
        db.import_run(*three(tmp_path, 4_000), name="other")
        other = {"other": "other"}
    answer = db.query(short(statement), other, run="mine")
    assert answer.rows and "dimension" not in answer.columns and "wire_bytes" not in answer.columns
    assert answer.units


def test_answers_about_a_run_are_those_of_its_traces(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*three(tmp_path), name="mine")
    (hotspot,) = db.query("hotspots", run="mine")
    assert (hotspot["axis"], hotspot["kind"], hotspot["ranks"], hotspot["bytes"]) == ("mesh_tp", "all_reduce", 3, 2_048)
    assert hotspot["exposed"] == hotspot["time"] == 30_333
    legs = list(db.query("critical_path", run="mine"))
    assert sum(leg["ns"] for leg in legs) == 65_000 and legs[0]["rank"] == 2
    (stage,) = db.query("bubble_by_stage", run="mine")
    assert (stage["busy"], stage["ranks"]) == (30_000, 3)
    with pytest.raises(UsageError, match=r"recording does not have; about a run: .*hotspots.*late_ranks"):
        db.query("traffic_by_link", run="mine")
    assert db.diff("mine", "mine").same
    with pytest.raises(UsageError, match=r"the query has no \$run"):
        db.query("RETURN 1 AS one", run="mine")


@pytest.mark.parametrize("query", ["hotspots", "hotspots_by_layer", "exposed_communication"])
def test_bytes_that_were_not_recorded_are_null(query: str, store: Store, tmp_path: Path) -> None:
    """A size of none is one that was recorded, a barrier has no operand, and a sum needs all sizes."""
    db = Stagedb(store)
    unknown: dict[str, Any] = {"In msg nelems": None, "Out msg nelems": None}
    for rank in range(2):
        made = Recording(rank, 2)
        for place, (kind, more) in enumerate(
            [("allreduce", {}), ("allgather", {}), ("allgather", unknown), ("reduce_scatter", unknown),
             ("all_to_all", {"In msg nelems": 0}), ("barrier", unknown)]
        ):  # fmt: skip
            made.collective(kind, 1_000 * (place + 1), 100, (0, 1), **more)
        # Ranks of two lanes.
        made.kernel("ampere_sgemm", 10_000 + rank, 500, operator=f"aten::mm{rank}")
        made.write(tmp_path)
    db.import_run(tmp_path, name="mine")
    answer = db.query(query, run="mine")
    sizes = {row["kind"]: row["bytes"] for row in answer}
    assert sizes == {
        "all_reduce": 2_048,
        "all_gather": None,
        "reduce_scatter": None,
        "all_to_all": 0,
        "barrier": 0,
    }
    assert any("ExecutionTraceObserver" in hint for hint in answer.hints)
    asked = db.query(
        "MATCH (:Run {id: $run})-[:HAS_COLLECTIVE]->(c)-[:HAS_MEMBER]->(o) "
        "RETURN c.kind AS kind, c.message AS all, o.message AS own ORDER BY c.number"
    )
    assert all(row["all"] == row["own"] for row in asked)
    assert {row["all"] for row in asked if row["kind"] == "all_gather"} == {2_048, None}
    shown = db.run_collectives("mine")
    assert {row["message"] for row in shown if row["kind"] == "reduce_scatter"} == {None}


def test_ranks_that_are_late_and_gaps_before_kernels(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    late_run = db.import_run(*three(tmp_path))
    (late,) = db.query("late_ranks")
    assert (late["rank"], late["calls"], late["waited"], late["longest"]) == (2, 1, 28_000, 14_000)
    assert late["share"] == pytest.approx(28_000 / 3 / 65_000) and late["clock_error"] == 0
    found = Recording()
    found.kernel("ampere_sgemm", 1_000, 500)
    found.kernel("ampere_sgemm", 2_500, 500, launched=2_200, operator="aten::linear")
    run = db.import_run(found.write(tmp_path))
    for name in ("module_time", "module_share"):
        assert "with_stack=True" in "".join(db.query(name, run=run.id).hints)
    (gap,) = db.query("idle_gaps", run=run.id)
    assert (gap["launcher"], gap["gaps"], gap["idle"], gap["launching"]) == ("aten::linear", 1, 1_000, 700)
    assert (run.launching, run.unexplained) == (700, 300)
    parts = [(row["kind"], row["runs"], row["ns"], row["share"]) for row in db.query("critical_breakdown", run=run.id)]
    assert parts == [("gap", 1, 1_000, 0.5), ("matmul", 2, 1_000, 0.5)]
    breakdown = db.query("critical_breakdown", run=late_run.id)
    assert sum(row["ns"] for row in breakdown) == 65_000
    assert [(row["block"], row["axis"], row["ns"]) for row in breakdown if row["kind"] == "gap"] == [("", None, 14_000)]


def test_ranks_whose_allocators_did_the_same_share_a_memory(store: Store, tmp_path: Path) -> None:
    db, paths = Stagedb(store), []
    for rank in range(3):
        found = step(rank, 3, rank * 1_000_000, 0)
        # Inside the operator of the second matmul, before its launch at 30 us; rank 1 has 2 bytes more.
        for at, total in ((200, 512), (29_999, 2_048 + 2 * (rank == 1)), (60_000, 0)):
            found.allocated(at + rank, total or -2_048, total)
        found.allocated(200, 64, 64, None)
        paths.append(found.write(tmp_path))
    db.import_run(*paths, name="mine")
    rows = db.query("run_memory", run="mine")
    assert [
        (r["place"], r["ranks"], r["peak"], r["since_begin"], r["at"], r["operator"], r["kernel"]) for r in rows
    ] == [
        ("device 0", [1], 2_050, False, 29_000, "aten::mm", "ampere_sgemm_128x64_tn"),
        ("device 0", [0, 2], 2_048, False, 28_999, "aten::mm", "ampere_sgemm_128x64_tn"),
        ("host", [0, 1, 2], 64, True, -800, None, None),
    ]
    own = db.query(
        "MATCH (:Run {id: $run})-[:HAS_LANE]->()-[:HAS_MEMORY]->(m {place: 'device 0'})-[o:OF]->(r:RunRank) "
        "RETURN r.rank AS rank, o.start AS start, m.times AS times, m.allocated AS allocated ORDER BY rank",
        run="mine",
    )
    assert [tuple(each.values()) for each in own] == [
        (0, 28_999, [-800, 28_999, 59_000], [512, 2_048, 0]),
        (1, 29_000, [-799, 29_000, 59_001], [512, 2_050, 0]),
        (2, 29_001, [-800, 28_999, 59_000], [512, 2_048, 0]),
    ]
    assert checking.check(store, lambda line: None) == ()


def test_a_run_without_allocations_has_no_memory(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    db.import_run(*three(tmp_path), name="mine")
    assert len(db.query("run_memory", run="mine")) == 0


def test_the_longest_operators_of_a_run_have_all_their_calls(store: Store, tmp_path: Path) -> None:
    """Each is one row a phase, however long its calls are, with the annotation that most of its time is in."""
    for rank in range(2):
        made = Recording(rank, 2)
        for layer, lengths in enumerate([(500, 700), (900, 100), (300, 300)]):
            made.span("user_annotation", f"layer {layer}", 10_000 * layer, 9_000)
            for place, length in enumerate(lengths):
                start = 10_000 * layer + 1_000 + 2_000 * place
                made.kernel("ampere_sgemm", start, length + rank, operator="aten::linear")
        # The second rank is a lane of its own.
        made.kernel("softmax" if rank else "elementwise", 40_000, 50)
        made.write(tmp_path)
    db = Stagedb(store)
    db.import_run(tmp_path, name="mine")
    first, *others = db.query("longest_operators", run="mine")
    assert (first["operator"], first["launcher"], first["kind"]) == ("ampere_sgemm", "aten::linear", "matmul")
    assert (first["calls"], first["total"], first["longest"]) == (6.0, 2_803, 901)
    assert (first["module"], first["modules"]) == ("layer 0", 3)
    assert sorted(each["operator"] for each in others) == ["elementwise", "softmax"]
    assert [(each["calls"], each["total"], each["module"]) for each in others] == [(0.5, 25, None)] * 2


def test_waits_have_the_error_of_the_clocks(store: Store, tmp_path: Path) -> None:
    """Members leave collectives up to 700 ns apart, so that their clocks are aligned to within that."""
    for rank, apart in enumerate([(0, 0, 0), (0, 300, 700), (0, 100, 200)]):
        made = Recording(rank, 3)
        for place, more in enumerate(apart):
            made.collective("allreduce", 100_000 * place + rank, 50_000 + more, (0, 1, 2))
        made.write(tmp_path)
    db = Stagedb(store)
    db.import_run(tmp_path, name="mine")
    spreads = [row["spread"] for row in db.query("clocks", run="mine")]
    assert {row["clock_error"] for row in db.query("late_ranks", run="mine")} == {max(spreads)} == {300}


def test_waits_within_the_error_of_the_clocks_come_last_and_are_named(store: Store, tmp_path: Path) -> None:
    """Many short waits are longer than a long one, all together, and each of them may be none."""
    for rank, (ahead, apart) in enumerate([(0, (0,) * 9), (300, (0, 300, 700) * 3), (100, (0, 100, 200) * 3)]):
        made = Recording(rank, 3)
        for place, more in enumerate(apart):
            by = 900 if (rank, place) == (1, 0) else 150 if rank == 2 else 0
            begin, end = 100_000 * place + ahead + by, 100_000 * place + 50_000 + more
            made.collective("allreduce", begin, end - begin, (0, 1, 2))
        made.write(tmp_path)
    db = Stagedb(store)
    db.import_run(tmp_path, name="mine")
    late = db.query("late_ranks", run="mine")
    assert [(row["rank"], row["certain"]) for row in late] == [(1, True), (2, False)]
    assert [row["waited"] for row in late] == [1_550, 4_000]
    assert late.hints == ("the last row has waits that are no longer than the error of the clocks: there may be none",)


def test_a_run_of_one_rank_has_nobody_who_is_late(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(three(tmp_path)[0], name="mine")
    late = db.query("late_ranks", run="mine")
    assert late.rows == () and late.hints == (
        "one rank of the run was imported, and whom others wait for needs the traces of several: import the files of "
        "all ranks together",
    )


def test_everything_that_a_store_can_do_knows_runs(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(*three(tmp_path))
    assert removing.unused(store, 0.0)[0].kind == "Run"
    db.name(run.id, "mine")
    db.tag("mine", "real")
    db.note("mine", "the first one")
    (row,) = db.ls("runs")
    assert (row["name"], row["ranks"], row["step"], row["tags"]) == ("mine", 3, 65_000, ["real"])
    assert db.show(run.id[:8]).notes == ("the first one",)
    assert {each["input"] for each in db.origin("mine")} == {"trace"}
    assert checking.check(store, lambda line: None) == ()
    assert removing.unused(store, 0.0) == []
    with pytest.raises(UsageError, match="is a run that was recorded"):
        db.query("bytes_by_axis", instance="mine")
    db.dump(tmp_path / "some.dump", "mine")
    rows = db.query("critical_path", run="mine").rows
    assert [each.id for each in db.rm("mine")] == [run.id] and db.runs() == []
    left = db.query("MATCH (n) WHERE any(l IN labels(n) WHERE l STARTS WITH 'Run') RETURN count(n) AS left")
    assert left.rows == ((0,),)
    assert db.load(tmp_path / "some.dump") == 1
    assert db.query("critical_path", run="mine").rows == rows and db.show("mine").tags == ("real",)


def test_an_export_of_nsight_is_a_run_of_its_processes(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    path = write_export(tmp_path / "job.sqlite", two_processes(late=5_000))
    run = db.import_run(path, name="nsight")
    assert (run.tool, run.world, run.job_ranks, run.ops) == ("nsight", 2, 2, 6)
    assert [row["waited"] for row in db.query("late_ranks", run="nsight")] == [5_000]
    assert not db.import_run(tmp_path).new
    assert checking.check(store, lambda line: None) == ()


def test_a_changed_run_is_found_by_the_check(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(*three(tmp_path))
    store.write_rows(
        "dump/join_next_runop_runop", [{"source": f"{run.id}/0/0", "target": f"{run.id}/0/1", "values": {}}]
    )
    (problem,) = checking.check(store, lambda line: None)
    assert (problem.label, problem.id) == ("Run", run.id) and "does not match its digest" in problem.problem


def test_names_of_files_are_kept_only_if_asked_for(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    ask = "MATCH (:Run {id: $run})-[:HAS_RANK]->(r) RETURN r.file AS file ORDER BY r.rank"
    db.import_run(*three(tmp_path))
    assert [each["file"] for each in db.query(ask)] == [None] * 3
    empty(embedded_store)
    embedded_store.migrate()
    db.import_run(*three(tmp_path), keep_names=True)
    assert [each["file"] for each in db.query(ask)] == ["rank0.json", "rank1.json", "rank2.json"]


def test_what_cannot_be_imported_changes_nothing(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    (tmp_path / "empty").mkdir()
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [{"ph": "X"')
    good = step(0).write(tmp_path)
    for paths, error in (
        ((), "name at least one trace file"),
        ((tmp_path / "empty",), "has no file that ends in"),
        ((tmp_path / "none.json",), "there is no file"),
        ((good, bad), "bad.json cannot be imported: it ends in its list of events"),
        ((good, good), "is there twice"),
    ):
        with pytest.raises(UsageError, match=error):
            db.import_run(*paths)
    assert db.runs() == []
    assert embedded_store.read("catalog/unfinished") == []


def test_an_import_that_fails_leaves_nothing(
    embedded_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Stagedb(embedded_store)
    real = Store.write_rows

    def fail(self: Store, name: str, rows: Any, /, **params: Any) -> None:
        if name == "dump/make_runleg":
            raise StagedbError("the disk is full")
        real(self, name, rows, **params)

    monkeypatch.setattr(Store, "write_rows", fail)
    with pytest.raises(StagedbError, match="the disk is full"):
        db.import_run(step(0).write(tmp_path))
    monkeypatch.undo()
    assert db.query("MATCH (n) WHERE any(l IN labels(n) WHERE l STARTS WITH 'Run') RETURN count(n) AS c").rows == (
        (0,),
    )
    assert db.import_run(step(0).write(tmp_path)).new


def test_a_long_run_is_written_in_parts(embedded_store: Store, tmp_path: Path) -> None:
    found = Recording()
    for number in range(2_500):
        found.kernel("ampere_sgemm", 1_000 * number, 900)
    reports: list[tuple[int, int, str]] = []
    db = Stagedb(embedded_store)
    run = db.import_run(found.write(tmp_path), progress=lambda done, of, what: reports.append((done, of, what)))
    assert run.ops == 2_500
    written = [each for each in reports if each[2] == "writing"]
    assert written[-1][0] == written[-1][1] > 7_000 and len(written) > 3
    assert reports[0][2] == "reading"
