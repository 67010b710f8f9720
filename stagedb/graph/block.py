"""A block laid out on the mesh: its forward, its derived backward, its gradients' way to the optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stagedb.graph.autodiff import differentiate
from stagedb.graph.layout import Layout
from stagedb.graph.matcher import Matching, Rules, match, wanted
from stagedb.graph.recompute import Part, recompute
from stagedb.graph.tensors import Operation, Tensor, Tracer

PORT_REGION = "between"
"""The region whose rules lay out what blocks hand to each other."""


@dataclass(frozen=True)
class BlockPlan:
    """How one block is traced. `trace` writes the forward and returns the block's result.

    It gets the block's input: for a block without `input` (the first) a tensor that nothing makes. `loss`: its result
    is the loss, whose gradient starts the backward; else it hands the result on and waits for its gradient.
    `recomputed`: the part of the forward that the backward runs once more.
    """

    name: str
    repeat: str
    trace: Callable[[Tracer, Tensor], Tensor]
    input: bool
    loss: bool
    recomputed: Part | None = None


@dataclass(frozen=True)
class LaidOut:
    """A block's operations in issue order with all redistributions; names of what it takes and hands on."""

    plan: BlockPlan
    operations: tuple[Operation, ...]
    layouts: Mapping[str, Layout]
    weights: tuple[Tensor, ...]
    rows: Mapping[str, int]  # by weight: how many of its first axes sharding takes as one dimension
    gradients: Mapping[str, Tensor]  # by weight
    repeats: Mapping[str, str]  # by tensor that the backward computes again: that which it repeats
    given: tuple[Tensor, ...]  # tensors that no operation of the block makes, weights apart
    input: Tensor | None
    output: Tensor | None
    output_gradient: Tensor | None
    input_gradient: Tensor | None


def lay_out(
    plan: BlockPlan,
    rules: Rules,
    choices: Matching,
    hidden: tuple[str, ...],
    weight_gradient_first: Callable[[bool], bool],
) -> LaidOut:
    """Trace a block's forward, derive its backward, and match the layouts of both."""
    tracer = Tracer(plan.name, weight_gradient_first=weight_gradient_first)
    port_tensor = tracer.tensor("input", hidden, "act", "activation")
    result = plan.trace(tracer, port_tensor)
    x = port_tensor if plan.input else None
    arriving = tracer.gradient(result, f"{result.name}.gradient")
    grads = differentiate(tracer, {result.name: arriving})

    made = {tensor.name for op in tracer.operations for tensor in op.outputs}
    given = {
        tensor.name: tensor
        for op in tracer.operations
        for tensor in op.inputs
        if tensor.name not in made and tensor.role != "weight"
    }
    port = wanted(hidden, rules[PORT_REGION])
    regions = {tensor.name: op.region for op in reversed(tracer.operations) for tensor in op.inputs}
    layouts = {tensor.name: wanted(tensor.axes, rules[regions[tensor.name]]) for tensor in tracer.weights}
    layouts |= {name: wanted(tensor.axes, rules[regions[name]]) for name, tensor in given.items()}
    leave: dict[str, Layout] = {}
    if x is not None:
        layouts[x.name] = port
        leave[grads[x.name].name] = port
    if not plan.loss:
        layouts[arriving.name] = port
        leave[result.name] = port
    matched, handed = match(tracer.operations, rules, choices, layouts, leave)
    operations, repeats = matched.operations, dict[str, str]()
    if plan.recomputed is not None:
        operations, repeats = recompute(operations, plan.recomputed)
    return LaidOut(
        plan=plan,
        operations=operations,
        layouts={**matched.layouts, **{name: matched.layouts[of] for name, of in repeats.items()}},
        weights=tuple(tracer.weights),
        rows=tracer.rows,
        gradients={weight.name: grads[weight.name] for weight in tracer.weights},
        repeats=repeats,
        given=tuple(given.values()),
        input=x,
        output=None if plan.loss else handed[result.name],
        output_gradient=None if plan.loss else arriving,
        input_gradient=handed[grads[x.name].name] if x is not None else None,
    )
