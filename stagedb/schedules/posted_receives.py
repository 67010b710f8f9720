"""The order in which a runtime of several chunks posts receives: `torch.distributed.pipelining`.

Its schedules name only compute. Its runtime adds each message once, by a walk over all stages in turns: every stage
runs its next task if what that task receives has been posted. The send comes right after the task, and the receive
after the latest task of the receiving stage so far, which may be several tasks ahead of its use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.order_replay import receiver
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
    awaited = {
        to
        for stage, order in enumerate(orders)
        for task in order
        if (to := receiver(task, stage, stages, chunks, placement))
    }
    arrived: set[tuple[int, Task]] = set()
    places = [0] * stages
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        moved = False
        for stage, order in enumerate(orders):
            if places[stage] == len(order):
                continue
            task = order[places[stage]]
            if (stage, task) in awaited - arrived:
                continue
            moved = True
            places[stage] += 1
            lists[stage].append(task)
            to = receiver(task, stage, stages, chunks, placement)
            if to is not None:
                arrived.add(to)
                lists[to[0]].append(PostedReceive(to[1]))
        if not moved:
            raise UsageError("no stage can run its next task: this order of tasks never ends")
    return tuple(map(tuple, lists))
