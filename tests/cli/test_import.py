"""`stagedb import`: a run from files into the store, and what to ask it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from stagedb import connect
from stagedb.store import current_user
from tests.runs.execution_traces import linear_step
from tests.runs.recordings import step, training_step


def test_a_run_is_imported_and_asked(run: Any, tmp_path: Path) -> None:
    paths = [str(step(rank, 2, late=4_000 * rank).write(tmp_path, compress=True)) for rank in range(2)]
    found = run("import", *paths, "--name", "base")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("run ") and lines[0].endswith(" base: 2 ranks, 1 step, 6 ops, 0.065 ms")
    assert lines[1:] == [
        "clocks: up to 0 ns apart, aligned to within 0 ns by 1 or more collectives",
        "a rank computes or copies 46.2%, only communicates 50.8%, does nothing 3.1% of the time",
        "on the critical path: waits for the host to launch 6.1%, other gaps 0.0% of the time",
        "next: stagedb query late_ranks --run base",
    ]
    again = run("import", str(tmp_path))
    assert again.out.splitlines()[0] == f"{lines[0]} (there already)"
    hotspots = json.loads(run("query", "hotspots", "--run", "base", "-f", "json").out)
    assert [(row["kind"], row["ranks"]) for row in hotspots] == [("all_reduce", 2)]
    late = json.loads(run("query", "late-ranks", "--run", "base", "-f", "json").out)
    assert [(row["rank"], row["waited"]) for row in late] == [(1, 4_000)]
    (row,) = json.loads(run("ls", "runs", "-f", "json").out)
    assert (row["name"], row["ranks"], row["plan"]) == ("base", 2, "2 ranks, 1 step, 6 ops")
    shown = dict(line.split(None, 1) for line in run("show", "base").out.splitlines() if " " in line)
    assert (shown["step"], shown["busy"], shown["launching"]) == ("65 us", "30 us", "3.99 us")
    assert "left_out" not in shown and "notes" not in shown  # rows without a value
    exact = {row["property"]: row["value"] for row in json.loads(run("show", "base", "-f", "json").out)}
    assert (exact["step"], exact["busy"], exact["launching"]) == (65_000, 30_000, 3_990)
    assert exact["left_out"] == []


def test_a_run_without_times_is_imported_and_asked(run: Any, tmp_path: Path) -> None:
    paths = [str(linear_step(rank, 3).write(tmp_path / f"rank{rank}.et.json")) for rank in range(2)]
    found = run("import", *paths, "--name", "order")
    assert found.status == 0 and "2 of 3 ranks" in found.out and "1 of 3 ranks were not imported\n" in found.err
    assert found.out.splitlines()[1:] == [
        "its files have no times: import the profiler's traces of the same ranks for questions about time",
        "next: stagedb query collectives_by_group --run order",
    ]
    for command in re.findall(r"stagedb (query [^`]+)`", run("show", "order").err):
        assert run(*command.split()).status == 0
    (counted,) = json.loads(run("query", "collectives-by-group", "--run", "order", "-f", "json").out)
    assert (counted["calls"], counted["bytes"]) == (2, 384)
    for words in (("query", "hotspots", "--run", "order"), ("replay", "order"), ("report", "--run", "order")):
        refused = run(*words)
        assert refused.status == 2 and "`stagedb query ops_by_module --run order`" in refused.err, words


def test_a_run_of_several_steps_has_the_time_of_one(run: Any, tmp_path: Path) -> None:
    step(0, 1).write(tmp_path)
    run("import", str(tmp_path), "--name", "base")
    with connect() as db:
        (info,) = db.runs()
    assert str(replace(info, steps=5, step=12_500_000)).endswith(" 5 steps, 3 ops, 12.500 ms (2.500 ms a step)")
    assert str(replace(info, steps=1, step=12_500_000)).endswith(" 1 step, 3 ops, 12.500 ms")


def test_a_run_where_an_instance_is_wanted_leads_to_what_takes_it(run: Any, tmp_path: Path) -> None:
    step(0, 1).write(tmp_path)
    run("import", str(tmp_path), "--name", "base")
    refused = run("report", "base", "--out", str(tmp_path / "page.html"))
    assert refused.status == 2 and "`stagedb report`" in refused.err and "with --run " in refused.err
    assert run("report", "--run", "base", "--out", str(tmp_path / "page.html")).status == 0


def test_a_run_that_is_there_has_a_new_name_next_to_its_old_one(run: Any, tmp_path: Path) -> None:
    step(0, 1).write(tmp_path)
    run("import", str(tmp_path), "--name", "zebra")
    first, renamed, *_, following = run("import", str(tmp_path), "--name", "other").out.splitlines()
    assert " other: 1 rank, " in first and first.endswith("(there already)")
    assert following.endswith(" --run other")
    old, new = (f"{current_user()}/{name}" for name in ("zebra", "other"))
    assert renamed == (
        f"these files were imported before: the run is {old}, and now {new} too. `stagedb rm {old}` takes off the "
        "earlier name, and the run stays"
    )
    assert f"stays ({new})" in run("rm", old).out
    again = run("import", str(tmp_path), "--name", "other").out.splitlines()
    assert again[0] == first and "imported before" not in again[1]


def test_execution_traces_are_imported_with_their_profiles(run: Any) -> None:
    folder = Path(__file__).parents[1] / "runs" / "gloo" / "fsdp-sleep"
    first = run("import", str(folder), "--name", "base")
    assert first.status == 0, first.err
    assert run("import", str(folder)).out.splitlines()[0] == f"{first.out.splitlines()[0]} (there already)"
    late = json.loads(run("query", "late-ranks", "--run", "base", "-f", "json").out)
    assert late[0]["rank"] == 2


def test_what_was_left_out_is_named(run: Any, tmp_path: Path) -> None:
    recording = step(0, 1)
    recording.events.insert(2, {"ph": 5})
    found = run("import", str(recording.write(tmp_path)))
    assert found.status == 0 and "left out: rank 0: event 2: " in found.err


def test_ranks_that_are_absent_are_named(run: Any, tmp_path: Path) -> None:
    found = run("import", str(step(1, 4).write(tmp_path)))
    assert "3 of 4 ranks were not imported: waiting for them counts as communicating" in found.err


def test_clocks_are_aligned_and_the_error_is_printed(run: Any, tmp_path: Path) -> None:
    paths = [str(step(rank, 2, shift=rank * 2_000_000).write(tmp_path)) for rank in range(2)]
    found = run("import", *paths, "--name", "base")
    assert "clocks: up to 2 ms apart, aligned to within 0 ns by 1 or more collectives" in found.out
    rows = json.loads(run("query", "clocks", "--run", "base", "-f", "json").out)
    assert [(row["rank"], row["offset"], row["collectives"]) for row in rows] == [(0, 0, 0), (1, 2_000_000, 1)]


def test_a_damaged_file_is_refused_with_its_name_and_the_byte(run: Any, tmp_path: Path) -> None:
    path = step(0).write(tmp_path)
    path.write_bytes(path.read_bytes()[:-300])
    found = run("import", str(path))
    assert found.status == 2 and "rank0.json cannot be imported: it ends in its list of events, at byte" in found.err


def test_a_run_is_exported_and_timed_again(run: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    paths = [str(training_step(rank, 120_000 * (rank == 2)).write(tmp_path / "in")) for rank in range(4)]
    run("import", *paths, "--name", "base")
    found = run("export", "--run", "base", "-o", str(tmp_path / "out"))
    assert found.status == 0 and "4 traces of run " in found.out and ", replayed, in " in found.out
    assert run("validate", str(tmp_path / "out")).status == 0
    rows = json.loads(run("replay", "base", "--scale", "collective=0", "--scale", "host=0", "-f", "json").out)
    assert [row["run"] for row in rows] == ["measured", "timed again", "with the changes", "timed again without gaps"]
    assert rows[0]["ns"] == rows[1]["ns"] == 4_860_000 > rows[2]["ns"]
    table = run("replay", "base")
    assert "without gaps that no dependency explains the run is 0.4% shorter" in table.err and "4.860" in table.out


def test_a_table_that_two_runs_do_not_have_is_named(run: Any, tmp_path: Path) -> None:
    for number, name in enumerate(("before", "after")):
        (tmp_path / name).mkdir()
        run("import", str(step(0, 1, late=1_000 * number).write(tmp_path / name)), "--name", name)
    for part, of in (("memory", "a run and its plan"), ("plan", "two plans")):
        found = run("diff", "before", "after", "--show", part)
        assert f"{part} is compared between {of} only" in found.err
        assert json.loads(run("diff", "before", "after", "--show", part, "-f", "json").out)["rows"] == []
    assert "is compared between" not in run("diff", "before", "after", "--show", "work").err


def test_what_only_plans_have_is_refused_with_a_run(run: Any) -> None:
    for option, *more in (
        ("INSTANCE", "llama"),
        ("--model", "--model", "llama3-8b"),
        ("a plan", "--tp", "2"),
        ("--packed", "--packed"),
        ("--granularity", "--granularity", "block"),
        ("--only", "--only", "0"),
    ):
        found = run("export", *more, "--run", "base")
        assert found.status == 2 and f"{option} is for plans, and --run names a run that was recorded" in found.err
    for command in ("timeline", "report"):
        found = run(command, "--system", "b200", "--run", "base")
        assert found.status == 2 and "--system is for plans" in found.err
    found = run("timeline", "--format", "text", "--run", "base")
    assert found.status == 2 and "--format is for plans" in found.err


def test_a_run_is_shown_as_a_page_and_a_timeline(run: Any, tmp_path: Path) -> None:
    run("import", str(step(0, 1).write(tmp_path)), "--name", "base")
    for command, ending, where in (("report", "html", "a browser"), ("timeline", "pftrace", "ui.perfetto.dev")):
        found = run(command, "--run", "base", "-o", str(tmp_path / f"x.{ending}"))
        assert found.status == 0 and "/base (1 rank) takes 65 us" in found.out and where in found.out
