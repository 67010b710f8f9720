"""Sections of a report: the pipeline, where the time of the stages goes, and what they communicate."""

from collections.abc import Sequence
from html import escape

from stagedb.files.texts import bytes_text
from stagedb.reports.figures import hotspots
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, legend, table
from stagedb.reports.pipeline_chart import KEYS, STYLES, ZOOM, Gantt
from stagedb.reports.spans import WORDS, Doing
from stagedb.reports.step_view import StepView
from stagedb.reports.term_colors import EXPOSED, TERM_STYLES
from stagedb.reports.terminal_chart import span
from stagedb.timing import Lane

HOTSPOTS = 40
"""Rows of the table of communication."""


def pipeline(charts: Sequence[Gantt], heading: str = "The pipeline") -> str:
    """The section with the chart of a step, or with those of two on one scale. heading: of the section."""
    lanes = [lane for chart in charts for lane in chart.data]
    doings = [Doing(value) for value in sorted({row[2] for lane in lanes for row in lane["spans"]})]
    doings = doings or list(Doing)[:-1]
    items = [(STYLES[doing], WORDS[doing]) for doing in [*doings, Doing.IDLE] if doing != Doing.IDLE]
    items += [("waiting", "waiting"), ("stroke", "critical path")]
    left_out = dict.fromkeys(each for chart in charts for each in chart.left_out)
    note = "".join(f'<p class="small">{escape(each[0].upper() + each[1:])}.</p>' for each in left_out)
    return (
        f"<section><h2>{escape(heading)}</h2><p>What every stage does over time. A block is filled up to its share of "
        "compute; the pale part above communicates or waits. Neighbouring micro-batches differ in shade. The line is "
        "the critical path: the step gets shorter only if something on this path does.</p>"
        f"{legend(items).removesuffix('</div>')}{ZOOM}</div>{''.join(chart.html for chart in charts)}{KEYS}{note}"
        "</section>"
    )


def stages(job: StepView, lanes: Sequence[Lane], heading: str = "Where the time goes") -> str:
    """The section with the shares of the step, by stage. heading: of the section."""
    step = job.times.step or 1
    words = (
        (TERM_STYLES["busy"], "computing"),
        (EXPOSED, "exposed communication"),
        (TERM_STYLES["bubble"], "bubble"),
        (TERM_STYLES["idle"], "idle"),
    )
    rows = []
    for lane in lanes:
        times = job.times.lanes[lane.number]
        values = (times.busy, times.exposed, times.bubble, times.idle)
        parts = [
            BarPart(style, value, f"{word}: {span(value)}, {value / step:.1%}")
            for (style, word), value in zip(words, values, strict=True)
        ]
        rows.append(Bar(job.label(lane), parts, f"{times.busy / step:.0%} busy"))
    return (
        f"<section><h2>{escape(heading)}</h2><p>By stage, as shares of the step. Communication counts if the stage "
        f"computes nothing meanwhile.</p>{legend(words)}{bars(rows, step)}</section>"
    )


def communication(job: StepView) -> str:
    """The section with the communication, the most exposed first."""
    rows, step = hotspots(job), job.times.step or 1
    if not rows:
        return "<section><h2>Communication</h2><p>There is none.</p></section>"
    shown = rows[:HOTSPOTS]
    most = max(row.time for row in rows) or 1
    columns = [
        TableColumn("axis"),
        TableColumn("kind"),
        # The sorted column comes first, because a phone shows only the first ones.
        TableColumn("exposed", True, first=True),
        TableColumn("of the step", True),
        TableColumn("place in the model"),
        TableColumn("time a rank", True),
        TableColumn("bytes", True),
        TableColumn("on the wire", True),
        TableColumn("calls", True),
    ]
    cells: list[list[Cell]] = [
        [
            row.axis,
            row.kind.replace("_", "-"),
            (span(row.exposed), row.exposed),
            (f"{row.exposed / step:.1%}", row.exposed / step),
            row.place,
            (span(row.time), row.time),
            (bytes_text(row.bytes), row.bytes),
            (bytes_text(row.wire), row.wire),
            (f"{row.calls:,}", row.calls),
        ]
        for row in shown
    ]
    rest = rows[HOTSPOTS:]
    more = (
        f'<p class="small">{len(rest)} more take {span(sum(row.time for row in rest))} a rank together.</p>'
        if rest
        else ""
    )
    return (
        '<section class="long"><h2>Communication</h2><p>All layers together. Calls, bytes (operands) and the bytes '
        "sent into the network are sums over all ranks; times are means over all ranks. Exposed is what no computing "
        "hides.</p>"
        f"{table(columns, cells, [row.exposed / most for row in shown])}{more}</section>"
    )
