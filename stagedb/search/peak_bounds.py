"""A lower bound of what the fullest rank of a pipeline holds, from the figures of its layers and its moments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.graphs.sharing import stays_open
from stagedb.lowering.columns import Ints
from stagedb.plans import Plan
from stagedb.schedules import Order, Task, splits
from stagedb.search.miniatures import MicroBatchFigures, StateFigures
from stagedb.search.transfers import Part

# What a stage has under way between its tasks: micro-batches in flight, and units that a pipeline leaves whole.


@dataclass(frozen=True)
class StageMoment:
    """A moment of a stage between two tasks, by chunk.

    flying: micro-batches between their forward and their backward. opened: whether a forward is over and a backward is
    to come. summing: whether a backward is over and another one is to come. returned: whether one is to come, and no
    forward has run since the latest one. summed: whether a backward is over. turning: whether the next task is a
    backward of the model's last chunk, and runs alone.
    """

    flying: tuple[int, ...]
    opened: tuple[bool, ...]
    summing: tuple[bool, ...]
    returned: tuple[bool, ...]
    summed: tuple[bool, ...]
    turning: tuple[bool, ...]


def moments(order: Order, chunks: int, last: int | None) -> tuple[StageMoment, ...]:
    """The moments of a stage that may be its fullest: one of them has the most of everything. If some differ only in
    the micro-batches in flight, only the one with the most is among them.

    order: the stage's tasks. chunks: how many it has. last: which of them is the model's last one, if it has that. A
    backward in two halves sums gradients in its own way, which is left out.
    """
    whole = not splits(order)
    every = [0] * chunks
    for task in order:
        every[task.chunk] += task.kind.keeps
    left, flying, backwards, begun = list(every), [0] * chunks, [False] * chunks, [0] * chunks
    marks = [(False, False, False, False)] * chunks
    marked, most, total = tuple(marks), dict[object, int](), 0
    changed: list[int] = []
    found: dict[object, StageMoment] = {}
    turns = [tuple(turning and chunk == last for chunk in range(chunks)) for turning in (False, True)]
    for task, following, third in zip(order, (*order[1:], None), (*order[2:], None, None), strict=False):
        changed.append(task.chunk)
        if task.kind.keeps:
            begun[task.chunk] += 1
            backwards[task.chunk] = False
        elif _turns(task):
            flying[task.chunk] -= 1
            total -= 1
            left[task.chunk] -= 1
            backwards[task.chunk] = True
        if following is not None and following.joined:
            continue  # a backward that runs together with a forward may free what that one saves
        for chunk in changed:
            flying[chunk] += begun[chunk]
            total += begun[chunk]
            begun[chunk] = 0
            rest, started = left[chunk], left[chunk] < every[chunk]
            summing = whole and started and rest > 0
            mark = (
                rest > 0 and (started or flying[chunk] > 0),
                summing,
                summing and backwards[chunk],
                whole and started,
            )
            if mark != marks[chunk]:
                marks[chunk] = mark
                marked = tuple(marks)
        changed.clear()
        turning = following is not None and following.chunk == last and _turns(following)
        turning = turning and not (third is not None and third.joined)
        key = (marked, turning)
        if total > most.get(key, -1):
            most[key] = total
            found[key] = StageMoment(
                flying=tuple(flying),
                opened=tuple(mark[0] for mark in marks),
                summing=tuple(mark[1] for mark in marks),
                returned=tuple(mark[2] for mark in marks),
                summed=tuple(mark[3] for mark in marks),
                turning=turns[turning],
            )
    return _most(list(found.values()))


def _turns(task: Task) -> bool:
    """Whether a task is a backward, or the first half of one."""
    return task.kind.sends and task.kind.differentiates


def _most(found: list[StageMoment]) -> tuple[StageMoment, ...]:
    """The moments at which memory may be fullest: without each moment at which no figure exceeds that of another
    moment.
    """
    if not found:
        return ()
    figures = figures_of(found)
    exceeded: npt.NDArray[np.bool_] = np.all(figures[:, None, :] <= figures[None, :, :], axis=2)
    np.fill_diagonal(exceeded, False)
    return tuple(each for each, others in zip(found, list(exceeded), strict=True) if not np.any(others))


def figures_of(found: Sequence[StageMoment]) -> Ints:
    """The moments as rows of integers: their fields in order, each by chunk."""
    return np.array([[int(value) for field in vars(each).values() for value in field] for each in found], np.int64)


@dataclass(frozen=True)
class ChunkParts:
    """How often a chunk of a pipeline has each part of the model, the first of them, and the block of the last."""

    parts: tuple[tuple[Part, int], ...]
    first: Part
    last: str


Chunks = tuple[ChunkParts, ...]
"""By number in the pipeline."""


@dataclass(frozen=True)
class StageOrders:
    """What bounds follow from the order of tasks.

    moments: by stage, the `figures_of` those at which it may hold most. splits: whether some stage computes gradients
    of weights apart.
    """

    moments: tuple[Ints, ...]
    splits: bool

    @classmethod
    def of(cls, plan: Plan) -> "StageOrders":
        """What bounds follow from the order of a plan's tasks."""
        orders = plan.tasks()
        last = plan.pp * plan.virtual_stages - 1
        chunks = [plan.placement.chunks_of(stage, plan.pp, plan.virtual_stages) for stage in range(plan.pp)]
        found = tuple(
            figures_of(moments(order, len(own), own.index(last) if last in own else None))
            for order, own in zip(orders, chunks, strict=True)
        )
        return cls(found, any(map(splits, orders)))


@dataclass(frozen=True)
class _ChunkBytes:
    """Lower bounds of what a rank holds of a chunk.

    held: over the step. saved: by a forward. gathered: parameters, from a forward to the last backward. regathered:
    others, from a backward to the next forward. scattered: gradients, from the first backward to the last. kept:
    others, from the first backward to the update.
    """

    held: int
    saved: int
    gathered: int
    regathered: int
    scattered: int
    kept: int


def fullest_stage(
    plan: Plan,
    chunks: Chunks,
    states: StateFigures,
    micro_batch: MicroBatchFigures,
    moments_of: Sequence[Ints],
    received: Callable[[Iterable[int]], int],
) -> int:
    """A lower bound of the bytes of the fullest rank of a plan whose chunks have these layers.

    states: what its layers hold. micro_batch: what one saves. moments_of: by stage, as `StageOrders` has them.
    received: bytes of the buffers of messages to the chunks of these numbers.
    """
    open_ = plan.pp > 1 and stays_open(plan.options, plan.options.framework)
    size = {
        chunk: _ChunkBytes(
            held=sum_of(states.held, chunk) + sum_of(states.copied, chunk),
            saved=sum(micro_batch.saved[part] * count for part, count in chunk.parts),
            gathered=sum_of(states.left_gathered, chunk),
            regathered=open_ * sum_of(states.regathered, chunk),
            scattered=open_ * sum_of(states.scattered_gradients, chunk),
            kept=sum_of(states.kept_gradients, chunk),
        )
        for chunk in set(chunks)
    }
    peak, placement = 0, plan.placement
    for stage, found in enumerate(moments_of):
        numbers = placement.chunks_of(stage, plan.pp, plan.virtual_stages)
        sizes = [size[chunks[number]] for number in numbers]
        # In the order of the fields of a moment, each by chunk.
        under_way = [
            *(each.saved for each in sizes),
            *(each.gathered for each in sizes),
            *(each.scattered for each in sizes),
            *(each.regathered for each in sizes),
            *(each.kept for each in sizes),
            *(micro_batch.loss for _ in sizes),
        ]
        own = sum(each.held for each in sizes) + int((found @ np.array(under_way, np.int64)).max())
        peak = max(peak, own + received(numbers))
    return peak


def sum_of(figures: Mapping[str, int], chunk: ChunkParts) -> int:
    """The figure of a chunk, from those of blocks. figures: by block. chunk: how often it has each block."""
    return sum(figures.get(block, 0) * count for (block, _), count in chunk.parts)
