"""What somebody who pays for a plan asks: how fast, for how long, at which price, with how much energy, how sure.

The figures are computed from integers of the store and numbers that the user gives. Pages, PDF files and the command
line show the same sections.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Self

from stagedb.errors import UsageError
from stagedb.files import GB, shown
from stagedb.mentions import Word
from stagedb.reports.terminal_chart import span
from stagedb.timing.expected_errors import ExpectedError
from stagedb.timing.step_profile import SECOND

HOUR = 3_600 * SECOND
DAY = 24 * HOUR
MOST_TOKENS = 10**18
MOST_PRICE = 10**6
"""The largest price and the largest power that are taken."""
JOULES = 3_600_000
"""Joules of a kWh."""

_NUMBER = re.compile(r"(?P<number>[0-9][0-9_,]{0,30}(?:\.[0-9]{1,12})?(?:[eE]\+?[0-9]{1,2})?)(?P<unit>[kKMBT]?)")
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@dataclass(frozen=True)
class PlanPrices:
    """What a user gives. tokens: to train on. price_hour: of an accelerator and hour. watts: that an accelerator takes,
    with its share of the machine and of the cooling. price_kwh: of a kWh, in the currency of the other price.
    """

    tokens: int | None = None
    price_hour: Fraction | None = None
    watts: Fraction | None = None
    price_kwh: Fraction | None = None

    @classmethod
    def of(cls, words: Mapping[str, object]) -> Self:
        """Numbers of texts such as `15T`, `2.50` or `1_000`.

        words: texts by name. Raises UsageError for one that is none, or too large.
        """
        given = {name: _number(name, words.get(name), most) for name, most in LIMITS.items()}
        tokens = given.pop("tokens")
        if tokens is not None and (tokens.denominator != 1 or tokens == 0):
            raise UsageError(f"{Word('tokens')} is a whole number above 0, not {shown(words['tokens'])}")
        return cls(None if tokens is None else int(tokens), **given)


LIMITS: Mapping[str, int] = {
    "tokens": MOST_TOKENS,
    "price_hour": MOST_PRICE,
    "watts": MOST_PRICE,
    "price_kwh": MOST_PRICE,
}
"""The numbers that a user may give, and the largest of each."""


def _number(name: str, given: object, most: int) -> Fraction | None:
    text = "" if given is None else str(given).strip()
    if not text:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UsageError(f"{shown(text)} is no number for {Word(name)}: it takes 0 or more, such as 2.5, 1e12 or 15T")
    value = Fraction(Decimal(re.sub("[_,]", "", found["number"]))) * _UNITS[found["unit"]]
    if value > most:
        raise UsageError(f"{shown(text)} is too large for {Word(name)}: it takes at most {most:,}")
    return value


@dataclass(frozen=True)
class RivalPlan:
    """Another profile of the same model on the same system. plan: in short, empty if it is not listed. step: ns.

    tokens: a second and accelerator. memory: bytes. fits: None where the memory is not known.
    """

    id: str
    name: str
    plan: str
    ranks: int
    step: int
    tokens: float
    memory: int | None
    fits: bool | None


@dataclass(frozen=True)
class SourceSearch:
    """A search that tried the plan. place: of the plan in it, from 1. covered: whether it settled every plan."""

    id: str
    place: int
    size: int
    timed: int
    covered: bool
    by: str


@dataclass(frozen=True)
class SummaryRow:
    """A figure: its name, its value, and what to know about it. strong: it is one of the first things to read."""

    name: str
    value: str
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class SummarySection:
    """Figures that belong together. columns: of a table of `lines`, which a section of rivals has."""

    title: str
    rows: Sequence[SummaryRow]
    columns: Sequence[str] = ()
    lines: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class PlanSummary:
    """A plan with the figures of its profile, what the user gave, and what it was compared with.

    plan: in words. profile, instance: ids. step: ns. step_tokens: tokens of a step. memory, room: bytes. error: that to
    expect; None with `no_error`, its reason. rivals: the others, the most tokens a second an accelerator first; faster:
    how many of them that fit have more than this plan. made: who profiled it, and when.
    """

    name: str
    model: str
    plan: str
    system: str
    ranks: int
    instance: str
    profile: str
    step: int
    step_tokens: Fraction
    mfu: float | None
    memory: int | None
    room: int | None
    prices: PlanPrices
    error: ExpectedError | None
    no_error: str
    rivals: Sequence[RivalPlan]
    faster: int
    searches: Sequence[SourceSearch]
    made: str

    @property
    def tokens_per_second(self) -> Fraction | None:
        """The rate of all accelerators together; None for a step of no time."""
        return self.step_tokens * SECOND / self.step if self.step else None

    @property
    def steps(self) -> int | None:
        """How many steps train on the tokens, rounded up; None without a number of tokens."""
        return None if self.prices.tokens is None else -(-self.prices.tokens // self.step_tokens)

    @property
    def time(self) -> int | None:
        """Nanoseconds that the steps for the tokens take; None where `steps` is."""
        return None if self.steps is None else self.steps * self.step

    @property
    def days(self) -> Fraction | None:
        """The time of the steps for the tokens in days; None where `steps` is."""
        return None if self.time is None else Fraction(self.time, DAY)

    @property
    def hours(self) -> Fraction | None:
        """Hours of the steps for the tokens, all accelerators added up."""
        return None if self.time is None else Fraction(self.ranks * self.time, HOUR)

    @property
    def price(self) -> Fraction | None:
        """What the accelerators cost, in the currency of the user."""
        hours, price = self.hours, self.prices.price_hour
        return None if hours is None or price is None else hours * price

    @property
    def energy(self) -> Fraction | None:
        """Energy of the accelerators in kWh for the tokens; None where it cannot be computed."""
        time, watts = self.time, self.prices.watts
        return None if time is None or watts is None else self.ranks * watts * Fraction(time, SECOND) / JOULES

    @property
    def energy_price(self) -> Fraction | None:
        """What the energy costs, in the currency of the user."""
        energy, price = self.energy, self.prices.price_kwh
        return None if energy is None or price is None else energy * price

    @property
    def worst_days(self) -> tuple[Fraction, Fraction | None] | None:
        """The days if the step is off by as much as the worst published one, too long or too short.

        An error is that of our time as a share of the measured one, so that the latter is ours over one more or one
        less. The second is None where the error is all of the step.
        """
        if self.days is None or self.error is None:
            return None
        worst = Fraction(str(self.error.worst))
        return self.days / (1 + worst), self.days / (1 - worst) if worst < 1 else None

    def sections(self) -> tuple[SummarySection, ...]:
        """All figures of the summary in words, by section."""
        found = [
            SummarySection("Plan", self._plan_rows()),
            SummarySection("Step", self._step_rows()),
            SummarySection("Time, price and energy", self._cost_rows()),
            SummarySection("How sure this is", self._error_rows()),
            self._compared(),
        ]
        return tuple(found)

    def _plan_rows(self) -> list[SummaryRow]:
        return [
            SummaryRow("Model", self.model),
            SummaryRow("Plan", self.plan),
            SummaryRow("System", self.system),
            SummaryRow("Accelerators", f"{self.ranks:,}"),
        ]

    def _step_rows(self) -> list[SummaryRow]:
        rate = self.tokens_per_second
        rows = [
            SummaryRow("Step time", span(self.step, 4), f"{float(self.step_tokens):,.10g} tokens", strong=True),
            SummaryRow(
                "Tokens a second",
                "–" if rate is None else f"{float(rate):,.0f}",
                "" if rate is None else f"{float(rate / self.ranks):,.1f} an accelerator",
                strong=True,
            ),
            SummaryRow(
                "MFU", "–" if self.mfu is None else f"{self.mfu:.1%}", "of the accelerators' peak that the model uses"
            ),
        ]
        return [*rows, self._memory_row()]

    def _memory_row(self) -> SummaryRow:
        if self.memory is None:
            return SummaryRow("Memory at the peak", "not known", "an older stagedb made the profile: profile it again")
        if self.room is None:
            return SummaryRow("Memory at the peak", _gigabytes(self.memory), "no limit of the accelerator is known")
        fits = "fits" if self.memory <= self.room else "does not fit"
        return SummaryRow(
            "Memory at the peak",
            _gigabytes(self.memory),
            f"of {_gigabytes(self.room)} for tensors of an accelerator ({self.memory / self.room:.0%}): {fits}",
        )

    def _cost_rows(self) -> list[SummaryRow]:
        given = self.prices
        if self.steps is None or self.days is None or self.hours is None:
            needed = "give the number of tokens to train on"
            return [SummaryRow(name, "–", needed) for name in ("Days", "Price", "Energy")]
        rows = [
            SummaryRow("Tokens", f"{given.tokens:,}", f"{self.steps:,} steps"),
            SummaryRow("Days", amount(self.days), "without failures, restarts, checkpoints and tests", strong=True),
            SummaryRow("Accelerator-hours", amount(self.hours), f"{self.ranks:,} accelerators"),
        ]
        price = "give what an accelerator costs an hour"
        if given.price_hour is not None:
            price = f"at {amount(given.price_hour)} an accelerator and hour"
        energy = "give the watts that an accelerator takes, with its share of the machine"
        if given.watts is not None:
            energy = f"at {amount(given.watts)} W an accelerator"
        power = "give the watts that an accelerator takes, and what a kWh costs"
        if self.energy_price is not None and given.price_kwh is not None:
            power = f"at {amount(given.price_kwh)} a kWh; part of the price above where that includes energy"
        return [
            *rows,
            SummaryRow("Price", _or_dash(self.price), price, strong=self.price is not None),
            SummaryRow("Energy", _or_dash(self.energy, " kWh"), energy),
            SummaryRow("Price of the energy", _or_dash(self.energy_price), power),
        ]

    def _error_rows(self) -> list[SummaryRow]:
        if self.error is None:
            return [SummaryRow("Expected error of the step", "–", self.no_error)]
        mean, worst = f"{self.error.mean:.1%} in the mean", f"{self.error.worst:.1%} at worst"
        rows = [SummaryRow("Expected error of the step", f"{mean}, {worst}", self.error.reason)]
        if self.worst_days is not None:
            least, most = self.worst_days
            value = f"{amount(least)} or more" if most is None else f"{amount(least)} to {amount(most)}"
            rows.append(SummaryRow("Days with the worst error", value, "price and energy change by the same share"))
        return rows

    def _compared(self) -> SummarySection:
        rows = [
            SummaryRow(
                f"Search {each.id[:12]}",
                f"{each.size:,} plans, {each.timed:,} timed",
                f"this plan has place {each.place:,} by {each.by}; "
                f"{'every plan was tried or ruled out' if each.covered else 'not every plan was tried'}",
            )
            for each in self.searches
        ]
        if self.rivals:
            place = "the fastest that fits" if not self.faster else f"{self.faster:,} that fit are faster"
            many = f"{len(self.rivals):,} other profile{'' if len(self.rivals) == 1 else 's'}"
            note = f"of {self.model} on {self.system} in the store, by tokens a second an accelerator"
            rows.insert(0, SummaryRow("This plan", f"{place}, with {many}", note))
        elif not rows:
            note = "the store has no other profile of this model on this system, and no search that tried the plan"
            rows.append(SummaryRow("Other plans", "none", note))
        lines = [
            (
                each.name,
                each.plan,
                f"{each.ranks:,}",
                f"{each.tokens:,.1f}",
                span(each.step, 4),
                "not known" if each.memory is None else _gigabytes(each.memory),
                {True: "yes", False: "no", None: ""}[each.fits],
            )
            for each in self.rivals[:SHOWN]
        ]
        return SummarySection("Compared with", rows, RIVALS if lines else (), lines)


RIVALS = ("name", "plan", "ranks", "tokens/s an accelerator", "step", "memory", "fits")
"""Columns of the table of other plans."""

SHOWN = 8
"""Other plans that a summary lists."""


def amount(value: Fraction) -> str:
    """A number as people read it: with two digits after the point below 1,000, four digits below 1."""
    if value >= 1_000:
        return f"{round(value):,}"
    return f"{float(value):,.2f}" if value >= 1 or value == 0 else f"{float(value):.4g}"


def _or_dash(value: Fraction | None, unit: str = "") -> str:
    return "–" if value is None else f"{amount(value)}{unit}"


def _gigabytes(size: int) -> str:
    return f"{size / GB:,.2f} GB"
