"""A lower bound of what the fullest rank of a pipeline holds, from the figures of its layers and its moments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.graphs.zero_buckets import stays_open
from stagedb.lowering.columns import Ints
from stagedb.plans import Plan
from stagedb.schedules import splits
from stagedb.search.miniatures import MicroBatchFigures, StateFigures
from stagedb.search.stage_moments import figures_of, moments
from stagedb.search.transfers import Part


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
