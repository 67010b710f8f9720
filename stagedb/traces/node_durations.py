"""Durations of the nodes of traces: by parts of rank classes for new ones, and read from those of runs.

The ops of a class take equally long on the ranks of a lane, and usually on several lanes. A class is divided into parts
of lanes with equal durations, and each part is encoded once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import is_directory
from stagedb.lowering.columns import SEND, ClassColumns, Workload
from stagedb.lowering.engine_pairs import EnginePair
from stagedb.mentions import Word
from stagedb.systems import Costs, Transfer
from stagedb.systems.measured_durations import Durations, Measured
from stagedb.systems.system import System
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoding import op_name
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.trace_reading import NodeTime, node_times


@dataclass(frozen=True)
class RankPart:
    """Ranks of a class whose ops take equally long.

    lanes: of the profile. ranks: those of the lanes. ns: the duration of each op of the class. Without a profile the
    part is the whole class, with no lanes and no ns.
    """

    lanes: tuple[int, ...]
    ranks: Ints
    ns: Ints | None = None


@dataclass(frozen=True)
class NodeTiming:
    """The durations of an instance's traces from a profile. parts: those of each class, by its number. step: ns."""

    profile: str
    system: System
    step: int
    parts: Mapping[int, tuple[RankPart, ...]]

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's facts of the profile."""
        return {"id": self.profile, "system": self.system.name, "step": self.step}


def window_timing(timings: Sequence[NodeTiming], steps: Sequence[Workload], window: Workload) -> NodeTiming:
    """The durations of a window, whose ops are those of its steps one after another, and the tokens that stages send.

    timings: those of each step, on one system. window: of `stagedb.lowering.windows`. A part has ranks that are in one
    part of every step, and its own number in place of lanes. Over stages a step begins before the one before has ended,
    so that the window has a time of its own.
    """
    if len(timings) == 1:
        return timings[0]
    system = timings[0].system
    costs = Costs(system, len(window.ranks))
    parts: dict[int, tuple[RankPart, ...]] = {}
    numbered = 0
    for columns in window.classes:
        ranks = np.flatnonzero(window.ranks.number == columns.number)
        own = [timing.parts[int(step.ranks.number[ranks[0]])] for timing, step in zip(timings, steps, strict=True)]
        places = np.stack([_places(each, ranks) for each in own], axis=1)
        sent = np.array([_tokens(window, columns, rank, costs, steps) for rank in ranks.tolist()], np.int64)
        distinct, part_of = np.unique(np.concatenate([places, sent], axis=1), axis=0, return_inverse=True)
        made = []
        for at, place in enumerate(distinct.tolist()):
            ns = [parts_of[part].ns for parts_of, part in zip(own, place, strict=False)]
            more = np.array(place[len(own) :], np.int64)
            durations = np.concatenate([*(each for each in ns if each is not None), more])
            made.append(RankPart((numbered,), ranks[part_of.reshape(-1) == at], durations))
            numbered += 1
        parts[columns.number] = tuple(sorted(made, key=lambda part: int(part.ranks[0])))
    digest = hashlib.sha256("+".join(each.profile for each in timings).encode()).hexdigest()
    step = sum(each.step for each in timings)
    if int(window.plan["pp"]) > 1:
        step = _step(window, parts, system)
    return NodeTiming(digest[: len(timings[0].profile)], system, step, parts)


def _tokens(window: Workload, columns: ClassColumns, rank: int, costs: Costs, steps: Sequence[Workload]) -> list[int]:
    """The ns of each message with tokens of a rank. Those that arrive take no time of their own."""
    ops, before = columns.ops, sum(len(step.class_of(rank).ops) for step in steps)
    found = []
    for row in range(before, len(ops)):
        target = int((window.ranks.next if ops.towards[row] > 0 else window.ranks.previous)[rank])
        transfer = Transfer(int(ops.size[row]), rank, target)
        found.append(costs.transfer(transfer).ns if ops.type[row] == SEND else 0)
    return found


def _step(window: Workload, parts: Mapping[int, tuple[RankPart, ...]], system: System) -> int:
    """The ns of a window with these durations, whose stages work on several steps at a time."""
    # Most exports need no timeline, and start sooner without these modules.
    from stagedb.timing.node_graph import node_graph_of
    from stagedb.timing.timeline import step_length

    network = node_graph_of(window, system.overlap.streams, system.network(len(window.ranks)))
    durations = []
    for lane in network.lanes:
        (ns,) = [part.ns for part in parts[lane.rank_class] if lane.rank in part.ranks]
        durations.append(np.zeros(0, np.int64) if ns is None else ns)
    return step_length(network, durations, system.overlap.compute)


def pair_timing(timings: Sequence[NodeTiming], pair: EnginePair) -> NodeTiming:
    """The durations of two engines and of the caches between them, each over the link between its two ranks.

    timings: those of both sides, on one system. The step is that of both sides one after another, without the caches.
    Raises UsageError if the network has no place for all ranks.
    """
    system, made = timings[0].system, pair.workload
    costs = Costs(system, len(made.ranks))
    parts: dict[int, tuple[RankPart, ...]] = {}
    numbered = 0
    for columns, (side, number) in zip(made.classes, pair.classes, strict=True):
        ranks = np.flatnonzero(made.ranks.number == columns.number)
        own = timings[side].parts[number]
        by_time: dict[tuple[int, ...], list[int]] = {}
        for rank, place in zip(ranks.tolist(), _places(own, ranks - pair.first_rank(side)).tolist(), strict=True):
            by_time.setdefault((place, *_sent(made, columns, rank, costs)), []).append(rank)
        rank_parts = []
        for (place, *sent), members in by_time.items():
            before = own[place].ns
            every = np.concatenate([*([] if before is None else [before]), np.array(sent, np.int64)])
            rank_parts.append(RankPart((numbered,), np.array(members, np.int64), every))
            numbered += 1
        parts[columns.number] = tuple(rank_parts)
    digest = hashlib.sha256("+".join(timing.profile for timing in timings).encode()).hexdigest()
    step = sum(timing.step for timing in timings)
    return NodeTiming(digest[: len(timings[0].profile)], system, step, parts)


def _sent(pair: Workload, columns: ClassColumns, rank: int, costs: Costs) -> Iterator[int]:
    """The ns of each message with caches of a rank. Those that arrive take no time of their own."""
    ops = columns.ops
    for row in np.flatnonzero(ops.handed).tolist():
        target = int(pair.ranks.others[rank, ops.peer[row]])
        yield costs.transfer(Transfer(int(ops.size[row]), rank, target)).ns if ops.type[row] == SEND else 0


def _places(parts: Sequence[RankPart], ranks: Ints) -> Ints:
    """For each of some ranks of a class, the place of its part among those of the class."""
    places = np.zeros(len(ranks), np.int64)
    for place, part in enumerate(parts):
        places[np.isin(ranks, part.ranks)] = place
    return places


# Durations from Chakra traces: of a run, the mean of each node's name; of a profile, the exact values.

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
