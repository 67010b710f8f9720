"""The chart of a run that was recorded: a row for each stream of each rank, with the critical path on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.lowering.columns import Ints
from stagedb.reports.pipeline_chart import (
    ACROSS,
    HEIGHT,
    MOST_LANES,
    MOST_LEGS,
    MOST_SPANS,
    PATH,
    ROW,
    STYLES,
    TOP,
    Gantt,
    chart_frame,
)
from stagedb.reports.spans import Doing
from stagedb.reports.terminal_chart import span
from stagedb.runs.overlaps import HALVES, Bools, communicates, in_half
from stagedb.runs.stored_run import RunOpFacts, StoredRun
from stagedb.workflows import RECOMPUTE

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
