"""Memory over a step as pieces of a curve: over the time of a profile, or over the tasks of a rank class."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.memory import Category, ClassMemory, Point
from stagedb.reports.step_view import StepView
from stagedb.timing import Lane

MOMENTS = 600
"""Moments of a memory curve. With more, the fullest of several consecutive ones represents them."""


@dataclass(frozen=True)
class MemoryCurve:
    """Memory over an axis: from each of `starts` to the next, the last until `end`.

    points: the fullest moment of each piece. sizes: bytes by category at these. timed: whether the axis is time [ns].
    """

    starts: Sequence[float]
    end: float
    points: Sequence[Point]
    sizes: Mapping[str, Sequence[int]]
    timed: bool = True

    @property
    def fullest(self) -> int:
        """The piece with the most bytes."""
        totals = [sum(sizes) for sizes in zip(*self.sizes.values(), strict=True)]
        return totals.index(max(totals))


@dataclass(frozen=True)
class TaskSpans:
    """When each task of a rank class runs in a step, by its place in the schedule. starts, finishes, step: ns."""

    starts: Sequence[int]
    finishes: Sequence[int]
    step: int

    @property
    def order(self) -> list[int]:
        """The places in the order in which they begin."""
        found: list[int] = np.argsort(self.starts, kind="stable").tolist()
        return found


@dataclass(frozen=True)
class Levels:
    """Memory of a rank of a lane over the time of a step [ns]: the peak within each task."""

    lane: Lane
    memory: ClassMemory
    curve: MemoryCurve

    @property
    def sizes(self) -> Mapping[str, Sequence[int]]:
        """By category, the bytes of each piece of the curve."""
        return self.curve.sizes


def levels(job: StepView) -> Levels | None:
    """Memory of a rank of the fullest lane over the step. None if it is not computed."""
    if not job.memory:
        return None
    fullest = max(job.memory, key=lambda each: sum(each.usage.at(each.peak).values()))
    lane = next(lane for lane in job.of_stages(None) if lane.rank_class == fullest.rank_class.number)
    starts = job.times.lanes[lane.number].tasks.start
    order = np.argsort(starts, kind="stable").tolist()
    pieces = [(int(starts[task]), piece) for task in order for _, piece in _pieces(fullest, task, 1)]
    return Levels(lane, fullest, _curve(fullest, pieces, job.times.step))


def curve_of(memory: ClassMemory) -> MemoryCurve:
    """Memory of a rank of a class over the tasks of its step, in their order: each has one unit of the axis."""
    count = len(memory.usage.tasks)
    parts = max(MOMENTS // max(count, 1), 1)
    pieces = [(task + begin, piece) for task in range(count) for begin, piece in _pieces(memory, task, parts)]
    return dataclasses.replace(_curve(memory, pieces, count), timed=False)


def curve_over_time(memory: ClassMemory, times: TaskSpans) -> MemoryCurve:
    """Memory of a rank of a class over the time of its step; the moments of a task are spread evenly over its time."""
    order = times.order
    parts = max(MOMENTS // max(len(order), 1), 1)
    pieces = []
    for task, following in zip(order, [*order[1:], None], strict=True):
        start = times.starts[task]
        end = times.finishes[task] if following is None else min(times.finishes[task], times.starts[following])
        pieces += [(start + begin * max(end - start, 0), piece) for begin, piece in _pieces(memory, task, parts)]
    return _curve(memory, pieces, times.step)


_Piece = tuple[int, int, list[int]]
"""The task and the item of the fullest moment of a piece, and its bytes by category."""


def _pieces(memory: ClassMemory, task: int, parts: int) -> Iterator[tuple[float, _Piece]]:
    """A task in at most `parts` pieces: where each begins in the task, from 0 to 1, and its fullest moment."""
    found = memory.usage.levels(task)
    totals = found.sum(axis=0)
    length = len(totals)
    size = -(-length // parts)
    for begin in range(0, length, size):
        at = begin + int(totals[begin : begin + size].argmax())
        yield begin / length, (task, at, [int(value) for value in found[:, at]])


def _curve(memory: ClassMemory, pieces: Sequence[tuple[float, _Piece]], end: float) -> MemoryCurve:
    """A curve of some pieces."""
    size = -(-len(pieces) // MOMENTS)
    picks = [
        # Several pieces become one: it begins where the first of them does, and has the levels of the fullest.
        (pieces[at][0], max((piece for _, piece in pieces[at : at + size]), key=lambda piece: sum(piece[2])))
        for at in range(0, len(pieces), size)
    ]
    sizes = {
        str(category): [column[row] for _, (_, _, column) in picks]
        for row, category in enumerate(Category)
        if any(column[row] for _, (_, _, column) in picks)
    }
    points = [memory.usage.fuller(task, index) for _, (task, index, _) in picks]
    return MemoryCurve([begin for begin, _ in picks], end, points, sizes)
