"""The order in which a runtime of several chunks posts receives: `torch.distributed.pipelining`.

Its schedules name only compute. Its runtime adds each message once, by a walk over all stages in turns: every stage
runs its next task if what that task receives has been posted. The send comes right after the task, and the receive
after the latest task of the receiving stage so far, which may be several tasks ahead of its use. A stage that hands
over to itself posts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.order_replay import Result, receiver, sending, sent
from stagedb.schedules.task import Order, Task


@dataclass(frozen=True)
class PostedReceive:
    """A receive for a task of the same stage."""

    task: Task


def posted(
    orders: Sequence[Order], chunks: int, placement: ChunkPlacement = LOOP
) -> tuple[tuple[Task | PostedReceive, ...], ...]:
    """The tasks of every stage, and its receives where they are posted. UsageError if the orders cannot end."""
    stages = len(orders)
    lists: list[list[Task | PostedReceive]] = [[] for _ in orders]
    receiving = [sending(order) for order in orders]

    def receiver_of(task: Task, stage: int) -> tuple[int, Result] | None:
        to = receiver(task, stage, stages, chunks, placement)
        return None if to is None else (to[0], sent(to[1]))

    awaited = {
        to for stage, order in enumerate(orders) for task in order if (to := receiver_of(task, stage)) is not None
    }
    arrived: set[tuple[int, Result]] = set()
    places = [0] * stages
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        moved = False
        for stage, order in enumerate(orders):
            if places[stage] == len(order):
                continue
            task = order[places[stage]]
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
