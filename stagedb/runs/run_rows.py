"""A measured run as rows: its nodes and relationships, with the columns of profiles. Times are in ns from its begin.

Rows are made each time that they are iterated over, since those of a large run need more memory than its files.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, islice, pairwise
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from stagedb.runs.clocks import JointCollective, ends_of
from stagedb.runs.joined_ops import engine_iterations, step_named
from stagedb.runs.lane_rows import Edge, LaneOps, LaneRows, Node, axis_of, known, message_bytes
from stagedb.runs.measured_path import REASONS
from stagedb.runs.measured_run import FORMAT, MeasuredRun, RecordedRun
from stagedb.runs.rank_trace import NONE, AllocatedMemory, Integers, MemoryMoment, Places, rows_of
from stagedb.traces.rank_sets import format_ranks

# The critical path of a run as rows: legs, which are pieces that follow each other in one task of one rank.


@dataclass(frozen=True)
class LegRows:
    """The rows of the path. lanes: by number."""

    run: MeasuredRun
    lanes: Mapping[int, LaneRows]

    @cached_property
    def _task(self) -> Places:
        """For each piece the number of its task on its lane."""
        path = self.run.path
        found = np.empty(len(path), np.int32)
        for rank, lane in self.run.lane_of.items():
            here = path.rank == rank
            found[here] = self.lanes[lane.number].task_of(path.op[here])
        return found

    @cached_property
    def _first(self) -> Integers:
        """The places of the first pieces of the legs."""
        rank, task = self.run.path.rank, self._task
        return np.flatnonzero(np.concatenate(([True], (rank[1:] != rank[:-1]) | (task[1:] != task[:-1]))))

    @property
    def count(self) -> int:
        """The number of legs."""
        return len(self._first)

    def _id(self, number: int) -> str:
        return f"{self.run.id}/l{number}"

    def legs(self) -> Iterator[Node]:
        """The legs, from the begin of the run on."""
        path, first = self.run.path, self._first
        last = np.append(first[1:], len(path)) - 1
        start, idle = path.start[first] - path.idle[first], np.add.reduceat(path.idle, first)
        rows = rows_of(path.rank[first], start, path.end[last], idle, path.reason[first])
        for number, (rank, begin, finish, gaps, reason) in enumerate(rows):
            values = {
                "id": self._id(number),
                **self.lanes[self.run.lane_of[rank].number].place,
                "rank": rank,
                "number": number,
                "start": begin,
                "finish": finish,
                "ns": finish - begin,
                "idle": gaps,
                "reason": REASONS[reason],
            }
            yield self.run.id, values

    def first(self) -> Iterator[Edge]:
        """The edge from the run to the first leg of its critical path."""
        yield self.run.id, self._id(0), {}

    def following(self) -> Iterator[Edge]:
        """The edges from each leg to the next one."""
        return ((self._id(number), self._id(number + 1), {}) for number in range(self.count - 1))

    def tasks(self) -> Iterator[Edge]:
        """The edges from each leg to the task that it is a part of."""
        rows = rows_of(self.run.path.rank[self._first], self._task[self._first])
        for number, (rank, task) in enumerate(rows):
            yield self._id(number), f"{self.run.id}/{self.run.lane_of[rank].number}/t{task}", {}

    def ops(self) -> Iterator[Edge]:
        """The edges from each leg to the ops that it consists of."""
        path, first = self.run.path, self._first
        lengths = np.diff(np.append(first, len(path)))
        leg = np.repeat(np.arange(len(first)), lengths)
        place = np.arange(len(path)) - first[leg]
        lanes = {rank: f"{self.run.id}/{lane.number}" for rank, lane in self.run.lane_of.items()}
        for number, at, rank, op, ns in rows_of(leg, place, path.rank, path.op, path.end - path.start):
            yield self._id(number), f"{lanes[rank]}/{op}", {"number": at, "ns": ns}


# The memory of a run's ranks as rows: ranks of a lane whose allocators did the same share one.

_LONGEST_NAME = 1_000


@dataclass(frozen=True)
class SharedMemory:
    """The memory of one device or host, alike on several ranks of a lane.

    id: of its node. ranks: by the rank's number, the memory with the rank's own times.
    """

    id: str
    lane: LaneRows
    ranks: dict[int, AllocatedMemory]

    @property
    def first(self) -> tuple[int, AllocatedMemory]:
        """The first of the ranks that share the memory, and its memory."""
        return next(iter(self.ranks.items()))

    def begin(self, rank: int) -> int:
        """When the run begins by the clock of a rank, in ns since 1970."""
        return self.lane.run.begin + self.lane.run.clocks[rank].offset

    def node(self) -> Node:
        """The memory as a node, with the times of its first rank."""
        rank, memory = self.first
        peak = memory.peak
        values = {
            "id": self.id,
            **self.lane.place,
            "place": memory.place,
            "absolute": memory.absolute,
            "ranks": len(self.ranks),
            "members": list(self.ranks),
            "events": memory.events,
            "peak": peak.bytes,
            "start": peak.time - self.begin(rank),
            "step_number": memory.step,
            "phase": peak.phase,
            "operator": _name(peak),
            "module": None if self.op is None else self._module(rank, self.op),
            "reserved": memory.reserved,
            "times": (memory.time - self.begin(rank)).tolist(),
            "allocated": memory.allocated.tolist(),
        }
        return self.lane.id, known(values)

    def levels(self) -> Iterator[Node]:
        """What is held at the moments of the fullest step."""
        rank, memory = self.first
        for each in memory.moments:
            values = {
                "id": f"{self.id}/{each.moment}",
                **self.lane.place,
                "moment": each.moment,
                "bytes": each.bytes,
                "start": each.time - self.begin(rank),
                "operator": _name(each),
            }
            yield self.id, known(values)

    def owners(self) -> Iterator[Edge]:
        """The ranks whose memory it is, each with the moment of its peak."""
        for rank, memory in self.ranks.items():
            yield self.id, f"{self.lane.run.id}/r{rank}", {"start": memory.peak.time - self.begin(rank)}

    def peak_op(self) -> Iterator[Edge]:
        """The op that the peak is for."""
        if self.op is not None:
            yield self.id, f"{self.lane.id}/{self.op}", {}

    @cached_property
    def op(self) -> int | None:
        """The op of the lane that the peak is for: the first one launched by the operator that allocates.

        Without one, the op that was launched last before; None at the begin.
        """
        rank, memory = self.first
        launched, peak = self.lane.run.ranks[rank].ops.launched, memory.peak
        if not len(launched):
            return None
        after = np.where((launched >= peak.time) & (launched <= peak.until), launched, np.iinfo(np.int64).max)
        if int(after.min()) <= peak.until:
            return int(after.argmin())
        before = np.where(launched <= peak.time, launched, NONE)
        return int(before.argmax()) if int(before.max()) != NONE else None

    def _module(self, rank: int, op: int) -> str | None:
        trace = self.lane.run.ranks[rank]
        module = int(trace.ops.module[op])
        return None if module == NONE else trace.modules[module]


def _name(moment: MemoryMoment) -> str | None:
    return None if moment.operator is None else moment.operator[:_LONGEST_NAME]


def shared_memory(lane: LaneRows) -> list[SharedMemory]:
    """The memory of the ranks of a lane, one for those that have the same bytes in the same order."""
    alike: dict[tuple[object, ...], dict[int, AllocatedMemory]] = {}
    for rank in lane.lane.ranks:
        for memory in lane.run.ranks[rank].memory:
            moments = tuple((each.moment, each.bytes, each.phase, each.operator) for each in memory.moments)
            levels = memory.allocated.tobytes()
            key = memory.place, memory.absolute, memory.events, memory.reserved, memory.step, moments, levels
            alike.setdefault(key, {})[rank] = memory
    return [SharedMemory(f"{lane.id}/m{number}", lane, ranks) for number, ranks in enumerate(alike.values())]


RowT = TypeVar("RowT", Node, Edge)


@dataclass(frozen=True)
class RowSource(Generic[RowT]):
    """Rows of one kind. count: how many there are. make: begins them anew."""

    count: int
    make: Callable[[], Iterator[RowT]]

    def __iter__(self) -> Iterator[RowT]:
        return self.make()

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class RunRows:
    """Rows of a run. own: properties of its node, without its digest. nodes: by label, each as the id of the node that
    it belongs to and its properties. edges: by type, source's label and target's label, each as two ids and properties.
    """

    own: Mapping[str, Any]
    nodes: Mapping[str, RowSource[Node]]
    edges: Mapping[tuple[str, str, str], RowSource[Edge]]


def run_rows(run: MeasuredRun, files: Mapping[int, str | None]) -> RunRows:
    """The rows of a run. files: names of files by rank, where they are to be kept."""
    lanes = [LaneRows(run, lane) for lane in run.lanes]
    path = LegRows(run, {lane.lane.number: lane for lane in lanes})
    legs, members = path.count, sum(len(call.members) for call in run.calls)
    ops, tasks, following = (
        sum(getattr(lane, name) for lane in lanes) for name in ("op_count", "task_count", "next_count")
    )
    iterations = list(chain.from_iterable(_iterations(run, rank) for rank in run.ranks))
    memory = [each for lane in lanes for each in shared_memory(lane)]
    meetings = _Meetings.of(run)
    nodes = {
        "RunLane": RowSource(len(lanes), lambda: map(_lane, lanes)),
        "RunRank": RowSource(len(run.ranks), lambda: (_rank(run, rank, files.get(rank)) for rank in run.ranks)),
        "RunIteration": RowSource(len(iterations), lambda: iter(iterations)),
        "RunOp": RowSource(ops, lambda: chain.from_iterable(lane.ops() for lane in lanes)),
        "RunTask": RowSource(tasks, lambda: chain.from_iterable(lane.tasks() for lane in lanes)),
        "RunCollective": RowSource(len(run.calls), partial(_collectives, run, meetings)),
        "RunLeg": RowSource(legs, path.legs),
        "RunMemory": RowSource(len(memory), lambda: (each.node() for each in memory)),
        "RunMemoryLevel": RowSource(
            sum(len(each.first[1].moments) for each in memory),
            lambda: chain.from_iterable(each.levels() for each in memory),
        ),
    }
    edges = {
        ("IN_LANE", "RunRank", "RunLane"): RowSource(len(run.ranks), partial(in_lane, run)),
        ("NEXT_ITERATION", "RunIteration", "RunIteration"): RowSource(
            sum(one["rank"] == other["rank"] for (_, one), (_, other) in pairwise(iterations)),
            lambda: _following(iterations),
        ),
        ("NEXT", "RunOp", "RunOp"): RowSource(
            following, lambda: chain.from_iterable(each.next_ops() for each in lanes)
        ),
        ("HAS_MEMBER", "RunCollective", "RunOp"): RowSource(members, partial(_members, run, meetings)),
        ("FIRST_LEG", "Run", "RunLeg"): RowSource(1, path.first),
        ("NEXT_LEG", "RunLeg", "RunLeg"): RowSource(legs - 1, path.following),
        ("IN_TASK", "RunLeg", "RunTask"): RowSource(legs, path.tasks),
        ("CONTAINS", "RunLeg", "RunOp"): RowSource(len(run.path), path.ops),
        ("OF", "RunMemory", "RunRank"): RowSource(
            sum(len(each.ranks) for each in memory), lambda: chain.from_iterable(each.owners() for each in memory)
        ),
        ("PEAKS_AT", "RunMemory", "RunOp"): RowSource(
            sum(each.op is not None for each in memory),
            lambda: chain.from_iterable(each.peak_op() for each in memory),
        ),
    }
    return RunRows(_own(run), nodes, edges)


def facts_of(run: RecordedRun) -> dict[str, Any]:
    """Properties of a run's node that are no times. run: with or without times."""
    traces = run.ranks.values()
    steps = {int(each) for trace in traces for each in np.unique(trace.ops.step).tolist()} - {NONE}
    formats: Counter[str] = Counter()
    for trace in traces:
        for place, count in zip(*np.unique(trace.ops.collective, return_counts=True), strict=True):
            if place != NONE and trace.collectives[place].dtype:
                formats[trace.collectives[place].dtype] += (message_bytes(trace.collectives[place]) or 0) * int(count)
    return {
        "tool": ", ".join(sorted({trace.tool for trace in traces})),
        "format": FORMAT,
        "world": len(run.ranks),
        "job_ranks": run.job_ranks,
        "steps": len(steps),
        "ops": sum(len(trace.ops) for trace in traces),
        "devices": sorted({name for trace in traces for name in trace.devices if name}),
        "left_out": [f"rank {rank}: {each}" for rank, trace in run.ranks.items() for each in trace.left_out],
        "dtype": max(formats, key=lambda each: (formats[each], each)) if formats else None,
    }


def _own(run: MeasuredRun) -> dict[str, Any]:
    idle, launching = int(run.path.idle.sum()), int(run.path.launching.sum())
    return {
        **facts_of(run),
        "step": run.window,
        "busy": _mean([each.spent.busy for each in run.ops.values()]),
        "exposed": _mean([each.spent.exposed + each.spent.bubble for each in run.ops.values()]),
        "begin": run.begin,
        "unexplained": idle - launching,
        "launching": launching,
    }


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)


def lane_facts(rows: LaneOps) -> dict[str, Any]:
    """Properties of a lane's node that are no times. rows: of the lane."""
    return {
        "id": rows.id,
        **rows.place,
        "ranks": len(rows.lane.ranks),
        "members": list(rows.lane.ranks),
    }


def _lane(rows: LaneRows) -> Node:
    run, lane = rows.run, rows.lane
    spent = [run.ops[rank].spent for rank in lane.ranks]
    times = {name: _mean([getattr(each, name) for each in spent]) for name in ("busy", "exposed", "bubble")}
    values = {
        **lane_facts(rows),
        **times,
        # Means are rounded down; what is left over is idle, so that the times add up.
        "idle": run.window - sum(times.values()),
        "communication": _mean([each.communication for each in spent]),
    }
    return run.id, values


def _iterations(run: MeasuredRun, rank: int) -> Iterator[Node]:
    """The iterations of an engine on a rank, from the first of the ops that each launched to the end of the last."""
    trace, timed = run.ranks[rank], run.ops[rank].timed
    if not len(trace.ops) or any(step_named(each.name) for each in trace.annotations):
        return
    owner = f"{run.id}/r{rank}"
    for each in engine_iterations(trace.annotations):
        ops = np.flatnonzero(trace.ops.step == each.number)
        if not len(ops):
            continue
        start, end = timed.start[ops], timed.end[ops]
        sums = None if each.batch is None else each.batch.sums
        values = {
            "id": f"{owner}/i{each.number}",
            "run": run.id,
            "rank": rank,
            "number": each.number,
            "annotation": each.annotation.name[:LONGEST_NAME],
            "workflow": each.workflow,
            "requests": None if each.batch is None else list(each.batch.texts),
            "prefills": None if each.batch is None else each.batch.prefill.n,
            "decodes": None if each.batch is None else each.batch.decode.n,
            "tokens": None if sums is None else sums.q,
            "keys": None if sums is None else sums.k,
            "start": int(start.min()),
            "finish": int(end.max()),
            "busy": _busy(start, end),
            "ops": len(ops),
        }
        yield owner, values


LONGEST_NAME = 500
"""Characters of an iteration's name that are kept."""


def _busy(start: Integers, end: Integers) -> int:
    """ns in which at least one of some ops runs."""
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(end[order])
    gaps = np.maximum(start[order][1:] - reached[:-1], 0)
    return int(reached[-1] - start[order][0] - gaps.sum())


def _following(iterations: Sequence[Node]) -> Iterator[Edge]:
    for (_, one), (_, other) in pairwise(iterations):
        if one["rank"] == other["rank"]:
            yield one["id"], other["id"], {}


def rank_facts(run: RecordedRun, rank: int, file: str | None) -> dict[str, Any]:
    """Properties of a rank's node that are no times. run: of the rank. rank: its number. file: its name, if kept."""
    trace = run.ranks[rank]
    values = {
        "id": f"{run.id}/r{rank}",
        "run": run.id,
        "rank": rank,
        "source": trace.digest,
        "file": file,
        "ops": len(trace.ops),
        "categories": list(trace.events),
        "events": list(trace.events.values()),
        "streams": list(trace.streams),
    }
    return known(values)


def _rank(run: MeasuredRun, rank: int, file: str | None) -> Node:
    timed, spent, clock = run.ops[rank].timed, run.ops[rank].spent, run.clocks[rank]
    values = {
        **rank_facts(run, rank, file),
        "offset": clock.offset,
        "spread": clock.spread,
        "synchronised": clock.collectives,
        "start": int(timed.start.min()),
        "finish": int(timed.end.max()),
        "busy": spent.busy,
        "copying": spent.copying,
        "exposed": spent.exposed,
        "bubble": spent.bubble,
        "idle": spent.idle,
    }
    return run.id, values


def in_lane(run: RecordedRun) -> Iterator[Edge]:
    """The edges from each rank to its lane. run: with or without times."""
    for rank, lane in run.lane_of.items():
        yield f"{run.id}/r{rank}", f"{run.id}/{lane.number}", {}


@dataclass(frozen=True)
class _Meetings:
    """The collectives of a run by the starts of their members, and the members of each by start.

    calls: in this order. rank, start, end: of the members of all calls, one call after the other, with times in ns.
    """

    calls: Sequence[JointCollective]
    rank: Integers
    start: Integers
    end: Integers

    @classmethod
    def of(cls, run: MeasuredRun) -> "_Meetings":
        """Those of a run."""
        calls = run.calls
        counts = np.array([len(each.members) for each in calls], np.int64)
        rank = np.fromiter(chain.from_iterable(each.members for each in calls), np.int64)
        place = np.fromiter(chain.from_iterable(each.members.values() for each in calls), np.int64)
        start, end = np.empty_like(place), np.empty_like(place)
        by_rank = np.argsort(rank, kind="stable")
        for here in np.split(by_rank, np.flatnonzero(np.diff(rank[by_rank])) + 1) if len(rank) else ():
            timed = run.ops[int(rank[here[0]])].timed
            start[here], end[here] = timed.start[place[here]], timed.end[place[here]]
        order = _order(np.repeat(np.arange(len(calls)), counts), rank, start, end)
        position = np.empty(len(calls), np.int64)
        position[order] = np.arange(len(calls))
        members = np.lexsort((end, rank, start, np.repeat(position, counts)))
        return cls([calls[at] for at in order.tolist()], rank[members], start[members], end[members])

    def __iter__(self) -> Iterator[tuple[JointCollective, list[tuple[int, int, int]]]]:
        """Each call with the rank, the start and the end of its members."""
        rows = rows_of(self.rank, self.start, self.end)
        return ((call, list(islice(rows, len(call.members)))) for call in self.calls)


def _order(call: Integers, rank: Integers, start: Integers, end: Integers) -> Integers:
    """The places of calls by the start, rank and end of their first member, then by those of the next one.

    call: the place of the call of each member. rank, start, end: of the members.
    """
    members = np.lexsort((end, rank, start, call))
    first = members[np.flatnonzero(np.diff(call[members], prepend=-1))]
    columns = start[first], rank[first], end[first]
    order = np.lexsort(columns[::-1])
    if not np.logical_and.reduce([np.diff(column[order]) == 0 for column in columns]).any():
        return order
    several: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for at, *member in rows_of(call[members], start[members], rank[members], end[members]):
        several[at].append((member[0], member[1], member[2]))
    return np.array(sorted(several, key=several.__getitem__), np.int64)


def collective_facts(run: RecordedRun, number: int, call: JointCollective) -> dict[str, Any]:
    """Properties of a collective's node that are no times, None where they were not recorded.

    run: of the collective. number: its place. call: the collective, with its members.
    """
    return {
        "id": f"{run.id}/c{number}",
        "run": run.id,
        "number": number,
        "kind": call.collective.kind,
        "axis": axis_of(call.collective),
        "sequence": call.collective.sequence,
        "group_size": call.collective.size,
        "group": _group_text(ends_of(call)),
        "message": message_bytes(call.collective),
        "by_order": call.by_order,
    }


def _collectives(run: MeasuredRun, meetings: _Meetings) -> Iterator[Node]:
    for number, (call, members) in enumerate(meetings):
        last, ready, _ = members[-1]
        values = {
            **collective_facts(run, number, call),
            "members": [rank for rank, _, _ in members],
            "start": members[0][1],
            "ready": ready,
            "finish": max(end for _, _, end in members),
            "last": last,
            "waited": sum(ready - start for _, start, _ in members),
        }
        yield run.id, known(values)


@lru_cache(maxsize=1 << 10)
def _group_text(ranks: tuple[int, ...]) -> str | None:
    return format_ranks(np.array(sorted(ranks), np.int64)) if ranks else None


def _members(run: MeasuredRun, meetings: _Meetings) -> Iterator[Edge]:
    lanes = {rank: f"{run.id}/{lane.number}" for rank, lane in run.lane_of.items()}
    for number, (call, members) in enumerate(meetings):
        source, ready = f"{run.id}/c{number}", members[-1][1]
        for rank, start, _ in members:
            yield source, f"{lanes[rank]}/{call.members[rank]}", {"rank": rank, "waits": ready - start}


# The digest of a run's content, which needs one row at a time, in any order.
#
# It has the sum of the digests of all rows of a kind, so that a run of any size needs no memory, and the same rows in
# any order have the same digest.

Row = Mapping[str, Any]
_DigestedEdge = tuple[str, str, Row]

_CONTENT = (
    "format",
    "world",
    "job_ranks",
    "step",
    "steps",
    "ops",
    "devices",
    "busy",
    "exposed",
    "begin",
    "unexplained",
    "launching",
)
"""Properties of a run that its digest covers."""

_SUMS_SINCE = 3
"""The first format of runs whose digest has the sums of those of the rows."""

_encode = msgspec.json.Encoder(order="sorted").encode
_sha256 = hashlib.sha256
_WORDS = 4
"""Numbers of 64 bits in a digest."""

_AT_ONCE = 1 << 12


class RunDigest:
    """A digest that rows are added to. Names that users give do not count, nor do properties that are None."""

    def __init__(self) -> None:
        self._sums: dict[str, npt.NDArray[np.uint64]] = defaultdict(lambda: np.zeros(5, np.uint64))

    def add_nodes(self, label: str, rows: Iterable[Row]) -> None:
        """Count the properties of nodes of a label. rows: the properties of each node."""
        self._add(label, rows)

    def add_edges(self, kind: Iterable[str], rows: Iterable[_DigestedEdge]) -> None:
        """Count relationships.

        kind: their type, the label of the source and of the target. rows: one a relationship.
        """
        self._add(" ".join(kind), rows)

    def _add(self, kind: str, rows: Iterable[Row | _DigestedEdge]) -> None:
        made = map(_encode, rows)
        while digests := [_sha256(text).digest() for text in islice(made, _AT_ONCE)]:
            words = np.frombuffer(b"".join(digests), "<u8").reshape(-1, _WORDS)
            # Sums are those of 64 bits, without what is carried.
            self._sums[kind] += np.append(words.sum(axis=0, dtype=np.uint64), np.uint64(len(words)))

    def of(self, own: Row) -> str:
        """The digest of all that was added, and of the run's own properties."""
        text = [{name: own.get(name) for name in _CONTENT}, {kind: sums.tolist() for kind, sums in self._sums.items()}]
        return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()


def run_digest(own: Row, nodes: Mapping[str, Iterable[Row]], edges: Mapping[Any, Iterable[_DigestedEdge]]) -> str:
    """The digest of all rows of a run. own: properties of its node. nodes: by label. edges: by kind."""
    if own["format"] < _SUMS_SINCE:
        return _digest_of_sorted(own, nodes, edges)
    digest = RunDigest()
    for label, rows in nodes.items():
        digest.add_nodes(label, rows)
    for kind, ends in edges.items():
        digest.add_edges(kind, ends)
    return digest.of(own)


def _digest_of_sorted(
    own: Row, nodes: Mapping[str, Iterable[Row]], edges: Mapping[Any, Iterable[_DigestedEdge]]
) -> str:
    """The digest that runs of earlier formats have."""
    digest = hashlib.sha256(json.dumps({name: own.get(name) for name in _CONTENT}, sort_keys=True).encode())
    for label in sorted(nodes):
        lines = sorted(json.dumps(row, sort_keys=True) for row in nodes[label])
        digest.update("\n".join((label, *lines)).encode())
    for kind in sorted(edges):
        lines = sorted(json.dumps(edge, sort_keys=True) for edge in edges[kind])
        digest.update("\n".join((*kind, *lines)).encode())
    return digest.hexdigest()
