"""Imports of the same files at once, and imports that are killed: a run is there whole and once, or not at all."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, checking
from stagedb.errors import UsageError
from stagedb.places import embedded_home
from stagedb.runs import RankTrace, trace_files
from stagedb.store import Store, current_user
from tests.faults.meanwhile import resumed, stagedb, stopped_at
from tests.runs.recordings import training_step

RUNS = "MATCH (n) WHERE any(label IN labels(n) WHERE label STARTS WITH 'Run') RETURN count(n) AS nodes"
POINTS = (
    "read.run/of_files",
    "wrote.lifecycle/claim_run",
    "wrote.dump/make_runlane",
    "write.dump/make_runop",
    "wrote.dump/join_has_member_runcollective_runop",
    "wrote.lifecycle/set_run",
)
"""Where an import is killed: before it has the run to itself, between its writes, inside one, and before the end."""


@pytest.fixture
def traces(tmp_path: Path) -> str:
    """A directory with the traces of four ranks."""
    (tmp_path / "traces").mkdir()
    for rank in range(4):
        training_step(rank, 120_000 * (rank == 2)).write(tmp_path / "traces")
    return str(tmp_path / "traces")


def whole_run(store: Store, traces: str) -> None:
    """The store has one run, as an import without an interruption makes it."""
    db = Stagedb(store)
    (run,) = db.runs()
    assert checking.check(store, lambda line: None) == ()
    rows = [db.query(name, run=run.id).rows for name in ("critical_path", "late_ranks", "longest_operators")]
    nodes = db.query(RUNS).rows
    db.rm(run.id, force=True)
    assert db.query(RUNS).rows == ((0,),)
    again = db.import_run(Path(traces))
    assert again.new and again.id == run.id
    assert [db.query(name, run=run.id).rows for name in ("critical_path", "late_ranks", "longest_operators")] == rows
    assert db.query(RUNS).rows == nodes


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_import_shows_nothing_and_the_next_one_completes(
    store: Store, store_environment: dict[str, str], traces: str, point: str
) -> None:
    killed = stagedb(store_environment, "import", traces, "--name", "half", fault=f"{point}:kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    db = Stagedb(store)
    assert db.runs() == [] and json.loads(stagedb(store_environment, "ls", "runs", "-f", "json").stdout or "[]") == []
    with pytest.raises(UsageError):
        db.query("hotspots", run="half")
    done = stagedb(store_environment, "import", traces, "--name", "whole")
    assert done.returncode == 0, done.stderr
    assert "whole: 4 ranks" in done.stdout and "there already" not in done.stdout
    assert [run.names for run in db.runs()] == [(f"{current_user()}/whole",)]
    whole_run(store, traces)


@pytest.mark.parametrize(("point", "files"), (("import.kept:kill:2", 2), ("wrote.dump/make_runop:kill", 4)))
def test_an_import_goes_on_with_the_files_that_a_killed_one_had_not_read(
    store: Store,
    store_environment: dict[str, str],
    traces: str,
    tmp_path: Path,
    point: str,
    files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGEDB_HOME", store_environment.get("STAGEDB_HOME", str(tmp_path)))
    environment = {**store_environment, "STAGEDB_HOME": os.environ["STAGEDB_HOME"]}
    killed = stagedb(environment, "import", traces, fault=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = embedded_home() / "imports"
    assert len([*kept.iterdir()]) == files and kept.stat().st_mode & 0o077 == 0
    read, real = list[str](), trace_files.read_trace

    def read_trace(path: Path, *more: Any) -> list[RankTrace]:
        read.append(path.name)
        return real(path, *more)

    monkeypatch.setattr(trace_files, "read_trace", read_trace)
    notes = list[str]()
    run = Stagedb(store).import_run(Path(traces), notes=notes.append)
    assert read == [f"rank{rank}.json" for rank in range(files, 4)]
    assert notes == [f"{files} of 4 files were read by an import that did not end, and are not read again"]
    assert run.new and not kept.exists()
    whole_run(store, traces)


def test_an_import_waits_for_another_one_of_the_same_files(
    store: Store, store_environment: dict[str, str], traces: str
) -> None:
    first = stopped_at("wrote.dump/make_runop", ["import", traces, "--name", "one"], store_environment)
    # The second time that it looks, it has seen that the first one is at work.
    second = stopped_at("read.lifecycle/state_run:pause:2", ["import", traces, "--name", "two"], store_environment)
    assert Stagedb(store).runs() == []
    status, text = resumed(first)
    assert status == 0 and "one: 4 ranks" in text and "there already" not in text
    status, text = resumed(second)
    assert status == 0 and "two: 4 ranks" in text and "(there already)" in text
    assert f"the run is {current_user()}/one, and now {current_user()}/two too" in text
    (run,) = Stagedb(store).runs()
    assert sorted(run.names) == [f"{current_user()}/{name}" for name in ("one", "two")]
    whole_run(store, traces)


def test_of_imports_that_begin_together_one_writes(
    store: Store, store_environment: dict[str, str], traces: str
) -> None:
    """Both have read the files, and found no run."""
    processes = [
        stopped_at("read.lifecycle/state_run", ["import", traces, "--name", name], store_environment)
        for name in ("one", "two")
    ]
    for each in processes:
        each.send_signal(signal.SIGCONT)
    done = [(*each.communicate(timeout=180), each.returncode) for each in processes]
    assert [status for _, _, status in done] == [0, 0], done
    assert sorted("(there already)" in out for out, _, _ in done) == [False, True]
    whole_run(store, traces)
