"""What a sweep varies: words of a plan, numbers of a system, or the system itself, each with its values."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import nearest, question, shown
from stagedb.mentions import Word
from stagedb.plans import typed_words
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.systems import System
from stagedb.systems.system import Number, plain
from stagedb.systems.system_numbers import find_number, read_number, with_numbers

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
