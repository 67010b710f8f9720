"""Files read on several cores, ranks and parts of a rank: the same ranks, in the same order, with the same errors."""

import gzip
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts._fuzz_hostile import changed, damaged
from stagedb.errors import StagedbError, UsageError
from stagedb.runs import RankTrace, event_stream, kineto, trace_files
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.kineto import file_digest, read_kineto
from stagedb.runs.trace_files import TraceReading, read_trace, read_traces
from tests.runs.recordings import Recording, training_step

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

    def elsewhere(path: Path, digest: str, processes: int) -> list[RankTrace]:
        assert os.getpid() != own and processes == 1
        return read_trace(path, digest, processes=processes)

    monkeypatch.setattr(trace_files, "read_trace", elsewhere)
    monkeypatch.setattr(trace_files, "LARGE", 0)
    monkeypatch.setattr(trace_files, "usable_cores", lambda: 2)
    found = read_traces(profiles(TRACES), TraceReading(reported.append))
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
    monkeypatch.setattr(trace_files, "read_trace", lambda *given, processes: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(StagedbError, match=r"for .*json\.gz ended with signal SIGKILL.*nothing was written"):
        read_traces(profiles(TRACES))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Other processes read what follows the first few events. Returns the events of each piece that they read."""
    monkeypatch.setattr(event_stream, "PIECE", 3_000)
    monkeypatch.setattr(kineto, "LARGE_TEXT", 0)
    found, whole = list[int](), kineto._Reading.add

    def add(reading: kineto._Reading, more: kineto._Reading) -> None:
        found.append(more.events.total())
        whole(reading, more)

    monkeypatch.setattr(kineto._Reading, "add", add)
    return found


def long_recording() -> Recording:
    """Two steps with all that is read of a file: modules, memory, records of collectives, calls of gloo, an MTIA."""
    found = training_step(1)
    for number in range(60):
        at = 5_000 + 2_000 * number
        found.span("python_function", f"nn.Module: Layer_{number % 3}" if number % 2 else "x.py(3): f", at, 1_500)
        found.allocated(at, 4_096, 4_096 * (number + 1))
        found.allocated(at + 3, 512, None, None, thread=number % 4)
        found.span("mtia_ccp_events", "dma x" if number % 3 else "pe", at, 400, (0, 3), correlation=str(number))
        asked: dict[str, Any] = {"Record function id": 2 * number}
        group: dict[str, Any] = {"Seq": number, "Process Group Ranks": [0, "1"], "Group size": 2}
        more: dict[str, Any] = {"Input Dims": [[number % 7, 2], []], "Sequence number": number, **asked}
        found.span(
            "cpu_op", "record_param_comms", at, 200, (1, number % 3), **{"Collective name": "send"}, **group, **more
        )
        found.span("cpu_op", "c10d::allreduce_", at, 300, **asked)
        found.span("user_annotation", "gloo:all_reduce", at + 500, 900, (1, 9), **asked)
    return found


@pytest.mark.parametrize("shift", (0, 1_712_195_495_997_093_217), ids=("floats", "decimals"))
@pytest.mark.parametrize("compressed", (False, True), ids=("plain", "gzip"))
def test_several_processes_read_the_pieces_of_one_file(
    shift: int, compressed: bool, tmp_path: Path, small_pieces: list[int]
) -> None:
    recording = long_recording()
    recording.shift = shift
    path = recording.write(tmp_path, compressed)
    alone = read_kineto(path, "0" * 64, processes=1)
    assert small_pieces == []
    reported = list[int]()
    assert columns(read_kineto(path, "0" * 64, reported.append, processes=3)) == columns(alone)
    assert sum(small_pieces) > 0.8 * sum(alone.events.values()) and len(small_pieces) > 20
    assert reported == sorted(reported) and reported[-1] == path.stat().st_size


def test_pieces_with_what_is_left_out_are_read_here(tmp_path: Path, small_pieces: list[int]) -> None:
    whole = json.loads(long_recording().text())
    # An event of no form, one without a time, and a text that looks like the end of a piece.
    for place, harm in ((200, {"ph": 5}), (350, {"dur": -1}), (400, {"name": 'a}, {"'})):
        whole["traceEvents"][place] |= harm
    path = tmp_path / "t.json"
    path.write_text(json.dumps(whole))
    alone = read_kineto(path, "0" * 64, processes=1)
    assert [each.partition(":")[0] for each in alone.left_out] == ["event 200", "event 350"]
    assert columns(read_kineto(path, "0" * 64, processes=2)) == columns(alone)
    assert len(small_pieces) > 10


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_refused_or_read_as_by_one_process(
    seed: int, tmp_path: Path, small_pieces: list[int]
) -> None:
    rng, text = random.Random(seed), training_step(0).text()
    path = tmp_path / "t.json"
    path.write_bytes(damaged(rng, text.encode()) if seed % 2 else json.dumps(changed(rng, json.loads(text))).encode())
    found = []
    for processes in (1, 2):
        try:
            found.append(repr(columns(read_kineto(path, "0" * 64, processes=processes))))
        except UsageError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_a_process_that_is_killed_among_pieces_is_an_error(
    tmp_path: Path, small_pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "_plain", lambda *given: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(StagedbError, match=r"for .*json ended with signal SIGKILL.*nothing was written"):
        read_kineto(long_recording().write(tmp_path), "0" * 64, processes=2)


def test_a_small_file_is_read_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "copies", None)
    assert len(read_kineto(TRACES[0], "0" * 64, processes=2).ops)
