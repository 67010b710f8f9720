"""The part of a layer that an own block makes: its forward on the operators of the graph, its sizes, its rules."""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from stagedb.lazy_names import DeferredModule
from stagedb.mentions import Word
from stagedb.models.kinds.own.block import INPUT, OUTPUT, BlockStep, OwnBlock
from stagedb.models.kinds.own.shapes import Shapes, shapes_of
from stagedb.models.kinds.part import Architecture, Branch, LayerPart, ShardingChoices, Table, Values, norm_values

if TYPE_CHECKING:
    from stagedb.ir import operators as ops
    from stagedb.ir.tensors import Tensor, Tracer
    from stagedb.models import shared_operations as shared
    from stagedb.models.shared_operations import Style
else:
    ops = DeferredModule("stagedb.ir.operators")
    shared = DeferredModule("stagedb.models.shared_operations")


@lru_cache(maxsize=256)
def part_of(block: OwnBlock) -> LayerPart:
    """The part that a block makes: the same one for equal blocks."""
    shapes = shapes_of(block)
    return LayerPart(
        name=block.name,
        forward=partial(_forward, block, shapes),
        parameters=partial(_parameters, block, shapes),
        axes={block.in_graph(axis): block.symbol(axis) for axis, _ in block.axes},
        rows=partial(_rows, block, shapes),
    )


def check_tp(block: OwnBlock, card: Architecture, tp: int) -> None:
    """Raise UsageError if ranks of tp cannot have equal parts of what it cuts."""
    sizes = {each: block.length(each.tp, card) for each in block.parameters if each.tp}
    for each, size in sizes.items():
        if size % tp:
            fit = [tp for tp in range(tp, 0, -1) if not any(known % tp for known in (*sizes.values(), card.heads))]
            raise block.refused(
                each.line,
                f"tp {tp} cuts the axis {each.tp} of {each.name} into parts, and {size} is not divisible by {tp}: "
                f"take {Word('tp', fit[0])}, another size, or leave `tp` out of the parameter",
            )


def region_of(block: OwnBlock, cut: str) -> str:
    """The region of steps in which tp cuts an axis. Where it cuts none, each rank has its own tokens.

    cut: the name of that axis; empty: none.
    """
    return f"own.{block.name}.{cut}" if cut else "between"


def _rows(block: OwnBlock, shapes: Shapes, choices: ShardingChoices) -> Table:
    cuts = dict.fromkeys(cut for cut in shapes.cuts.values() if cut)
    return {region_of(block, cut): {"batch": ("dp",), "seq": ("cp",), block.in_graph(cut): ("tp",)} for cut in cuts}


def _parameters(block: OwnBlock, shapes: Shapes, card: Architecture, values: Values) -> int:
    count = 0
    for each in block.parameters:
        size = 1
        for axis in each.labels:
            size *= block.length(axis, card)
        count += size
    normed = (shapes.axes[step.name][-1] for step in block.steps if step.operator == "norm")
    return count + norm_values(card) * sum(block.length(axis, card) for axis in normed)


def _forward(
    block: OwnBlock, shapes: Shapes, t: "Tracer", card: Architecture, style: "Style", values: Values, x: "Tensor"
) -> Branch:
    held: dict[str, Tensor] = {INPUT: x}
    with t.within(block.name):
        for step in block.steps:
            t.enter(region_of(block, shapes.cuts[step.name]))
            held[step.name] = _step(block, shapes, t, card, style, step, held)
    return Branch(held[OUTPUT])


def _operand(block: OwnBlock, t: "Tracer", held: "dict[str, Tensor]", name: str) -> "Tensor":
    """What a step reads. A parameter is registered by the first step that reads it."""
    parameter = block.parameter(name)
    if name not in held and parameter is not None:
        axes = tuple(map(block.in_graph, parameter.labels))
        held[name] = t.weight(f"{name}.weight", axes, rows=len(parameter.axes[0]))
    return held[name]


def _step(
    block: OwnBlock,
    shapes: Shapes,
    t: "Tracer",
    card: Architecture,
    style: "Style",
    step: BlockStep,
    held: "dict[str, Tensor]",
) -> "Tensor":
    """Write one step; returns its result."""
    operands = tuple(_operand(block, t, held, name) for name in step.of)
    out = tuple(map(block.in_graph, shapes.axes[step.name]))
    if step.operator == "einsum":
        return _einsum(block, shapes, t, style, step, operands)
    if step.operator == "norm":
        return shared.norm(t, card, style, step.name, operands[0])
    y = t.activation(step.name, out)
    if step.operator == "unit_norm":
        t.emit(step.name, ops.UnitRMS(), operands, y, t.activation(f"{step.name}.rstd", out[:-1], "fp32"))
        return y
    if step.operator == "gate" and style.eager and len(operands) == 2 and step.argument not in ops.GATES:
        active = t.activation(f"{step.name}.activation", out)
        t.emit(f"{step.name}.activation", ops.Activation(str(step.argument)), operands[:1], active)
        t.emit(step.name, ops.Multiply(), (active, operands[1]), y)
        return y
    t.emit(step.name, _operator(block, shapes, step), operands, y)
    return y


def _operator(block: OwnBlock, shapes: Shapes, step: BlockStep) -> "ops.Operator":
    """The operator of a step that has one."""
    if step.operator == "causal_softmax":
        axes = shapes.axes[step.name]
        query = next(axis for axis in axes if block.is_sequence(axis))
        return ops.CausalSoftmax(tuple(map(block.in_graph, axes)), block.in_graph(query))
    argument = step.argument
    made: Mapping[str, ops.Operator] = {"add": ops.Add(), "multiply": ops.Multiply(), "softmax": ops.ChoiceSoftmax()}
    if step.operator in made:
        return made[step.operator]
    if isinstance(argument, float):
        return ops.Softcap(argument) if step.operator == "softcap" else ops.Multiple(argument)
    return ops.Gate(str(argument)) if step.operator == "gate" else ops.Activation(step.operator)


def _einsum(
    block: OwnBlock, shapes: Shapes, t: "Tracer", style: "Style", step: BlockStep, operands: "tuple[Tensor, ...]"
) -> "Tensor":
    """A matmul. One with a parameter is a linear layer, in the format that linear layers have."""
    terms = shapes.terms[step.name]
    first, second, out = (tuple(map(block.in_graph, term)) for term in (terms.first, terms.second, terms.result))
    x, other = operands
    if other.role == "weight" and (first, second) == (x.axes, other.axes):
        return shared.projected(t, step.name, x, (other,), out, style.linear)
    y = t.activation(step.name, out)
    t.emit(step.name, ops.Einsum(first, second, out), operands, y)
    return y
