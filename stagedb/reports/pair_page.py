"""A report that compares two steps: what makes the one faster, and both pipelines on one scale."""

from collections.abc import Sequence
from html import escape

from stagedb.files import GB
from stagedb.reports.memory_sections import peaks_section, room_of
from stagedb.reports.page_frame import page
from stagedb.reports.page_parts import Cell, TableColumn, table
from stagedb.reports.pipeline_chart import gantt, lanes_shown
from stagedb.reports.report_page import (
    SHOWN,
    Made,
    chips,
    error_in_short,
    error_text,
    pipeline,
    provenance_section,
    ranks_of,
    shown_plan,
    stages,
    tile,
)
from stagedb.reports.step_difference import (
    TERMS,
    StepSums,
    in_short,
    names_of,
    part_changes,
    sums_of,
    term_changes,
    verdict,
)
from stagedb.reports.step_view import StepView, held
from stagedb.reports.terminal_chart import span

Named = tuple[StepView, str]
"""A step, and what the page calls it: a name of a profile or an instance."""

PARTS = 16
"""Rows of the table of operators."""


def render_pair(first: Named, second: Named, made: tuple[Made, Made] | None = None) -> str:
    """The report of two steps. Times of a second step with another number of tokens count for those of the first.

    made: facts of the provenance of each by name.
    """
    sides = (first, second)
    names = _names(first[1], second[1])
    sums = (sums_of(*first), sums_of(*second))
    whole = max(job.times.step for job, _ in sides)
    lanes = [lanes_shown(job) for job, _ in sides]
    charts = tuple(
        gantt(job, shown, whole, f"{name}: {span(job.times.step, SHOWN, zeros=True)}")
        for (job, _), shown, name in zip(sides, lanes, names, strict=True)
    )
    spent = "".join(
        stages(job, shown, f"Where the time goes: {name}")
        for (job, _), shown, name in zip(sides, lanes, names, strict=True)
    )
    peaks = "".join(peaks_section(job, f": {name}") for (job, _), name in zip(sides, names, strict=True))
    sections = [
        _terms(sums, names),
        pipeline(charts, "The pipelines, on one scale"),
        f'<div class="columns">{spent}</div>',
        f'<div class="columns">{peaks}</div>' if peaks else "",
        _parts(sums, names),
        _plans(sides, names),
        provenance_section(list(zip(names, made or ({}, {}), strict=True))),
    ]
    title = f"{names[0]} and {names[1]}"
    instances = " and ".join(job.workload.instance for job, _ in sides)
    footer = (
        "Counts are exact; times are those of a model of the system, or measured where durations were given. "
        f"Instances {instances}. Written by stagedb."
    )
    return page(f"{title}: two training steps", _head(sides, sums, names), "".join(sections), footer, charts)


def _names(first: str, second: str) -> tuple[str, str]:
    """Names for headings: a page calls two steps of one name first and second."""
    if first != second:
        return names_of(first, second)
    return f"{in_short(first)} (first)", f"{in_short(second)} (second)"


def _head(sides: Sequence[Named], sums: tuple[StepSums, StepSums], names: Sequence[str]) -> str:
    cards = "".join(
        f'<div class="side"><h2>{escape(name)}</h2><p>{escape(job.workload.model)} on {escape(ranks_of(job))}</p>'
        f'{chips(job)}<dl class="tiles">{_tiles(job)}</dl></div>'
        for (job, _), name in zip(sides, names, strict=True)
    )
    sentence = verdict(*sums)
    return (
        f"<header><h1>{escape(names[0])} and {escape(names[1])}</h1>"
        f'<p class="lead">{escape(sentence)}.</p><div class="columns">{cards}</div></header>'
    )


def _tiles(job: StepView) -> str:
    found = job.merit
    number, unit = span(found.step, SHOWN, zeros=True).split(" ")
    text = tile("Step time", number, unit, f"{found.tokens:,} tokens; {error_in_short(job)}")
    mfu = "–" if found.mfu is None else f"{100 * found.mfu:.1f}"
    text += tile("MFU", mfu, "%", f"{(found.tokens_per_second or 0):,.0f} tokens/s in all")
    peaks = held(job)
    if peaks:
        most, room = max(peak.total for peak in peaks), room_of(job)
        text += tile(
            "Memory at the peak", f"{most / GB:,.1f}", "GB", "fits" if most <= room else "does not fit", most > room
        )
    return text


def _terms(sums: tuple[StepSums, StepSums], names: Sequence[str]) -> str:
    """The terms of both steps, which add up to the steps."""
    scale = sums[0].tokens / sums[1].tokens if sums[1].tokens else 1.0
    whole = sums[1].step * scale - sums[0].step
    rows: list[list[Cell]] = []
    for each in term_changes(*sums):
        part = "" if each.part is None else f"{each.part[0]} ({_signed(each.part[1])})"
        rows.append([TERMS[each.term], *_cells(each.first, each.second, whole), part])
    rows.append(["the step", *_cells(sums[0].step, sums[1].step * scale, whole), ""])
    columns = [
        TableColumn("term"),
        TableColumn(names[0], True),
        TableColumn(names[1], True),
        TableColumn("difference", True),
        TableColumn("of the step's", True),
        TableColumn("most of it"),
    ]
    return (
        "<section><h2>What makes the difference</h2><p>Where the time of a rank goes, on average. The four terms "
        f"together are the step.{_scaled(sums)}</p>{table(columns, rows)}</section>"
    )


def _parts(sums: tuple[StepSums, StepSums], names: Sequence[str]) -> str:
    """The kinds of operators and communication that differ the most."""
    scale = sums[0].tokens / sums[1].tokens if sums[1].tokens else 1.0
    whole = sums[1].step * scale - sums[0].step
    found = [(term, what, *both) for term in ("busy", "exposed") for what, both in part_changes(*sums, term).items()]
    found = sorted((row for row in found if row[2] != row[3]), key=lambda row: -abs(row[3] - row[2]))
    if not found:
        return ""
    # The columns that matter most come first: a phone shows only these without scrolling.
    columns = [
        TableColumn("work"),
        TableColumn("difference", True),
        TableColumn("of the step's", True),
        TableColumn(names[0], True),
        TableColumn(names[1], True),
        TableColumn("term"),
    ]
    rows: list[list[Cell]] = []
    for term, what, ours, theirs in found[:PARTS]:
        one, other, change, share = _cells(ours, theirs, whole)
        rows.append([what, change, share, one, other, TERMS[term]])
    rest = f'<p class="small">{len(found) - PARTS} more differ less.</p>' if len(found) > PARTS else ""
    return (
        '<section class="long"><h2>Operators and communication</h2><p>What differs the most, a rank on average: the '
        f"time of operators, and the exposed time of communication.{_scaled(sums)}</p>"
        f"{table(columns, rows)}{rest}</section>"
    )


def _cells(ours: float, theirs: float, whole: float) -> list[Cell]:
    change = theirs - ours
    share = "" if not whole else f"{change / whole + 0.0:.0%}".replace("-0%", "0%").replace("-", "−")
    return [(_time(ours), ours), (_time(theirs), theirs), (_signed(change), change), (share, change)]


def _time(ns: float) -> str:
    return span(ns) if round(ns) else "0"


def _signed(ns: float) -> str:
    return "0" if not round(ns) else f"{'+' if ns > 0 else '−'}{span(abs(ns))}"


def _scaled(sums: tuple[StepSums, StepSums]) -> str:
    one, other = sums
    if one.tokens == other.tokens:
        return ""
    return f" Times of the second are for as many tokens as the first has, {one.tokens:,} instead of {other.tokens:,}."


def _plans(sides: Sequence[Named], names: Sequence[str]) -> str:
    """Words of the plans, and facts of the systems, that differ."""
    plans = [
        {"model": job.workload.model, "system": job.system.name, "ranks": f"{len(job.workload.ranks):,}"}
        | shown_plan(job)
        | ({"as if": ", ".join(map(str, job.scalings))} if job.scalings else {})
        | ({"waits for communication on": ", ".join(job.blocking)} if job.blocking else {})
        | {"error of predicted steps": error_text(job)}
        for job, _ in sides
    ]
    words = [word for word in {**plans[0], **plans[1]} if plans[0].get(word) != plans[1].get(word)]
    if not words:
        return "<section><h2>The plans</h2><p>Plans and systems do not differ.</p></section>"
    columns = [TableColumn("word"), *(TableColumn(name, wraps=True) for name in names)]
    rows: list[list[Cell]] = [[word, *(plan.get(word, "") for plan in plans)] for word in words]
    return f"<section><h2>The plans</h2><p>What differs between plans and systems.</p>{table(columns, rows)}</section>"
