"""What a lane does over time in few pieces, and a step's Gantt chart for a terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering.columns import ONCE_A_STEP, Ints
from stagedb.mentions import OPTIONS, Word
from stagedb.reports.step_view import StepView
from stagedb.timing import Lane
from stagedb.timing.node_graph import COMPUTE_STREAM
from stagedb.timing.time_spent import Cover
from stagedb.workflows import RECOMPUTE, TASK_KINDS, TEMPLATES

# What a lane does over time, in as few pieces as a chart can show: consecutive compute of one task is one piece.


class Doing(IntEnum):
    """What a lane does at a time, such as computing in a forward, communicating or waiting."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2
    """Gradients of weights, if a schedule runs them separately."""
    RECOMPUTE = 3
    STEP = 4
    COMMUNICATION = 5
    """Communication that is long or between tasks, while nothing is computed."""
    IDLE = 6


LONG = 200
"""A gap between two kernels of a task is a span of its own if it is longer than this part of the step."""

WORDS = ("forward", "backward", "weight gradients", "recompute", "optimizer step", "communication", "waiting")
"""Words for a reader, by `Doing`."""

_OF_TEMPLATE = np.array(
    [
        Doing.STEP if template.once else Doing.BACKWARD if template.differentiates else Doing.FORWARD
        for template in TEMPLATES.values()
    ]
)
_WEIGHTS_ALONE = np.array(
    [all(template.gradients == "weights" for template in kind.templates) for kind in TASK_KINDS.values()]
)
"""Whether a kind of task makes gradients of weights and nothing else."""


@dataclass(frozen=True)
class Spans:
    """Disjoint spans of a lane in ascending order. start, finish in ns; doing: a `Doing` for each.

    task: the index of the task of each, -1 for communication. busy: the ns of each that compute. Short gaps between the
    kernels of a task, in which it communicates or waits, belong to its spans (`LONG`). Time in no span is waiting.
    """

    start: Ints
    finish: Ints
    doing: Ints
    task: Ints
    busy: Ints

    def __len__(self) -> int:
        return len(self.start)


def doing_of(job: StepView, lane: Lane) -> Ints:
    """A `Doing` for each op of a lane's class, in the kind of task that the op is for."""
    ops = job.times.network.columns[lane.number].ops
    again = np.array([phase == RECOMPUTE for phase in ops.phase], bool)
    return np.where(again, Doing.RECOMPUTE, _OF_TEMPLATE[ops.template]).astype(np.int64)


def spans(job: StepView, lane: Lane, whole_tasks: bool = False) -> Spans:
    """The spans of a lane. whole_tasks: recomputing belongs to the span of its backward."""
    net, times = job.times.network, job.times.timeline
    columns = net.columns[lane.number]
    at = np.arange(int(net.firsts[lane.number]), int(net.firsts[lane.number + 1]))
    start, finish = times.start[net.event[at]], times.finish[net.event[at]]
    works = at[(net.stream[at] == COMPUTE_STREAM) & (finish > start)]
    works = works[np.argsort(times.start[net.event[works]], kind="stable")]
    task = net.task[works]
    doing = doing_of(job, lane)[net.op[works]]
    kind = columns.tasks.kind[task]
    doing = np.where(_WEIGHTS_ALONE[kind], Doing.WEIGHT, np.where(ONCE_A_STEP[kind], Doing.STEP, doing))
    if whole_tasks:
        doing = np.where(doing == Doing.RECOMPUTE, Doing.BACKWARD, doing)
    fresh = np.ones(len(works), bool)
    gap = times.start[net.event[works[1:]]] - times.finish[net.event[works[:-1]]]
    fresh[1:] = (task[1:] != task[:-1]) | (doing[1:] != doing[:-1]) | (gap * LONG > job.times.step)
    firsts = np.flatnonzero(fresh)
    lasts = np.append(firsts[1:], len(works)) - 1 if len(works) else firsts
    begin, end = times.start[net.event[works[firsts]]], times.finish[net.event[works[lasts]]]
    # Inside a task a span reaches to the next one.
    near = (task[firsts[1:]] == task[firsts[:-1]]) & ((begin[1:] - end[:-1]) * LONG <= job.times.step)
    end[:-1] = np.where(near, begin[1:], end[:-1])
    talks = net.stream[at] > COMPUTE_STREAM
    gap_start, gap_finish = _without(Cover.of(start[talks], finish[talks]), begin, end, job.times.step)
    order = np.argsort(np.concatenate([begin, gap_start]), kind="stable")
    more = len(gap_start)
    computing = Cover.of(times.start[net.event[works]], times.finish[net.event[works]])
    busy = computing.before(end) - computing.before(begin)
    return Spans(
        np.concatenate([begin, gap_start])[order],
        np.concatenate([end, gap_finish])[order],
        np.concatenate([doing[firsts], np.full(more, int(Doing.COMMUNICATION))])[order].astype(np.int64),
        np.concatenate([task[firsts], np.full(more, -1)])[order].astype(np.int64),
        np.concatenate([busy, np.zeros(more, np.int64)])[order],
    )


def _without(cover: Cover, start: Ints, finish: Ints, end: int) -> tuple[Ints, Ints]:
    """The parts of a cover that are outside some disjoint spans."""
    free_start, free_finish = Cover.of(start, finish).gaps(end)
    cuts = np.unique(np.concatenate([free_start, free_finish, cover.start, cover.finish]))
    begin, stop = cuts[:-1], cuts[1:]
    inside = _within(begin, free_start, free_finish) & _within(begin, cover.start, cover.finish)
    joined = Cover.of(begin[inside], stop[inside])
    return joined.start, joined.finish


def _within(time: Ints, start: Ints, finish: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if not len(start):
        return np.zeros(len(time), bool)
    place = np.searchsorted(start, time, side="right") - 1
    return (place >= 0) & (time < finish[np.maximum(place, 0)])


def shares(found: Spans, step: int, columns: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """ns that a lane spends in each `Doing` (columns), for each of `columns` equal parts of the step (rows)."""
    edges = np.linspace(0, step, columns + 1)
    total = np.zeros((columns, len(Doing)))
    for doing in Doing:
        chosen = found.doing == doing
        total[:, doing] = np.diff(covered(found.start[chosen], found.finish[chosen], edges))
    total[:, Doing.IDLE] = np.maximum(np.diff(edges) - total.sum(axis=1), 0)
    return total


def in_columns(found: Spans, step: int, columns: int) -> Spans:
    """The step in `columns` equal columns of time, each with its longest kind of work.

    Equal neighbours are one span; columns in which the rank waits have none. Spans name no task, and count
    as wholly busy.
    """
    most = shares(found, step, columns).argmax(axis=1)
    edges = np.round(np.linspace(0, step, columns + 1)).astype(np.int64)
    fresh = np.ones(columns, bool)
    fresh[1:] = most[1:] != most[:-1]
    firsts = np.flatnonzero(fresh)
    ends = edges[np.append(firsts[1:], columns)]
    works = most[firsts] != Doing.IDLE
    doing = most[firsts][works].astype(np.int64)
    begin, end = edges[firsts][works], ends[works]
    return Spans(begin, end, doing, np.full(len(doing), -1, np.int64), end - begin)


def covered(start: Ints, finish: Ints, times: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "Floats":
    """The ns of disjoint ascending spans before each of `times`. start, finish: ns of the spans."""
    if not len(start):
        return np.zeros(len(times))
    whole = np.concatenate([[0], np.cumsum(finish - start)])
    place = np.searchsorted(start, times, side="right") - 1
    inside = whole[place] + np.minimum(times, finish[place]) - start[place]
    found: Floats = np.where(place >= 0, inside, 0.0)
    return found


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

LETTERS = "fbwrsc."
"""By `Doing`; capitals on the critical path, `*` if the lane of the critical path waits."""

COLORS = ("34", "33", "36", "35", "32", "31", "90")
"""Terminal colours, by `Doing`."""

NARROWEST = 24
"""Columns that a chart needs in addition to its labels and shares."""


def draw(job: StepView, width: int, stages: Sequence[int] | None = None, color: bool = False) -> str:
    """The chart as lines of at most `width` columns. stages: rows for these only; color: with terminal colours.

    A cell shows what its lane does for most of its time. In each column, the lane in which the critical path spends
    most of it has capitals, if that lane is shown. Raises UsageError for a width that is too small, and for a stage
    that does not exist.
    """
    lanes = job.of_stages(stages)
    labels = [job.label(lane) for lane in lanes]
    margin = max(map(len, labels)) + len(" | 100% busy")
    columns = width - margin
    if columns < NARROWEST:
        raise UsageError(
            f"a chart of {width} columns leaves {max(columns, 0)} for time: it needs {NARROWEST + margin} "
            f"({Word('width')})"
        )
    marked = _marked(job, columns)
    lines = [_head(job, columns, margin)]
    found = [spans(job, lane) for lane in lanes]
    for lane, label, each in zip(lanes, labels, found, strict=True):
        cells = shares(each, job.times.step, columns).argmax(axis=1)
        busy = round(100 * job.times.lanes[lane.number].busy / job.times.step) if job.times.step else 0
        row = _row(cells.tolist(), (marked == lane.number).tolist(), color)
        lines.append(f"{label:<{margin - 12}} {row} {busy:3}% busy".rstrip())
    lines += _legend(width)
    lengths = np.concatenate([(each.finish - each.start)[each.task >= 0] for each in found])
    usual = float(np.median(lengths)) if len(lengths) else 0.0
    if usual * columns < job.times.step:
        lines += textwrap.wrap(
            f"A column is longer than most tasks ({span(usual)}): shorter work in it does not show. A larger "
            f"{OPTIONS.word(Word('width'))} shows more.",
            width,
        )
    return "".join(f"{line}\n" for line in lines)


def _marked(job: StepView, columns: int) -> Ints:
    """For each column of time, the lane in which the critical path spends most of it."""
    legs = job.times.path.legs()
    edges = np.linspace(0, job.times.step, columns + 1)
    spent = np.zeros((len(job.lanes), columns))
    for lane in np.unique(legs.lane).tolist():
        here = legs.lane == lane
        spent[lane] = np.diff(covered(legs.start[here], legs.finish[here], edges))
    most: Ints = spent.argmax(axis=0)
    return most


def _row(cells: Sequence[int], marked: Sequence[bool], color: bool) -> str:
    text, last = "", ""
    for doing, critical in zip(cells, marked, strict=True):
        letter = LETTERS[doing]
        if critical:
            letter = "*" if doing == Doing.IDLE else letter.upper()
        style = f"{COLORS[doing]};1;4" if critical else COLORS[doing]
        if color and style != last:
            text += f"\033[0;{style}m"
            last = style
        text += letter
    return f"{text}\033[0m" if color else text


def _head(job: StepView, columns: int, margin: int) -> str:
    left, right = "0", span(job.times.step)
    each = f"a column {span(job.times.step / columns)}"
    line = f"{left}{each:^{max(columns - len(left) - len(right), len(each) + 2)}}{right}"
    if len(line) > columns:
        line = f"{left}{right:>{columns - 1}}"
    return f"{'':<{margin - 12}} {line}"


def _legend(width: int) -> list[str]:
    words = [f"{LETTERS[doing]} {WORDS[doing]}" for doing in Doing]
    words += ["CAPITALS critical path", "* it waits here"]
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 3 + len(word) > width:
            lines.append("")
        lines[-1] += f"   {word}" if lines[-1] else word
    return lines


def span(ns: float, digits: int = 3, zeros: bool = False) -> str:
    """A duration in a readable unit. ns: the duration. digits: significant ones. zeros: keep those at its end."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{_digits(ns / size, digits, zeros)} {unit}"
    return f"{_digits(ns, digits, zeros and ns != round(ns))} ns"


def _digits(value: float, digits: int, zeros: bool) -> str:
    before = len(f"{value:.0f}") if value >= 1 else 1
    text = f"{value:.{max(digits - before, 0)}f}"
    if zeros:
        return text
    return text.rstrip("0").rstrip(".") if "." in text else text
