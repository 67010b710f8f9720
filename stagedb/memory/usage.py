"""Live bytes over a step: the sum of all lives by task and category, the peak, and the tensors that live there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stagedb.memory.lifetimes import Category, Lives, Moment, TaskSelector
from stagedb.schedules import Task, TaskPosition, task_positions
from stagedb.workflows import TaskKind

CATEGORIES = tuple(Category)
Levels = npt.NDArray[np.int64]
"""Bytes by category (rows, in the order of `CATEGORIES`) and by item (columns)."""


@dataclass(frozen=True)
class Point:
    """A moment of a step: while an item of a task runs, or the end of the task.

    task: its place in the schedule. index: of the item; the number of items means the end. prepared: the time before
    the item, after the one before it.
    """

    task: int
    index: int
    prepared: bool = False


@dataclass(frozen=True)
class JointOrder:
    """The items of a task, or of tasks that run together, in one order.

    at: the place of each item of each task among the items of all.
    """

    at: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return sum(map(len, self.at))

    def place(self, task: int, moment: Moment, begins: bool) -> int:
        """The place of a moment in a task, with two places an item, as `Moment.place` has it for a task alone.

        begins: whether a lifetime begins at the moment; else it ends there.
        """
        at, index = self.at[task], moment.index
        if index and (index >= len(at) or not (begins or moment.prepared)):
            # Tensors that an item frees are freed at its end, even if items of another task run before the next one of
            # its own.
            index = at[index - 1] + 1
        elif index < len(at):
            index = at[index]
        return 2 * index + (begins is not moment.prepared)

    def held(self, task: int, index: int, prepared: bool) -> int:
        """The place of a point in a task: while item `index` runs, before it (`prepared`), or the end of the task."""
        at = self.at[task]
        if index < len(at):
            return 2 * at[index] + (not prepared)
        end = at[-1] + 1 if at else 0
        return 2 * end + (not prepared and end == len(self))

    def of_task(self, task: int) -> list[int]:
        """The places of a task in ascending order, with two places an item; the end of all belongs to the last item."""
        at = list(self.at[task])
        return [2 * each + half for each in at + [len(self)] * (not at or at[-1] == len(self) - 1) for half in (0, 1)]

    def point(self, task: int, place: int) -> tuple[int, bool]:
        """The item of a place of a task, and whether the place is before it. The number of items is the end."""
        item = place // 2
        at = self.at[task]
        return (at.index(item) if item in at else len(at)), place % 2 == 0


def alone(length: int) -> JointOrder:
    """The order of the items of a task that runs alone. length: how many items it has."""
    return JointOrder((tuple(range(length)),))


Member = tuple[TaskKind, int, TaskPosition]
"""A task's kind, chunk, and place among those of its kind."""


@dataclass(frozen=True)
class Alive:
    """Tensors of one name that are held at a point of the step.

    layer: counted from the stage's first, None outside layers. count: the number of tensors, one a micro-batch. bytes:
    the sum of their sizes.
    """

    name: str
    layer: int | None
    category: Category
    count: int
    bytes: int


@dataclass(frozen=True)
class Usage:
    """The memory of one rank of a class over a step.

    held: tensors that it holds before and over the step. tasks: in the order in which they run. lengths: by kind of
    task and chunk, the number of operators and buckets that one such task runs. together: by kinds and chunks of tasks
    that run together, the order of their items. pairs: the place of the first task that runs together with others, and
    the place after the last of them, one for each such pair.
    """

    held: Lives
    tasks: Sequence[Task]
    lengths: Mapping[tuple[TaskKind, int], int]
    together: Mapping[tuple[tuple[TaskKind, int], ...], JointOrder] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] = ()

    @cached_property
    def states(self) -> Levels:
        """Bytes by category that are there before the step."""
        total = np.zeros(len(CATEGORIES), np.int64)
        for state in self.held.states:
            total[CATEGORIES.index(state.category)] += state.bytes
        return total

    @cached_property
    def positions(self) -> list[TaskPosition]:
        """The place of each task among those of its kind."""
        return list(task_positions(self.tasks))

    @cached_property
    def _runs(self) -> list[range]:
        """The places of tasks that run at the same time: each task alone, or with others."""
        runs, end = [], 0
        for begin, stop in (*self.pairs, (len(self.tasks), len(self.tasks))):
            runs += [range(at, at + 1) for at in range(end, begin)]
            runs += [range(begin, stop)] * (stop > begin)
            end = stop
        return runs

    @cached_property
    def _run_of(self) -> list[int]:
        """For each task the number of its run."""
        return [number for number, run in enumerate(self._runs) for _ in run]

    @cached_property
    def _members(self) -> list[tuple[Member, ...]]:
        """The tasks of each run."""
        return [
            tuple((self.tasks[at].kind, self.tasks[at].chunk, self.positions[at]) for at in run) for run in self._runs
        ]

    @cached_property
    def _items(self) -> dict[tuple[Member, ...], JointOrder]:
        """The order of the items of each run, by its tasks."""
        return {
            members: alone(self.lengths[members[0][:2]])
            if len(members) == 1
            else self.together[tuple(member[:2] for member in members)]
            for members in dict.fromkeys(self._members)
        }

    @cached_property
    def _curves(self) -> dict[tuple[Member, ...], Levels]:
        """By the tasks of a run: bytes added since its start, before and while each item runs, and at its end."""
        curves = dict[tuple[Member, ...], Levels]()
        for members, items in self._items.items():
            curve = curves[members] = np.zeros((len(CATEGORIES), 2 * len(items) + 2), np.int64)
            for number, (kind, chunk, mark) in enumerate(members):
                for which in TaskSelector:
                    changes = self.held.changes.get((kind, chunk, which)) if which.fits(mark) else None
                    if changes is None:
                        continue
                    places = changes.places
                    if len(members) > 1:
                        places = np.array([items.place(number, *each) for each in changes.moments])
                    np.add.at(curve, (changes.rows, places), changes.bytes)
        return {key: curve.cumsum(axis=1) for key, curve in curves.items()}

    @cached_property
    def _before(self) -> Levels:
        """Bytes by category before each run, and after the last."""
        levels = [self.states]
        for members in self._members:
            levels.append(levels[-1] + self._curves[members][:, -1])
        return np.stack(levels)

    def levels(self, task: int) -> Levels:
        """Bytes by category while each item of a task runs, or before it if more is held then, and at its end."""
        levels_at, number, items = self._places(task)
        ends = range(len(items.at[number]) + 1)
        before = levels_at[:, [items.held(number, index, True) for index in ends]]
        while_ = levels_at[:, [items.held(number, index, False) for index in ends]]
        return np.where(before.sum(axis=0) > while_.sum(axis=0), before, while_)

    def _places(self, task: int) -> tuple[Levels, int, JointOrder]:
        """Bytes by category at the places of a task's run, the task's number in it, and the run's items."""
        run = self._run_of[task]
        members = self._members[run]
        levels: Levels = self._before[run][:, None] + self._curves[members]
        return levels, task - self._runs[run][0], self._items[members]

    def before(self) -> dict[Category, int]:
        """Bytes by category before the step."""
        return _by_category(self.states)

    def on_host(self) -> dict[Category, int]:
        """Bytes by category in the memory of the host, where it holds the most."""
        there = replace(self, held=Lives(self.held.host, self.held.host_lives))
        return there.at(there.peak()) if there.held.states or there.held.lives else {}

    def after(self, task: int) -> dict[Category, int]:
        """Bytes by category when a task is over."""
        levels_at, number, items = self._places(task)
        return _by_category(levels_at[:, items.held(number, len(items.at[number]), False)])

    def at(self, point: Point) -> dict[Category, int]:
        """Bytes by category at a point."""
        levels_at, number, items = self._places(point.task)
        return _by_category(levels_at[:, items.held(number, point.index, point.prepared)])

    def fuller(self, task: int, index: int) -> Point:
        """The fuller of two points: while item `index` of a task runs, or just before it."""
        both = Point(task, index), Point(task, index, prepared=True)
        return max(both, key=lambda point: sum(self.at(point).values()))

    def peak(self, kinds: Sequence[TaskKind] | None = None) -> Point:
        """The first point with the most bytes, in tasks of these kinds (None: in the step)."""
        tops = dict[tuple[tuple[Member, ...], int], tuple[int, int]]()
        for members, curve in self._curves.items():
            items, totals = self._items[members], curve.sum(axis=0)
            for number in range(len(members)):
                places = items.of_task(number)
                at = int(totals[places].argmax())
                # If the time before an item holds as much as the item itself, the point is the item.
                first = places[at] + (places[at] % 2 == 0 and totals[places[at]] == totals[places[at + 1]])
                tops[members, number] = int(totals[first]), first
        best: tuple[int, Point] | None = None
        for index, run in enumerate(self._runs):
            members = self._members[index]
            chosen = [at for at, member in enumerate(members) if kinds is None or member[0] in kinds]
            if not chosen:
                continue
            number = max(chosen, key=lambda at: (tops[members, at][0], -tops[members, at][1]))
            top, place = tops[members, number]
            level = int(self._before[index].sum()) + top
            if best is None or level > best[0]:
                best = (level, Point(run[number], *self._items[members].point(number, place)))
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
        run = self._runs[self._run_of[point.task]]
        members = self._members[self._run_of[point.task]]
        items = self._items[members]
        place = items.held(point.task - run[0], point.index, point.prepared)
        here = (
            items.place(number, moment, begins) <= place
            for number, (kind, chunk, mark) in enumerate(members)
            if (kind, chunk) == (moment.kind, moment.chunk) and moment.which.fits(mark)
        )
        return self._came[moment.kind, moment.chunk, moment.which][run[0]] + sum(here)

    @cached_property
    def _came(self) -> dict[tuple[TaskKind, int, TaskSelector], list[int]]:
        """By kind, chunk and which: the number of such tasks before each task."""
        pairs = list(zip(self.tasks, self.positions, strict=True))
        return {
            (kind, chunk, which): [
                0,
                *accumulate((task.kind, task.chunk) == (kind, chunk) and which.fits(mark) for task, mark in pairs),
            ]
            for kind, chunk in self.lengths
            for which in TaskSelector
        }


def _by_category(levels: Levels) -> dict[Category, int]:
    return {category: int(level) for category, level in zip(CATEGORIES, levels, strict=True) if level}


# Tensors that live at a moment by the pattern of the model: those of all layers that do the same are one row.


@dataclass(frozen=True)
class TensorPattern:
    """Tensors of one name and category in all layers that do the same.

    layers: how many layers have them. count: how many tensors there are. bytes: the sum of their sizes.
    """

    name: str
    category: str
    layers: int
    count: int
    bytes: int


def tensor_patterns(alive: Iterable[tuple[str, str, int, int]]) -> list[TensorPattern]:
    """The patterns of tensors, the largest first. alive: name, category, count and bytes of those of each layer."""
    taken: dict[tuple[str, str], list[int]] = {}
    for name, category, count, size in alive:
        sums = taken.setdefault((name, category), [0, 0, 0])
        for at, value in enumerate((1, count, size)):
            sums[at] += value
    patterns = [TensorPattern(*key, *sums) for key, sums in taken.items()]
    return sorted(patterns, key=lambda pattern: (-pattern.bytes, pattern.name, pattern.category))
