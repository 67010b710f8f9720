"""Texts for people: printable, short in errors, with units, with the nearest known word; rows as CSV and JSON."""

import csv
import io
import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate, pairwise
from typing import Any

from stagedb.errors import UsageError

# Text that a terminal shows and never obeys.


def printable(text: str, kept: str = "\n\t") -> str:
    """The text with control characters, escapes of colours and reversals of direction as `\\x1b`.

    kept: characters that remain as they are; lines and tabs by default.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


# Values in errors: their beginning, on one line, without control characters.

_MOST = 60
_WHOLE = 200


class _Short(reprlib.Repr):
    """`repr` of few items, few levels and short texts, with an ellipsis for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple, self.maxset = 2, 4, 4, 4, 4
        self.maxstring = self.maxother = _MOST
        self.maxlong = 40


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as an error prints it: `repr` in printable characters, cut short. The whole `repr` is never made."""
    text = _SHORT.repr(value)
    if len(text) > _WHOLE:
        text = f"{text[:_WHOLE]}..."
    return printable(text, kept="")


# Words that were nearly written right: the known ones like them, and the question whether one of these is meant.


def nearest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that are most like a word, the best first.

    most: how many at most. cutoff: the least similarity, from 0 to 1 (`difflib.SequenceMatcher.ratio`).
    """
    return get_close_matches(word, known, most, cutoff)


def question(near: Sequence[str], form: str = " ({})", between: str = " or ") -> str:
    """`did you mean tp or dp?` for the words in `near`, put into `form` in place of `{}`; empty without words.

    between: the text between two of the words.
    """
    return form.format(f"did you mean {between.join(near)}?") if near else ""


def did_you_mean(
    word: str, known: Iterable[str], form: str = " ({})", *, most: int = 1, cutoff: float = 0.6, between: str = " or "
) -> str:
    """The `question` whether a known word is meant; empty if none is like the word. most, cutoff: as in `nearest`.

    word: the unknown one. form, between: as in `question`.
    """
    return question(nearest(word, known, most, cutoff), form, between)


# Texts of a command line: they may have bytes that are no text, which no store takes.


def check_unicode(text: str, what: str) -> None:
    """Raise UsageError for a text that is not Unicode. what: the name of the text in the error."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not Unicode text: character {error.start} is {shown(text[error.start])}") from None


# Numbers as text.

EVEN = 5e-5
"""Steps whose rates differ by less than this share are equally fast: in percent with two digits, 0.00%."""


def spans_of(numbers: Iterable[int]) -> str:
    """Ascending numbers with those that follow each other as one, such as `1-3, 5`."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def parts_in(unit: int, parts: Sequence[int]) -> list[int]:
    """Integers in a larger unit, rounded so that they still add up: the sum is that of `parts`, rounded.

    Each is less than one unit away, and what is 0 remains 0.
    """
    sums = [(2 * each + unit) // (2 * unit) for each in accumulate(parts, initial=0)]
    return [after - before for before, after in pairwise(sums)]


def bytes_text(size: float, digits: int = 3) -> str:
    """Bytes, 0 or more, in a readable unit with `digits` significant digits: `22.17 MB`. size: in bytes."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.{digits}g} {unit}"
        size /= 1000
    return f"{size:,.{digits}g} PB"


def nth(number: int) -> str:
    """A place in English: 2nd, 11th, 23rd. number: from 0."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# Units of what is printed.

GB = 10**9
"""Bytes of a GB. Memory is printed in GB, as makers give it. Sizes that users write may have another unit."""


def reserve_text(room: int, reserve: Mapping[str, int]) -> str:
    """What an accelerator's memory consists of: what is for tensors, and what holds the rest; empty without a reserve.

    Makers round the memory in the name of an accelerator (80GB), so that its bytes are here in GiB, too.

    room: bytes for tensors. reserve: the other bytes of the accelerator, by what holds them.
    """
    if not reserve:
        return ""
    held = sum(reserve.values())
    parts = ", ".join(f"{name} {size / GB:,.2f} GB" for name, size in reserve.items())
    whole = f"{(room + held) / GB:,.2f} GB ({(room + held) / 2**30:,.2f} GiB)"
    return f"an accelerator has {whole}: {room / GB:,.2f} GB for tensors, {held / GB:,.2f} GB reserved ({parts})"


# Rows as CSV and as JSON, for files and for other programs.


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as CSV, with a line of headers."""
    lines = []
    for cells in (columns, *([plain_cell(value) for value in row] for row in rows)):
        text = io.StringIO()
        # The writer quotes cells with a character of its line terminator: with both in it, a lone one in a cell is
        # quoted too.
        csv.writer(text, lineterminator="\r\n").writerow(cells)
        lines.append(text.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def json_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a list of JSON objects, one a line."""
    return "[" + ",\n ".join(json_lines(columns, rows)) + "]\n"


def json_lines(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A JSON object for each row."""
    return [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=str) for row in rows]


def plain_cell(value: Any) -> str:
    """A value as text: empty for null, JSON for lists and maps."""
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def readable_cell(value: Any) -> str:
    """A value for people: numbers with separators of thousands, and short lists without brackets."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list | tuple) and all(isinstance(item, int | str) for item in value):
        return ",".join(map(str, value))
    return plain_cell(value)
