"""What a lane does over time, in as few pieces as a chart can show: what computes in a row for one task is one."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stagedb.reports.step_view import StepView
from stagedb.timing import Lane
from stagedb.timing.lane_network import COMPUTE_STREAM
from stagedb.timing.time_spent import Cover
from stagedb.workflows import RECOMPUTE, TASK_KINDS, TEMPLATES
from stagedb.workload.instance_columns import ONCE_A_STEP, Ints


class Doing(IntEnum):
    """What a lane does."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2
    """The gradients of weights, where a schedule runs them on their own."""
    RECOMPUTE = 3
    STEP = 4
    COMMUNICATION = 5
    """Communicating for long, or between tasks, with nothing else to do."""
    IDLE = 6


LONG = 200
"""A time between two kernels of a task that is longer than this part of the step is on its own."""

WORDS = ("forward", "backward", "weight gradients", "recompute", "optimizer step", "communication", "waiting")
"""What a reader is told, by `Doing`."""

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
    """Disjoint spans of a lane in ascending order. start, finish in ns; doing: of each a `Doing`.

    task: of each the index of its task, -1 for communication. busy: how many ns of it compute. Short times between the
    kernels of a task, in which it communicates or waits, are in its spans (`LONG`). What lies in no span waits.
    """

    start: Ints
    finish: Ints
    doing: Ints
    task: Ints
    busy: Ints

    def __len__(self) -> int:
        return len(self.start)


def doing_of(job: StepView, lane: Lane) -> Ints:
    """Of each op of a lane's class, as a task runs it for which it was made, a `Doing`."""
    ops = job.times.network.columns[lane.number].ops
    again = np.array([phase == RECOMPUTE for phase in ops.phase], bool)
    return np.where(again, Doing.RECOMPUTE, _OF_TEMPLATE[ops.template]).astype(np.int64)


def spans(job: StepView, lane: Lane, whole_tasks: bool = False) -> Spans:
    """The spans of a lane. whole_tasks: recomputing is not told apart from the backward that it is for."""
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
    said_start, said_finish = _without(Cover.of(start[talks], finish[talks]), begin, end, job.times.step)
    order = np.argsort(np.concatenate([begin, said_start]), kind="stable")
    more = len(said_start)
    computing = Cover.of(times.start[net.event[works]], times.finish[net.event[works]])
    busy = computing.before(end) - computing.before(begin)
    return Spans(
        np.concatenate([begin, said_start])[order],
        np.concatenate([end, said_finish])[order],
        np.concatenate([doing[firsts], np.full(more, int(Doing.COMMUNICATION))])[order].astype(np.int64),
        np.concatenate([task[firsts], np.full(more, -1)])[order].astype(np.int64),
        np.concatenate([busy, np.zeros(more, np.int64)])[order],
    )


def _without(cover: Cover, start: Ints, finish: Ints, end: int) -> tuple[Ints, Ints]:
    """What of a cover lies in none of some disjoint spans."""
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
    """Of each of so many columns of time (rows) how many ns the lane does what (columns, by `Doing`)."""
    edges = np.linspace(0, step, columns + 1)
    total = np.zeros((columns, len(Doing)))
    for doing in Doing:
        chosen = found.doing == doing
        total[:, doing] = np.diff(covered(found.start[chosen], found.finish[chosen], edges))
    total[:, Doing.IDLE] = np.maximum(np.diff(edges) - total.sum(axis=1), 0)
    return total


def in_columns(found: Spans, step: int, columns: int) -> Spans:
    """Spans of no task, which say of each of so many columns of time what takes most of it; all count as busy."""
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
    """How many ns of disjoint ascending spans lie before each of these times."""
    if not len(start):
        return np.zeros(len(times))
    whole = np.concatenate([[0], np.cumsum(finish - start)])
    place = np.searchsorted(start, times, side="right") - 1
    inside = whole[place] + np.minimum(times, finish[place]) - start[place]
    found: Floats = np.where(place >= 0, inside, 0.0)
    return found


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
