"""A run that was recorded: its ranks on one clock, its ops by lanes, its collectives and its critical path.

A lane is ranks that executed the same ops in the same order on each stream: it has each op once, with the times of all
its ranks. All times are in ns from the begin of the run, by the clock of the first rank.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.errors import UsageError
from stagedb.mentions import call
from stagedb.runs.clocks import MESSAGES, Clock, JointCollective, calls_of, clocks_of
from stagedb.runs.kernel_names import compute_kind
from stagedb.runs.measured_path import PathPieces, TimedOps, critical_path, slack_of
from stagedb.runs.rank_spans import Numbering
from stagedb.runs.rank_trace import BACKGROUND, CATEGORIES, HOST, NONE, Integers, RankTrace, RecordedOrder, rows_of

# How a rank spends a window of time: computing, communicating while nothing computes, waiting.


@dataclass(frozen=True)
class RankTime:
    """Times of one rank in ns, which add up to the window.

    busy: at least one op computes or copies. copying: part of it, in which none computes. exposed: a collective runs,
    and nothing else. bubble: only messages to or from other ranks run. idle: nothing runs. communication: collectives
    and messages, hidden or not.
    """

    busy: int
    copying: int
    exposed: int
    bubble: int
    idle: int
    communication: int


def union(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Spans that cover the same time and do not touch each other, in order. start, end: of the given spans [ns]."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    if not len(start):
        return start, end
    furthest = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > furthest[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], furthest[closes]


def covered(start: Integers, end: Integers, spans: tuple[Integers, Integers]) -> Integers:
    """For each span, for how much of its time one of `spans` runs [ns].

    start, end: each span's [ns]. spans: a union, as `union` returns it.
    """
    first, last = spans
    if not len(first):
        return np.zeros(len(start), np.int64)
    before = np.concatenate(([0], np.cumsum(last - first)))

    def until(moment: Integers) -> Integers:
        at = np.searchsorted(first, moment, side="right")
        inside = np.where(at > 0, np.minimum(moment, last[np.maximum(at - 1, 0)]) - first[np.maximum(at - 1, 0)], 0)
        return before[np.maximum(at - 1, 0)] + np.maximum(inside, 0)

    return until(end) - until(start)


def without(spans: tuple[Integers, Integers], others: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """The parts of spans in which none of the others runs, in order. spans, others: unions, as `union` returns them."""
    if not len(others[0]):
        return spans
    # Between the others it is free: before the first one, and after each of them.
    free = np.concatenate((spans[0][:1], others[1])), np.concatenate((others[0], spans[1][-1:]))
    first = np.searchsorted(free[1], spans[0], side="right")
    count = np.maximum(np.searchsorted(free[0], spans[1], side="left") - first, 0)
    of = np.repeat(np.arange(len(count)), count)
    at = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + first[of]
    start, end = np.maximum(spans[0][of], free[0][at]), np.minimum(spans[1][of], free[1][at])
    return start[end > start], end[end > start]


def length(spans: tuple[Integers, Integers]) -> int:
    """ns that a union of spans covers."""
    return int((spans[1] - spans[0]).sum())


def time_of(start: Integers, end: Integers, types: Sequence[str], window: int) -> RankTime:
    """The times of a rank.

    start, end: each op's [ns]. types: what each op is: compute, copy, collective, send or recv. window: the length of
    the run in ns.
    """
    numbers = {name: number for number, name in enumerate({*types})}
    column = np.fromiter(map(numbers.__getitem__, types), np.int8, len(types))

    def of(*chosen: str) -> int:
        which = np.isin(column, [numbers[name] for name in chosen if name in numbers])
        return length(union(start[which], end[which]))

    compute, own = of("compute"), of("compute", "copy")
    local, every = of("compute", "copy", "collective"), length(union(start, end))
    communication = of("collective", "send", "recv")
    return RankTime(own, own - compute, local - own, every - local, window - every, communication)


def exposed_of(start: Integers, end: Integers, communicates: "npt.NDArray[np.bool_]") -> Integers:
    """For each op the time in which it communicates and nothing is computed; 0 for what computes.

    start, end: each op's [ns]. communicates: which ops do, as booleans.
    """
    compute = union(start[~communicates], end[~communicates])
    return np.where(communicates, (end - start) - covered(start, end, compute), 0)


# Messages that hosts send: how long they took, where a recording has only when the program waited for them.


def received_by_then(
    ranks: Mapping[int, RankTrace], timed: Mapping[int, TimedOps], calls: Sequence[JointCollective]
) -> dict[int, TimedOps]:
    """Ops of hosts whose sends end when the other rank has received the message.

    A program may wait for what it sends much later, and until then the recording has the send as not ended. ranks:
    recorded. timed: their ops. calls: the messages with both ends.
    """
    ends = {rank: ops.end.copy() for rank, ops in timed.items()}
    kinds = {rank: [each.kind for each in trace.collectives] for rank, trace in ranks.items()}
    for message in calls:
        if message.collective.kind not in MESSAGES or len(message.members) != len(MESSAGES):
            continue
        of = {kinds[rank][ranks[rank].ops.collective[at]]: (rank, at) for rank, at in message.members.items()}
        if sorted(of) != sorted(MESSAGES):
            continue
        (source, sent), (target, received) = (of[kind] for kind in MESSAGES)
        if CATEGORIES[ranks[source].ops.category[sent]] == BACKGROUND:
            done = max(int(timed[target].end[received]), int(timed[source].start[sent]) + 1)
            ends[source][sent] = min(int(ends[source][sent]), done)
    return {rank: replace(ops, end=ends[rank]) for rank, ops in timed.items()}


APART = 60_000_000_000
"""Ns between recordings of one job at most, as far as clocks of hosts agree."""

FORMAT = 7
"""Version of what a run consists of; part of its id."""


@dataclass(frozen=True)
class RankTimeline:
    """The ops of one rank on the run's clock; all columns have one entry an op.

    types: compute, copy, collective, send or recv. kinds: such as matmul or all_reduce. exposed: ns in which an op
    communicates while nothing computes. slack: ns of the least delay that makes the run longer. spent: where the time
    of the rank goes.
    """

    timed: TimedOps
    types: tuple[str, ...]
    kinds: tuple[str, ...]
    exposed: npt.NDArray[np.int64]
    slack: npt.NDArray[np.int64]
    spent: RankTime


@dataclass(frozen=True)
class MeasuredLane:
    """Ranks that executed the same ops. number: of the lane. ranks: ascending."""

    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RecordedRun:
    """A run that was recorded, with or without times.

    ranks: traces by rank. calls: its collectives and messages. lanes: by number.
    """

    ranks: Mapping[int, RankTrace]
    calls: tuple[JointCollective, ...]
    lanes: tuple[MeasuredLane, ...]

    @cached_property
    def id(self) -> str:
        """A digest of the files and of how they are read."""
        return run_id({rank: trace.digest for rank, trace in self.ranks.items()})

    @property
    def job_ranks(self) -> int:
        """Number of ranks of the job, of which some may not have been recorded."""
        return max([len(self.ranks), max(self.ranks) + 1, *(trace.world or 0 for trace in self.ranks.values())])

    @cached_property
    def lane_of(self) -> Mapping[int, MeasuredLane]:
        return {rank: lane for lane in self.lanes for rank in lane.ranks}


@dataclass(frozen=True)
class MeasuredRun(RecordedRun):
    """A recorded run with times, its ranks on one clock.

    ranks, calls, lanes: as of a `RecordedRun`. clocks: how far each rank's clock is ahead. begin: in ns since 1970.
    window: its length in ns. ops: the timeline of each rank. path: the critical path.
    """

    clocks: Mapping[int, Clock]
    begin: int
    window: int
    ops: Mapping[int, RankTimeline]
    path: PathPieces


def run_id(digests: Mapping[int, str]) -> str:
    """The id of the run of these files. digests: by rank, the sha256 of its file."""
    text = json.dumps([FORMAT, sorted(digests.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def numbered(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    """Traces by their ranks. Where no file has its rank, they are numbered in their order. Raises UsageError."""
    if all(trace.rank is None for trace in traces):
        return dict(enumerate(traces))
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank is None:
            raise UsageError("some of the traces have their rank and others do not: import those of one job together")
        if trace.rank in found:
            raise UsageError(
                f"two of the traces are of rank {trace.rank}: import the files of one recording of one job together"
            )
        found[trace.rank] = trace
    return dict(sorted(found.items()))


def measured_run(traces: Sequence[RankTrace]) -> MeasuredRun:
    """The run of these ranks. Raises UsageError if they cannot be of one run."""
    ranks = numbered(traces)
    calls = calls_of(ranks)
    _check_of_one_job(ranks, calls)
    clocks = clocks_of(ranks, calls)
    begin = min(int(trace.ops.start.min()) - clocks[rank].offset for rank, trace in ranks.items())
    timed = {rank: _timed(trace, begin + clocks[rank].offset) for rank, trace in ranks.items()}
    timed = received_by_then(ranks, timed, calls)
    window = max(int(each.end.max()) for each in timed.values())
    if window <= 0:
        raise UsageError("nothing in the traces took time")
    slack = slack_of(timed, calls, window)
    ops = {rank: _rank_ops(trace, timed[rank], slack[rank], window) for rank, trace in ranks.items()}
    path = critical_path(timed, calls)
    lanes = lanes_of(ranks, {rank: each.kinds for rank, each in ops.items()})
    return MeasuredRun(ranks, tuple(calls), lanes, clocks, begin, window, ops, path)


def _check_of_one_job(ranks: Mapping[int, RankTrace], calls: Sequence[JointCollective]) -> None:
    """Raise UsageError for a file that shares no collective with another one, and was recorded at another time."""
    together = {ranks[rank].digest for call in calls if len(call.members) > 1 for rank in call.members}
    spans = {trace.digest: (int(trace.ops.start.min()), int(trace.ops.end.max())) for trace in ranks.values()}
    for digest, (begin, end) in spans.items():
        others = [span for each, span in spans.items() if each != digest]
        if (
            others
            and digest not in together
            and not any(begin < last + APART and first < end + APART for first, last in others)
        ):
            rank = next(rank for rank, trace in ranks.items() if trace.digest == digest)
            raise UsageError(
                f"the trace of rank {rank} has no collective in common with the others, and was recorded at another "
                "time: these files are not of one job. Import them one by one"
            )


def _timed(trace: RankTrace, begin: int) -> TimedOps:
    ops = trace.ops
    launched = np.where(ops.launched == NONE, NONE, ops.launched - begin)
    by_host = ops.category == CATEGORIES.index(HOST)
    return TimedOps(ops.start - begin, ops.end - begin, ops.stream, launched, ops.synchronised, by_host)


def _rank_ops(trace: RankTrace, timed: TimedOps, slack: npt.NDArray[np.int64], window: int) -> RankTimeline:
    types, kinds = types_of(trace)
    communicates = np.array([each in ("collective", *MESSAGES) for each in types], bool)
    exposed = exposed_of(timed.start, timed.end, communicates)
    return RankTimeline(timed, types, kinds, exposed, slack, time_of(timed.start, timed.end, types, window))


def types_of(trace: RankTrace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What each op of a rank is: compute, copy, collective, send or recv; and its kind. trace: of the rank."""
    types, kinds = [], []
    ops = trace.ops
    for category, collective, name, launcher in rows_of(ops.category, ops.collective, ops.name, ops.launcher):
        if collective != NONE:
            kind = trace.collectives[collective].kind
            types.append(kind if kind in MESSAGES else "collective")
        elif CATEGORIES[category] in ("memcpy", "memset"):
            kind = "copy" if CATEGORIES[category] == "memcpy" else "fill"
            types.append("copy")
        else:
            kind = compute_kind(trace.names[name], trace.names[launcher] if launcher != NONE else "")
            types.append("compute")
        kinds.append(kind)
    return tuple(types), tuple(kinds)


def lanes_of(ranks: Mapping[int, RankTrace], kinds: Mapping[int, Sequence[str]]) -> tuple[MeasuredLane, ...]:
    """Ranks with the same ops in the same order of starts on each stream, by their first rank.

    ranks: traces by rank. kinds: of their ops, by rank.
    """
    if len(ranks) == 1:
        return (MeasuredLane(0, tuple(ranks)),)
    alike: dict[str, list[int]] = defaultdict(list)
    for rank, trace in ranks.items():
        alike[_signature(trace, kinds[rank])].append(rank)
    return tuple(MeasuredLane(number, tuple(each)) for number, each in enumerate(sorted(alike.values())))


def _signature(trace: RankTrace, kinds: Sequence[str]) -> str:
    """A digest of what a rank executed, without its times and without the numbers of its streams and groups."""
    columns, order = trace.ops, trace.order
    streams: Numbering[int] = Numbering()
    known: dict[tuple[Any, ...], bytes] = {}

    def described(place: int, stream: int, name: int, collective: int, phase: int) -> bytes:
        key = stream, name, collective, phase, kinds[place]
        if key not in known:
            own = trace.collectives[collective] if collective != NONE else None
            shape = None if own is None else (own.size, own.dtype, own.sent, own.received)
            text = repr((streams[stream], trace.names[name], kinds[place], phase, shape))
            known[key] = hashlib.sha256(text.encode()).digest()
        return known[key]

    digest = hashlib.sha256()
    for place, row in enumerate(rows_of(columns.stream, columns.name, columns.collective, columns.phase)):
        digest.update(described(place, *row))
    if order is not None:
        # All that such a rank has is the same on the ranks of its lane.
        shapes, callers = ([texts[at] if at != NONE else None for at in places] for texts, places in
                           ((trace.shapes, columns.shapes.tolist()), (trace.names, order.callers)))  # fmt: skip
        digest.update(repr((shapes, callers, order.dtypes, order.waits)).encode())
    return digest.hexdigest()


# A run whose files have no times: its ranks, its ops by lanes in their order, and its collectives.
#
# Execution traces of PyTorch are such files, and Chakra's traces whose nodes have no durations. There is no clock, no
# critical path and no timeline: nothing about a time is known, and no number takes its place.


@dataclass(frozen=True)
class UntimedRun(RecordedRun):
    """A run without times.

    ranks, calls, lanes: as of a `RecordedRun`. types, kinds: of the ops of each rank, as of `RankTimeline`.
    orders: what the file of each rank has in place of times.
    """

    types: Mapping[int, tuple[str, ...]]
    kinds: Mapping[int, tuple[str, ...]]
    orders: Mapping[int, RecordedOrder]


def untimed_run(traces: Sequence[RankTrace]) -> UntimedRun:
    """The run of these ranks. traces: each with its `order`. Raises UsageError if they cannot be of one run."""
    ranks = numbered(traces)
    found = {rank: types_of(trace) for rank, trace in ranks.items()}
    types = {rank: each for rank, (each, _) in found.items()}
    kinds = {rank: each for rank, (_, each) in found.items()}
    orders = {rank: trace.order for rank, trace in ranks.items() if trace.order is not None}
    return UntimedRun(ranks, tuple(calls_of(ranks)), lanes_of(ranks, kinds), types, kinds, orders)


def without_times(run: str) -> UsageError:
    """The refusal of what needs times. run: id or name of a run that has none."""
    counted = " and ".join(str(call("query", name, run=run)) for name in COUNTING)
    return UsageError(
        f"run {run} has no times: its files are execution traces, or traces of Chakra without durations. Import the "
        "profiler's traces of the same ranks, together with their execution traces if there are some, or traces of "
        f"Chakra with durations. What it ran is counted by {counted}"
    )


COUNTING = ("collectives_by_group", "ops_by_module")
"""Named queries that count what a run has, and need no times."""
