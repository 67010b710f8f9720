"""Live bytes over a step: the sum of all lives by task and category, the peak, and the tensors that live there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stagedb.memory.lifetimes import Category, Lives, Moment, Which
from stagedb.schedules import Marks, Task
from stagedb.schedules import marks as marks_of
from stagedb.workflows import TaskKind

CATEGORIES = tuple(Category)
Levels = npt.NDArray[np.int64]
"""Bytes by category (rows, in the order of `CATEGORIES`) and by item (columns)."""


@dataclass(frozen=True)
class Point:
    """The moment while the item of this index of a task runs; the number of items means the task's end.

    prepared: the time before it, after the item before.
    """

    task: int
    index: int
    prepared: bool = False

    @property
    def place(self) -> int:
        """Its place among two an item."""
        return 2 * self.index + (not self.prepared)


@dataclass(frozen=True)
class Alive:
    """Tensors of one name that live at a point: `count` of them, each of one micro-batch, with `bytes` together."""

    name: str
    layer: int | None
    category: Category
    count: int
    bytes: int


@dataclass(frozen=True)
class Usage:
    """The memory of one rank of a class over a step.

    held: what it holds before and over the step. tasks: in the order in which it runs them. lengths: by (kind of task,
    chunk), the number of operators and buckets that one such task runs.
    """

    held: Lives
    tasks: Sequence[Task]
    lengths: Mapping[tuple[TaskKind, int], int]

    @cached_property
    def states(self) -> Levels:
        """Bytes by category that are there before the step."""
        total = np.zeros(len(CATEGORIES), np.int64)
        for state in self.held.states:
            total[CATEGORIES.index(state.category)] += state.bytes
        return total

    @cached_property
    def marks(self) -> list[Marks]:
        """The place of each task among those of its kind."""
        return list(marks_of(self.tasks))

    @cached_property
    def _curves(self) -> dict[tuple[TaskKind, int, Marks], Levels]:
        """By kind of task, chunk and place: bytes added since its start, before and while each item runs, and at its
        end."""
        curves = {
            (task.kind, task.chunk, mark): np.zeros(
                (len(CATEGORIES), 2 * self.lengths[task.kind, task.chunk] + 2), np.int64
            )
            for task, mark in zip(self.tasks, self.marks, strict=True)
        }
        alike: dict[tuple[TaskKind, int], list[tuple[Marks, Levels]]] = {}
        for (kind, chunk, mark), curve in curves.items():
            alike.setdefault((kind, chunk), []).append((mark, curve))
        for life in self.held.lives:
            row = CATEGORIES.index(life.category)
            for sign, moments in ((1, (life.begin,)), (-1, life.ends)):
                for moment in moments:
                    for mark, curve in alike.get((moment.kind, moment.chunk), ()):
                        if moment.which.fits(mark):
                            curve[row, moment.place(sign > 0)] += sign * life.bytes
        return {key: curve.cumsum(axis=1) for key, curve in curves.items()}

    @cached_property
    def _before(self) -> Levels:
        """Bytes by category before each task, and after the last."""
        levels = [self.states]
        for task, mark in zip(self.tasks, self.marks, strict=True):
            levels.append(levels[-1] + self._curves[task.kind, task.chunk, mark][:, -1])
        return np.stack(levels)

    def levels(self, task: int) -> Levels:
        """Bytes by category while each item of a task runs, or before it if more is held then, and at its end."""
        found = self._places(task)
        before, while_ = found[:, ::2], found[:, 1::2]
        return np.where(before.sum(axis=0) > while_.sum(axis=0), before, while_)

    def _places(self, task: int) -> Levels:
        """Bytes by category before each item of a task, and while it runs."""
        curve = self._curves[self.tasks[task].kind, self.tasks[task].chunk, self.marks[task]]
        levels: Levels = self._before[task][:, None] + curve
        return levels

    def before(self) -> dict[Category, int]:
        """Bytes by category before the step."""
        return _by_category(self.states)

    def after(self, task: int) -> dict[Category, int]:
        """Bytes by category when a task is over."""
        return _by_category(self._before[task + 1])

    def at(self, point: Point) -> dict[Category, int]:
        """Bytes by category at a point."""
        return _by_category(self._places(point.task)[:, point.place])

    def peak(self, kinds: Sequence[TaskKind] | None = None) -> Point:
        """The first point with the most bytes, in tasks of these kinds (None: in the step)."""
        tops = {key: _top(curve.sum(axis=0)) for key, curve in self._curves.items()}
        best: tuple[int, Point] | None = None
        for index, (task, mark) in enumerate(zip(self.tasks, self.marks, strict=True)):
            if kinds is not None and task.kind not in kinds:
                continue
            top, at, prepared = tops[task.kind, task.chunk, mark]
            level = int(self._before[index].sum()) + top
            if best is None or level > best[0]:
                best = (level, Point(index, at, prepared))
        if best is None:
            raise ValueError(f"no task of these kinds: {kinds}")
        return best[1]

    def alive(self, point: Point) -> Iterator[Alive]:
        """The tensors that live at a point."""
        for state in self.held.states:
            yield Alive(state.name, state.layer, state.category, 1, state.bytes)
        for life in self.held.lives:
            count = self._passed(life.begin, point, True) - sum(self._passed(end, point, False) for end in life.ends)
            if count:
                yield Alive(life.name, life.layer, life.category, count, count * life.bytes)

    def _passed(self, moment: Moment, point: Point, begins: bool) -> int:
        """The number of times that a moment, at which a life begins or ends, has passed by a point."""
        count = self._came[moment.kind, moment.chunk, moment.which][point.task]
        task = self.tasks[point.task]
        here = (task.kind, task.chunk) == (moment.kind, moment.chunk) and moment.which.fits(self.marks[point.task])
        return count + (here and moment.place(begins) <= point.place)

    @cached_property
    def _came(self) -> dict[tuple[TaskKind, int, Which], list[int]]:
        """By kind, chunk and which: the number of such tasks before each task."""
        pairs = list(zip(self.tasks, self.marks, strict=True))
        return {
            (kind, chunk, which): [
                0,
                *accumulate((task.kind, task.chunk) == (kind, chunk) and which.fits(mark) for task, mark in pairs),
            ]
            for kind, chunk in self.lengths
            for which in Which
        }


def _top(totals: npt.NDArray[np.int64]) -> tuple[int, int, bool]:
    """The most bytes of a task's places, the first item with them, and whether they are held only before it."""
    item = int(totals.argmax()) // 2
    return int(totals.max()), item, bool(totals[2 * item] > totals[2 * item + 1])


def _by_category(levels: Levels) -> dict[Category, int]:
    return {category: int(level) for category, level in zip(CATEGORIES, levels, strict=True) if level}
