"""Two recorded runs compared: where the time of a rank goes, by term and by operator.

Times are in ns of a rank and a step. Runs without numbered steps are windows of a job, and are compared for as much
work: the second one is scaled by how many more or fewer calls of its operators it has.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from stagedb.files.texts import EVEN
from stagedb.runs.measured_run import RankTime, time_of
from stagedb.runs.stored_run import RunOpFacts, StoredRun

TERMS = {"busy": "computing or copying", "exposed": "exposed collectives", "bubble": "messages", "idle": "nothing runs"}
"""Terms that add up to a run, as fields of `RankTime`, and what they are."""

LONGEST = 40
"""Characters of the name of an operator or a kernel in a sentence."""

CALLS = 0.005
"""Calls that differ by less than this share are the same: windows of a job begin and end in the middle of a step."""

MOST_OF = 0.5
"""Kernels are compared by the operators that launched them if these are known for this share of the time, or more."""


@dataclass(frozen=True)
class OperatorTime:
    """An operator or kernel in a step of one run on one rank. ns: the time of all calls. calls: their number."""

    ns: float = 0.0
    calls: float = 0.0

    def plus(self, ns: float, calls: float) -> "OperatorTime":
        """The sum with so many more calls, which take so many ns together."""
        return OperatorTime(self.ns + ns, self.calls + calls)


@dataclass(frozen=True)
class RunSums:
    """The sums of a run. run: as the store has it."""

    run: StoredRun

    @cached_property
    def numbers(self) -> set[int]:
        """The numbers of its steps, as the profiler counted them."""
        return {op.step_number for lane in self.run.lanes for op in lane.ops if op.step_number is not None}

    @property
    def steps(self) -> int:
        """Number of steps that the profiler numbered; 1 without."""
        return max(len(self.numbers), 1)

    @property
    def step(self) -> float:
        """Ns of a step: the whole run, divided by its steps."""
        return self.run.step / self.steps

    @cached_property
    def terms(self) -> dict[str, float]:
        """Where the time of a rank goes in a step, in the mean of the ranks."""
        times = []
        for rank, timed in self.run.timed.items():
            types = [op.type for op in self.run.lane_of[rank].ops]
            times.append(time_of(timed.start, timed.end, types, self.run.step))
        names = [each.name for each in fields(RankTime) if each.name in TERMS]
        return {name: sum(getattr(each, name) for each in times) / len(times) / self.steps for name in names}

    @cached_property
    def launched(self) -> float:
        """The share of the time of computing whose operators are known."""
        known = every = 0
        for op, ns, _ in self._ops():
            if op.type == "compute":
                every += ns
                known += ns if op.launcher is not None else 0
        return known / every if every else 0.0

    def operators(self, by_launcher: bool) -> dict[str, OperatorTime]:
        """Times and calls by operator, and of communication by kind and group.

        by_launcher: kernels count for the operator that launched them; otherwise each kernel counts under its own name.
        """
        found: dict[str, OperatorTime] = defaultdict(OperatorTime)
        share = len(self.run.timed) * self.steps
        for op, ns, count in self._ops():
            name = _name(op, by_launcher)
            found[name] = found[name].plus(ns / share, count / share)
        return dict(found)

    def _ops(self) -> Iterator[tuple[RunOpFacts, int, int]]:
        """Each op of each lane, with its time on all ranks, and how many these are."""
        for lane in self.run.lanes:
            lengths = np.add.reduce([self.run.timed[rank].end - self.run.timed[rank].start for rank in lane.members])
            for op, ns in zip(lane.ops, lengths.tolist(), strict=True):
                yield op, ns, len(lane.members)


def _name(op: RunOpFacts, by_launcher: bool) -> str:
    if op.type not in ("compute", "copy"):
        return op.kind if op.axis is None else f"{op.axis} {op.kind}"
    if op.type == "copy":
        return op.kind
    # Names of kernels differ between devices; the kind of a kernel without a known operator does not.
    return (op.launcher or f"{op.kind} kernels without an operator") if by_launcher else op.name


def _in_short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


@dataclass(frozen=True)
class RunDifference:
    """The differences between two recorded runs, with the second one scaled to as much work as the first."""

    one: RunSums
    other: RunSums

    @property
    def by_launcher(self) -> bool:
        """Whether both runs know the operators of most of their kernels: kernels of two devices have other names."""
        return min(self.one.launched, self.other.launched) >= MOST_OF

    @cached_property
    def scale(self) -> float:
        """What times and calls of the second run are multiplied by, so that it has as much work as the first one.

        1 if steps are numbered. Else the ratio of calls of the operator in the middle, by time.
        """
        if self.one.numbers or self.other.numbers:
            return 1.0
        ours, theirs = self._sums
        common = [(ours[name], theirs[name]) for name in ours if name in theirs]
        ratios = sorted((first.calls / second.calls, first.ns) for first, second in common)
        half, before = sum(ns for _, ns in ratios) / 2, 0.0
        for ratio, ns in ratios:
            before += ns
            if before >= half:
                return ratio
        return 1.0

    @cached_property
    def _sums(self) -> tuple[dict[str, OperatorTime], dict[str, OperatorTime]]:
        return self.one.operators(self.by_launcher), self.other.operators(self.by_launcher)

    @property
    def longer(self) -> float:
        """The share by which a step of the second run is longer, for as much work."""
        return self.other.step * self.scale / self.one.step - 1

    @cached_property
    def terms(self) -> list[tuple[str, int, int, int]]:
        """The step, and its terms where they differ: in the first and in the second run, and the change, in ns."""
        rows = [("step", round(self.one.step), round(self.other.step * self.scale))]
        for name, what in TERMS.items():
            rows.append((what, round(self.one.terms[name]), round(self.other.terms[name] * self.scale)))
        return [(what, ours, theirs, theirs - ours) for what, ours, theirs in rows if ours != theirs]

    @cached_property
    def operators(self) -> list[tuple[str, int, int, int, int | float, int | float]]:
        """Operators that differ, the largest change first: ns in both runs, the change, and calls in both."""
        ours, theirs = self._sums
        theirs = {name: OperatorTime(each.ns * self.scale, each.calls * self.scale) for name, each in theirs.items()}
        none = OperatorTime()
        rows = []
        for name in ours | theirs:
            first, second = ours.get(name, none), theirs.get(name, none)
            more = abs(first.calls - second.calls) > CALLS * max(first.calls, second.calls)
            if more or round(first.ns) != round(second.ns):
                times = round(first.ns), round(second.ns)
                rows.append((name, *times, times[1] - times[0], _count(first.calls), _count(second.calls)))
        return sorted(rows, key=lambda row: (-abs(row[3]), row[0]))

    @cached_property
    def why(self) -> str:
        """What makes most of the difference of the step, by term and by operator; empty if nothing does."""
        changes = sorted(self.terms[1:], key=lambda row: -abs(row[3]))
        terms = [f"{what} {change / 1e6:+,.3f} ms" for what, _, _, change in changes[:3]]
        most = [f"{_in_short(name)} {change / 1e6:+,.3f} ms" for name, _, _, change, *_ in self.operators[:3] if change]
        parts = [", ".join(terms)] if terms else []
        return "; ".join([*parts, *([f"by operator {', '.join(most)}"] if most else [])])

    @cached_property
    def common(self) -> float:
        """The share of the time of both runs that operators have which both know, the smaller one."""
        ours, theirs = self._sums
        both = ours.keys() & theirs.keys()
        shares = []
        for sums in self._sums:
            every = sum(each.ns for each in sums.values())
            shares.append(sum(sums[name].ns for name in both) / every if every else 1.0)
        return min(shares)

    def verdict(self, first: str, second: str) -> str:
        """One sentence: which run is faster, by how much, and why. first, second: names."""
        more = self.longer
        if abs(more) < EVEN:
            return f"{first} and {second} are equally fast"
        numbered = self.one.numbers and self.other.numbers
        what = "a step of" if numbered else "for as much work," if self.scale != 1 else "all of"
        calls, scaled = "fewer" if self.scale > 1 else "more", ""
        if self.scale != 1:
            scaled = f" (its times are multiplied by {self.scale:.3f}, since it has {calls} calls)"
        text = f"{what} {second}{scaled} is {abs(more):.2%} {'longer' if more > 0 else 'shorter'} than {first}"
        ours, theirs = (len(each.run.timed) for each in (self.one, self.other))
        if ours != theirs:
            text += f" (on {theirs} ranks that were recorded, against {ours})"
        if self.common < MOST_OF:
            text += f" (only {self.common:.0%} of the time is of operators that both have: are these runs of one job?)"
        return f"{text}: {self.why}" if self.why else text


def _count(calls: float) -> int | float:
    return round(calls) if calls == round(calls) else round(calls, 2)


def difference(one: StoredRun, other: StoredRun) -> RunDifference:
    """Two runs compared, a rank and a step of each."""
    return RunDifference(RunSums(one), RunSums(other))
