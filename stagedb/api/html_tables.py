"""Results as HTML, for notebooks. Everything is escaped: a store may have any text."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

ROWS = 60
"""Rows of a table; a line counts the rest."""


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> str:
    """A table with its title. Numbers are on the right, with separators of thousands."""
    parts = [f"<p><b>{escape(title)}</b></p>"] if title else []
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:ROWS])
    parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    if len(rows) > ROWS:
        parts.append(f"<p>and {len(rows) - ROWS:,} more rows: <code>to_pandas()</code> has all</p>")
    return "".join(parts)


def properties(values: Mapping[str, Any], title: str) -> str:
    """Names and values, one a row; those that are None are left out. title: the head of the column of values."""
    return table(("", title), [(name, value) for name, value in values.items() if value is not None])


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        return f'<td style="text-align:right">{text}</td>'
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return f'<td style="text-align:left">{escape(text)}</td>'
