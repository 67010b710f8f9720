"""Rows as CSV and as JSON, for files and for other programs."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any


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
