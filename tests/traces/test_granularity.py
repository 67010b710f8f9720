"""Coarser traces: what is computed between two communications is one node, and nothing else changes."""

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.lowering.issue_order import sequence
from stagedb.traces import TraceColumns, read_trace, validate_traces
from stagedb.traces import chakra_pb2 as pb
from tests.sampling import examples
from tests.traces.synthetic import workload
from tests.traces.written import export_workload


def messages(trace: TraceColumns) -> list[tuple[object, ...]]:
    """What a rank communicates, in issue order."""
    names = ("comm_type", "comm_size", "pg_name", "comm_src", "comm_dst", "comm_tag", "kind", "axis", "phase")
    return [
        tuple(trace.attributes[name][row] for name in names)
        for row in range(len(trace))
        if trace.types[row] != pb.COMP_NODE
    ]


def work(trace: TraceColumns, name: str) -> dict[str, int]:
    """Sums of an attribute over what a rank computes, by phase. 1 represents nothing."""
    sums: dict[str, int] = {}
    for row in range(len(trace)):
        if trace.types[row] == pb.COMP_NODE:
            phase = trace.attributes["phase"][row]
            sums[phase] = sums.get(phase, 0) + (trace.attributes[name][row] & ~1)
    return sums


@settings(max_examples=examples(15), deadline=None)
@given(
    st.sampled_from([1, 2]),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["gpipe", "1f1b"]),
)
def test_blocks_run_and_add_up(tp: int, dp: int, pp: int, microbatches: int, schedule: str) -> None:
    made = workload(tp=tp, dp=dp, pp=pp, microbatches=microbatches, schedule=schedule)
    with TemporaryDirectory() as scratch:
        fine, coarse = Path(scratch) / "fine", Path(scratch) / "coarse"
        export_workload(made, fine)
        export_workload(made, coarse, granularity="block")
        report = validate_traces(coarse)
        assert report.faults == ()
        assert report.replayed
        for rank in range(tp * dp * pp):
            one, other = (read_trace(directory / f"tiny.{rank}.et") for directory in (fine, coarse))
            assert messages(one) == messages(other)
            assert work(one, "num_ops") == work(other, "num_ops")
            assert work(one, "tensor_size") == work(other, "tensor_size")
            assert len(other) < len(one)
            kinds = [
                (other.types[row], other.attributes["phase"][row], other.names[row].split(" ")[0])
                for row in range(len(other))
            ]
            assert len(kinds) == len(other)


def test_nothing_is_computed_in_two_nodes_in_a_row(tmp_path: Path) -> None:
    export_workload(workload(tp=1, dp=2, pp=1, microbatches=1), tmp_path / "coarse", granularity="block")
    trace = read_trace(tmp_path / "coarse" / "tiny.0.et")
    shown = [name.removesuffix(" COMP_NODE") for name, kind in zip(trace.names, trace.types, strict=True)]
    assert shown == [
        "embedding .. loss",
        "loss.grad .. layer.1.mm.grad_x",
        "bucket.1 COMM_COLL_NODE",
        "layer.0.mm.grad_w .. layer.0.mm.grad_x",
        "bucket.0 COMM_COLL_NODE",
        "embedding.grad",
        "step.0 .. step.3",
    ]


def test_a_block_has_a_value_in_every_column() -> None:
    for columns in workload(tp=2, dp=2, pp=2).classes:
        ops = sequence(columns, "block").ops
        assert len(ops) > len(columns.ops)
        lengths = {each.name: len(getattr(ops, each.name)) for each in dataclasses.fields(ops)}
        assert lengths == dict.fromkeys(lengths, len(ops))


def test_an_unknown_granularity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--granularity is op or block"):
        export_workload(workload(), tmp_path / "traces", granularity="layer")
