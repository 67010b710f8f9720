"""Durations of a run's Chakra traces: the mean of what nodes of one name took."""

from fractions import Fraction
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.export import chakra_pb2 as pb
from stagedb.export.measured import trace_durations
from stagedb.export.reading import TraceError
from stagedb.systems import Subject, Timed


def trace(path: Path, *nodes: tuple[str, int]) -> Path:
    messages = [pb.GlobalMetadata(version="0.0.4").SerializeToString()]
    for number, (name, micros) in enumerate(nodes, 1):
        messages.append(pb.Node(id=number, name=name, duration_micros=micros).SerializeToString())
    assert all(len(each) < 128 for each in messages)
    path.write_bytes(b"".join(bytes([len(each)]) + each for each in messages))
    return path


def test_a_name_takes_the_mean_of_its_nodes(tmp_path: Path) -> None:
    trace(tmp_path / "run.0.et", ("mm", 3), ("mm", 4), ("norm", 1), ("view", 0))
    trace(tmp_path / "run.1.et", ("mm", 6))
    durations = trace_durations(tmp_path)
    assert {row.name: row.ns for row in durations.rows} == {"mm": Fraction(13_000, 3), "norm": 1000}
    assert durations.time(Subject("mm", "matmul", 5), Timed(1, "ring")).ns == 4333
    assert {row.name: row.ns for row in trace_durations(tmp_path / "run.0.et").rows}["mm"] == 3500


def test_traces_that_were_not_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no node of .*made.et has a duration"):
        trace_durations(trace(tmp_path / "made.et", ("mm", 0)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no traces"):
        trace_durations(tmp_path / "empty")
    (tmp_path / "bad.et").write_bytes(b"\xff\xff")
    with pytest.raises(TraceError, match=r"bad.et: no message length"):
        trace_durations(tmp_path / "bad.et")
