"""A system fitted to runs that are matched with their plans, and how well it predicts the steps of others.

Few numbers. Most are ratios of what all ops of a kind took to what the base system has for them: the speed of matmuls
and of attentions, the memory bandwidth that all other ops reach, the ns between ops in which a rank runs nothing, and
how much slower matmuls are while their rank communicates. The latency and bandwidth of each network dimension are those
with the smallest sum of absolute errors over all calls that cross it and none beyond it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from statistics import median
from typing import Any, TypeVar

import numpy as np

from stagedb.collectives import exchanges
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.lowering.columns import COMPUTE, ClassColumns, Workload
from stagedb.mentions import Word, call
from stagedb.runs.clocks import BARRIER, MESSAGES
from stagedb.runs.measured_run import covered, union
from stagedb.runs.rank_match import ATTENTION, MATMUL, WORK, PlannedOp, RankMatch
from stagedb.runs.run_match import RunMatch
from stagedb.runs.stored_run import StoredRun
from stagedb.systems import System
from stagedb.systems.cost_model import CollectiveWork, Costs, Transfer
from stagedb.systems.system import DTYPES, FLAT, Accelerator, Curve, Dimension, plain
from stagedb.systems.system_files import ISSUED, STRETCHED
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.lanes import lane_numbers
from stagedb.timing.op_durations import computed_flops, runs_of
from stagedb.timing.step_profile import blocking_axes, lane_durations, step_of

# What a run shows of the speed of its machine: what its ops took, next to what its plan has for them.

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
    """The ns of ops on a base system, without their launch and without waits for the host."""

    def __init__(self, run: Observations, base: System, is_blank: bool) -> None:
        self._run, self._is_blank = run, is_blank
        copies = replace(base, accelerator=replace(base.accelerator, launch=Fraction(0)))
        copies = replace(copies, overlap=replace(base.overlap.without_host, taken=0))
        alone = replace(copies, overlap=replace(copies.overlap, copies=""))
        self._copies, self._alone = (lane_durations(run.workload, each).lanes for each in (copies, alone))
        self._lane = lane_numbers(run.workload, base.network(len(run.workload.ranks)))

    def ns(self, rank: int, op: int) -> Fraction:
        """The modelled ns of an op. On a blank system, those of a matmul or attention are of its FLOPs at 1 TFLOP/s."""
        columns = self._run.workload.class_of(rank)
        if self._is_blank and columns.ops.kind[op] in WORK:
            cp_kind = str(self._run.workload.plan.get("cp_kind", ""))
            return Fraction(computed_flops(columns, op, cp_kind), 1000)
        return Fraction(int(self._alone[int(self._lane[rank])].ns[op]))

    def copied(self, rank: int, op: int) -> Fraction:
        """The modelled ns in which the framework copies for a collective next to an op."""
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


DIGITS = 4
"""Significant digits of a fitted number."""

MATCHED = 0.9
"""The share of a plan's ops that a run must have to be used."""

LATENCIES = (10.0, 1e7)
"""ns between which a latency is looked for."""

RATES = (1e-3, 1e4)
"""GB/s between which a bandwidth is looked for."""

_STRETCHES = (Fraction(1, 10), Fraction(10))
"""How many times its time in the base's table an op may take."""

_LONGEST = 1000
"""Characters of the list of runs in a system's file."""

_SIDE = 9
"""Points a side of the grid over latency and bandwidth."""

_STEPS = range(-(_SIDE // 2), _SIDE // 2 + 1)

_FINER = 14
"""How often the grid is made finer around its best point."""


@dataclass(frozen=True)
class FittedNumber:
    """A number of a calibrated system.

    name: what it measures. value: in `unit`. low, high: the lowest and the highest of those of a single run (with
    one run: of a step, or of a rank), which `each` names; None if there is one only. count: ops or calls behind it.
    """

    name: str
    value: Fraction
    unit: str
    low: Fraction | None
    high: Fraction | None
    each: str
    count: int

    def __str__(self) -> str:
        spread = "" if self.low is None else f" ({plain(self.low)} to {plain(self.high or 0)} by {self.each})"
        return f"{self.name}: {plain(self.value)} {self.unit}{spread}, of {self.count:,} ops"


@dataclass(frozen=True)
class StepOfRun:
    """A run's step in ns, measured and predicted. fitted: whether the numbers are of this run too."""

    run: str
    measured: int
    predicted: int
    fitted: bool

    @property
    def error(self) -> float:
        """The share of the measured step by which the predicted one is longer; below 0: shorter."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class FittedSystem:
    """A system fitted to runs, its numbers, and the steps that it predicts."""

    system: System
    numbers: tuple[FittedNumber, ...]
    predictions: tuple[StepOfRun, ...]


def calibrate(
    runs: Sequence[Observations],
    base: System | None,
    name: str,
    others: Sequence[Observations] = (),
    framework: FrameworkProfile | None = None,
) -> FittedSystem:
    """Fit a system to runs, and predict steps.

    base: the system whose other numbers and curves it keeps; None: none, so that it has one flat network and no curves.
    name: of the system. framework: what made the runs, whose copies and casts are then known. others: runs that are
    predicted and not fitted. Without any, each of several runs is also predicted by a system that is fitted to the
    rest. Raises UsageError for a run that does less than its plan, for runs without matmuls, and for runs that are
    faster than the base can be.
    """
    system, numbers = fitted_system(runs, base, name, framework)
    waits = () if framework is None else blocking_axes(framework.hiding.blocking, system)

    def predicted(run: Observations, system: System, *, fitted: bool) -> StepOfRun:
        return StepOfRun(run.run, run.step, step_of(run.workload, system, waits), fitted)

    predictions = [predicted(each, system, fitted=True) for each in runs]
    predictions += [predicted(each, system, fitted=False) for each in others]
    for each in runs if len(runs) > 1 and not others else ():
        rest = [other for other in runs if other is not each]
        of_rest, _ = fitted_system(rest, base, name, framework, spread=False)
        predictions.append(predicted(each, of_rest, fitted=False))
    return FittedSystem(system, numbers, tuple(predictions))


def fitted_system(
    runs: Sequence[Observations],
    base: System | None,
    name: str,
    framework: FrameworkProfile | None = None,
    *,
    spread: bool = True,
) -> tuple[System, tuple[FittedNumber, ...]]:
    """The system that is fitted to runs, and its numbers. Raises UsageError as `calibrate`.

    spread: with the lowest and the highest of the numbers of single runs. name: of the new system. base: its numbers
    are kept where runs have nothing to fit; None: there are none.
    """
    for each in runs:
        if each.matched < MATCHED:
            raise UsageError(
                f"run {each.run} has {each.matched:.0%} of the ops of its plan, so that its times are not those of the "
                f"plan: leave it out, or match it with an instance of what it does ({call('match', each.run)})"
            )
    start = base or _blank(runs)
    if framework is not None:
        start = as_used_by(start, framework)
    if any(facts.of_experts for run in runs for each in run.workload.classes for facts in each.ops.facts):
        # What ranks wait for their host is in the launch that is fitted: a framework adds nothing to it.
        start = replace(start, overlap=replace(start.overlap, issued=tuple((dtype, 0) for dtype in ISSUED)))
    fit = _Fit(runs, start, is_blank=base is None, spread=spread)
    system = fit.with_accelerator()
    system = replace(fit.with_network(system), name=name)
    return replace(system, sources=_sources(runs, base, fit.numbers)), tuple(fit.numbers)


def _blank(runs: Sequence[Observations]) -> System:
    """A system with 1 TFLOP/s in each format that the runs compute in, 1 GB/s, and a network of one dimension."""
    formats = {dtype for run in runs for each in run.workload.classes for dtype in each.ops.dtype}
    # Every format, so that all ops of a plan have a time. Those that no matmul of the runs has are taken out again.
    peak = {dtype: Fraction(1) for dtype in DTYPES if dtype in formats or dtype == "fp32"}
    accelerator = Accelerator("measured", peak, Fraction(1), math.inf, Fraction(0))
    return System("measured", (), accelerator, (Dimension("network", None, "switch", Fraction(1), Fraction(0)),))


def _sources(runs: Sequence[Observations], base: System | None, numbers: Iterable[FittedNumber]) -> tuple[str, ...]:
    """The sources of the numbers of a calibrated system, as its file names them."""
    own = f"fitted to {len(runs)} run{'' if len(runs) == 1 else 's'}: " + ", ".join(each.run for each in runs)
    found = (own[:_LONGEST], *map(str, numbers))
    if base is None:
        return found
    return (*found, f"other numbers and the form of curves: the system {base.name}", *base.sources)


Row = TypeVar("Row", Spent, SeenCall)


class _Fit:
    """The numbers of a system, one after the other."""

    def __init__(self, runs: Sequence[Observations], base: System, *, is_blank: bool, spread: bool) -> None:
        self.numbers: list[FittedNumber] = []
        self.spent = [row for each in runs for row in each.spent(base, is_blank=is_blank)]
        self.calls = [row for each in runs for row in each.calls]
        self._base, self._is_blank = base, is_blank
        self._world = max(len(each.workload.ranks) for each in runs)
        steps, ranks = ({getattr(each, of) for each in self.spent} for of in ("step", "rank"))
        self._spread = spread
        self._each = "run" if len(runs) > 1 else "step" if len(steps) > 1 else "rank" if len(ranks) > 1 else ""

    def with_accelerator(self) -> System:
        """The base with fitted speeds of what computes."""
        rows = self._of(MATMUL, ATTENTION)
        alone = [each for each in rows if not each.during] or rows
        matmuls, attentions = ([each for each in alone if each.kind == kind] for kind in (MATMUL, ATTENTION))
        if not matmuls:
            raise UsageError(
                "the runs have no matmul that is one of their plans: record them with the shapes of operands "
                "(`record_shapes=True` of PyTorch's profiler), import and match them again"
            )
        system = (self._of_runs if self._is_blank else self._of_base)(matmuls, attentions)
        taken = self._taken(rows)
        launch = self._number("launch of an op", "ns", self._of(LAUNCH), lambda ratio: ratio)
        accelerator = replace(system.accelerator, launch=launch)
        overlap = system.overlap if taken is None else replace(system.overlap, taken=taken)
        return replace(system, accelerator=accelerator, overlap=overlap)

    def _of_runs(self, matmuls: Sequence[Spent], attentions: Sequence[Spent]) -> System:
        """The accelerator with the speeds of the runs, whose modelled times are those of 1 TFLOP/s and 1 GB/s."""
        base, peak = self._base, {}
        for dtype in base.accelerator.peak:
            own = [each for each in matmuls if each.dtype == dtype]
            if own:
                peak[dtype] = self._number(f"matmul in {dtype}", "TFLOP/s", own, lambda ratio: 1 / ratio)
        share = Fraction(1)
        attentions = [replace(each, modelled=each.modelled / peak[each.dtype])
                      for each in attentions if each.dtype in peak]  # fmt: skip
        if attentions:
            share = self._number("attention", "x matmul", attentions, lambda ratio: 1 / ratio)
        # An efficiency is at most 1, so peaks are raised to what is fastest, which may be attentions.
        most = max(share, Fraction(1))
        bandwidth = self._number("memory bandwidth", "GB/s", self._of(MEMORY), lambda ratio: 1 / ratio)
        accelerator = replace(
            base.accelerator,
            peak={dtype: rate * most for dtype, rate in peak.items()},
            bandwidth=bandwidth,
            matmul=_flat(1 / most),
            attention=_flat(share / most),
        )
        return replace(base, accelerator=accelerator)

    def _of_base(self, matmuls: Sequence[Spent], attentions: Sequence[Spent]) -> System:
        """The base with its curves scaled, and its tables stretched."""
        base = self._base
        accelerator, overlap = base.accelerator, base.overlap
        tables = {each.operator for each in base.tables}
        for kind, rows in ((MATMUL, matmuls), (ATTENTION, attentions), (MEMORY, self._of(MEMORY))):
            if not rows:
                continue
            speed = self._number(f"speed of {kind}", "x base", rows, lambda ratio: 1 / ratio)
            curve = _scaled(
                getattr(accelerator, kind), speed, f"{kind} of {accelerator.name}", stops=kind not in tables
            )
            accelerator = _with_curve(accelerator, kind, curve)
            if kind in tables and not _STRETCHES[0] <= 1 / speed <= _STRETCHES[1]:
                raise UsageError(
                    f"{kind} of the runs takes {float(1 / speed):.3g} times as long as on {base.name}, which is other "
                    f"hardware: name another system ({Word('base')}), or none"
                )
            if kind in tables:
                known = dict(overlap.stretch)
                known |= {each: known.get(each, 1) / speed for each in STRETCHED if each.partition("-")[0] == kind}
                overlap = replace(overlap, stretch=tuple((each, known[each]) for each in STRETCHED if each in known))
        return replace(base, accelerator=accelerator, overlap=overlap)

    def _taken(self, rows: Sequence[Spent]) -> int | None:
        """Thousandths of their time by which matmuls are slower while their rank communicates; None: nothing shows."""
        shared = {(each.kind, each.dtype) for each in rows if each.during}
        shared &= {(each.kind, each.dtype) for each in rows if not each.during}
        rows = [each for each in rows if (each.kind, each.dtype) in shared]
        if not rows:
            return None

        def slower(some: Sequence[Spent]) -> Fraction:
            sums = [[each for each in some if each.during is during] for during in (True, False)]
            if not all(sums):
                return Fraction(0)
            during, alone = (
                Fraction(sum(each.seen for each in own)) / sum(each.modelled for each in own) for own in sums
            )
            return Fraction(min(max(round((during / alone - 1) * 1000), 0), 999))

        return int(self._with_spread("slower while data-parallel ranks communicate", "thousandths", rows, slower))

    def with_network(self, system: System) -> System:
        """The system with a fitted latency and bandwidth of each dimension that the runs cross."""
        costs = Costs(replace(system, tables=()), self._world)
        for at, dimension in enumerate(system.dimensions):
            rows = [each for each in self.calls if each.size and _outermost(costs, each) == at]
            if not rows:
                continue
            tables = tuple(each for each in system.tables if each.operator != "collective")
            system = replace(system, tables=tables)
            fit = _DimensionFit(system, at, self._world)
            latency = self._with_spread(f"latency of {dimension.name}", "ns", rows, fit.latency)
            rate = self._with_spread(f"bandwidth of {dimension.name}", "GB/s", rows, fit.bandwidth)
            system = fit.system(latency, rate)
        return system

    def _of(self, *kinds: str) -> list[Spent]:
        return [each for each in self.spent if each.kind in kinds and each.modelled]

    def _number(self, name: str, unit: str, rows: Sequence[Spent], of: Callable[[Fraction], Fraction]) -> Fraction:
        """A number that `of` makes of the ratio of seen to modelled time."""

        def value(some: Sequence[Spent]) -> Fraction:
            return rounded(of(Fraction(sum(each.seen for each in some)) / sum(each.modelled for each in some)))

        return self._with_spread(name, unit, rows, value)

    def _with_spread(
        self, name: str, unit: str, rows: Sequence[Row], value: Callable[[Sequence[Row]], Fraction]
    ) -> Fraction:
        parts: dict[Any, list[Row]] = defaultdict(list)
        for row in rows if self._spread else ():
            parts[getattr(row, self._each, 0)].append(row)
        found, each = value(rows), [value(own) for own in parts.values()]
        low, high = (min(each), max(each)) if len(each) > 1 else (None, None)
        count = sum(getattr(row, "count", 1) for row in rows)
        self.numbers.append(FittedNumber(name, found, unit, low, high, self._each if len(each) > 1 else "", count))
        return found


class _DimensionFit:
    """The latency and bandwidth of a network dimension."""

    def __init__(self, system: System, at: int, world: int) -> None:
        self._system, self._at, self._world = system, at, world
        self._known: dict[tuple[SeenCall, ...], tuple[Fraction, Fraction]] = {}

    def system(self, latency: Fraction, bandwidth: Fraction) -> System:
        """The system with other numbers of the dimension. The form of its curve stays."""
        known = self._system.dimensions[self._at]
        changed = replace(known, latency=latency, bandwidth=bandwidth)
        if known.efficiency != FLAT:
            # The largest messages reach the bandwidth that was found, which may be above the nominal one.
            top = max(share for _, share in known.efficiency.points)
            nominal = max(Fraction(known.bandwidth), bandwidth)
            curve = _scaled(known.efficiency, bandwidth / nominal / top, known.name)
            changed = replace(changed, bandwidth=nominal, efficiency=curve)
        dimensions = [*self._system.dimensions[: self._at], changed, *self._system.dimensions[self._at + 1 :]]
        return replace(self._system, dimensions=tuple(dimensions))

    def latency(self, calls: Sequence[SeenCall]) -> Fraction:
        """The best latency in ns."""
        return self._best(calls)[0]

    def bandwidth(self, calls: Sequence[SeenCall]) -> Fraction:
        """The best bandwidth in GB/s."""
        return self._best(calls)[1]

    def _best(self, calls: Sequence[SeenCall]) -> tuple[Fraction, Fraction]:
        """The latency in ns and bandwidth in GB/s with the smallest sum of absolute errors."""
        if tuple(calls) not in self._known:
            self._known[tuple(calls)] = self._search(calls)
        return self._known[tuple(calls)]

    def _search(self, calls: Sequence[SeenCall]) -> tuple[Fraction, Fraction]:
        same: dict[tuple[str, int, tuple[int, ...]], list[int]] = defaultdict(list)
        for each in calls:
            same[each.kind, each.size, each.ranks].append(each.ns)
        spans = [(math.log(least), math.log(most)) for least, most in (LATENCIES, RATES)]
        found, half = [(least + most) / 2 for least, most in spans], [(most - least) / 2 for least, most in spans]
        for _ in range(_FINER):
            sides = [
                sorted({min(max(at + reach * step / (_SIDE // 2), least), most) for step in _STEPS})
                for at, reach, (least, most) in zip(found, half, spans, strict=True)
            ]
            found = list(min(product(*sides), key=lambda point: self._error(same, list(point))))
            half = [each / 2 for each in half]
        latency, rate = (rounded(Fraction(math.exp(each))) for each in found)
        return latency, rate

    def _error(self, same: Mapping[tuple[str, int, tuple[int, ...]], Sequence[int]], point: Sequence[float]) -> float:
        latency, rate = (rounded(Fraction(math.exp(each))) for each in point)
        costs = Costs(self.system(latency, rate), self._world)
        modelled = {key: _modelled(costs, *key) for key in same}
        return math.fsum(abs(modelled[key] - ns) for key, seen in same.items() for ns in seen)


def _modelled(costs: Costs, kind: str, size: int, ranks: tuple[int, ...]) -> int:
    if kind == MESSAGE:
        return costs.transfer(Transfer(size, *ranks)).ns
    return costs.collective(CollectiveWork(kind, size, ranks)).ns


def _outermost(costs: Costs, each: SeenCall) -> int:
    """The outermost dimension that a call crosses."""
    spans = costs.placement(tuple(sorted(each.ranks))).spans
    return spans[-1].dimension if spans else 0


def _flat(share: Fraction) -> Curve:
    return FLAT if share == 1 else Curve(((Fraction(1), rounded(share)),))


def _with_curve(accelerator: Accelerator, kind: str, curve: Curve) -> Accelerator:
    if kind == MATMUL:
        return replace(accelerator, matmul=curve)
    return replace(accelerator, attention=curve) if kind == ATTENTION else replace(accelerator, memory=curve)


def _scaled(curve: Curve, factor: Fraction, of: str, *, stops: bool = True) -> Curve:
    """A curve with all efficiencies times a factor. stops: UsageError where one is above 1; else it is 1."""
    points = tuple((size, rounded(share * factor)) for size, share in curve.points)
    top = max(share for _, share in points)
    if top > 1 and stops:
        raise UsageError(
            f"the runs are faster than {of} can be: {float(top):.0%} of the peak of the base: name another system "
            f"({Word('base')}), or none"
        )
    return Curve(tuple((size, min(share, Fraction(1))) for size, share in points))


def rounded(number: Fraction) -> Fraction:
    """A number above 0 with `DIGITS` significant digits, as a decimal."""
    return Fraction(f"{float(number):.{DIGITS}g}")
