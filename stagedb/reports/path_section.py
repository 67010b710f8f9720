"""The critical path of a report, as a table: its legs in order, with the operator that takes most of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.lowering.columns import Ints
from stagedb.reports.figures import place_of
from stagedb.reports.page_parts import Cell, TableColumn, table
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span
from stagedb.timing import Reason
from stagedb.workflows import TASK_KINDS

ROWS = 16
"""Rows of the table. A longer path has consecutive legs of a stage in one row, and then short neighbours too."""

_KINDS = tuple(TASK_KINDS.values())

WAITED = {
    Reason.START: "the beginning of the step",
    Reason.DEPENDENCY: "the work before it",
    Reason.STREAM: "its stream",
    Reason.MEMBER: "a rank of its group",
    Reason.MESSAGE: "a message",
}
"""What the first operator of a leg waited for."""


@dataclass(frozen=True)
class PathRow:
    """Consecutive legs of the critical path. first, last: places on the path of their first and last legs.

    start, ns: when the first leg begins, and how long all take. operator, operator_ns: what takes most of that, and its
    time. waited_for: why it begins no earlier.
    """

    first: int
    last: int
    lanes: tuple[int, ...]
    start: int
    ns: int
    tasks: str
    operator: str
    operator_ns: int
    waited_for: str


def path_rows_of(job: StepView, most: int = ROWS) -> list[PathRow]:
    """The critical path in rows from the beginning of the step to its end; together they are as long as the step.

    most: the largest number of rows.
    """
    legs = job.times.path.legs()
    count = len(legs.lane)
    if not count:
        return []
    firsts = np.arange(count)
    if count > most:
        fresh = np.ones(count, bool)
        fresh[1:] = legs.lane[1:] != legs.lane[:-1]
        firsts = np.flatnonzero(fresh)
    if len(firsts) > most:
        firsts = _without_short(firsts, np.append(legs.start[firsts], job.times.step), most)
    lasts = np.append(firsts[1:], count) - 1
    return [_row(job, first, last) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


def _without_short(firsts: Ints, times: Ints, most: int) -> Ints:
    """The first rows of groups: each of the longest rows, joined with its short neighbours."""
    length = np.diff(times)
    kept = np.zeros(len(firsts), bool)
    kept[np.argsort(-length, kind="stable")[: most // 2]] = True
    # Short rows after each other are joined: a long one, and the first short one after it, begin a row.
    begins = kept.copy()
    begins[0] = True
    begins[1:] |= kept[:-1]
    return firsts[begins]


def _row(job: StepView, first: int, last: int) -> PathRow:
    path, legs = job.times.path, job.times.path.legs()
    nodes = slice(int(legs.first[first]), int(legs.first[last + 1]) if last + 1 < len(legs.first) else len(path))
    spent: Counter[str] = Counter()
    columns = job.times.network.columns
    lanes, ops, lengths = path.lane[nodes].tolist(), path.op[nodes].tolist(), path.length[nodes].tolist()
    for lane, op, ns in zip(lanes, ops, lengths, strict=True):
        of = columns[lane].ops
        name = place_of(of.name[op], of.kind[op], of.axis[op])
        spent[f"{name} ({of.axis[op]} {of.kind[op]})" if of.axis[op] else f"{name} ({of.kind[op]})"] += ns
    operator, operator_ns = spent.most_common(1)[0]
    start = int(legs.start[first])
    return PathRow(
        first,
        last,
        tuple(dict.fromkeys(legs.lane[first : last + 1].tolist())),
        start,
        int(legs.finish[last]) - start,
        _tasks(job, first, last),
        operator,
        operator_ns,
        WAITED[Reason(int(path.reason[nodes.start]))],
    )


def _tasks(job: StepView, first: int, last: int) -> str:
    """The tasks of some legs, in words."""
    legs, columns = job.times.path.legs(), job.times.network.columns
    pairs = dict.fromkeys(zip(legs.lane[first : last + 1].tolist(), legs.task[first : last + 1].tolist(), strict=True))
    kinds = [_KINDS[int(columns[lane].tasks.kind[task])] for lane, task in pairs]
    batches = [int(columns[lane].tasks.microbatch[task]) for lane, task in pairs]
    if len(pairs) == 1:
        return kinds[0].words if kinds[0].once else f"{kinds[0].words} of micro-batch {batches[0]}"
    words = [f"{count} {word}" if count > 1 else word for word, count in Counter(kind.words for kind in kinds).items()]
    some = [batch for kind, batch in zip(kinds, batches, strict=True) if not kind.once]
    if not some:
        return ", ".join(words)
    of = f"micro-batch {some[0]}" if min(some) == max(some) else f"micro-batches {min(some)}–{max(some)}"
    return f"{', '.join(words)} of {of}"


def _where(job: StepView, lanes: Sequence[int]) -> str:
    named = {lane.number: lane for lane in job.lanes}
    if len(lanes) <= 2:
        return " and ".join(job.label(named[lane]) for lane in lanes)
    stages = sorted({named[lane].stage for lane in lanes})
    return f"stages {stages[0]}–{stages[-1]}" if len(stages) > 1 else f"{len(lanes)} lanes of stage {stages[0]}"


def path_section(job: StepView) -> str:
    """The section of a report on the critical path, as HTML."""
    rows, step = path_rows_of(job), job.times.step or 1
    if not rows:
        return ""
    legs = rows[-1].last + 1
    columns = [
        TableColumn("#", True),
        TableColumn("stage"),
        TableColumn("time", True),
        TableColumn("of the step", True),
        TableColumn("task"),
        TableColumn("most of it"),
        TableColumn("begins", True),
        TableColumn("after"),
    ]
    cells: list[list[Cell]] = [
        [
            (f"{row.first + 1}" if row.first == row.last else f"{row.first + 1}–{row.last + 1}", row.first),
            _where(job, row.lanes),
            (span(row.ns), row.ns),
            (f"{row.ns / step:.1%}", row.ns / step),
            row.tasks,
            f"{row.operator}, {row.operator_ns / row.ns:.0%}" if row.ns else row.operator,
            (span(row.start) if row.start else "0", row.start),
            row.waited_for,
        ]
        for row in rows
    ]
    most = max(row.ns for row in rows) or 1
    joined = (
        f"Its {legs:,} legs, each inside one task, are joined into {len(rows)} rows of neighbours."
        if legs > len(rows)
        else "Each row is a part of it inside one task."
    )
    return (
        '<section class="long"><h2>The critical path</h2><p>What the length of the step consists of, in order: if any '
        f"of this takes longer, so does the step. {joined}</p>"
        f"{table(columns, cells, [row.ns / most for row in rows], 'busy')}</section>"
    )
