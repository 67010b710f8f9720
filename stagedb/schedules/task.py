"""Tasks of a pipeline stage, and facts about an order of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stagedb.workflows import TaskKind


@dataclass(frozen=True)
class Task:
    """One run of a kind of task, for a micro-batch of a chunk (virtual stage). Both are 0 if it runs once a step.

    joined: it runs together with the task before it, operator by operator, in place of after it. It is the same task
    either way.
    """

    kind: TaskKind
    microbatch: int = 0
    chunk: int = 0
    joined: bool = field(default=False, compare=False)


Order = Sequence[Task]
"""Tasks of one stage in the order in which they run."""


class TaskPosition(NamedTuple):
    """The place of a task among those of its chunk on its stage.

    first, last: whether it is the first and the last of its kind. opened: whether a backward ran since the chunk's
    latest forward, so that what backwards leave gathered is gathered. pending: whether a second half of a backward ran
    since the chunk's latest first half. passed: whether there was a first half with something pending before.
    """

    first: bool
    last: bool
    opened: bool = False
    pending: bool = False
    passed: bool = False


def pairs(order: Order) -> Iterator[range]:
    """The places of tasks that run together, pair by pair: a forward, and a backward or its two halves."""
    begin = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or not order[index].joined:
            if index - begin > 1:
                yield range(begin, index)
            begin = index


def two_by_two(order: Order) -> tuple[Task, ...]:
    """The tasks with every second one run together with the one before it."""
    return tuple(replace(task, joined=bool(index % 2)) for index, task in enumerate(order))


def splits(order: Order) -> bool:
    """Whether an order of tasks runs backwards as two halves."""
    return any(task.kind.half for task in order)


def task_positions(order: Order) -> Iterator[TaskPosition]:
    """For each task, its place among those of its kind and chunk on this stage."""
    opened: dict[int, bool] = {}
    pending: dict[int, bool] = {}
    passed: dict[int, bool] = {}
    seen: dict[tuple[TaskKind, int], list[int]] = {}
    for index, task in enumerate(order):
        seen.setdefault((task.kind, task.chunk), []).append(index)
    for index, task in enumerate(order):
        indexes = seen[task.kind, task.chunk]
        waiting = pending.get(task.chunk, False)
        own = (opened.get(task.chunk, False), waiting, passed.get(task.chunk, False))
        yield TaskPosition(index == indexes[0], index == indexes[-1], *own)
        if task.kind.half:
            first = task.kind.sends
            pending[task.chunk] = not first
            passed[task.chunk] = passed.get(task.chunk, False) or (first and waiting)
        if task.kind.sends:
            opened[task.chunk] = task.kind.differentiates


def whole_backwards(order: Order, chunk: int) -> tuple[Task, ...]:
    """The tasks of a runtime that runs the whole backward of this chunk where its weight gradients are due.

    torch does so with the first number of the pipeline: its input needs no gradient, so that its input-gradient task
    has nothing to send and does nothing (`stage_index == 0` in `backward_weight_one_chunk`).
    """
    return tuple(
        whole(task) if task.chunk == chunk else task
        for task in order
        if task.chunk != chunk or not task.kind.half or not task.kind.sends
    )


def whole(task: Task) -> Task:
    """The task that runs both halves of a backward in the place of this half."""
    return task if task.kind.whole is None else replace(task, kind=task.kind.whole)
