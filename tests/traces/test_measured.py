"""Durations of a run's Chakra traces: the mean of what nodes of one name took."""

from fractions import Fraction
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.systems import Subject, Timed
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.node_durations import trace_durations
from stagedb.traces.trace_reading import ATTRIBUTE_FIELDS, TraceError


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


def exact(path: Path, rank: int, *nodes: tuple[str, int, int, dict[str, int]]) -> None:
    """A trace of nodes with exact durations: name, type, ns, sizes."""
    metadata = pb.GlobalMetadata(version="0.0.4")
    metadata.attr.add(name="rank", int32_val=rank)
    messages = [metadata.SerializeToString()]
    for number, (name, kind, ns, sizes) in enumerate(nodes, 1):
        node = pb.Node(id=number, name=name, type=kind, duration_micros=7)  # type: ignore[arg-type]
        for word, value in {"num_ops": 1, "tensor_size": 1, "duration_ns": ns, **sizes}.items():
            node.attr.add(name=word, **{ATTRIBUTE_FIELDS[word]: value})
        messages.append(node.SerializeToString())
    assert all(len(each) < 128 for each in messages)
    path.write_bytes(b"".join(bytes([len(each)]) + each for each in messages))


def test_exact_durations_are_distinguished_as_far_as_they_differ(tmp_path: Path) -> None:
    for rank in (0, 1):
        exact(
            tmp_path / f"run.{rank}.et",
            rank,
            ("mm COMP_NODE", pb.COMP_NODE, 1234, {"num_ops": 5}),
            ("sum COMP_NODE", pb.COMP_NODE, 10, {"tensor_size": 8}),
            ("sum COMP_NODE", pb.COMP_NODE, 20, {"tensor_size": 9}),
            ("nothing COMP_NODE", pb.COMP_NODE, 0, {}),
            ("cut COMM_SEND_NODE", pb.COMM_SEND_NODE, 30 + rank, {"comm_size": 3}),
            ("cut COMM_RECV_NODE", pb.COMM_RECV_NODE, 0, {"comm_size": 3}),
        )
    found = trace_durations(tmp_path)

    def ns(name: str, rank: int = 0, **sizes: int) -> int:
        return found.time(Subject(name, "any", **sizes, rank=rank), Timed(99, "model")).ns

    assert {row.fields for row in found.rows if row.name != "sum"} == {("name",), ("name", "message", "rank")}
    assert (ns("mm", flops=5, bytes=0), ns("mm", flops=6, bytes=6), ns("nothing")) == (1234, 1234, 0)
    assert [ns("sum", flops=0, bytes=size) for size in (8, 9, 10)] == [10, 20, 99]
    assert [ns("cut", rank, message=3) for rank in (0, 1, 2)] == [30, 31, 99]
    assert found.ranks == {0, 1}


def test_traces_that_were_not_measured_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no node of .*made.et has a duration"):
        trace_durations(trace(tmp_path / "made.et", ("mm", 0)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no traces"):
        trace_durations(tmp_path / "empty")
    (tmp_path / "bad.et").write_bytes(b"\xff\xff")
    with pytest.raises(TraceError, match=r"bad.et: no message length"):
        trace_durations(tmp_path / "bad.et")
