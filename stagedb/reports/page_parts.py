"""Parts of a page: charts as inline SVG and plain HTML. Their text keeps its size at any width."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from stagedb.reports.terminal_chart import span


@dataclass(frozen=True)
class BarPart:
    """A part of a bar: `style` is its CSS class, `value` its length, `title` its tooltip."""

    style: str
    value: float
    title: str


@dataclass(frozen=True)
class Bar:
    """A row of bars. note: the text after it."""

    label: str
    parts: Sequence[BarPart]
    note: str


def bars(rows: Sequence[Bar], whole: float, limit: tuple[float, str] | None = None) -> str:
    """Stacked bars, one below the other. `whole` is the length of a full one, `limit` a mark on all of them."""
    found = []
    for row in rows:
        parts, start = "", 0.0
        for part in row.parts:
            if part.value > 0:
                parts += (
                    f'<rect class="{part.style}" x="{percent(start, whole)}" width="{percent(part.value, whole)}" '
                    f'height="100%"><title>{escape(part.title)}</title></rect>'
                )
                start += part.value
        if limit is not None:
            x = percent(limit[0], whole)
            parts += f'<line class="limit" x1="{x}" x2="{x}" y2="100%"><title>{escape(limit[1])}</title></line>'
        drawn = f'<svg class="bar" role="img" aria-label="{escape(f"{row.label}: {row.note}")}">{parts}</svg>'
        found.append(f'<span>{escape(row.label)}</span>{drawn}<span class="value">{escape(row.note)}</span>')
    thin = " thin" if len(rows) > 20 else ""
    return f'<div class="rows{thin}">{"".join(found)}</div>'


def legend(items: Iterable[tuple[str, str]]) -> str:
    """A legend as HTML. items: CSS class of each colour, and its meaning."""
    return (
        '<div class="legend">'
        + "".join(f'<span><i class="{style}"></i>{escape(text)}</span>' for style, text in items)
        + "</div>"
    )


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. Numbers are aligned right. first: the table is sorted by it, in falling order.

    wraps: its texts are long, and break into lines on a phone too.
    """

    name: str
    numeric: bool = False
    first: bool = False
    wraps: bool = False


Cell = str | tuple[str, float]
"""A text, or a text with the number for sorting."""


def table(
    columns: Sequence[TableColumn],
    rows: Sequence[Sequence[Cell]],
    shares: Sequence[float] = (),
    style: str = "communication",
    ids: Sequence[str] = (),
    links: Sequence[str] = (),
) -> str:
    """A table that its heads sort. shares: the share of each row, from 0 to 1, drawn after it in a style. ids: of rows
    that something on the page leads to. links: where the first cell of each row leads."""
    meter = '<th class="meter"></th>' if shares else ""
    heads = ""
    for column in columns:
        kind = ' class="n"' if column.numeric else ""
        order = ' aria-sort="descending"' if column.first else ""
        heads += f"<th{kind}{order}><button>{escape(column.name)}</button></th>"
    lines = []
    for at, row in enumerate(rows):
        cells = list[str]()
        for column, cell in zip(columns, row, strict=True):
            text, value = cell if isinstance(cell, tuple) else (cell, None)
            kind = ' class="n"' if column.numeric else ' class="w"' if column.wraps else ""
            sorted_by = "" if value is None else f' data-value="{value:.9g}"'
            shown = f'<a href="{escape(links[at])}">{escape(text)}</a>' if links and not cells else escape(text)
            cells.append(f"<td{kind}{sorted_by}>{shown}</td>")
        if shares:
            drawn = f'<rect class="{style}" width="{percent(shares[at], 1)}" height="100%"/>'
            cells.append(f'<td class="meter"><svg aria-hidden="true">{drawn}</svg></td>')
        id = f' id="{escape(ids[at])}"' if ids else ""
        lines.append(f"<tr{id}>{''.join(cells)}</tr>")
    return (
        f'{scroll_hint("columns")}<div class="wide"><table class="sortable"><thead><tr>{heads}{meter}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def scroll_hint(what: str) -> str:
    """A line above a part that scrolls sideways; pages show it only where there is more than fits.

    what: the name of the part.
    """
    return f'<p class="hint" hidden>Swipe sideways for more {escape(what)} →</p>'


def facts(rows: Mapping[str, str]) -> str:
    """Names and values as an HTML list. rows: values by name."""
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f'<table class="facts"><tbody>{lines}</tbody></table>'


def time_ticks(step: int, count: int = 9) -> str:
    """Marks of a time axis, for the box under it; the script of a page makes others at another zoom.

    step: ns. count: at most.
    """
    return _x_marks(step, nice(step / count) if step else 1, _mark)


def count_ticks(whole: int, count: int = 9) -> str:
    """Marks of an axis of things that are counted, for the box under it.

    whole: the number at the end of the axis. count: about how many marks.
    """
    return _x_marks(whole, max(nice(whole / count), 1) if whole else 1, lambda value: f"{value:,.0f}")


def _x_marks(whole: float, every: float, text: Callable[[float], str]) -> str:
    marks = [at * every for at in range(int(whole / every) + 1) if whole - at * every > every / 2]
    # A narrow page hides the labels of the class `odd`.
    drawn = "".join(
        _x_mark(percent(mark, whole), text(mark), " class=odd" if at % 2 else "") for at, mark in enumerate(marks)
    )
    return f'<svg class="x" aria-hidden="true">{drawn}{_x_mark("100%", text(whole), " class=end")}</svg>'


def _x_mark(at: str, text: str, style: str = "") -> str:
    return f'<line x1="{at}" x2="{at}" y2="4"/><text x="{at}" y="17"{style}>{escape(text)}</text>'


def level_ticks(top: float, unit: float, name: str, count: int = 6) -> str:
    """Marks of a vertical axis from 0 to `top`, in multiples of `unit`, which is called `name`.

    count: about how many marks.
    """
    every = nice(top / unit / count) if top else 1.0
    marks = [at * every for at in range(int(top / unit / every) + 1)]
    drawn = "".join(
        y_mark(percent(top - mark * unit, top), f"{mark:g}{f' {name}' if mark == marks[-1] else ''}") for mark in marks
    )
    return f'<svg class="y" aria-hidden="true">{drawn}</svg>'


def y_mark(at: str, text: str) -> str:
    """A mark of a vertical axis with its line across the plot. at: its distance from the top, as CSS. text: HTML."""
    return f'<line x2="100%" y1="{at}" y2="{at}"/><text x="-7" dy=".35em" y="{at}">{escape(text)}</text>'


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis from `low` to `high`."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """The position of a value, from 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        """Powers of ten; a short axis also has twos and fives."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if last - first <= 3 else (1,)
        values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
        return [value for value in values if self.low <= value <= self.high]


@dataclass(frozen=True)
class LinearScale:
    """An axis from `low` to `high`. marks: its ticks; some round values without them."""

    low: float
    high: float
    marks: Sequence[float] = ()

    def at(self, value: float) -> float:
        """The position of a value, from 0 to 1."""
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def ticks(self) -> list[float]:
        """The marks."""
        if self.marks:
            return list(self.marks)
        every = nice((self.high - self.low) / 5) if self.high > self.low else self.high or 1.0
        first = math.ceil(self.low / every)
        return [at * every for at in range(first, math.floor(self.high / every + 1e-9) + 1)]


def nice(value: float) -> float:
    """The next number of 1, 2, 5, 10, … value: above 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _mark(ns: float) -> str:
    return span(ns) if ns else "0"


def percent(value: float, whole: float) -> str:
    """A length as a share of a whole, for CSS. value, whole: in one unit."""
    return f"{100 * value / whole:.3f}".rstrip("0").rstrip(".") + "%" if whole else "0%"


# The colours of what the time of a step goes to, the same on every page, in every report and in every picture.
#
# A style is a name of `shared/colors.css`, which has the colour for light and for dark.

TERM_STYLES: Final[Mapping[str, str]] = {
    "busy": "m0",
    "tp": "m8",
    "cp": "m5",
    "ep": "m6",
    "dp": "m2",
    "pp": "m7",
    "bubble": "m4",
    "idle": "m9",
    "other": "m3",
    "kv": "m1",
    "cpr": "m3",
    "cpa": "m1",
    "epn": "m3",
    "epr": "m1",
    "edp": "m3",
    "dp_replicate": "m3",
    "dp_reshard": "m1",
    "data": "m1",
    "embedding": "m1",
}
"""Styles of terms. An axis is the communication over it that nothing hides."""

EXPOSED: Final = TERM_STYLES["tp"]
"""The style of exposed communication over all axes."""

REASON_STYLES: Final[Mapping[str, str]] = {
    "compute": TERM_STYLES["busy"],
    "bubble": TERM_STYLES["bubble"],
    "idle": TERM_STYLES["idle"],
    **{f"exposed {axis}": TERM_STYLES[axis] for axis in ("tp", "cp", "ep", "dp", "pp")},
    "best": "m10",
    "memory": "m11",
    "untried": "m1",
    "other": TERM_STYLES["other"],
}
"""Styles of why plans of a search lose: that of the term by which they lose, and no two alike."""

PALETTE: Final = ("m0", "m8", "m5", "m6", "m4", "m7", "m2", "m1", "m3", "m9", "m10", "m11")
"""Styles in the order in which values have them: `k0` of `shared/candidates.css` is the first."""


def term_style(name: str) -> str:
    """The style of a term: a key of `TERM_STYLES`, or as a search calls it (`compute`, `exposed tp`).

    name: of the term.
    """
    key = "busy" if name == "compute" else name.removeprefix("exposed ")
    return TERM_STYLES.get(key, TERM_STYLES["other"])
