"""The pipelines of several steps on one scale, as a picture of its own: SVG without a script."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from stagedb.files import printable
from stagedb.reports.page_parts import nice
from stagedb.reports.pipeline_chart import ACROSS, ROW, STYLES, drawn_lanes, lanes_shown
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span

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
