"""The order in which a rank ran the tasks of its micro-batches, by what it computed."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from stagedb.matching.planned_ops import WORK, PlannedOp


def in_seen_order(planned: Sequence[PlannedOp], keys: Sequence[Hashable], seen: Sequence[Hashable]) -> list[int] | None:
    """Places of planned ops with their tasks in the order of a run; None if it is the planned one, or not known.

    keys: what must be the same of each planned op. seen: that of the seen matmuls and attentions. Micro-batches are
    alike, so that the first task of a kind in the run is the first one of it in the plan.
    """
    work: dict[int, list[Hashable]] = defaultdict(list)
    for op, key in zip(planned, keys, strict=True):
        if op.kind in WORK:
            work[op.task].append(key)
    waiting: dict[frozenset[tuple[Hashable, int]], list[int]] = defaultdict(list)
    for task in sorted(work):
        waiting[frozenset(Counter(work[task]).items())].append(task)
    order: list[int] = []
    at = 0
    while at < len(seen):
        # If the ops of one task are the first ops of another, the longer task is tried first.
        for kind in sorted(waiting, key=lambda each: -sum(count for _, count in each)):
            count = sum(number for _, number in kind)
            if waiting[kind] and frozenset(Counter(seen[at : at + count]).items()) == kind:
                order.append(waiting[kind].pop(0))
                at += count
                break
        else:
            return None
    if any(waiting.values()) or order == sorted(order):
        return None
    return _moved(planned, order)


def _moved(planned: Sequence[PlannedOp], order: Sequence[int]) -> list[int]:
    """Places with the tasks of an order where the tasks were; those without work stay between the same tasks."""
    tasks: dict[int, list[int]] = defaultdict(list)
    for place, op in enumerate(planned):
        tasks[op.task].append(place)
    ordered = iter(order)
    known = set(order)
    return [place for task in sorted(tasks) for place in tasks[next(ordered) if task in known else task]]
