"""Data of memory: bytes that are held all the time, and lives of tensors tied to the tasks of a schedule.

A micro-batch's forward allocates what its backward frees, so a life is described once for all micro-batches: the kind
of task and the item at which it begins and ends, and for which tasks of that kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stagedb.schedules import TaskPosition
from stagedb.workflows import TaskKind


class Category(StrEnum):
    """What memory is held for, such as parameters or activations."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer_state"
    MASTER = "master_weights"
    INPUTS = "inputs_and_buffers"
    ACTIVATIONS = "activations"
    RECOMPUTED = "recomputed"
    GATHERED = "gathered_parameters"
    COMMUNICATION = "communication_buffers"
    TEMPORARIES = "temporaries"
    CACHE = "cache"


class TaskSelector(StrEnum):
    """For which tasks of a kind something happens.

    `later` is every one but the first, `earlier` every one but the last. `opened` and `closed`: for those with a
    backward, or with none, since the chunk's latest forward; `closed_later` leaves out the first of those.

    The others are for halves of backwards. `pending` and `clear`: with or without a second half since the latest first
    half. `passing`: the first pending one. `last_passed` and `last_pending`: the last, with or without one that was
    passing before.
    """

    EVERY = "every"
    FIRST = "first"
    LAST = "last"
    LATER = "later"
    EARLIER = "earlier"
    OPENED = "opened"
    CLOSED = "closed"
    CLOSED_LATER = "closed_later"
    PENDING = "pending"
    CLEAR = "clear"
    PASSING = "passing"
    LAST_PASSED = "last_passed"
    LAST_PENDING = "last_pending"

    def fits(self, mark: TaskPosition) -> bool:
        """Whether the selector chooses a task. mark: the task's place among those of its kind."""
        match self:
            case TaskSelector.FIRST:
                return mark.first
            case TaskSelector.LAST:
                return mark.last
            case TaskSelector.LATER:
                return not mark.first
            case TaskSelector.EARLIER:
                return not mark.last
            case TaskSelector.CLOSED_LATER:
                return not mark.first and TaskSelector.CLOSED.fits(mark)
            case TaskSelector.PENDING | TaskSelector.CLEAR:
                return mark.pending == (self is TaskSelector.PENDING)
            case TaskSelector.PASSING:
                return mark.pending and not mark.passed
            case TaskSelector.LAST_PASSED | TaskSelector.LAST_PENDING:
                return mark.last and mark.passed == (self is TaskSelector.LAST_PASSED)
            case TaskSelector.OPENED:
                return mark.opened
            case TaskSelector.CLOSED:
                return not mark.opened
        return True


OWN = -1
"""The chunk of a moment of the chunk whose lives are made."""


@dataclass(frozen=True)
class Moment:
    """A point in tasks: before the item with this index runs, or the end, if the index is the number of items.

    kind, which, chunk: of the tasks. The task of a kind that serves all chunks, such as the step, has chunk 0.
    prepared: it belongs to what a framework does between the item before and this one. A life that begins there is held
    in that time already, one that ends there is still held in it.
    """

    kind: TaskKind
    index: int
    which: TaskSelector = TaskSelector.EVERY
    chunk: int = OWN
    prepared: bool = False

    def place(self, begins: bool) -> int:
        """The place of the moment in a task with two places an item: the time before the item, and the item itself.

        begins: whether something begins to be held then, or ends.
        """
        return 2 * self.index + (begins is not self.prepared)


@dataclass(frozen=True)
class Life:
    """The lifetime of a tensor in a step: `bytes` are held from `begin` until one of `ends`, without any for ever.

    name: of the tensor. layer: counted from the stage's first, None outside layers. category: what the memory is for.
    """

    name: str
    layer: int | None
    bytes: int
    category: Category
    begin: Moment
    ends: tuple[Moment, ...]


@dataclass(frozen=True)
class State:
    """`bytes` of a tensor that a rank holds before a step and after it, such as a parameter.

    name: of the tensor. layer: counted from the stage's first, None outside layers. category: what the memory is for.
    """

    name: str
    layer: int | None
    bytes: int
    category: Category


@dataclass(frozen=True)
class Changes:
    """Bytes that begin and end to be held in tasks of one kind, as parallel columns.

    rows: the number of the category of each. moments: when, and whether something begins. places: the same moments as
    places in a task that runs alone. bytes: above 0 where something begins.
    """

    rows: npt.NDArray[np.int64]
    moments: Sequence[tuple[Moment, bool]]
    places: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lives:
    """All tensors that a rank of a class holds before, in and after a step.

    states: held all the time. lives: held for a part of the step. host: in the memory of the rank's host all the time.
    host_lives: there for a part of the step.
    """

    states: tuple[State, ...]
    lives: tuple[Life, ...]
    host: tuple[State, ...] = ()
    host_lives: tuple[Life, ...] = ()

    @cached_property
    def changes(self) -> Mapping[tuple[TaskKind, int, TaskSelector], Changes]:
        """The bytes that begin and end to be held, by kind of task, chunk and selector of tasks."""
        moments: dict[tuple[TaskKind, int, TaskSelector], list[tuple[int, Moment, bool, int]]] = {}
        rows = {category: row for row, category in enumerate(Category)}
        for life in self.lives:
            row, begin = rows[life.category], life.begin
            moments.setdefault((begin.kind, begin.chunk, begin.which), []).append((row, begin, True, life.bytes))
            for end in life.ends:
                moments.setdefault((end.kind, end.chunk, end.which), []).append((row, end, False, -life.bytes))
        return {key: _changes(of_tasks) for key, of_tasks in moments.items()}


def _changes(found: Sequence[tuple[int, Moment, bool, int]]) -> Changes:
    rows, moments, begins, sizes = zip(*found, strict=True)
    places = [moment.place(begin) for moment, begin in zip(moments, begins, strict=True)]
    return Changes(
        np.array(rows, np.int64), tuple(zip(moments, begins, strict=True)), np.array(places), np.array(sizes, np.int64)
    )


def between(
    name: str,
    layer: int | None,
    size: int,
    category: Category,
    kind: TaskKind,
    index: int,
    which: TaskSelector = TaskSelector.EVERY,
) -> Life:
    """A life that is held from the end of the item before `index` until item `index` runs.

    name, layer, size, category: of the tensor. kind, which: the tasks in which it is held.
    """
    moment = Moment(kind, index, which, prepared=True)
    return Life(name, layer, size, category, moment, (moment,))


def brief(
    name: str,
    layer: int | None,
    size: int,
    category: Category,
    kind: TaskKind,
    index: int,
    which: TaskSelector = TaskSelector.EVERY,
) -> Life:
    """A life that is held while item `index` runs. The other parameters are those of `between`."""
    return Life(name, layer, size, category, Moment(kind, index, which), (Moment(kind, index + 1, which),))
