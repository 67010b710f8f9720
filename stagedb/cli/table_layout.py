"""The columns of a table that fit into a terminal, and their widths.

Numbers and headers are never broken. Columns of texts get narrower first, and wrap between words. If that is not
enough, columns are left out: those that hold the answer of the table remain longest. Before one of the most important
is left out, long names such as `FSDP::post_backward_reduce` are broken after `::`, `/` and `_`. The first column
always remains, with a second one if its texts can be broken.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""Spaces between two columns."""

_LONGEST_WORD = 40
"""A longer word may be broken."""

_NARROWEST = 8
"""Characters of a column whose words are broken so that it can be there."""


_MOST_IMPORTANT = 6
"""Columns for which names are broken: rows with many broken ones are hard to read."""

_PART = re.compile(r"\s+|[^\s:/_]*[:/_]+|[^\s:/_]+")
"""A part of a text after which a line may end."""


@dataclass(frozen=True)
class TableLayout:
    """kept: numbers of the columns that are shown. widths: the characters of each of them.

    in_parts: whether their names are broken after `::`, `/` and `_`.
    """

    kept: tuple[int, ...]
    widths: tuple[int, ...]
    in_parts: bool = False


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
    in_parts = False
    while len(kept) > 1 and _total([least[at] for at in kept]) > room:
        if not in_parts and {columns[at] for at in kept[1:]} <= {*keep[:_MOST_IMPORTANT]}:
            in_parts = True
            for at in kept:
                if not numeric[at]:
                    least[at] = max([len(columns[at]), *(_longest_part(row[at]) for row in cells)])
            continue
        if len(kept) == 2 and not numeric[kept[1]] and room - least[0] - GAP >= max(_NARROWEST, len(columns[kept[1]])):
            # The first column alone would be of no use, so the second one stays, with its long words broken.
            least[kept[1]] = room - least[0] - GAP
            break
        kept.remove(max(kept[1:], key=lambda at: _dispensable(columns[at], at, keep)))
    widths = {at: most[at] for at in kept}
    while _total(list(widths.values())) > room:
        widest = max(kept, key=lambda at: widths[at] - least[at])
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return TableLayout(tuple(kept), tuple(widths[at] for at in kept), in_parts)


def wrapped(text: str, width: int) -> str:
    """A text in lines of a width, which end between words and after the marks in names."""
    lines = [""]
    for part in _PART.findall(text):
        if lines[-1] and len(lines[-1].rstrip()) + len(part.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            part = part.lstrip()
        lines[-1] += part
    return "\n".join(lines)


def in_plain_lines(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    layout: TableLayout,
    bold: bool = False,
) -> str | None:
    """The lines of a table in which each cell has one, without the library for all others, which loads slowly.

    None for a table with cells that wrap, or with characters that may be wider than one column. columns, cells,
    numeric: as in `fit`. layout: what it returned. bold: the heads are bold on a terminal.
    """
    lines = []
    for row in (columns, *cells):
        texts = []
        for at, width in zip(layout.kept, layout.widths, strict=True):
            text = row[at]
            if len(text) > width or not text.isascii() or not text.isprintable():
                return None
            texts.append(text.rstrip().rjust(width) if numeric[at] else text.ljust(width))
        lines.append((" " * GAP).join(texts).rstrip())
    if bold:
        lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
    return "".join(f"{line}\n" for line in lines)


def _dispensable(name: str, at: int, keep: Sequence[str]) -> tuple[bool, int]:
    """How early a column is left out: the highest goes first."""
    return (False, keep.index(name)) if name in keep else (True, at)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _longest_word(text: str) -> int:
    return min(_LONGEST_WORD, max(map(len, text.split()), default=0))


def _longest_part(text: str) -> int:
    return min(_LONGEST_WORD, max((len(part.rstrip()) for part in _PART.findall(text)), default=0))
