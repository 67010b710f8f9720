"""Parts of results: tables as HTML, and where the time of a run goes in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

# Results as HTML, for notebooks. Everything is escaped: a store may have any text.

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


# Where the time of a run goes, in words.


@dataclass(frozen=True)
class RunTimes:
    """Where the time of a run goes, as of `RunInfo`. step, busy, exposed, unexplained, launching: in ns."""

    step: int
    busy: int
    exposed: int
    unexplained: int
    launching: int

    @property
    def spent(self) -> str:
        """How a rank spends its time, in the mean, such as `computes or copies 46.2%, only communicates …`."""
        idle = self.step - self.busy - self.exposed
        parts = (("computes or copies", self.busy), ("only communicates", self.exposed), ("does nothing", idle))
        return ", ".join(f"{what} {ns / self.step:.1%}" for what, ns in parts)

    @property
    def gaps(self) -> str:
        """What the critical path has besides ops, as shares of the run: waits for the host, and other gaps."""
        host, other = self.launching / self.step, self.unexplained / self.step
        return f"waits for the host to launch {host:.1%}, other gaps {other:.1%}"
