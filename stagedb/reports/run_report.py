"""The report of a run that was recorded: one HTML file, with the parts of that of a step."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from stagedb.lowering.columns import Ints
from stagedb.reports.page_frame import page
from stagedb.reports.page_parts import EXPOSED, TERM_STYLES, Bar, BarPart, Cell, TableColumn, bars, legend, table
from stagedb.reports.pipeline_chart import (
    ACROSS,
    HEIGHT,
    KEYS,
    MOST_LANES,
    MOST_LEGS,
    MOST_SPANS,
    PATH,
    ROW,
    STYLES,
    TOP,
    ZOOM,
    Gantt,
    chart_frame,
)
from stagedb.reports.report_page import Made, PageParts, provenance_section, tile
from stagedb.reports.seen_step import SeenPlan, seen_lead, seen_section
from stagedb.reports.terminal_chart import WORDS, Doing, span
from stagedb.runs.measured_run import RankTime, exposed_of, time_of
from stagedb.runs.overlaps import HALVES, Bools, Half, communicates, halves_of, in_half
from stagedb.runs.stored_run import RunOpFacts, StoredRun
from stagedb.workflows import RECOMPUTE

# The chart of a run that was recorded: a row for each stream of each rank, with the critical path on it.

_DOINGS = {"backward": Doing.BACKWARD, RECOMPUTE: Doing.RECOMPUTE, "optimizer": Doing.STEP}
"""By phase; another one is drawn as forward."""

_FINEST = 1000
"""Ops nearer than this part of a run are one span."""


@dataclass(frozen=True)
class _ChartRow:
    """A row: its name, and the starts, ends and `Doing` of its spans. key: rank and stream."""

    name: str
    key: tuple[int, str]
    start: Ints
    end: Ints
    doing: Ints


def run_chart(run: StoredRun) -> Gantt:
    """The chart of all ranks, or if there are many of the first ones."""
    keys = [(rank, stream) for rank in run.timed for stream in _streams(run.lane_of[rank].ops)]
    shown = keys[:MOST_LANES]
    left_out = [f"{len(keys) - len(shown)} of {len(keys)} streams are not shown"] if len(shown) < len(keys) else []
    several = len(run.timed) > 1
    rows = []
    for rank, stream in shown:
        which = np.array([op.stream == stream for op in run.lane_of[rank].ops], bool)
        rows.append(_row(run, rank, f"rank {rank}, {stream}" if several else stream, (rank, stream), which))
    return _drawn(run, rows, left_out, "stream")


def halves_chart(run: StoredRun, rank: int) -> Gantt:
    """The halves of a rank, and what each communicates, one below the other."""
    facts = run.lane_of[rank].ops
    talks, rows = communicates(facts), []
    for half in HALVES:
        own = in_half(facts, half)
        rows.append(_row(run, rank, f"{half}: computing", (rank, half), own & ~talks))
        rows.append(_row(run, rank, f"{half}: exchange", (rank, f"{half} exchange"), own & talks))
    return _drawn(run, rows, [], "half", path=False)


def _streams(facts: Sequence[RunOpFacts]) -> list[str]:
    return list(dict.fromkeys(op.stream for op in facts))


def _row(run: StoredRun, rank: int, name: str, key: tuple[int, str], which: Bools) -> _ChartRow:
    """The spans of some ops: those that do the same, and follow each other closely, are one."""
    ops, facts = run.timed[rank], run.lane_of[rank].ops
    talks = communicates(facts)[which]
    phases = [_DOINGS.get(facts[place].phase, Doing.FORWARD) for place in np.flatnonzero(which).tolist()]
    doing = np.where(talks, Doing.COMMUNICATION, np.array(phases, np.int64))
    start, end = ops.start[which], ops.end[which]
    if not len(start):
        return _ChartRow(name, key, start, end, doing)
    reach = np.maximum.accumulate(end)
    fresh = np.ones(len(start), bool)
    fresh[1:] = (doing[1:] != doing[:-1]) | ((start[1:] - reach[:-1]) * _FINEST > run.step)
    firsts = np.flatnonzero(fresh)
    lasts = np.append(firsts[1:], len(start)) - 1
    return _ChartRow(name, key, start[firsts], reach[lasts], doing[firsts])


def _drawn(run: StoredRun, rows: Sequence[_ChartRow], left_out: list[str], word: str, path: bool = True) -> Gantt:
    whole = max(run.step, 1)
    if sum(len(row.start) for row in rows) > MOST_SPANS:
        shortest = run.step * len(rows) // MOST_SPANS
        rows = [_longer(row, shortest) for row in rows]
        left_out.append(f"what is shorter than {span(shortest)} is not shown")
    drawn: dict[str, list[str]] = {}
    for place, row in enumerate(rows):
        top = ROW * place + TOP
        drawn.setdefault("lane", []).append(f"M0 {top}h{ACROSS}v{HEIGHT}h-{ACROSS}z")
        left = np.round(row.start / whole * ACROSS).astype(np.int64)
        wide = np.maximum(np.round(row.end / whole * ACROSS).astype(np.int64) - left, 1)
        for begin, width, doing in zip(left.tolist(), wide.tolist(), row.doing.tolist(), strict=True):
            drawn.setdefault(STYLES[doing], []).append(f"M{begin} {top}h{width}v{HEIGHT}h-{width}z")
    paths = "".join(f'<path class="{style}" d="{"".join(parts)}"/>' for style, parts in drawn.items())
    names = [row.name for row in rows]
    html = chart_frame(names, paths + (_critical(run, rows, whole) if path else ""), "", whole, (word, "run"))
    data = []
    by_row = _by_row(run, rows) if path else {}
    for at, row in enumerate(rows):
        spans = zip(row.start.tolist(), (row.end - row.start).tolist(), row.doing.tolist(), strict=True)
        drawn_spans = [[start, took, doing, -1, 100] for start, took, doing in spans]
        data.append({"name": row.name, "spans": drawn_spans, "path": by_row.get(at, [])})
    return Gantt(html, run.step, whole, data, tuple(left_out))


def _longer(row: _ChartRow, shortest: int) -> _ChartRow:
    kept = row.end - row.start > shortest
    return _ChartRow(row.name, row.key, row.start[kept], row.end[kept], row.doing[kept])


def _by_row(run: StoredRun, rows: Sequence[_ChartRow]) -> dict[int, list[list[int]]]:
    """Start and length of each part of the critical path in a row; none if there are very many."""
    place, found = {row.key: at for at, row in enumerate(rows)}, dict[int, list[list[int]]]()
    if len(run.path) > MOST_LEGS:
        return found
    for piece in sorted(run.path, key=lambda each: each.start):
        key = piece.rank, run.lane_of[piece.rank].ops[piece.op].stream
        if key in place and piece.end > piece.start:
            found.setdefault(place[key], []).append([piece.start, piece.end - piece.start])
    return found


def _critical(run: StoredRun, rows: Sequence[_ChartRow], whole: int) -> str:
    """The critical path as one line through the rows that are shown."""
    place = {row.key: at for at, row in enumerate(rows)}
    least = whole / 2000 if len(run.path) > MOST_LEGS else 0
    points: list[str] = []
    for piece in run.path:
        key = piece.rank, run.lane_of[piece.rank].ops[piece.op].stream
        if key in place and piece.end - piece.start > least:
            y = ROW * place[key] + PATH
            points += [f"{round(time / whole * ACROSS)},{y}" for time in (piece.start, piece.end)]
    return f'<polyline class="path" points="{" ".join(points)}"/>'


_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])|(?<=layer)\d+|(?<=block)\d+|(?<=stage)\d+")
"""Numbers of layers and of micro-batches in a name, and not those of words such as fp8."""

MOST = 40
"""Rows of a table."""

_SPENT = (
    (TERM_STYLES["busy"], "busy", "computing or copying"),
    (EXPOSED, "exposed", "collectives alone"),
    (TERM_STYLES["bubble"], "bubble", "messages alone"),
    (TERM_STYLES["idle"], "idle", "nothing runs"),
)
"""CSS class, field of `RankTime` and words of what a rank spends its time with."""


def render_run(run: StoredRun, made: Made | None = None, plan: SeenPlan | None = None) -> str:
    """The report of a run. made: facts of its provenance by name. plan: what was expected, if it was matched."""
    parts = run_parts(run)
    sections = [
        parts.sections,
        "" if plan is None else seen_section(plan),
        _path_section(run),
        _waits_section(run),
        _communication_section(run),
        _longest_section(run),
        provenance_section([("", made or {})]),
    ]
    footer = f"Times are as they were recorded, by the clock of the first rank. Run {run.id}. Written by stagedb."
    lead = "" if plan is None else f'<p class="lead">{seen_lead(plan)}</p>'
    head = f"<header><h1>{escape(run.name)}</h1><p>{escape(about_run(run))}</p>{parts.figures}{lead}</header>"
    return page(f"{run.name}: a run", head, "".join(sections), footer, parts.charts)


def run_parts(run: StoredRun) -> PageParts:
    """What a run has no table for: its figures, its charts, and where the time of its ranks goes."""
    spent = {
        rank: time_of(ops.start, ops.end, [op.type for op in run.lane_of[rank].ops], run.step)
        for rank, ops in run.timed.items()
    }
    chart = run_chart(run)
    rank = next(iter(run.timed))
    halves = halves_of(run, rank)
    paired = halves_chart(run, rank) if halves else None
    sections = [
        _chart_section(chart, "What every stream does"),
        _halves_section(rank, halves, paired),
        _ranks_section(run, spent),
    ]
    charts = (chart,) if paired is None else (chart, paired)
    return PageParts(_figures(run, spent, halves), "".join(sections), charts)


def about_run(run: StoredRun) -> str:
    """How many ranks were recorded, on what, and by what."""
    of = "" if run.is_whole else f" of {run.job_ranks:,}"
    ranks = f"{len(run.timed):,}{of} ranks" if run.job_ranks > 1 else "1 rank"
    devices = f" on {', '.join(dict.fromkeys(run.devices))}" if run.devices else ""
    return f"{ranks}{devices}, recorded by {run.tool}"


def _figures(run: StoredRun, spent: dict[int, RankTime], halves: tuple[Half, ...]) -> str:
    whole = run.step * len(spent) or 1
    shares = {name: sum(getattr(each, name) for each in spent.values()) / whole for _, name, _ in _SPENT}
    number, unit = span(run.step, 4, zeros=True).split(" ")
    gaps = sum(each.idle for each in run.path) / (run.step or 1)
    tiles = [
        ("Length", number, unit, f"{sum(len(each.start) for each in run.timed.values()):,} ops"),
        ("Computing", f"{100 * shares['busy']:.1f}", "%", "of the time a rank computes or copies"),
        ("Communication", f"{100 * (shares['exposed'] + shares['bubble']):.1f}", "%", "of the time it does only that"),
        ("Idle", f"{100 * shares['idle']:.1f}", "%", "of the time nothing runs"),
        ("Gaps", f"{100 * gaps:.1f}", "%", "of the critical path: nothing on it runs"),
    ]
    if halves:
        exchange, exposed = sum(each.communicating for each in halves), sum(each.exposed for each in halves)
        note = f"of {span(exchange)}; a half computes next to the rest"
        number, unit = span(exposed).split(" ")
        tiles.append(("Exposed exchange", number, unit, note))
    return (
        f'<dl class="tiles">{"".join(tile(*each) for each in tiles)}</dl>'
        f'<p class="lead">{escape(_summary(run, shares))}</p>'
    )


def _summary(run: StoredRun, shares: dict[str, float]) -> str:
    """The most important facts, in a sentence or two."""
    words = {
        "computing": shares["busy"],
        "exposed communication": shares["exposed"],
        "waiting for messages": shares["bubble"],
        "idle": shares["idle"],
    }
    text = f"A rank's time is {', '.join(f'{share:.0%} {name}' for name, share in words.items() if share >= 0.005)}."
    late = _late(run)
    if late:
        rank, waited = max(late.items(), key=lambda each: each[1])
        share = waited / (run.step * len(run.timed) or 1)
        if share >= 0.005:
            text += f" The others wait most for rank {rank}: {share:.1%} of their time."
    return text


def _late(run: StoredRun) -> dict[int, int]:
    """By rank, how long others waited for it, all together."""
    found: dict[int, int] = defaultdict(int)
    for each in run.collectives:
        if len(each.joint.members) > 1:
            found[each.last] += each.waited
    return found


def _place(op: RunOpFacts) -> str:
    """The annotation around an op, the same for all layers and micro-batches: with * for its numbers."""
    return _NUMBER.sub("*", op.block)


def _chart_section(chart: Gantt, heading: str) -> str:
    doings = sorted({Doing(row[2]) for lane in chart.data for row in lane["spans"]})
    items = [(STYLES[doing], WORDS[doing]) for doing in doings] + [("stroke", "critical path")]
    note = "".join(f'<p class="small">{escape(each[0].upper() + each[1:])}.</p>' for each in chart.left_out)
    return (
        f"<section><h2>{escape(heading)}</h2><p>All ranks by one clock. The line is the critical path: the run gets "
        f"shorter only if something on this path does.</p>{legend(items).removesuffix('</div>')}{ZOOM}</div>"
        f"{chart.html}{KEYS}{note}</section>"
    )


def _halves_section(rank: int, halves: tuple[Half, ...], chart: Gantt | None) -> str:
    """A pair of overlapped halves: who hides whose exchange."""
    if chart is None:
        return ""
    columns = [TableColumn("half"), *(TableColumn(name, True) for name in
               ("computing", "exchange", "next to the other half", "next to its own", "exposed"))]  # fmt: skip
    cells: list[list[Cell]] = [
        [each.name, *((span(ns), ns) for ns in
         (each.computing, each.communicating, each.by_other, each.by_own, each.exposed))]
        for each in halves
    ]  # fmt: skip
    return (
        f"<section><h2>Two overlapped halves</h2><p>Rank {rank} pairs a forward with a backward: while one half "
        "exchanges tokens, the other one computes. Exposed is the exchange next to which neither computes.</p>"
        f"{chart.html}{table(columns, cells)}</section>"
    )


def _path_section(run: StoredRun) -> str:
    """What the critical path consists of."""
    found: dict[tuple[int, str, str, str], list[int]] = {}
    for piece in run.path:
        op = run.lane_of[piece.rank].ops[piece.op]
        sums = found.setdefault((piece.rank, _place(op), op.kind, op.phase), [0, 0, 0])
        for at, value in enumerate((piece.end - piece.start, piece.idle, 1)):
            sums[at] += value
    rows = sorted(found.items(), key=lambda each: -each[1][0])[:MOST]
    columns = [
        TableColumn("kind"), TableColumn("time", True, first=True), TableColumn("of the run", True),
        TableColumn("gaps before", True), TableColumn("rank", True), TableColumn("phase"),
        TableColumn("annotation", wraps=True), TableColumn("ops", True),
    ]  # fmt: skip
    step = run.step or 1
    cells: list[list[Cell]] = [
        [kind.replace("_", "-"), (span(ns), ns), (f"{ns / step:.1%}", ns / step), (span(idle) if idle else "0", idle),
         (str(rank), rank), phase, block, (f"{count:,}", count)]
        for (rank, block, kind, phase), (ns, idle, count) in rows
    ]  # fmt: skip
    most = max((sums[0] for _, sums in rows), default=1) or 1
    return (
        '<section class="long"><h2>The critical path</h2><p>What the length of the run consists of. Gaps are before '
        "ops of the path: the host had not launched them, or nothing that was recorded explains them.</p>"
        f"{table(columns, cells, [sums[0] / most for _, sums in rows], 'busy')}</section>"
    )


def _ranks_section(run: StoredRun, spent: dict[int, RankTime]) -> str:
    """Where the time of the ranks goes."""
    step = run.step or 1
    rows = []
    for rank, each in list(spent.items())[:64]:
        parts = [
            BarPart(style, getattr(each, name), f"{words}: {span(getattr(each, name))}")
            for style, name, words in _SPENT
        ]
        rows.append(Bar(f"rank {rank}", parts, f"{each.busy / step:.0%} busy"))
    more = f'<p class="small">{len(spent) - 64:,} more ranks.</p>' if len(spent) > 64 else ""
    items = [(style, words) for style, _, words in _SPENT]
    return (
        "<section><h2>Where the time goes</h2><p>By rank, as shares of the run. Communication counts if the rank "
        f"computes nothing meanwhile.</p>{legend(items)}{bars(rows, step)}{more}</section>"
    )


def _waits_section(run: StoredRun) -> str:
    """Ranks that the others wait for."""
    found: dict[tuple[int, str, str], list[int]] = {}
    for each in run.collectives:
        if len(each.joint.members) > 1 and each.waited:
            sums = found.setdefault((each.last, each.axis or "", each.joint.collective.kind), [0, 0])
            sums[0] += each.waited
            sums[1] += 1
    if not found:
        return ""
    rows = sorted(found.items(), key=lambda each: -each[1][0])[:MOST]
    whole = run.step * len(run.timed) or 1
    columns = [
        TableColumn("rank", True), TableColumn("waited for it", True, first=True), TableColumn("of the run", True),
        TableColumn("kind"), TableColumn("group"), TableColumn("calls", True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [(str(rank), rank), (span(waited), waited), (f"{waited / whole:.1%}", waited / whole), kind.replace("_", "-"),
         axis, (f"{calls:,}", calls)]
        for (rank, axis, kind), (waited, calls) in rows
    ]  # fmt: skip
    most = rows[0][1][0] or 1
    return (
        "<section><h2>Ranks that the others wait for</h2><p>A rank that begins a collective last: the time that the "
        "other members wait for it, all together, and as a share of the time of all ranks.</p>"
        f"{table(columns, cells, [sums[0] / most for _, sums in rows], 'waiting')}</section>"
    )


def _communication_section(run: StoredRun) -> str:
    """Communication, the most exposed first."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for rank, ops in run.timed.items():
        facts = run.lane_of[rank].ops
        talks = communicates(facts)
        exposed = exposed_of(ops.start, ops.end, talks)
        for place in np.flatnonzero(talks).tolist():
            op = facts[place]
            sums = found.setdefault((op.axis or "", op.kind, op.phase, _place(op)), [0, 0, 0, 0])
            size = math.nan if op.message is None else op.message
            values = (int(exposed[place]), int(ops.end[place] - ops.start[place]), size, 1)
            for at, value in enumerate(values):
                sums[at] += value
    if not found:
        return "<section><h2>Communication</h2><p>There is none.</p></section>"
    ranks, step = len(run.timed), run.step or 1
    rows = sorted(found.items(), key=lambda each: (-each[1][0], -each[1][1]))[:MOST]
    columns = [
        TableColumn("group"), TableColumn("kind"), TableColumn("exposed", True, first=True),
        TableColumn("of the run", True), TableColumn("phase"), TableColumn("annotation", wraps=True),
        TableColumn("time a rank", True), TableColumn("bytes", True), TableColumn("calls", True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [axis, kind.replace("_", "-"), (span(shown / ranks), shown / ranks), (f"{shown / ranks / step:.1%}", shown),
         phase, block, (span(took / ranks), took / ranks), _bytes_cell(size), (f"{calls:,.0f}", calls)]
        for (axis, kind, phase, block), (shown, took, size, calls) in rows
    ]  # fmt: skip
    most = rows[0][1][0] or 1
    return (
        '<section class="long"><h2>Communication</h2><p>Bytes (operands) and calls are sums over the ranks; times are '
        "means of them. Exposed is what no computing hides. Bytes are empty where not all were recorded.</p>"
        f"{table(columns, cells, [sums[0] / most for _, sums in rows])}</section>"
    )


def _bytes_cell(size: float) -> Cell:
    """Bytes, empty where they are not known: NaN."""
    return ("", -1) if math.isnan(size) else (f"{size:,.0f}", size)


def _longest_section(run: StoredRun) -> str:
    """The kernels that take most time, all their runs together."""
    found: dict[tuple[str, str], list[Any]] = {}
    for rank, ops in run.timed.items():
        took = (ops.end - ops.start).tolist()
        for op, ns in zip(run.lane_of[rank].ops, took, strict=True):
            sums = found.setdefault((op.name, op.kind), [0, 0])
            sums[0] += ns
            sums[1] += 1
    rows = sorted(found.items(), key=lambda each: -each[1][0])[:MOST]
    ranks, step = len(run.timed), run.step or 1
    columns = [
        TableColumn("kind"), TableColumn("time a rank", True, first=True), TableColumn("of the run", True),
        TableColumn("runs", True), TableColumn("name", wraps=True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [kind.replace("_", "-"), (span(ns / ranks), ns / ranks), (f"{ns / ranks / step:.1%}", ns),
         (f"{count:,}", count), name]
        for (name, kind), (ns, count) in rows
    ]  # fmt: skip
    most = rows[0][1][0] or 1
    return (
        '<section class="long"><h2>The longest kernels</h2><p>All runs of a kernel together, as a mean of the ranks.'
        f"</p>{table(columns, cells, [sums[0] / most for _, sums in rows], 'busy')}</section>"
    )
