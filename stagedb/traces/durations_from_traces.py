"""Durations from Chakra traces: of a run, the mean of each node's name; of a profile, the exact values."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import is_directory
from stagedb.mentions import Word
from stagedb.systems.measured_durations import Durations, Measured
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoding import op_name
from stagedb.traces.trace_reading import NodeTime, node_times

SIZES = ("flops", "bytes", "message")

DISTINGUISHED_BY = ((), SIZES, (*SIZES, "rank"))
"""Fields that separate nodes of one name whose exact durations differ."""


@dataclass(frozen=True)
class _AlikeNodes:
    """Nodes of one name with equal values in all fields of a row of measured durations. `exact`: in whole ns."""

    flops: int | None
    bytes: int | None
    message: int | None
    rank: int | None
    exact: bool


@dataclass
class _Spent:
    """Durations of nodes, in ns."""

    total: int = 0
    count: int = 0
    least: int | None = None
    most: int = 0

    def add(self, other: "_Spent") -> None:
        self.total += other.total
        self.count += other.count
        self.most = max(self.most, other.most)
        if self.least is None or (other.least is not None and other.least < self.least):
            self.least = other.least


def trace_durations(path: Path) -> Durations:
    """The durations of the nodes of each name, in one trace (`.et`, also gzipped) or all of a directory.

    Measured durations are averaged. Nodes with exact durations are separated by sizes, and by ranks, if the durations
    differ. Nodes without a duration are left out. UsageError if no node has one, or if nodes represent several
    operators; TraceError for a file that is no trace.
    """
    files = sorted(path.glob("*.et")) if is_directory(path) else [path]
    if not files:
        raise UsageError(f"{path} has no traces (*.et)")
    spent: dict[str, dict[_AlikeNodes, _Spent]] = defaultdict(lambda: defaultdict(_Spent))
    for file in files:
        for node in node_times(file):
            ns = node.micros * 1000 if node.ns is None else node.ns
            # Receives take no time of their own, and a duration of 0 alone means unknown.
            if ns or (node.ns is not None and node.type != pb.COMM_RECV_NODE):
                if node.recorded.get("kind") == "block" and node.ns is not None:
                    raise UsageError(
                        f"{file}: node {node.name} holds several operators without their durations: export with "
                        f"{Word('granularity', 'op')}"
                    )
                spent[op_name(node.name, node.type)][_alike_of(node)].add(_Spent(ns, 1, ns, ns))
    if not spent:
        raise UsageError(
            f"no node of {path} has a duration (duration_micros): only traces of a run, or of `export "
            f"{Word('profile')}`, have"
        )
    return Durations(row for name, of_name in spent.items() for row in _rows(path, name, of_name))


def _alike_of(node: NodeTime) -> _AlikeNodes:
    """Sizes of 0 are written as 1, which readers require."""
    sizes = (node.recorded.get(name) for name in ("num_ops", "tensor_size"))
    flops, bytes_ = (None if node.type != pb.COMP_NODE else 0 if each == 1 else each for each in sizes)
    message = None if node.type == pb.COMP_NODE else node.recorded.get("comm_size")
    return _AlikeNodes(flops, bytes_, message, node.rank, node.ns is not None)


def _rows(path: Path, name: str, spent: Mapping[_AlikeNodes, _Spent]) -> Iterator[Measured]:
    for fields in DISTINGUISHED_BY if all(nodes.exact for nodes in spent) else DISTINGUISHED_BY[:1]:
        spent_by: dict[tuple[int | None, ...], _Spent] = defaultdict(_Spent)
        for nodes, durations in spent.items():
            spent_by[tuple(getattr(nodes, field) for field in fields)].add(durations)
        if all(durations.least == durations.most for durations in spent_by.values()):
            break
    for values, durations in spent_by.items():
        recorded = dict(zip(fields, values, strict=True))
        flops, bytes_, message, rank = (recorded.get(field) for field in (*SIZES, "rank"))
        where = f"{path}, node {name}" + ("" if rank is None else f" of rank {rank}")
        yield Measured(where, Fraction(durations.total, durations.count), name, None, flops, bytes_, message, rank)
