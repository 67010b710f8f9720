"""The nearest valid plans: a refusal of a plan suggests changes, each tried together with the rest of the plan.

A check knows only its own rule, so it raises a `Misfit` with candidates. A caller that knows more of the request (all
words of the plan, the sizes of the model) decides how a candidate is tried. Only accepted candidates are named.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice

from stagedb.errors import UsageError
from stagedb.mentions import Words, value_text
from stagedb.plans.aspects import PLAN_WORDS

Change = Mapping[str, object]
"""Words of a plan with other values; None leaves a word out."""

Trial = Callable[[Change], object]
"""Makes the plan with a change and checks it. Raises UsageError if that plan is not valid either."""

TRIES = 256
"""Candidates in one direction, which are tried in order."""


@dataclass(frozen=True)
class Way:
    """A change that may make a plan valid. text: shown in place of its options (`leave ep out`)."""

    change: Change
    text: str = ""

    def __str__(self) -> str:
        return self.text or str(Words(tuple(PLAN_WORDS[word].mention(value) for word, value in self.change.items())))


@dataclass(frozen=True)
class Numbers:
    """The valid ones of some numbers for a word of a plan, as ways out of a refusal.

    word: of the plan. numbers: in the order in which they are tried. valid: whether a number is allowed.
    """

    word: str
    numbers: range
    valid: Callable[[int], bool] = field(default=lambda number: True)

    def __iter__(self) -> Iterator[Way]:
        return islice((Way({self.word: number}) for number in self.numbers if self.valid(number)), TRIES)


def nearest(word: str, value: int, most: int, valid: Callable[[int], bool], least: int = 1) -> tuple[Numbers, Numbers]:
    """The valid numbers for a word that are nearest to `value`: below, down to `least`, and above, up to `most`.

    word: of the plan. valid: whether a number is allowed.
    """
    below, above = range(min(value - 1, most), least - 1, -1), range(max(value + 1, least), most + 1)
    return Numbers(word, below, valid), Numbers(word, above, valid)


def multiples(word: str, value: int, unit: int) -> tuple[Numbers, Numbers]:
    """The multiples of a unit next to `value`, below and above. `value` is no multiple.

    word: of the plan, such as `tp`. unit: from 1. Returns numbers of that word, the nearest first.
    """
    below = max(value, 0) // unit * unit
    return Numbers(word, range(below, 0, -unit)), Numbers(word, range(below + unit, below + (TRIES + 1) * unit, unit))


class Misfit(UsageError):
    """A plan that is not valid, and ways out. Its text is the reason with the ways that the rest of the plan allows.

    near, ways: several choices each, or one way; the first accepted way of each choice is named. lead: the text before
    the near ones. last: the text at the end in any case. trial: how a way is tried; None accepts all.
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
        """The misfit with another test of its ways out. trial: tries a plan, for a caller that knows all of it."""
        return type(self)(self.reason, self.near, self.ways, self.lead, self.last, trial)

    @property
    def message(self) -> str:
        """The reason, and the ways out that the rest of the plan allows."""
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
        """Why the first candidate fails, if several words of the plan are wrong."""
        way = next(iter(chain.from_iterable((*self.near, *self.ways))), None)
        error = None if way is None else self._refused(way)
        if way is None or error is None:
            return ""
        plain = " ".join(f"{word} {value_text(value)}" for word, value in way.change.items())
        # The error's ways out are left out: they belong to the plan with this change, which is not made.
        reason = error.reason if isinstance(error, Misfit) else error.message.partition(":")[0]
        return f"; a change of that alone is not enough, because with {plain} {reason}: change that too"


@contextmanager
def tried_by(trial: Trial) -> Iterator[None]:
    """Checks in this block try their ways out with `trial`."""
    try:
        yield
    except Misfit as error:
        raise error.tried(trial) from None


def _with_verbs(first: list[str], ways: list[str]) -> list[str]:
    """`take a, or b, or leave c out, or take d`."""
    texts, taking = list(first), bool(first)
    for way in ways:
        leaves = way.startswith("leave ")
        texts.append(way if leaves or taking else f"take {way}")
        taking = not leaves
    return texts
