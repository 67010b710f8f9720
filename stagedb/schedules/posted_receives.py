"""The order in which a runtime of several chunks posts its messages: `torch.distributed.pipelining`.

Its schedules name only compute. Its runtime adds to each stage's list when chunks are gathered and given back, and puts
their reductions right after their last backward. Then it adds each message once, by a walk over all stages in turns:
every stage runs its next entry if what that receives has been posted. The send comes right after the task, and the
receive after the latest entry of the receiving stage so far, which may be several tasks ahead of its use. A stage that
hands over to itself posts nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.order_replay import Result, receiver, sending, sent
from stagedb.schedules.task import Order, Task


@dataclass(frozen=True)
class PostedReceive:
    """A receive for a task of the same stage."""

    task: Task


@dataclass(frozen=True)
class PostedGathers:
    """The gathers of all of a chunk's parameters."""

    chunk: int


@dataclass(frozen=True)
class PostedReductions:
    """The reductions of all of a chunk's gradients."""

    chunk: int


Posting = Task | PostedReceive | PostedGathers | PostedReductions

ACTIVE = 3
"""The chunks that the runtime keeps gathered: those of the next tasks."""


@dataclass(frozen=True)
class _Release:
    """A turn of the walk in which a chunk's parameters are given back."""


def _makes_gradients(task: Task) -> bool:
    return any(template.gradients == "weights" for template in task.kind.templates)


def _entries(order: Order) -> Iterator[Task | PostedGathers | PostedReductions | _Release]:
    """The tasks of a stage with its gathers, reductions and releases."""
    active: set[int] = set()
    tasks = [task for task in order if not task.kind.once]
    last = {task.chunk: place for place, task in enumerate(tasks) if _makes_gradients(task)}
    for place, task in enumerate(tasks):
        ahead = list(dict.fromkeys(each.chunk for each in tasks[place:]))[:ACTIVE]
        for _ in active - set(ahead):
            yield _Release()
        for chunk in ahead:
            if chunk not in active:
                yield PostedGathers(chunk)
        active = set(ahead)
        yield task
        if last.get(task.chunk) == place:
            yield PostedReductions(task.chunk)
    for _ in active:
        yield _Release()
    yield from order[len(tasks) :]


def posted(orders: Sequence[Order], chunks: int, placement: ChunkPlacement = LOOP) -> tuple[tuple[Posting, ...], ...]:
    """The tasks of every stage, and its messages where they are posted.

    orders: by stage. chunks: how many a stage has. UsageError if the orders cannot end.
    """
    stages = len(orders)
    lists: list[list[Posting]] = [[] for _ in orders]
    entries = [list(_entries(order)) for order in orders]
    receiving = [sending(order) for order in orders]

    def receiver_of(task: Task, stage: int) -> tuple[int, Result] | None:
        to = receiver(task, stage, stages, chunks, placement)
        return None if to is None else (to[0], sent(to[1]))

    awaited = {
        to for stage, order in enumerate(orders) for task in order if (to := receiver_of(task, stage)) is not None
    }
    arrived: set[tuple[int, Result]] = set()
    places = [0] * stages
    while any(place < len(own) for place, own in zip(places, entries, strict=True)):
        moved = False
        for stage, own in enumerate(entries):
            if places[stage] == len(own):
                continue
            task = own[places[stage]]
            if not isinstance(task, Task):
                moved = True
                places[stage] += 1
                if not isinstance(task, _Release):
                    lists[stage].append(task)
                continue
            waits = (stage, sent(task))
            if task.kind.sends and waits in awaited and waits not in arrived:
                continue
            moved = True
            places[stage] += 1
            lists[stage].append(task)
            to = receiver_of(task, stage)
            if to is not None:
                arrived.add(to)
                if to[0] != stage:
                    lists[to[0]].append(PostedReceive(receiving[to[0]][to[1]]))
        if not moved:
            raise UsageError("no stage can run its next task: this order of tasks never ends")
    return tuple(map(tuple, lists))
