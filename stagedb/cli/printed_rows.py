"""Printed rows: one code path for every command that prints rows."""

import io
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from stagedb.cli.help_groups import ROWS
from stagedb.errors import UsageError
from stagedb.files import csv_text, json_lines, json_text, plain_cell, printable, readable_cell, write_whole

if TYPE_CHECKING:
    from stagedb.api import Provenance

# The columns of a table that fit into a terminal, and their widths.
#
# Numbers and headers are never broken. Columns of texts get narrower first, and wrap between words. If that is not
# enough, columns are left out: those that hold the answer of the table remain longest. Before one of the most important
# is left out, long names such as `FSDP::post_backward_reduce` are broken after `::`, `/` and `_`. The first column
# always remains, with a second one if its texts can be broken.

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


# Columns of exact integers as people read them in a table: ns as ms, bytes as GB, ratios in percent.

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
    "B": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")),
    "flop": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")),
    "tokens/s": ((1, "tokens/s"),),
}
"""For each unit of a column the units of people, the largest first. A column has one for all its rows."""


def shown_column(name: str, unit: str | None, values: Sequence[Any]) -> tuple[str, list[str]] | None:
    """The head of a column with its unit, and its cells; None for a column that is shown as it is.

    unit: the column's unit, as in a statement's header. name: of the column. values: of its cells.
    """
    numbers = [value for value in values if value is not None]
    if not numbers or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in numbers):
        return None
    if unit == "ratio":
        return f"{name} %", [_text(None if value is None else 100 * value, 1) for value in values]
    scales = _SCALES.get(unit or "")
    if scales is None:
        return None
    if name == unit:
        name = "time" if unit == "ns" else "size"
    largest = max(abs(value) for value in numbers)
    scale, word = next((each for each in scales if largest >= each[0]), scales[-1])
    digits = 0 if scale == 1 and all(float(value).is_integer() for value in numbers) else 3 if scale > 1 else 1
    return f"{name} {word}", [_text(None if value is None else value / scale, digits) for value in values]


def _text(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    least = 10.0**-digits
    if 0 < abs(value) < least / 2:
        return f"<{least:.{digits}f}" if value > 0 else f">-{least:.{digits}f}"
    return f"{value:,.{digits}f}"


NO_UNITS: Mapping[str, str] = {}

METADATA = "stagedb.provenance"
"""The key of the provenance in the metadata of a Parquet file."""

_UNBOUNDED = 100_000
"""Characters of a line that may be as long as it needs."""


class RowFormat(StrEnum):
    """The values of `--format` of commands that print rows."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    NDJSON = "ndjson"
    PARQUET = "parquet"


@dataclass(frozen=True)
class Output:
    """The format and the file of printed rows."""

    PANEL: ClassVar[str] = ROWS

    format: Annotated[RowFormat, typer.Option("--format", "-f", help="Format of the rows.")] = RowFormat.TABLE
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the rows to a file instead of the terminal."),
    ] = None
    wide: Annotated[bool, typer.Option("--wide", help="Show all columns, in lines that may be too long.")] = False

    def write(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        keep: Sequence[str] = (),
        units: Mapping[str, str] = NO_UNITS,
        provenance: "Provenance | None" = None,
    ) -> None:
        """Print or save the rows. Raises UsageError if the format needs a file, StagedbError if writing fails.

        keep: the columns that a narrow terminal shows, the most important first. units: units of columns, by name; a
        table shows such a column in the unit that people read, and every other format as it is. provenance: of a
        report, whose JSON is an object with it and the rows; a Parquet file has it in its metadata.
        """
        if self.format is RowFormat.PARQUET:
            if self.output is None:
                raise UsageError("parquet is not text: name a file with --output FILE")
            write_whole(self.output, _parquet(columns, rows, provenance), "--output")
        elif self.format is RowFormat.JSON and provenance is not None:
            self._write_report(columns, rows, provenance)
        elif self.output is not None:
            write_whole(self.output, render(self.format, columns, rows, None, keep, units).encode(), "--output")
        else:
            room = None
            if sys.stdout.isatty():
                room = _UNBOUNDED if self.wide else shutil.get_terminal_size().columns
            text = render(self.format, columns, rows, room, keep, units)
            sys.stdout.write(printable(text) if room is not None and self.format is not RowFormat.TABLE else text)
            sys.stdout.flush()

    def _write_report(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], provenance: "Provenance") -> None:
        """Print or save rows as JSON with their provenance."""
        made = json.dumps(provenance.to_dict(), ensure_ascii=False, default=str)
        text = f'{{"provenance": {made},\n "rows": {json_text(columns, rows).rstrip()}}}\n'
        if self.output is not None:
            write_whole(self.output, text.encode(), "--output")
            return
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def write_records(self, records: Sequence[dict[str, Any]], *, keep: Sequence[str] = ()) -> None:
        """Print or save dicts. All have the keys of the first one."""
        columns = list(records[0]) if records else []
        self.write(columns, [[record[column] for column in columns] for record in records], keep=keep)


def render(
    format_: RowFormat,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    room: int | None,
    keep: Sequence[str] = (),
    units: Mapping[str, str] = NO_UNITS,
) -> str:
    """The rows as text, to print or save. room: characters of the terminal; None: the text is not for one.

    keep, units: as in `Output.write`.
    """
    if format_ is RowFormat.CSV:
        return csv_text(columns, rows)
    if format_ is RowFormat.TABLE:
        return _table(columns, rows, room, keep, units)
    if format_ is RowFormat.NDJSON:
        return "".join(f"{line}\n" for line in json_lines(columns, rows))
    return json_text(columns, rows)


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    room: int | None,
    keep: Sequence[str],
    units: Mapping[str, str],
) -> str:
    """Aligned columns in the `room` characters of a terminal; None: text for another program, which is never cut."""
    if not columns:
        return "no rows\n"
    numeric = [all(_is_number(row[at]) or row[at] is None for row in rows) and bool(rows) for at in range(len(columns))]
    heads = [printable(column) for column in columns]
    cells = [[printable(readable_cell(value)) for value in row] for row in rows]
    kept = [printable(column) for column in keep]
    for at, column in enumerate(columns):
        shown = shown_column(heads[at], units.get(column), [row[at] for row in rows])
        if shown is not None:
            kept = [shown[0] if name == heads[at] else name for name in kept]
            heads[at] = shown[0]
            for cell, text in zip(cells, shown[1], strict=True):
                cell[at] = text
    layout = fit(heads, cells, numeric, room or _UNBOUNDED, kept)
    for at, width in zip(layout.kept, layout.widths, strict=True):
        if layout.in_parts and not numeric[at]:
            for row in cells:
                row[at] = wrapped(row[at], width)
    plain = None
    if room is None or os.name == "posix":
        plain = in_plain_lines(heads, cells, numeric, layout, room is not None and _has_bold(os.environ))
    text = _in_rich_lines(heads, cells, numeric, layout, room is not None) if plain is None else plain
    left_out = [head for at, head in enumerate(heads) if at not in layout.kept]
    if left_out:
        note = f"No room for {', '.join(left_out)}: --wide shows all columns, --format csv has them too."
        text += "\n" + textwrap.fill(note, room or _UNBOUNDED, break_long_words=False, break_on_hyphens=False) + "\n"
    return text if rows else f"{text}no rows\n"


def _has_bold(environment: Mapping[str, str]) -> bool:
    """Whether a terminal shows bold texts. environment: variables by name."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "").lower() not in ("dumb", "unknown")


def _in_rich_lines(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    layout: TableLayout,
    terminal: bool,
) -> str:
    """The lines of a table whose texts may be wide or wrap. numeric: columns on the right. terminal: heads are bold."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style=style)
    for at, width in zip(layout.kept, layout.widths, strict=True):
        justify: Literal["left", "right"] = "right" if numeric[at] else "left"
        table.add_column(Text(heads[at]), justify=justify, overflow="fold", no_wrap=numeric[at], width=width)
    for row in cells:
        table.add_row(*(Text(row[at]) for at in layout.kept))
    console = Console(file=io.StringIO(), force_terminal=terminal, width=_UNBOUNDED)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parquet(columns: Sequence[str], rows: Sequence[Sequence[Any]], provenance: "Provenance | None" = None) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = []
    for at in range(len(columns)):
        values = [row[at] for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            # A column of mixed types, or of maps with different keys, is text, as in csv.
            arrays.append(pa.array([None if value is None else plain_cell(value) for value in values]))
    sink = io.BytesIO()
    table = pa.Table.from_arrays(arrays, names=list(columns))
    if provenance is not None:
        table = table.replace_schema_metadata({METADATA: json.dumps(provenance.to_dict(), default=str)})
    pq.write_table(table, sink)
    return sink.getvalue()
