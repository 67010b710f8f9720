"""The points of a sweep as an SVG: the step along what varies first, a line for each combination of the others."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.reports.page_parts import LinearScale, Scale

LINES = 10
"""Lines of a picture: each has a colour of its own."""

WIDTH, HEIGHT = 720, 300
"""The width of the picture, and the height of its plot."""

LEFT, RIGHT, TOP = 76, 24, 66
"""Room around the plot."""

ROW = 22
"""Height of a row of the legend."""

MANY = 8.0
"""The longest step over the shortest one from which the axis is logarithmic."""

MARKS = 8
"""Values that all have a mark on the horizontal axis."""

COLORS = (
    *("#3f7fd6", "#e1903a", "#2b9c8c", "#d2476c", "#7d62c4"),
    *("#c2b02c", "#5b6abf", "#9aa3b2", "#2b8a57", "#b5651d"),
)
"""The colours of lines, on light and on dark paper."""

STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#16191f}.soft{fill:#566071}.title{font-size:18px;font-weight:600}"
    ".paper{fill:#fff}.grid{stroke:#e1e5eb}.axis{stroke:#566071}.line{fill:none;stroke-width:2.5}"
    ".point{stroke-width:2.5}.open{fill:#fff}"
    "@media (prefers-color-scheme:dark){text{fill:#e9edf3}.soft{fill:#9aa5b5}.paper,.open{fill:#181c23}"
    ".grid{stroke:#2b323d}.axis{stroke:#9aa5b5}}"
)


@dataclass(frozen=True)
class _Point:
    x: Any
    step: float
    fits: bool


@dataclass(frozen=True)
class _Places:
    """An axis with a place for each of some values in their order."""

    values: Sequence[Any]

    def at(self, value: Any) -> float:
        """The position of a value, from 0 to 1."""
        return (self.values.index(value) + 0.5) / len(self.values)

    def ticks(self) -> list[Any]:
        """All values."""
        return list(self.values)


Axis = Scale | LinearScale | _Places


def sweep_chart(title: str, varied: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The points of a sweep as an SVG.

    title: shown above. varied: the columns of what varies; the first one is the horizontal axis. rows: with these
    columns, `step` [ns], `fits`, and `refused`, which is None for a point that is drawn. Raises UsageError for more
    than `LINES` lines, and where no point can be drawn.
    """
    first, *others = varied
    lines: dict[str, list[_Point]] = {}
    for row in rows:
        if row["refused"] is None:
            name = ", ".join(f"{other} {_text(row[other])}" for other in others)
            lines.setdefault(name, []).append(_Point(_plain(row[first]), row["step"], bool(row["fits"])))
    if not lines:
        raise UsageError("no point of the sweep is a plan, so that there is nothing to draw")
    if len(lines) > LINES:
        raise UsageError(
            f"the picture would have {len(lines)} lines, a line for each combination of {', '.join(others)}, and at "
            f"most {LINES} are distinct: vary less, or vary first what has the most values ({Word('vary')})"
        )
    x = _horizontal([_plain(row[first]) for row in rows])
    y = _vertical([point.step / 1e6 for points in lines.values() for point in points])
    left_out = sum(row["refused"] is not None for row in rows)
    return _svg(title, first, lines, x, y, left_out)


def _svg(title: str, first: str, lines: Mapping[str, Sequence[_Point]], x: Axis, y: Axis, left_out: int) -> str:
    named = [name for name in lines if name]
    below = TOP + HEIGHT + 76
    open_points = any(not point.fits for points in lines.values() for point in points)
    notes = ["an open point does not fit into memory"] if open_points else []
    refused = "1 point is refused" if left_out == 1 else f"{left_out} points are refused"
    notes += [f"{refused}, and not drawn"] if left_out else []
    height = below + ROW * (len(named) + len(notes)) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="30">{escape(title)}</text>',
        f'<text class="soft" x="{LEFT}" y="{TOP - 14}">step, ms</text>',
        *_axes(x, y),
        f'<text class="soft" text-anchor="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{TOP + HEIGHT + 46}">'
        f"{escape(first)}</text>",
    ]
    for color, (name, points) in zip(COLORS, lines.items(), strict=False):
        parts += _line(name, points, color, x, y)
    for at, name in enumerate(named):
        color = COLORS[list(lines).index(name)]
        mark = f'<rect x="{LEFT}" y="{below + ROW * at - 11}" width="12" height="12" rx="3" fill="{color}"/>'
        parts.append(f'{mark}<text x="{LEFT + 20}" y="{below + ROW * at}">{escape(name)}</text>')
    for at, note in enumerate(notes, len(named)):
        parts.append(f'<text class="soft" x="{LEFT}" y="{below + ROW * at}">{escape(note)}</text>')
    return "".join(parts) + "</svg>\n"


def _axes(x: Axis, y: Axis) -> Iterator[str]:
    for value in y.ticks():
        at = _from_top(y, value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="soft" text-anchor="end" x="{LEFT - 8}" y="{at + 5:.1f}">{value:,.6g}</text>'
    for value in x.ticks():
        at = _from_left(x, value)
        yield f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP + HEIGHT}" y2="{TOP + HEIGHT + 5}"/>'
        yield (
            f'<text class="soft" text-anchor="middle" x="{at:.1f}" y="{TOP + HEIGHT + 22}">'
            f"{escape(_text(value))}</text>"
        )
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{TOP + HEIGHT}" y2="{TOP + HEIGHT}"/>'


def _line(name: str, points: Sequence[_Point], color: str, x: Axis, y: Axis) -> Iterator[str]:
    places = [(_from_left(x, point.x), _from_top(y, point.step / 1e6)) for point in points]
    if not isinstance(x, _Places):
        places.sort()
    joined = " ".join(f"{right:.1f},{down:.1f}" for right, down in places)
    yield f'<polyline class="line" stroke="{color}" points="{joined}"/>'
    for point in points:
        right, down = _from_left(x, point.x), _from_top(y, point.step / 1e6)
        fill = f'class="point" fill="{color}"' if point.fits else 'class="point open"'
        shown = f"{_text(point.x)}{f', {name}' if name else ''}: {point.step / 1e6:,.3f} ms"
        yield (
            f'<circle {fill} stroke="{color}" cx="{right:.1f}" cy="{down:.1f}" r="4.5">'
            f"<title>{escape(shown)}</title></circle>"
        )


def _from_left(x: Axis, value: Any) -> float:
    return LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * x.at(value)


def _from_top(y: Axis, value: float) -> float:
    return TOP + HEIGHT * (1 - y.at(value))


def _horizontal(values: Sequence[Any]) -> Axis:
    """Linear for numbers; for words, and for degrees that double, a place for each."""
    known = list(dict.fromkeys(values))
    numbers = [each for each in known if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) < len(known) or len(known) < 3:
        return _Places(known)
    rising = sorted(numbers)
    steps = [after - before for before, after in itertools.pairwise(rising)]
    if max(steps) > 4 * min(steps):
        return _Places(rising)  # marks would be on top of each other
    return LinearScale(rising[0], rising[-1], rising if len(rising) <= MARKS else ())


def _vertical(steps: Sequence[float]) -> Axis:
    """From 0, unless the longest step is many times as long as the shortest one."""
    low, high = min(steps), max(steps)
    if low > 0 and high / low > MANY:
        return Scale(low / 1.3, high * 1.3)
    return LinearScale(0.0, high * 1.08 or 1.0)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
