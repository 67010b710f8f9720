"""`stagedb import`: a run from files into the store, and what to ask it."""

import json
from pathlib import Path
from typing import Any

from tests.runs.recordings import step


def test_a_run_is_imported_and_asked(run: Any, tmp_path: Path) -> None:
    paths = [str(step(rank, 2, late=4_000 * rank).write(tmp_path, compress=True)) for rank in range(2)]
    found = run("import", *paths, "--name", "base")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith("run ") and lines[0].endswith(" base: 2 ranks, 1 step, 6 ops, 0.065 ms")
    assert lines[1:] == [
        "a rank computes or copies 46.2%, only communicates 50.8%, does nothing 3.1% of the time",
        "critical path: waits for launches 6.1% of the time, and for what was not recorded 0.0%",
        "next: stagedb query hotspots --run base",
    ]
    again = run("import", str(tmp_path))
    assert again.out.splitlines()[0] == f"{lines[0]} (there already)"
    hotspots = json.loads(run("query", "hotspots", "--run", "base", "-f", "json").out)
    assert [(row["kind"], row["ranks"]) for row in hotspots] == [("all_reduce", 2)]
    late = json.loads(run("query", "late-ranks", "--run", "base", "-f", "json").out)
    assert [(row["rank"], row["waited"]) for row in late] == [(1, 4_000)]
    (row,) = json.loads(run("ls", "runs", "-f", "json").out)
    assert (row["name"], row["ranks"], row["plan"]) == ("base", 2, "2 ranks, 1 step, 6 ops")
    assert "kind" in run("show", "base").out


def test_what_was_left_out_is_named(run: Any, tmp_path: Path) -> None:
    recording = step(0, 1)
    recording.events.insert(2, {"ph": 5})
    found = run("import", str(recording.write(tmp_path)))
    assert found.status == 0 and "left out: rank 0: event 2: " in found.err


def test_a_damaged_file_is_refused_with_its_name_and_the_byte(run: Any, tmp_path: Path) -> None:
    path = step(0).write(tmp_path)
    path.write_bytes(path.read_bytes()[:-300])
    found = run("import", str(path))
    assert found.status == 2 and "rank0.json cannot be imported: it ends in its list of events, at byte" in found.err
