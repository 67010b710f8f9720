"""The Gantt chart of a page, with the critical path; and several pipelines on one scale as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from stagedb.files import printable
from stagedb.reports.page_parts import nice, percent, scroll_hint, time_ticks
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import Doing, Spans, in_columns, span, spans
from stagedb.timing import Lane
from stagedb.workflows import RECOMPUTE

STYLES = ("forward", "backward", "weight", "recompute", "step", "communication", "waiting")
"""CSS classes, by `Doing`."""

ZOOM = '<label class="zoom">Zoom <input id="zoom" type="range" min="0" max="8" step="any" value="0"></label>'
"""The field that zooms the charts of a page."""

KEYS = (
    '<p class="small keys">Ctrl+wheel, <kbd>W</kbd> <kbd>S</kbd> or <kbd>+</kbd> <kbd>-</kbd> zoom, <kbd>A</kbd> '
    "<kbd>D</kbd> move, arrows go from span to span, <kbd>C</kbd> along the critical path, <kbd>F</kbd> fits the span, "
    "<kbd>0</kbd> shows all.</p>"
)
"""What the charts of a page do with a script."""

MOST_LANES = 64
MOST_SPANS = 24_000
"""Spans of a chart. If there are more, recomputing is drawn as backward, or the chart as columns of time."""

MOST_LEGS = 10_000
"""Legs of a critical path up to which all are drawn."""

MOST_NUMBERS = 700
WIDE = 1.7
"""The least width of a span with its micro-batch's number, in percent of the step."""

ACROSS = 100_000
"""The width of a chart."""

ROW, TOP, HEIGHT, PATH = 20, 2, 15, 17
"""Sizes in a row of a chart: its height, where its bar begins, how high that is, and where the line of a path is."""

_SEEN = 0.5
"""The visible part of a row's height."""


@dataclass(frozen=True)
class Gantt:
    """`html` is the chart, `data` the content of its tooltips, `left_out` what is not shown, in words.

    step: its length [ns]. whole: the length of its axis [ns], which is longer next to a longer step.
    """

    html: str
    step: int
    whole: int
    data: list[dict[str, Any]]
    left_out: tuple[str, ...]


def lanes_shown(job: StepView) -> tuple[Lane, ...]:
    """The lanes of a page: all, or if there are many, first those of the critical path, then one for each stage."""
    lanes = job.of_stages(None)
    if len(lanes) <= MOST_LANES:
        return lanes
    critical = set(job.times.path.lane.tolist())
    firsts = {lane.stage: lane.number for lane in reversed(lanes)}
    order = sorted(lanes, key=lambda lane: (lane.number not in critical, firsts[lane.stage] != lane.number))
    kept = {lane.number for lane in order[:MOST_LANES]}
    return tuple(lane for lane in lanes if lane.number in kept)


@dataclass(frozen=True)
class DrawnLanes:
    """The rows of a chart.

    svg: a field of `ACROSS` by `ROW` a lane. spans: what each lane does. left_out: as in `Gantt`.
    """

    svg: str
    spans: Sequence[Spans]
    left_out: tuple[str, ...]


def drawn_lanes(job: StepView, lanes: Sequence[Lane], whole: int) -> DrawnLanes:
    """Some lanes and the critical path. whole: the length of the axis [ns]."""
    left_out = []
    if len(lanes) < len(job.lanes):
        left_out.append(f"{len(job.lanes) - len(lanes)} of {len(job.lanes)} lanes of ranks are not shown")
    found = [spans(job, lane) for lane in lanes]
    if sum(map(len, found)) > MOST_SPANS:
        found = [spans(job, lane, whole_tasks=True) for lane in lanes]
        if any(phase == RECOMPUTE for each in job.times.network.columns for phase in each.ops.phase):
            left_out.append("recomputing is part of the backward here")
    if sum(map(len, found)) > MOST_SPANS:
        # Columns make fewer pieces than spans for any number of lanes.
        columns = max(MOST_SPANS // len(lanes) // 2, 1)
        found = [in_columns(each, job.times.step, columns) for each in found]
        left_out.append(f"every {span(job.times.step / columns)} show what takes most of them")
    return DrawnLanes(_paths(job, lanes, found, whole) + _critical(job, lanes, whole), found, tuple(left_out))


def gantt(job: StepView, lanes: Sequence[Lane], whole: int = 0, title: str = "") -> Gantt:
    """The chart of some lanes. whole: the length of its axis [ns], if that is longer than the step.

    title: above the chart; empty: none.
    """
    whole = max(whole, job.times.step, 1)
    drawn = drawn_lanes(job, lanes, whole)
    numbers = _numbers(job, lanes, drawn.spans, whole) if row_height(len(lanes)) >= 20 else ""
    names = [job.label(lane) for lane in lanes]
    html = chart_frame(names, drawn.svg, numbers, whole, ("stage", "step"), title)
    data = [_tooltip(job, lane, each) for lane, each in zip(lanes, drawn.spans, strict=True)]
    return Gantt(html, job.times.step, whole, data, drawn.left_out)


def row_height(count: int) -> int:
    """The height in pixels of each row of a chart with `count` rows."""
    return 26 if count <= 8 else 20 if count <= 16 else 14 if count <= 32 else 10


def chart_frame(
    names: Sequence[str], drawn: str, numbers: str, whole: int, words: tuple[str, str], title: str = ""
) -> str:
    """A chart with its names and its axis.

    names: of the rows. drawn: the SVG of all rows. numbers: texts of SVG on top of it. whole: the length of the axis in
    ns. words: what a row is, and what the whole is called. title: above the chart; empty: none.
    """
    row, whats = row_height(len(names)), f"What every {words[0]} does over the {words[1]}"
    spans = "".join(f"<span>{escape(name)}</span>" for name in names)
    chart = (
        f'<svg viewBox="0 0 {ACROSS} {ROW * len(names)}" height="{row * len(names)}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(whats)}">{drawn}</svg>'
    )
    heading = (f"<h3>{escape(title)}</h3>" if title else "") + scroll_hint(f"of the {words[1]}")
    texts = f'<svg class="numbers" height="{row * len(names)}" aria-hidden="true">{numbers}</svg>' if numbers else ""
    return (
        f'{heading}<div class="gantt row{row}"><div class="names">{spans}</div>'
        f'<div class="scroll"><div class="canvas">{chart}{texts}'
        f'{time_ticks(whole, 12)}</div></div></div><p class="small detail" aria-live="polite"></p>'
    )


def _paths(job: StepView, lanes: Sequence[Lane], found: Sequence[Spans], whole: int) -> str:
    """All spans of one kind as one path. Every other micro-batch has a lighter colour, so that neighbours differ.

    A span is filled up to its share of compute, and pale above.
    """
    across = round(job.times.step / whole * ACROSS)
    drawn: dict[str, list[str]] = {}
    for place, (lane, each) in enumerate(zip(lanes, found, strict=True)):
        top = ROW * place + TOP
        drawn.setdefault("lane", []).append(f"M0 {top}h{across}v{HEIGHT}h-{across}z")
        batch = job.times.network.columns[lane.number].tasks.microbatch
        begin = np.round(each.start / whole * ACROSS).astype(np.int64).tolist()
        end = np.round(each.finish / whole * ACROSS).astype(np.int64).tolist()
        empty = np.round(HEIGHT * (1 - each.busy / (each.finish - each.start)), 1).tolist()
        rows = zip(begin, end, each.doing.tolist(), each.task.tolist(), empty, strict=True)
        for left, right, doing, task, pale in rows:
            wide = max(right - left, 1)
            style = STYLES[doing] + ("2" if task >= 0 and batch[task] % 2 else "")
            if doing == Doing.COMMUNICATION or pale < _SEEN:
                drawn.setdefault(style, []).append(f"M{left} {top}h{wide}v{HEIGHT}h-{wide}z")
                continue
            drawn.setdefault(f"{style} pale", []).append(f"M{left} {top}h{wide}v{pale:g}h-{wide}z")
            drawn.setdefault(style, []).append(f"M{left} {top + pale:g}h{wide}v{HEIGHT - pale:g}h-{wide}z")
    return "".join(f'<path class="{style}" d="{"".join(parts)}"/>' for style, parts in drawn.items())


def _critical(job: StepView, lanes: Sequence[Lane], whole: int) -> str:
    """The critical path as one line from the begin to the end, through the lanes that are shown."""
    place = {lane.number: at for at, lane in enumerate(lanes)}
    legs = job.times.path.legs()
    points: list[str] = []
    # If the path has very many legs, those too short to be seen are left out.
    least = whole / 2000 if len(legs.lane) > MOST_LEGS else 0
    for lane, begin, end in zip(legs.lane.tolist(), legs.start.tolist(), legs.finish.tolist(), strict=True):
        if lane in place and end - begin > least:
            y = ROW * place[lane] + PATH
            points += [f"{round(time / whole * ACROSS)},{y}" for time in (begin, end)]
    return f'<polyline class="path" points="{" ".join(points)}"/>'


def _numbers(job: StepView, lanes: Sequence[Lane], found: Sequence[Spans], whole: int) -> str:
    """The micro-batches' numbers, in spans that are wide enough; none if few spans are."""
    texts, narrow, row = [], 0, row_height(len(lanes))
    for place, (lane, each) in enumerate(zip(lanes, found, strict=True)):
        tasks = job.times.network.columns[lane.number].tasks
        for start, finish, doing, task in zip(
            each.start.tolist(), each.finish.tolist(), each.doing.tolist(), each.task.tolist(), strict=True
        ):
            if doing not in (Doing.FORWARD, Doing.BACKWARD, Doing.WEIGHT):
                continue
            if 100 * (finish - start) < WIDE * whole:
                narrow += 1
                continue
            x, y = percent((start + finish) / 2, whole), row * (place + 0.5) + 3
            texts.append(f'<text x="{x}" y="{y:g}">{int(tasks.microbatch[task])}</text>')
    return "".join(texts) if len(texts) <= MOST_NUMBERS and narrow < len(texts) else ""


def _tooltip(job: StepView, lane: Lane, each: Spans) -> dict[str, Any]:
    tasks = job.times.network.columns[lane.number].tasks
    rows: list[list[int]] = []
    shares = np.round(100 * each.busy / (each.finish - each.start)).astype(np.int64)
    columns = (each.start, each.finish, each.doing, each.task, shares)
    for start, finish, doing, task, busy in zip(*(column.tolist() for column in columns), strict=True):
        batch = int(tasks.microbatch[task]) if task >= 0 and doing != Doing.STEP else -1
        chunk = int(tasks.chunk[task]) if task >= 0 else 0
        rows.append([start, finish - start, doing, batch, busy, *([chunk] if chunk else [])])
    return {"name": job.label(lane), "spans": rows, "path": _on_path(job, lane)}


def _on_path(job: StepView, lane: Lane) -> list[list[int]]:
    """Start and length of each part of the critical path in a lane; none if there are very many."""
    legs = job.times.path.legs()
    own = (legs.lane == lane.number) & (legs.finish > legs.start)
    if len(legs.lane) > MOST_LEGS:
        return []
    found: list[list[int]] = np.stack([legs.start[own], (legs.finish - legs.start)[own]], axis=1).tolist()
    return found


# The pipelines of several steps on one scale, as a picture of its own: SVG without a script.

WIDTH, NAMES, HEAD, GAP, AXIS = 1200, 150, 26, 12, 24
"""Sizes: of the picture, of the names of lanes, of the head of a step, between two steps, of the axis."""

TICKS = 6
"""Marks of the axis, about."""

TALLEST = 320
"""The height of the rows of one step, at most."""

WORDS: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "weight": "weight gradients",
    "recompute": "recomputing",
    "step": "optimizer",
    "communication": "communication that nothing hides",
    "lane": "waiting",
}
"""What the colours of a picture mean."""


def pipelines_picture(steps: Sequence[tuple[StepView, str]]) -> str:
    """The pipelines of steps, one below the other. steps: each with its name."""
    whole = max(*(job.times.step for job, _ in steps), 1)
    parts, top, drawn = list[str](), 0, set[str]()
    for job, name in steps:
        lanes = lanes_shown(job)
        row = min(18.0, TALLEST / len(lanes))
        made = drawn_lanes(job, lanes, whole)
        drawn |= {style for style in STYLES if f'class="{style}' in made.svg}
        note = "".join(f" ({each})" for each in made.left_out)
        parts.append(_text(0, top + 17, f"{name}: {span(job.times.step, 4, zeros=True)}{note}", "h"))
        every = max(1, round(13 / row))
        parts += [
            _text(0, top + HEAD + row * (at + 0.5) + 4, job.label(lane), "t")
            for at, lane in enumerate(lanes)
            if at % every == 0
        ]
        height = row * len(lanes)
        parts.append(
            f'<svg x="{NAMES}" y="{top + HEAD}" width="{WIDTH - NAMES}" height="{height:g}" '
            f'viewBox="0 0 {ACROSS} {ROW * len(lanes)}" preserveAspectRatio="none">{made.svg}</svg>'
        )
        top += round(HEAD + height + GAP)
    keys = _keys([style for style in WORDS if style == "lane" or style in drawn], top + AXIS + 20)
    body = "".join([*parts, _axis(whole, top), keys])
    height = top + AXIS + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f"<style>{_styles()}</style>{body}</svg>"
    )


def _axis(whole: int, top: float) -> str:
    every = nice(whole / TICKS)
    marks = [at * every for at in range(int(whole / every) + 1)]
    texts = []
    for mark in marks:
        x = NAMES + mark / whole * (WIDTH - NAMES)
        anchor = "t end" if x > WIDTH - 30 else "t middle" if mark else "t"
        text = _text(round(x, 1), top + 14, span(mark) if mark else "0", anchor)
        texts.append(f'<path class="tick" d="M{x:.1f} {top - 6}v6"/>{text}')
    return "".join(texts)


def _keys(styles: Sequence[str], y: float) -> str:
    found, x = "", float(NAMES)
    for style in styles:
        found += f'<rect class="{style}" x="{x:g}" y="{y - 11}" width="12" height="12" rx="3"/>'
        found += _text(x + 17, y, WORDS[style], "t")
        x += 35 + 7.2 * len(WORDS[style])
    return found


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(printable(text, kept=""))}</text>'


def _styles() -> str:
    """The colours of a report, light and dark."""
    own = files("stagedb.reports").joinpath("shared/colors.css").read_text(encoding="utf-8")
    fills = {style: style for each in STYLES[:-1] for style in (each, f"{each}2")} | {"lane": "idle"}
    fills |= {"h": "ink", "t": "soft"}
    classes = "".join(f".{style}{{fill:{_color(name)}}}" for style, name in fills.items())
    return (
        f"{own}{classes}path.pale{{opacity:.4}}.path{{fill:none;stroke:{_color('path')};stroke-width:2.5px;"
        f"vector-effect:non-scaling-stroke;stroke-linejoin:round}}.tick{{stroke:{_color('soft')}}}"
        "text{font:14px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}.h{font-weight:600}"
        ".middle{text-anchor:middle}.end{text-anchor:end}"
    )


def _color(name: str) -> str:
    return f"var(--{name})"
