"""Sweeps: what varies, the points timed one by one, and the derivative of a step by each number of the system."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import nearest, question, shown
from stagedb.lowering.columns import Program, Workload
from stagedb.memory import memory_of, peak_of
from stagedb.mentions import Word
from stagedb.plans import Plan, typed_words
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.search.trials import Trials, bound_of
from stagedb.search.what_ifs import durations_on
from stagedb.shared_work import Answer, shared
from stagedb.systems import System
from stagedb.systems.system import Number, plain
from stagedb.systems.system_numbers import SystemNumber, find_number, read_number, system_numbers, with_numbers
from stagedb.timing import merit_of, node_graph_of, run_step, step_times
from stagedb.timing.network_position import placed
from stagedb.timing.timeline import step_length


@dataclass(frozen=True)
class SweepPoint:
    """A plan to time on a system.

    name: what differs from other points, in words. measured_on: the system whose tables of measured times are used.
    """

    name: str
    plan: Plan
    system: System
    measured_on: System


@dataclass(frozen=True)
class PointOutcome:
    """The result of timing one point of a sweep.

    ranks: of the plan. step: ns. peak: bytes of the fullest rank. fits: whether an accelerator of the system holds
    them. mfu: from 0 to 1; None without a finite peak. tokens: a second and accelerator; None without an acceptance of
    drafts. bound, share: what bounds the step (`Bound`), and its share of the step.
    """

    ranks: int
    step: int
    peak: int
    fits: bool
    mfu: float | None
    tokens: float | None
    bound: str
    share: float


@dataclass(frozen=True)
class Refusal:
    """Why a point has no outcome. message: that of the UsageError."""

    message: str


@dataclass
class PointTrials:
    """A sweep's points timed one by one. The last program is kept, because points with the same plan follow each other.

    trials: makes and times programs.
    """

    trials: Trials
    _last: tuple[Plan, Program, int] | None = field(default=None, init=False)

    def lowered(self, plan: Plan) -> tuple[Program, int]:
        """The program of a plan, and the bytes that its fullest rank holds. UsageError for a misfit."""
        if self._last is None or self._last[0] != plan:
            copied = self.trials.copied(plan)
            self._last = plan, copied, peak_of(memory_of(copied))
        return self._last[1], self._last[2]

    def outcome(self, point: SweepPoint) -> PointOutcome:
        """The outcome of a point. UsageError if plan and system do not suit the model or each other."""
        copied, peak = self.lowered(point.plan)
        system = point.system
        workload, room = copied.workload, system.accelerator.room
        world = len(workload.ranks)
        durations = durations_on(workload, system, point.measured_on)
        has = placed(workload, system)[0]
        graph = node_graph_of(workload, has.overlap.streams, has.network(world))
        timeline = run_step(graph, durations.ns, has.overlap.compute, blocking=self.trials.blocking)
        times = step_times(timeline, [lane.waits for lane in durations.lanes])
        merit = merit_of(times, has)
        bound = bound_of(times, peak, room)
        return PointOutcome(
            ranks=world,
            step=times.step,
            peak=peak,
            fits=room is None or peak <= room,
            mfu=merit.mfu,
            tokens=merit.tokens_per_second_per_accelerator,
            bound=bound.words,
            share=bound.share,
        )

    def step(self, workload: Workload, system: System) -> int:
        """The step [ns] of a workload on a system with the tables of `trials.system`, alone."""
        durations = durations_on(workload, system, self.trials.system)
        has = placed(workload, system)[0]
        graph = node_graph_of(workload, has.overlap.streams, has.network(len(workload.ranks)))
        return step_length(graph, durations.ns, has.overlap.compute, self.trials.blocking)


def sweep(trials: Trials, points: Sequence[SweepPoint]) -> Iterator[tuple[int, PointOutcome | Refusal]]:
    """The place of each point and its outcome, as they end, in processes of their own.

    A point whose plan does not suit the model or the system is refused. Raises StagedbError if a process ends before
    its point does.
    """
    tried = PointTrials(trials)

    def work(at: int) -> Answer:
        try:
            return asdict(tried.outcome(points[at]))
        except UsageError as error:
            return {"message": error.message}

    _build_first(trials, points)
    for at, answer in shared(work, [each.name for each in points], trials.processes):
        yield at, Refusal(**answer) if "message" in answer else PointOutcome(**answer)


def _build_first(trials: Trials, points: Sequence[SweepPoint]) -> None:
    """Build the graph of the first plan, which most points share, before the processes are copied."""
    for point in points:
        try:
            trials.graph(point.plan.options)
        except UsageError:
            continue
        return


# What a sweep varies: words of a plan, numbers of a system, or the system itself, each with its values.

SYSTEM = "system"
"""The name of a variation of the system itself."""

NUMBERS = "system."
"""What a number of the system begins with; the rest is its path."""

MOST = 10_000
"""Points of a sweep."""

_RANGE = re.compile(r"([0-9]{1,15})\.\.([0-9]{1,15})(?::([0-9]{1,15}))?")
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class Variation:
    """What varies. name: a word of a plan, `system`, or `system.` and the path of a number of the system.

    values: of a word as a plan has them, numbers of a system, or names of systems.
    """

    name: str
    values: tuple[Any, ...]

    @property
    def path(self) -> str | None:
        """The path of a number of the system; None for other variations."""
        return self.name.removeprefix(NUMBERS) if self.name.startswith(NUMBERS) else None

    @property
    def shown_values(self) -> tuple[Any, ...]:
        """The values as a sweep's rows show them: numbers of a system as in its file."""
        return tuple(shown_value(each) for each in self.values)


def variation(name: str, values: str | Sequence[Any]) -> Variation:
    """What varies, from its name and its values: a list, or a text such as `1,2,4`, `1..8` or `2000..4000:500`.

    Values that have commas themselves are separated by semicolons. Raises UsageError for an unknown name, and for
    values that the word or number cannot have.
    """
    word = name if name.startswith(NUMBERS) else name.replace("-", "_")
    if word != SYSTEM and not word.startswith(NUMBERS) and word not in PLAN_WORDS:
        raise UsageError(f"{shown(name)} cannot be varied{_near(word)}: {Word('vary')} takes {TAKES}")
    if isinstance(values, str):
        values = list(_texts(word, values))
    if not isinstance(values, list | tuple | range) or not values:
        raise UsageError(f"{Word('vary')} {name} has no values: it takes a list, such as {name}=1,2,4")
    found = tuple(_value(word, each) for each in values)
    for at, each in enumerate(found):
        if each in found[:at]:
            raise UsageError(f"{Word('vary')} {name} has the value {shown(shown_value(each))} twice: leave one out")
    return Variation(word, found)


TAKES = "words of a plan (tp), the system, and numbers of it by the keys of its file (system.accelerator.launch)"


def read_variation(text: str) -> Variation:
    """What varies, from a text such as `tp=1,2,4`. UsageError for another text."""
    name, sign, values = text.partition("=")
    if not sign or not name.strip() or not values.strip():
        raise UsageError(f"{Word('vary')} {shown(text)} is not NAME=VALUES, such as tp=1,2,4 or tp=1..8")
    return variation(name.strip(), values.strip())


def points(variations: Sequence[Variation], *, together: bool = False) -> list[dict[str, Any]]:
    """The values of each point by name: every combination, the last variation the fastest.

    together: all first values, then all second ones, and so on. Raises UsageError for a name that is there twice,
    for lists of different lengths that are taken together, and for more than `MOST` points.
    """
    names = [each.name for each in variations]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise UsageError(f"{Word('vary')} has {name} twice: give all its values in one list")
    lengths = [len(each.values) for each in variations]
    if together and len(set(lengths)) > 1:
        listed = ", ".join(f"{length} of {name}" for name, length in zip(names, lengths, strict=True))
        raise UsageError(
            f"{Word('together', True)} takes lists of one length, and there are {listed}: leave it out for every "
            "combination"
        )
    count = 1
    for length in lengths[:1] if together else lengths:
        count *= length
    if count > MOST:
        raise UsageError(f"the sweep has {count:,} points, and at most {MOST:,} are tried: vary less ({Word('vary')})")
    rows = zip(*(each.values for each in variations), strict=True) if together else _grid(variations)
    return [dict(zip(names, row, strict=True)) for row in rows]


def changed_system(system: System, values: Mapping[str, Any]) -> System:
    """A system with the numbers of a point.

    values: of the point, by name; those that begin with `system.` are numbers of the system. UsageError if it has no
    such number, or cannot have such a value.
    """
    numbers = {name.removeprefix(NUMBERS): value for name, value in values.items() if name.startswith(NUMBERS)}
    known = {path: find_number(system, path).value for path in numbers}
    return with_numbers(system, {path: value for path, value in numbers.items() if value != known[path]})


def shown_value(value: Any) -> Any:
    """A value as rows have it: numbers of a system as in its file."""
    if isinstance(value, Fraction) or value == float("inf"):
        return plain(value)
    return list(value) if isinstance(value, tuple) else value


def point_name(values: Mapping[str, Any]) -> str:
    """A point in words, such as `tp 4, system.accelerator.launch 1000`. values: by name."""
    return ", ".join(f"{name} {shown_text(value)}" for name, value in values.items())


def shown_text(value: Any) -> str:
    """A value of a variation as a user would write it on the command line."""
    found = shown_value(value)
    if isinstance(found, bool):
        return str(found).lower()
    return ",".join(map(str, found)) if isinstance(found, list) else f"{found}"


def _grid(variations: Sequence[Variation]) -> Iterator[tuple[Any, ...]]:
    return itertools.product(*(each.values for each in variations))


def _texts(word: str, text: str) -> Iterator[Any]:
    """The values that a text lists."""
    for part in text.split(";" if ";" in text else ","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            yield _read(word, part.strip())
            continue
        first, last, by = int(match[1]), int(match[2]), int(match[3] or 1)
        if first > last or by < 1 or (last - first) // by >= MOST:
            raise UsageError(
                f"{Word('vary')} {word}: {shown(part)} is no range: it takes FIRST..LAST, or FIRST..LAST:STEP, with at "
                f"most {MOST:,} values"
            )
        yield from range(first, last + 1, by)


def _read(word: str, text: str) -> Any:
    """A value from its text. Values that are none remain texts, for the checks of words."""
    kind = PLAN_WORDS[word].kind if word in PLAN_WORDS else str
    if kind is int and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if kind is float and re.fullmatch(r"-?[0-9]{0,18}(\.[0-9]{0,18})?", text) and any(map(str.isdigit, text)):
        return float(text)
    return _TRUTHS.get(text.lower(), text) if kind is bool else text


def _value(word: str, value: Any) -> Any:
    """A value of what varies, checked."""
    if word == SYSTEM:
        if not isinstance(value, str | Path):
            raise UsageError(f"{Word('vary')} {word}: {shown(value)} is neither a preset's name nor the path of a file")
        return str(value)
    if not word.startswith(NUMBERS):
        typed = typed_words({word: value})
        if word not in typed:
            raise UsageError(f"{Word('vary')} {word} has a value without content: leave it out")
        return typed[word]
    number = _number(value)
    if number is None:
        raise UsageError(f"{Word('vary')} {word}: {shown(value)} is no number, such as 450, 2.5e3 or .inf")
    return number


def _number(value: Any) -> Number | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Fraction):
        return value
    return read_number(value if isinstance(value, str) else ".inf" if value == float("inf") else repr(value))


def _near(word: str) -> str:
    near = nearest(word, PLAN_WORDS, 3) or [each for each in PLAN_WORDS if each.startswith(word)]
    if not near and "." in word:
        near = [NUMBERS + word]
    return question(near)


# The derivative of a step by each number of the system: which hardware shortens it, and by how much.

LITTLE, MUCH = Fraction(101, 100), Fraction(11, 10)
"""Factors by which a number gets better: a rate is multiplied by one, a time divided."""


@dataclass(frozen=True)
class NumberGain:
    """What a step gains by a better number of the system.

    number: of the system. elasticity: d ln step / d ln number, between the step with the number 1 % lower and 1 %
    higher: -1 for a rate that alone decides the step, +1 for such a time. little, much: ns by which the step gets
    shorter with the number 1 % and 10 % better.
    """

    number: SystemNumber
    elasticity: float
    little: int
    much: int


@dataclass(frozen=True)
class Sensitivity:
    """The step of a plan by each number of its system. step: ns. peak: bytes of the fullest rank.

    room: bytes of an accelerator; None without a limit. gains: those that shorten the step most first.
    """

    step: int
    peak: int
    room: int | None
    gains: tuple[NumberGain, ...]


def sensitivity(trials: Trials, plan: Plan, tried: Callable[[int, int], None] = lambda done, of: None) -> Sensitivity:
    """Time a plan with each number of its system lower and higher: rates, capacities, the launch and latencies.

    Those of the host are tried where the plan keeps something there. Shares, such as what matmuls sustain, and curves
    are left out: nobody sells them. The sum of the elasticities of rates less those of times is -1, because a system
    that is faster in all of them runs the step faster by as much.
    tried: called with how many numbers are tried, of how many. Raises UsageError if the plan or the system does not
    suit the model.
    """
    runs = PointTrials(trials)
    copied, peak = runs.lowered(plan)
    step = runs.step(copied.workload, trials.system)
    hostless = plan.options.offload == "none"
    bought = (each for each in system_numbers(trials.system).values() if each.bought)
    numbers = [each for each in bought if not (hostless and each.keys[0] == "host")]

    def work(at: int) -> Answer:
        return {
            "steps": [runs.step(copied.workload, with_numbers(trials.system, each)) for each in _values(numbers[at])]
        }

    tried(0, len(numbers))
    found: dict[int, NumberGain] = {}
    for at, answer in shared(work, [each.path for each in numbers], trials.processes):
        found[at] = _gain(numbers[at], answer["steps"])
        tried(len(found), len(numbers))
    # Sorting is stable, so that numbers with equal gains keep the order of a system's file.
    gains = sorted((found[at] for at in sorted(found)), key=lambda each: (each.much, -abs(each.elasticity)))
    return Sensitivity(step, peak, trials.system.accelerator.room, tuple(gains))


def _values(number: SystemNumber) -> list[dict[str, Fraction]]:
    """The number 1 % lower, 1 % higher, and 10 % better."""
    value = Fraction(number.value or 0)
    return [{number.path: each} for each in (value / LITTLE, value * LITTLE, _better(number, MUCH))]


def _better(number: SystemNumber, factor: Fraction) -> Fraction:
    value = Fraction(number.value or 0)
    return value / factor if number.is_time else value * factor


def _gain(number: SystemNumber, steps: Sequence[int]) -> NumberGain:
    lower, higher, much = steps
    elasticity = math.log(higher / lower) / (2 * math.log(LITTLE)) if lower and higher else 0.0
    return NumberGain(number, elasticity, lower if number.is_time else higher, much)
