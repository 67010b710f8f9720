"""What a stage has under way between its tasks: micro-batches in flight, and units that a pipeline leaves whole."""

from dataclasses import dataclass

from stagedb.schedules import Order, splits


@dataclass(frozen=True)
class StageMoment:
    """A moment of a stage between two tasks, by chunk.

    flying: micro-batches between their forward and their backward. opened: whether a forward is over and a backward is
    to come. summing: whether a backward is over and another one is to come. returned: whether one is to come, and no
    forward has run since the latest one. summed: whether a backward is over.
    """

    flying: tuple[int, ...]
    opened: tuple[bool, ...]
    summing: tuple[bool, ...]
    returned: tuple[bool, ...]
    summed: tuple[bool, ...]


def moments(order: Order, chunks: int) -> tuple[StageMoment, ...]:
    """Moments of a stage, one of which has the most of everything. Where some differ in the micro-batches in flight
    alone, it is the one with most.

    order: the stage's tasks. chunks: how many it has. A backward in two halves sums gradients in its own way, which is
    left out.
    """
    whole = not splits(order)
    left, flying, begun, backwards = [0] * chunks, [0] * chunks, [0] * chunks, [False] * chunks
    for task in order:
        left[task.chunk] += task.kind.keeps
    every = list(left)
    found: dict[object, StageMoment] = {}
    for task, following in zip(order, (*order[1:], None), strict=True):
        if task.kind.keeps:
            begun[task.chunk] += 1
            backwards[task.chunk] = False
        elif task.kind.sends and task.kind.differentiates:
            flying[task.chunk] -= 1
            left[task.chunk] -= 1
            backwards[task.chunk] = True
        if following is not None and following.joined:
            continue  # a backward that runs together with a forward may free what that one saves
        flying = [sum(each) for each in zip(flying, begun, strict=True)]
        begun = [0] * chunks
        opened = tuple(
            rest > 0 and (rest < all_ or now > 0) for rest, all_, now in zip(left, every, flying, strict=True)
        )
        summing = tuple(whole and 0 < rest < all_ for rest, all_ in zip(left, every, strict=True))
        returned = tuple(now and each for now, each in zip(summing, backwards, strict=True))
        summed = tuple(whole and rest < all_ for rest, all_ in zip(left, every, strict=True))
        one = StageMoment(tuple(flying), opened, summing, returned, summed)
        key = opened, summing, returned, summed
        if key not in found or sum(one.flying) > sum(found[key].flying):
            found[key] = one
    return tuple(found.values())
