"""What a run shows of the speed of its machine: what its ops took, next to what its plan has for them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median

import numpy as np

from stagedb.collectives import exchanges
from stagedb.lowering.columns import COMPUTE, ClassColumns, Workload
from stagedb.matching.planned_ops import WORK, PlannedOp
from stagedb.matching.rank_match import RankMatch
from stagedb.matching.run_match import RunMatch
from stagedb.runs.clocks import BARRIER, MESSAGES
from stagedb.runs.stored_run import StoredRun
from stagedb.runs.time_spent import covered, union
from stagedb.systems import System
from stagedb.timing.lanes import lane_numbers
from stagedb.timing.op_durations import computed_flops, runs_of
from stagedb.timing.step_profile import lane_durations

MESSAGE = "message"
"""The kind of a call that is a send and its receive."""

MEMORY, LAUNCH = "memory", "launch"
"""What no matmul and no attention takes: other ops, and the time between ops."""


@dataclass(frozen=True)
class SeenCall:
    """A collective or a message, with all recorded ranks.

    size: bytes that a rank passes in. ranks: its group, ascending; of a message source and target. ns: of the member
    that waited least, which began last.
    """

    run: str
    step: int
    kind: str
    size: int
    ranks: tuple[int, ...]
    ns: int


@dataclass(frozen=True)
class WorkSeen:
    """A matmul or attention that was matched. op: a row of the rank's `Ops`. during: while this rank communicated."""

    op: int
    ns: int
    during: bool


@dataclass(frozen=True)
class RankStep:
    """A step of a rank. others: ns of what it computed beyond `work`. idle: ns in which it ran nothing."""

    rank: int
    step: int
    work: tuple[WorkSeen, ...]
    others: int
    idle: int


@dataclass(frozen=True)
class Spent:
    """Time that ops of a kind took in a step of a rank.

    kind: matmul, attention, `MEMORY` or `LAUNCH`. modelled: ns on the base system, without the launch of ops; of
    `LAUNCH`: how many ops. seen: ns. during: while the rank communicated. count: how many ops.
    """

    run: str
    step: int
    rank: int
    kind: str
    dtype: str
    modelled: Fraction
    seen: int
    during: bool
    count: int


@dataclass(frozen=True)
class Observations:
    """The speed of a machine that a matched run shows.

    id: of the run. run: its name, or the begin of its id. step: ns. workload: of its plan. matched: the share of the
    plan's ops that it has. ranks: steps of each rank. calls: its collectives and messages.
    """

    id: str
    run: str
    step: int
    workload: Workload
    matched: float
    ranks: tuple[RankStep, ...]
    calls: tuple[SeenCall, ...]

    def spent(self, base: System, *, is_blank: bool) -> Iterator[Spent]:
        """Seen and modelled times. is_blank: matmuls are timed by their FLOPs alone."""
        modelled = _Modelled(self, base, is_blank)
        for each in self.ranks:
            columns = self.workload.class_of(each.rank)
            sums: dict[tuple[str, str, bool], list[tuple[Fraction, int]]] = defaultdict(list)
            for seen in each.work:
                key = columns.ops.kind[seen.op], columns.ops.dtype[seen.op], seen.during
                sums[key].append((modelled.ns(each.rank, seen.op), seen.ns))
            for (kind, dtype, during), rows in sums.items():
                total = sum((ns for ns, _ in rows), Fraction(0)), sum(ns for _, ns in rows)
                yield Spent(self.id, each.step, each.rank, kind, dtype, *total, during, len(rows))
            runs = runs_of(columns)
            computes = np.flatnonzero(columns.ops.type == COMPUTE).tolist()
            rest = [op for op in computes if columns.ops.kind[op] not in WORK and runs[op]]
            moved = sum((modelled.ns(each.rank, op) * runs[op] for op in rest), Fraction(0))
            moved += sum((modelled.copied(each.rank, op) * times for op, times in enumerate(runs)), Fraction(0))
            yield Spent(
                self.run, each.step, each.rank, MEMORY, "", moved, each.others, False, sum(runs[op] for op in rest)
            )
            count = sum(runs[op] for op in computes)
            yield Spent(self.id, each.step, each.rank, LAUNCH, "", Fraction(count), each.idle, False, count)


class _Modelled:
    """The ns of ops on a base system, without their launch."""

    def __init__(self, run: Observations, base: System, is_blank: bool) -> None:
        self._run, self._is_blank = run, is_blank
        copies = replace(base, accelerator=replace(base.accelerator, launch=Fraction(0)))
        copies = replace(copies, overlap=replace(base.overlap, taken=0))
        alone = replace(copies, overlap=replace(copies.overlap, copies=""))
        self._copies, self._alone = (lane_durations(run.workload, each).lanes for each in (copies, alone))
        self._lane = lane_numbers(run.workload, base.network(len(run.workload.ranks)))

    def ns(self, rank: int, op: int) -> Fraction:
        """The ns that an op takes."""
        columns = self._run.workload.class_of(rank)
        if self._is_blank and columns.ops.kind[op] in WORK:
            cp_kind = str(self._run.workload.plan.get("cp_kind", ""))
            return Fraction(computed_flops(columns, op, cp_kind), 1000)
        return Fraction(int(self._alone[int(self._lane[rank])].ns[op]))

    def copied(self, rank: int, op: int) -> Fraction:
        """The ns in which the framework copies for a collective next to an op."""
        lane = int(self._lane[rank])
        return Fraction(int(self._copies[lane].ns[op]) - int(self._alone[lane].ns[op]))


def observed(match: RunMatch) -> Observations:
    """What a run shows that is matched with its plan."""
    run = match.run
    planned = sum(len(each.planned) for each in match.ranks.values())
    matched = sum(len(each.matched) for each in match.ranks.values())
    return Observations(
        run.id,
        run.name or run.id[:12],
        _step(run),
        match.planned.program.workload,
        matched / planned if planned else 0.0,
        tuple(_rank_step(match, rank, step, each) for (rank, step), each in match.ranks.items()),
        tuple(_calls(match)),
    )


def _step(run: StoredRun) -> int:
    """ns of a step: the median of those that were recorded. Barriers before its first op are not part of it."""
    spans: dict[int | None, tuple[int, int]] = {}
    for rank, timed in run.timed.items():
        for place, op in enumerate(run.lane_of[rank].ops):
            if op.kind != BARRIER:
                begin, end = int(timed.start[place]), int(timed.end[place])
                first, last = spans.get(op.step_number, (begin, end))
                spans[op.step_number] = min(first, begin), max(last, end)
    if len(spans) > 1:
        spans.pop(None, None)
    return round(median(end - begin for begin, end in spans.values()))


def _rank_step(match: RunMatch, rank: int, step: int | None, found: RankMatch) -> RankStep:
    lane, timed = match.run.lane_of[rank], match.run.timed[rank]
    own = [place for place, op in enumerate(lane.ops) if op.step_number == step]
    sends = [place for place in own if lane.ops[place].type in ("collective", *MESSAGES)]
    computes = [place for place in own if lane.ops[place].type == "compute"]
    communicating = union(timed.start[sends], timed.end[sends])
    shared = covered(timed.start, timed.end, communicating)
    work, places = [], set()
    for pair in found.matched:
        op, seen = found.planned[pair.planned], found.seen[pair.seen]
        if op.kind in WORK:
            # Without recorded shapes a matmul may be paired with another one of its task, so that only sums over a task
            # are right.
            during = seen.dims is not None and 2 * int(shared[seen.place]) > seen.end - seen.start
            work.append(WorkSeen(op.op, seen.end - seen.start, during))
            places.add(seen.place)
    others = [place for place in computes if place not in places]
    every, until = union(timed.start[own], timed.end[own])
    idle = int((every[1:] - until[:-1]).sum())
    busy = int((timed.end[others] - timed.start[others]).sum())
    return RankStep(rank, step or 0, tuple(work), busy, idle)


def _calls(match: RunMatch) -> Iterator[SeenCall]:
    """Collectives and messages that were matched, each once."""
    found: dict[tuple[int, str, tuple[int, ...], int], list[tuple[int, int]]] = defaultdict(list)
    for (rank, step), each in match.ranks.items():
        columns, turn = (
            match.planned.program.workload.class_of(rank),
            defaultdict[tuple[str, tuple[int, ...]], int](int),
        )
        for pair in each.matched:
            op, seen = each.planned[pair.planned], each.seen[pair.seen]
            if op.kind in WORK:
                continue
            kind, ranks = _ends(op)
            key = step or 0, kind, ranks, turn[kind, ranks]
            turn[kind, ranks] += 1
            found[key].append((_size(columns, op), seen.end - seen.start))
    for (step, kind, ranks, _), members in found.items():
        yield SeenCall(
            match.run.name or match.run.id[:12],
            step,
            kind,
            max(size for size, _ in members),
            ranks,
            min(ns for _, ns in members),
        )


def _ends(op: PlannedOp) -> tuple[str, tuple[int, ...]]:
    """The kind of a call, one for both ends of a message, and its ranks."""
    if op.kind not in MESSAGES:
        return op.kind, tuple(sorted(op.group))
    own, other = op.group
    return MESSAGE, (own, other) if op.kind == "send" else (other, own)


def _size(columns: ClassColumns, op: PlannedOp) -> int:
    """Bytes that a rank passes in; with an uneven exchange, those of the fullest member."""
    ops = columns.ops
    return int(max(ops.size[op.op], ops.result[op.op]) if exchanges(op.kind) else ops.size[op.op])
