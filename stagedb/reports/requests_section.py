"""The section of a report about requests at once: tokens a second against the time a token, and memory."""

import itertools
from collections.abc import Sequence
from html import escape

from stagedb.files import GB
from stagedb.plans import Plan
from stagedb.reports.candidates_chart import MS, axis_over, grid_of
from stagedb.reports.page_parts import Cell, TableColumn, percent, table
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span
from stagedb.search.trials import BatchPoint


def requests_section(job: StepView) -> str:
    """The section of a report on other numbers of requests, as HTML; empty for a step without them."""
    points = job.batches
    if len(points) < 2:
        return ""
    prompts = not Plan.from_mapping(job.workload.plan).workflow.decodes
    waits = "time to the first token" if prompts else "time a token"
    columns = [
        TableColumn("Requests", True),
        TableColumn(waits.capitalize(), True),
        TableColumn("Tokens/s an accelerator", True),
        TableColumn("Memory, GB", True),
        TableColumn(""),
    ]
    rows: list[list[Cell]] = [
        [
            (f"{each.requests:,}", each.requests),
            (span(each.wait), each.wait),
            ("", 0.0) if each.tokens is None else (f"{each.tokens:,.1f}", each.tokens),
            (f"{each.peak / GB:,.1f}", each.peak),
            ", ".join(text for text, is_so in (("this plan", each.own), ("does not fit", not each.fits)) if is_so),
        ]
        for each in points
    ]
    drawn = "" if any(each.tokens is None for each in points) else _curve(points, waits)
    most = max((each.tokens or 0.0 for each in points), default=0.0)
    shares = [(each.tokens or 0.0) / most for each in points] if most else []
    return (
        "<section><h2>More requests at once</h2><p>The step with other numbers of requests, each as long as those of "
        f"this plan, up to the first that does not fit.</p>{drawn}{table(columns, rows, shares)}</section>"
    )


def _curve(points: Sequence[BatchPoint], waits: str) -> str:
    """Tokens a second over the time a token, a mark for each number of requests."""
    x = axis_over([each.wait / MS for each in points])
    y = axis_over([each.tokens or 0.0 for each in points])
    places = [(100 * x.at(each.wait / MS), 100 * (1 - y.at(each.tokens or 0.0))) for each in points]
    lines = "".join(
        f'<line class="front" x1="{left:.2f}%" y1="{above:.2f}%" x2="{right:.2f}%" y2="{below:.2f}%"/>'
        for (left, above), (right, below) in itertools.pairwise(places)
    )
    marks = "".join(
        _mark(each, waits, percent(at / 100, 1), percent(up / 100, 1))
        for each, (at, up) in zip(points, places, strict=True)
    )
    labels = "".join(
        f'<text class="named" x="{at:.2f}%" y="{up:.2f}%" dx="8" dy="-6">{each.requests:,}</text>'
        for each, (at, up) in zip(points, places, strict=True)
        if each.own or each.requests == max(one.requests for one in points if one.fits or one.own)
    )
    best = max((each for each in points if each.fits), key=lambda each: each.tokens or 0.0, default=None)
    about = (
        "None of these numbers of requests fits."
        if best is None
        else f"With {best.requests:,} requests it has the most tokens a second that fit: {best.tokens:,.1f} an "
        f"accelerator, {waits} {span(best.wait)}. An open mark does not fit."
    )
    return (
        '<figure class="candidates requests"><div class="area"><p class="unit">tokens/s an accelerator</p>'
        '<div class="field"><svg role="img" aria-labelledby="requests-title">'
        f'<title id="requests-title">{escape(f"Tokens a second by {waits}: {about}")}</title>'
        f'{grid_of(x, y)}{lines}<g class="marks">{marks}</g>{labels}</svg></div>'
        f'<p class="axis">{escape(waits)}, ms</p></div><figcaption>{escape(about)}</figcaption></figure>'
    )


def _mark(point: BatchPoint, waits: str, x: str, y: str) -> str:
    text = (
        f"{point.requests:,} requests: {point.tokens:,.1f} tokens/s an accelerator, {waits} {span(point.wait)}, "
        f"{point.peak / GB:,.1f} GB{'' if point.fits else ', does not fit'}"
    )
    style = f"k0{' best' if point.own else ''}{'' if point.fits else ' set'}"
    return f'<circle class="{style}" cx="{x}" cy="{y}" r="5"><title>{escape(text)}</title></circle>'
