"""The blocks that a pipeline stage runs, and the place of each in the issue order of the stage's tasks."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.errors import StagedbError
from stagedb.schedules import LOOP, ChunkPlacement
from stagedb.workflows import RECOMPUTE, Template

CUT = "cut"
BUCKET = "bucket"
PSEUDO_BLOCKS = (CUT, BUCKET)
"""Blocks of a graph that are no part of the model: messages between stages, and bucketed collectives."""


@dataclass(frozen=True)
class Block:
    """A block of the model.

    layers: how often it repeats; None for a block that the model has once. numbers: of its layers in the model, from 0,
    where kinds of layers alternate; None: they follow each other.
    """

    name: str
    layers: int | None
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Place:
    """A block at a position of a stage.

    layer: its number among the stage's layers, None outside layers. end: only for the pseudo-block `cut`: "previous"
    before the first block, "next" after the last one. variant: the index of its evaluated values, which differ where a
    layer recomputes, and between ranks of cp. steps: the variant of each iteration of the block's loops.
    """

    position: int
    block: str
    layer: int | None = None
    end: str | None = None
    variant: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline, or one of its chunks: its blocks in forward order, without the cuts at its ends.

    index: its number in the pipeline. first_layer: the number of its first layer in the model. layers: how many it has.
    has_previous, has_next: whether another stage is before and after it. counted: layers of its stage in the chunks
    before. given, gives: the chunks of the same stage that are before and after it in the pipeline, and hand over
    without a message; None where they are on another stage.
    """

    index: int
    places: tuple[Place, ...]
    first_layer: int
    layers: int
    has_previous: bool
    has_next: bool
    counted: int = 0
    given: int | None = None
    gives: int | None = None

    def with_cuts(self) -> tuple[Place, ...]:
        """The places with a cut at either end that has a neighbour on another stage."""
        before = (Place(-1, CUT, end="previous"),) if self.has_previous and self.given is None else ()
        after = (Place(len(self.places), CUT, end="next"),) if self.has_next and self.gives is None else ()
        return (*before, *self.places, *after)

    def single_blocks(self) -> Mapping[str, int]:
        """By name, the position of each block outside layers, such as the embedding."""
        return {place.block: place.position for place in self.places if place.layer is None}


@dataclass(frozen=True)
class IssueOrder:
    """The issue order of a stage's ops as integers: by position, then by the op's own order, then by bucket.

    A forward and a step walk the positions up, a backward walks them down. Each op has `slots` numbers: its own and
    those of the bucket collectives that are issued right after it. As many numbers are free before the first position.
    """

    positions: int
    orders: int
    slots: int

    @property
    def stride(self) -> int:
        """How many issue numbers one position takes."""
        return self.orders * self.slots

    def upward(self, position: int) -> int:
        """First number of a position in a forward or a step; the bucket collectives of a step come before all."""
        return (position + 2) * self.stride

    def downward(self, position: int) -> int:
        """First number of a position in a backward."""
        return (self.positions - position + 1) * self.stride


Variants = Callable[[int, int], tuple[int, ...]]
"""The variants of a layer, by its number among the layers of its stage and among those of its chunk, from 0."""


def lay_out(
    blocks: Sequence[Block],
    stage_layers: Sequence[int],
    variants: Variants = lambda layer, of_chunk: (0,),
    loops: Collection[str] = (),
    chunks: int = 1,
    placement: ChunkPlacement = LOOP,
) -> tuple[Stage, ...]:
    """Deal a model's blocks to numbers of the pipeline with the given numbers of layers.

    With several chunks a stage, the layers of a stage are counted on from chunk to chunk. Blocks before the first layer
    go to the first number, blocks after the last layer to the last number, and blocks between layers to the number of
    the layer that follows. placement: the numbers of each stage. variants: those of a layer, one for each turn of its
    loops if its block is one of `loops`; the first is its own.
    """
    units = _in_forward_order([block for block in blocks if block.name not in PSEUDO_BLOCKS])
    layers = sum(is_layer for _, is_layer in units)
    if sum(stage_layers) != layers:
        raise StagedbError(
            f"{sum(stage_layers)} layers are dealt to stages, but the graph's blocks repeat {layers} times"
        )
    last = len(stage_layers) - 1
    rows: list[list[tuple[str, bool]]] = [[] for _ in stage_layers]
    owners = [number for number, count in enumerate(stage_layers) for _ in range(count)]
    dealt = 0
    for name, is_layer in units:
        number = 0 if not dealt and not is_layer else last if dealt == layers else owners[dealt]
        rows[number].append((name, is_layer))
        dealt += is_layer
    stages = len(stage_layers) // chunks
    counted = [_before(stage_layers, index, stages, placement) for index in range(len(stage_layers))]
    return tuple(
        Stage(
            index,
            _places(row, variants, loops, counted[index]),
            sum(stage_layers[:index]),
            stage_layers[index],
            index > 0,
            index < last,
            counted[index],
            *(_local(index, towards, stages, last, placement) for towards in (-1, 1)),
        )
        for index, row in enumerate(rows)
    )


def _local(index: int, towards: int, stages: int, last: int, placement: ChunkPlacement) -> int | None:
    """The chunk of the next number (towards 1) or the previous one, if the same stage has it."""
    if not 0 <= index + towards <= last or placement.route(index, towards, stages).hop:
        return None
    return placement.located(index + towards, stages)[1]


def _in_forward_order(blocks: Sequence[Block]) -> list[tuple[str, bool]]:
    """The blocks of a model one after another, and whether each is a layer."""
    alternating = sorted((number, block.name) for block in blocks for number in block.numbers or ())
    units: list[tuple[str, bool]] = []
    for block in blocks:
        if block.numbers is None:
            units += [(block.name, block.layers is not None)] * (1 if block.layers is None else block.layers)
        elif alternating:
            units += [(name, True) for _, name in alternating]
            alternating = []
    return units


def _before(numbers: Sequence[int], index: int, stages: int, placement: ChunkPlacement) -> int:
    """Number of layers of the chunks before this number's on its stage, given the number of layers of each number."""
    stage, chunk = placement.located(index, stages)
    return sum(numbers[number] for number in placement.chunks_of(stage, stages, chunk))


def _places(
    row: Sequence[tuple[str, bool]], variants: Variants, loops: Collection[str], counted: int
) -> tuple[Place, ...]:
    places, layer = [], counted
    for position, (name, is_layer) in enumerate(row):
        place = Place(position, name)
        if is_layer:
            own = variants(layer, layer - counted)
            place = dataclasses.replace(place, layer=layer, variant=own[0], steps=own if name in loops else ())
        places.append(place)
        layer += is_layer
    return tuple(places)


# Experts as units of their own: where they, and the other units of a stage that has such, are gathered and reduced.
#
# A stage gathers the next layer's units where a layer begins: first what is outside its experts, then these (torchtitan
# sets this prefetch). The first layer's units are gathered where the model begins, except its experts, which are
# gathered right before what they compute, exchanges included. Nothing is set for the backward of a single layer, and
# FSDP2 gathers by itself what ended before: the experts, where the layer begins.


@dataclass(frozen=True)
class ExpertSpan:
    """The experts of a block: by phase, the orders of their first and of their last op."""

    first: Mapping[str, int]
    last: Mapping[str, int]


def spans(ops: Iterable[Mapping[str, Any]]) -> dict[str, ExpertSpan]:
    """The experts of each block that has some, from the rows of a graph's ops."""
    orders_of: dict[str, dict[str, list[int]]] = {}
    for op in ops:
        if op["block"] != BUCKET and op["experts"] is not None:
            orders_of.setdefault(op["block"], {}).setdefault(op["phase"], []).append(int(op["order"]))
    return {
        block: ExpertSpan(*({phase: pick(orders) for phase, orders in by_phase.items()} for pick in (min, max)))
        for block, by_phase in orders_of.items()
    }


@dataclass(frozen=True)
class ExpertUnits:
    """The FSDP units of a stage whose experts are units of their own.

    order: the issue numbers of the stage. spans: the experts, by the position of their layer. layers: the positions of
    all layers. again: the positions of layers whose forward the backward computes again, experts included.
    """

    order: IssueOrder
    spans: Mapping[int, ExpertSpan]
    layers: frozenset[int]
    again: frozenset[int]

    def passes(self, unit: int | None, template: Template, again: bool) -> bool:
        """Whether a unit of experts is gathered by an op of a template that is among those that compute again, or not.

        Where a backward begins with experts that are computed again, that comes first.
        """
        if template.upward or unit is None:
            return not again
        return again == (unit in self.again and unit + 1 not in self.layers and unit - 1 in self.layers)

    def gathered(self, unit: int, template: Template, experts: bool, again: bool) -> int | None:
        """The number after which a unit of a layer is gathered; None where a backward's first gather has its place.

        experts: of its layer. again: they are computed again.
        """
        before = unit - 1 if template.upward else unit + 1
        towards = self.order.upward if template.upward else self.order.downward
        if before in self.layers:
            return towards(before) - 1
        if experts and not template.upward and unit - 1 not in self.layers:
            return towards(unit) - 1
        if experts:
            return towards(unit) + self.spans[unit].first[RECOMPUTE if again else template.phase] - 1
        return towards(0) - 2 if template.upward else None

    def reduced(self, unit: int, template: Template) -> int:
        """The number after which the gradients of a layer's experts are reduced.

        unit: the layer, by its place on the chunk. template: of the operators that make the gradients.
        """
        return self.order.downward(unit) + self.spans[unit].last[template.phase]
