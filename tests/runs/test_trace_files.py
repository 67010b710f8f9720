"""Files of several ranks, read on several cores: the same ranks, in the same order, with the same errors."""

import gzip
import os
import signal
import sys
from pathlib import Path

import pytest

from stagedb.errors import StagedbError
from stagedb.runs import RankTrace, trace_files
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.kineto import file_digest
from stagedb.runs.trace_files import read_trace, read_traces

FOLDER = Path(__file__).parent / "gloo" / "fsdp"
TRACES = [FOLDER / f"rank{rank}.json.gz" for rank in range(4)]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process reads all files")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "LARGE", 0)
    monkeypatch.setattr(trace_files, "usable_cores", lambda: 2)


def profiles(paths: list[Path]) -> dict[str, Path]:
    return {file_digest(path): path for path in paths}


def columns(trace: RankTrace) -> dict[str, object]:
    ops = {name: column.tolist() for name, column in vars(trace.ops).items()}
    return {**vars(trace), "ops": ops, "memory": repr(trace.memory)}


def test_several_processes_read_what_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    own, reported = os.getpid(), list[int]()

    def elsewhere(path: Path, digest: str) -> list[RankTrace]:
        assert os.getpid() != own
        return read_trace(path, digest)

    monkeypatch.setattr(trace_files, "read_trace", elsewhere)
    monkeypatch.setattr(trace_files, "LARGE", 0)
    monkeypatch.setattr(trace_files, "usable_cores", lambda: 2)
    found = read_traces(profiles(TRACES), reported.append)
    monkeypatch.undo()
    assert [*map(columns, found)] == [*map(columns, read_traces(profiles(TRACES)))]
    assert len(found) == len(TRACES) > 2
    assert reported == sorted(reported) and reported[-1] == sum(path.stat().st_size for path in TRACES)


def test_small_files_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "usable_cores", lambda: 2)
    monkeypatch.setattr(trace_files, "shared", None)
    assert len(read_traces(profiles(TRACES))) == len(TRACES)


def test_a_damaged_file_is_named_as_alone(two_cores: None, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(gzip.decompress(TRACES[0].read_bytes())[:-5_000]))
    with pytest.raises(TraceFileError) as alone:
        read_trace(cut, "")
    with pytest.raises(TraceFileError) as among_others:
        read_traces(profiles([*TRACES, cut]))
    assert str(among_others.value) == str(alone.value)
    assert "cut.json.gz" in str(alone.value)


def test_a_process_that_is_killed_is_an_error(two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "read_trace", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(StagedbError, match=r"for .*json\.gz ended with signal SIGKILL.*nothing was written"):
        read_traces(profiles(TRACES))
