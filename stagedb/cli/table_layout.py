"""The columns of a table that fit into a terminal, and their widths.

Numbers, headers and words are never broken. Columns of texts get narrower first, and wrap between words. If that is not
enough, columns are left out: those that hold the answer of the table remain longest, and the first column always, with
a second one if its texts can be broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Spaces between two columns."""

_LONGEST_WORD = 40
"""A longer word may be broken."""

_NARROWEST = 8
"""Characters of a column whose words are broken so that it can be there."""


@dataclass(frozen=True)
class TableLayout:
    """kept: numbers of the columns that are shown. widths: the characters of each of them."""

    kept: tuple[int, ...]
    widths: tuple[int, ...]


def fit(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    room: int,
    keep: Sequence[str] = (),
) -> TableLayout:
    """The layout of a table in `room` characters.

    cells: rows of texts. numeric: columns that never wrap. keep: names of the columns that hold the answer, the most
    important first; the others are left out before them, the last ones first.
    """
    most = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    least = [
        width if numeric[at] else max([len(columns[at]), *(_longest_word(row[at]) for row in cells)])
        for at, width in enumerate(most)
    ]
    # A cell may have a megabyte: a column never needs more than the terminal has.
    most = [max(need, min(width, room)) for need, width in zip(least, most, strict=True)]
    kept = list(range(len(columns)))
    while len(kept) > 1 and _total([least[at] for at in kept]) > room:
        if len(kept) == 2 and not numeric[kept[1]] and room - least[0] - GAP >= max(_NARROWEST, len(columns[kept[1]])):
            # A first column alone is no answer: the long words of the other are broken.
            least[kept[1]] = room - least[0] - GAP
            break
        kept.remove(max(kept[1:], key=lambda at: _dispensable(columns[at], at, keep)))
    widths = {at: most[at] for at in kept}
    while _total(list(widths.values())) > room:
        widest = max(kept, key=lambda at: widths[at] - least[at])
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return TableLayout(tuple(kept), tuple(widths[at] for at in kept))


def _dispensable(name: str, at: int, keep: Sequence[str]) -> tuple[bool, int]:
    """How early a column is left out: the highest goes first."""
    return (False, keep.index(name)) if name in keep else (True, at)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return min(_LONGEST_WORD, max(map(len, text.split()), default=0))
