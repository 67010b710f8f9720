"""Printed rows: one code path for every command that prints rows."""

import io
import json
import os
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
from stagedb.cli.shown_units import shown_column
from stagedb.cli.table_layout import GAP, TableLayout, fit, in_plain_lines, wrapped
from stagedb.errors import UsageError
from stagedb.files import csv_text, json_lines, json_text, plain_cell, printable, readable_cell, write_whole

if TYPE_CHECKING:
    from stagedb.api import Provenance

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
