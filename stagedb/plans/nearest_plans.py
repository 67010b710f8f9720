"""What would do in place of a plan that does not suit: a refusal names the nearest ways out, each tried with the rest.

A check knows the one rule that it holds. So it raises a `Misfit` with candidates, and whoever knows more of the request
(all words of the plan, the sizes of the model) says how a candidate is tried: only those that are accepted are named.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice

from stagedb.errors import UsageError
from stagedb.plans.aspects import PLAN_WORDS

Change = Mapping[str, object]
"""Words of a plan with other values; None leaves a word out."""

Trial = Callable[[Change], object]
"""Makes the plan with a change and checks it: raises UsageError where that does not suit either."""

TRIES = 256
"""Candidates that are tried in one direction."""


@dataclass(frozen=True)
class Way:
    """A change that may mend a plan. said: in place of its options (`leave --ep out`)."""

    change: Change
    said: str = ""

    def __str__(self) -> str:
        return self.said or " ".join(_option(word, value) for word, value in self.change.items())


@dataclass(frozen=True)
class Numbers:
    """The valid ones of some numbers for a word, in this order."""

    word: str
    numbers: range
    valid: Callable[[int], bool] = field(default=lambda number: True)

    def __iter__(self) -> Iterator[Way]:
        return islice((Way({self.word: number}) for number in self.numbers if self.valid(number)), TRIES)


def nearest(word: str, value: int, most: int, valid: Callable[[int], bool], least: int = 1) -> tuple[Numbers, Numbers]:
    """The valid numbers next to `value`: below (from `least`) and above (up to `most`)."""
    below, above = range(min(value - 1, most), least - 1, -1), range(max(value + 1, least), most + 1)
    return Numbers(word, below, valid), Numbers(word, above, valid)


def multiples(word: str, value: int, unit: int) -> tuple[Numbers, Numbers]:
    """The multiples of a unit next to `value`, which is none, below and above."""
    below = max(value, 0) // unit * unit
    return Numbers(word, range(below, 0, -unit)), Numbers(word, range(below + unit, below + (TRIES + 1) * unit, unit))


class Misfit(UsageError):
    """A plan that does not suit, and ways out. It reads as its reason with those that the rest of the plan takes.

    near, and then ways (one, or several to choose from): of each the first that is accepted is named. lead: what is
    said before those that are near. last: what is said in any case. trial: how one is tried; None accepts all.
    """

    def __init__(
        self,
        reason: str,
        near: Iterable[Iterable[Way]] = (),
        ways: Iterable[Way | Iterable[Way]] = (),
        lead: str = "the nearest is",
        last: str = "",
        trial: Trial | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.near = reason, tuple(near)
        self.ways = tuple((way,) if isinstance(way, Way) else way for way in ways)
        self.lead, self.last, self.trial = lead, last, trial

    def tried(self, trial: Trial) -> "Misfit":
        """The same with its ways tried by one who knows more."""
        return Misfit(self.reason, self.near, self.ways, self.lead, self.last, trial)

    def __str__(self) -> str:
        near, ways = self._accepted(self.near), self._accepted(self.ways)
        if near or ways:
            first = [f"{self.lead} {' or '.join(near)}"] if near else []
            return f"{self.reason}: {', or '.join(_with_verbs(first, ways))}{self.last}"
        return f"{self.reason}{self._why_none()}{self.last}"

    def _accepted(self, choices: Iterable[Iterable[Way]]) -> list[str]:
        first = (next((way for way in each if self._refused(way) is None), None) for each in choices)
        return [str(way) for way in first if way is not None]

    def _refused(self, way: Way) -> UsageError | None:
        try:
            if self.trial is not None:
                self.trial(way.change)
        except UsageError as error:
            return error
        return None

    def _why_none(self) -> str:
        """What is in the way of the first candidate, as more than one word of the plan is amiss."""
        way = next(iter(chain.from_iterable((*self.near, *self.ways))), None)
        error = None if way is None else self._refused(way)
        if way is None or error is None:
            return ""
        plain = " ".join(f"{word} {_plain(value)}" for word, value in way.change.items())
        # Not as a whole: what it would name has been tried with a change that is not made.
        reason = error.reason if isinstance(error, Misfit) else str(error).partition(":")[0]
        return f"; no change of that alone will do, as with {plain} {reason}: change that, too"


@contextmanager
def tried_by(trial: Trial) -> Iterator[None]:
    """Checks whose ways out are tried like this."""
    try:
        yield
    except Misfit as error:
        raise error.tried(trial) from None


def _with_verbs(first: list[str], ways: list[str]) -> list[str]:
    """`take --a, or --b, or leave --c out, or take --d`."""
    texts, taking = list(first), bool(first)
    for way in ways:
        leaves = way.startswith("leave ")
        texts.append(way if leaves or taking else f"take {way}")
        taking = not leaves
    return texts


def _option(word: str, value: object) -> str:
    flag = PLAN_WORDS[word].flag(value)
    return flag if isinstance(value, bool) else f"{flag} {_plain(value)}"


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
