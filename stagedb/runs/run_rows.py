"""A measured run as rows: its nodes and relationships, with the columns of profiles. Times are in ns from its begin.

Rows are made each time that they are iterated over, since those of a large run need more memory than its files.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from stagedb.runs.clocks import JointCollective, ends_of
from stagedb.runs.engine_iterations import engine_iterations
from stagedb.runs.joined_ops import step_named
from stagedb.runs.lane_rows import Edge, LaneOps, LaneRows, Node, axis_of, known, message_bytes
from stagedb.runs.leg_rows import LegRows
from stagedb.runs.measured_run import FORMAT, MeasuredRun, RecordedRun
from stagedb.runs.memory_rows import shared_memory
from stagedb.runs.rank_trace import NONE, Integers, rows_of
from stagedb.traces.rank_sets import format_ranks

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
