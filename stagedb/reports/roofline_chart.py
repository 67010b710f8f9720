"""The roofline of a report: the speed of operators, below the limits of the accelerator."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from stagedb.reports.page_parts import Cell, Scale, TableColumn, legend, percent, table, y_mark
from stagedb.reports.step_view import AlikeOps, StepView, rate_of, works
from stagedb.reports.terminal_chart import span

NUMBERED = 8
"""Operators with a name next to the roofline."""


SLACK = 1.001
"""Times are whole ns."""


def roofline(job: StepView) -> str:
    """The section of a report with the roofline chart, as HTML."""
    every = works(job)
    points = [row for row in every if row.flops and row.bytes and row.ns]
    moves = _moves(job, [row for row in every if not row.flops])
    if not points:
        return f"<section><h2>Roofline</h2><p>No operator has FLOPs.</p>{moves}</section>"
    accelerator = job.system.accelerator
    dtypes = sorted({row.dtype for row in points}, key=lambda dtype: rate_of(accelerator, dtype))
    roofs = {dtype: rate_of(accelerator, dtype) / 1000 for dtype in dtypes}
    band = float(accelerator.bandwidth)
    finite = [roof for roof in roofs.values() if not math.isinf(roof)]
    ridges = [roof * 1000 / band for roof in finite if not math.isinf(band)]
    x = Scale(
        min([row.intensity for row in points] + [ridge / 4 for ridge in ridges]) / 1.6,
        max([row.intensity * row.masked for row in points] + [ridge * 4 for ridge in ridges]) * 1.6,
    )
    lifted = {
        dtype: roof * max((row.masked for row in points if row.dtype == dtype), default=1.0)
        for dtype, roof in roofs.items()
        if any(row.masked > 1 for row in points if row.dtype == dtype)
    }
    highest = [row.rate * row.masked for row in points] + finite + [each for each in lifted.values() if each < math.inf]
    y = Scale(min(row.rate for row in points) / 2, max(highest) * 1.8)
    named = points[:NUMBERED]
    columns = [
        TableColumn("#", True),
        TableColumn("operator", wraps=True),
        TableColumn("of computing", True, first=True),
        TableColumn("FLOPs/byte", True),
        TableColumn("TFLOP/s", True),
        TableColumn("of the peak", True),
        *([TableColumn("TFLOP/s with all pairs", True)] if lifted else []),
    ]
    cells: list[list[Cell]] = [
        [
            (str(at), at),
            f"{row.place} ({row.kind})",
            (f"{row.share:.1%}", row.share),
            (f"{row.intensity:,.0f}", row.intensity),
            (f"{row.rate:,.0f}", row.rate),
            (f"{row.rate / roofs[row.dtype]:.0%}", row.rate / roofs[row.dtype]),
            *([_with_all_pairs(row)] if lifted else []),
        ]
        for at, row in enumerate(named, 1)
    ]
    rules = sorted({_bound(row) for row in points})
    items = [(rule, SOURCES[rule]) for rule in rules] + ([("ring", "with all pairs")] if lifted else [])
    return (
        "<section><h2>Roofline</h2><p>Operators by their FLOPs a byte and their speed, below the limits of the "
        f"accelerator. The larger the dot, the more of the computing time it takes.{MASKED if lifted else ''}"
        f"{_above(points, roofs, band)}</p>"
        f'{legend(items)}<div class="plot tall">{_axes(x, y)}'
        f'<svg viewBox="0 0 100000 1000" preserveAspectRatio="none" role="img" aria-label="Roofline">'
        f"{_roofs(x, y, lifted.values(), band, 'roof pairs')}{_roofs(x, y, roofs.values(), band)}</svg>"
        f'<svg role="img" aria-label="Operators">{_notes(x, y, roofs, band, below=bool(lifted))}'
        f"{_lifted_notes(y, lifted)}{_dots(x, y, points)}</svg></div>"
        f'<p class="axis">FLOPs a byte of memory</p>{table(columns, cells)}{moves}</section>'
    )


def _moves(job: StepView, moved: Sequence[AlikeOps]) -> str:
    """Operators without FLOPs, which have no place in the chart: how fast they move bytes."""
    if not moved:
        return ""
    band = float(job.system.accelerator.bandwidth)
    sums: dict[tuple[str, str], list[float]] = {}
    for row in moved:
        found = sums.setdefault((row.place, row.kind), [0.0, 0.0, 0.0])
        # GB/s weighted by time.
        for at, value in enumerate((row.share, row.time, row.bytes / max(row.ns, 1) * row.time)):
            found[at] += value
    rows = sorted(sums.items(), key=lambda each: -each[1][0])
    columns = [
        TableColumn("operator without FLOPs", wraps=True),
        TableColumn("of computing", True, first=True),
        TableColumn("GB/s", True),
        TableColumn("of the bandwidth", True),
    ]
    cells: list[list[Cell]] = []
    for (place, kind), (share, time, weighted) in rows[:NUMBERED]:
        rate = weighted / (time or 1)
        part = ("", 0.0) if math.isinf(band) else (f"{rate / band:.0%}", rate / band)
        cells.append([f"{place} ({kind})", (f"{share:.1%}", share), (f"{rate:,.0f}", rate), part])
    whole = sum(row.time for row in moved)
    sent = sum(row.bytes / max(row.ns, 1) * row.time for row in moved) / (whole or 1)
    more = f" The {NUMBERED} longest are in the table." if len(rows) > NUMBERED else ""
    return (
        f"<h3>Without FLOPs</h3><p>Norms, element-wise work and the optimizer only move bytes, so they are not in the "
        f"chart: {sum(row.share for row in moved):.1%} of computing, at {sent:,.0f} GB/s.{more}</p>"
        f"{table(columns, cells)}"
    )


SOURCES: Mapping[str, str] = {
    "compute": "bound by computing",
    "memory": "bound by memory",
    "tabled": "time from a table of kernels",
    "measured": "measured",
}
"""Sources of times, by the class of their dots."""

MASKED = (
    " A causal attention computes about half of the pairs of queries and keys: its dot has those that its mask leaves. "
    "MFU counts all pairs, as counters of FLOPs do: they are the ring, below the dashed limit, higher by as much."
)


def _bound(row: AlikeOps) -> str:
    """The source of a time, one of `SOURCES`: only the durations that a user gives are measured."""
    source, _, limit = row.rule.partition(":")
    return limit if source == "roofline" else "measured" if source == "measured" else "tabled"


def _above(points: Sequence[AlikeOps], roofs: Mapping[str, float], band: float) -> str:
    """How many operators are faster than the accelerator, which those of the model never are."""
    over = [row for row in points if row.rate > roofs[row.dtype] * SLACK or row.bytes / row.ns > band * SLACK]
    return f" {len(over):,} are above a limit, as their times were measured or scaled." if over else ""


def _with_all_pairs(row: AlikeOps) -> Cell:
    return ("", 0.0) if row.masked == 1 else (f"{row.rate * row.masked:,.0f}", row.rate * row.masked)


def _axes(x: Scale, y: Scale) -> str:
    levels = "".join(y_mark(_down(y, value), f"{value:,g}") for value in y.ticks())
    across = "".join(
        f'<line x1="{at}" x2="{at}" y2="4"/><text x="{at}" y="17">{value:,g}</text>'
        for at, value in ((percent(x.at(value), 1), value) for value in x.ticks())
    )
    unit = '<text class="note" y="-5">TFLOP/s</text>'
    # The first text is empty: styles align the first one for a mark at 0, which this axis does not have.
    return (
        f'<svg class="y" aria-hidden="true">{levels}</svg><svg aria-hidden="true">{unit}</svg>'
        f'<svg class="x" aria-hidden="true"><text></text>{across}</svg>'
    )


def _down(y: Scale, value: float) -> str:
    """How far below the top of the chart a value is."""
    return percent(1 - y.at(value), 1)


def _roofs(x: Scale, y: Scale, roofs: Iterable[float], band: float, style: str = "roof") -> str:
    found = []
    for roof in roofs:
        if math.isinf(roof):
            continue
        points = [(x.high, roof)]
        if math.isinf(band):
            points.insert(0, (x.low, roof))
        else:
            ridge = roof * 1000 / band
            low = max(x.low, y.low * 1000 / band)
            points = [(low, low * band / 1000), (ridge, roof), (x.high, roof)]
        text = " ".join(f"{100_000 * x.at(at):.0f},{1000 * (1 - y.at(rate)):.1f}" for at, rate in points)
        found.append(f'<polyline class="{style}" points="{text}"/>')
    return "".join(found)


def _notes(x: Scale, y: Scale, roofs: Mapping[str, float], band: float, *, below: bool) -> str:
    """below: the limits have their names below them, as there are rings above."""
    texts = [
        f'<text class="note end" x="100%" dx="-4" y="{_down(y, roof)}" dy="{14 if below else -6}">{roof:,.4g} TFLOP/s '
        f"{escape(dtype)}</text>"
        for dtype, roof in roofs.items()
        if not math.isinf(roof)
    ]
    if not math.isinf(band):
        low = max(x.at(x.low), x.at(max(x.low, y.low * 1000 / band)))
        ridge = min(x.at(min(roof for roof in roofs.values()) * 1000 / band), 1.0) if roofs else 1.0
        at = low + 0.35 * (ridge - low)
        rate = x.low * (x.high / x.low) ** at * band / 1000
        where = f'x="{percent(at, 1)}" dx="8" y="{_down(y, rate)}" dy="8"'
        texts.append(f'<text class="note" {where}>{band:,.0f} GB/s</text>')
    return "".join(texts)


def _lifted_notes(y: Scale, lifted: Mapping[str, float]) -> str:
    return "".join(
        f'<text class="note end" x="100%" dx="-4" y="{_down(y, roof)}" dy="-6">{roof:,.4g} TFLOP/s '
        f"{escape(dtype)} with all pairs</text>"
        for dtype, roof in lifted.items()
        if not math.isinf(roof)
    )


def _dots(x: Scale, y: Scale, points: Sequence[AlikeOps]) -> str:
    found = []
    for at, row in reversed(list(enumerate(points, 1))):
        size = 9 + 28 * math.sqrt(row.share)
        left, down = percent(x.at(row.intensity), 1), _down(y, row.rate)
        radius = f'r="{size / 2:.1f}"'
        title = (
            f"{row.place} ({row.kind}, {row.dtype}): {row.rate:,.1f} TFLOP/s at {row.intensity:,.1f} FLOPs a byte, "
            f"{span(row.ns)} each, {row.share:.1%} of computing"
        )
        if row.masked > 1:
            title += f"; with all pairs {row.rate * row.masked:,.1f} TFLOP/s"
            over = f'cx="{percent(x.at(row.intensity * row.masked), 1)}" cy="{_down(y, row.rate * row.masked)}"'
            found.append(f'<circle class="dot ring" {over} {radius}><title>{escape(title)}</title></circle>')
        found.append(
            f'<circle class="dot {_bound(row)}" cx="{left}" cy="{down}" {radius}><title>{escape(title)}</title>'
            "</circle>"
        )
        if at <= NUMBERED and size >= 12:
            found.append(f'<text class="number" x="{left}" y="{down}" dy=".35em">{at}</text>')
    return "".join(found)
