"""A block laid out on the mesh: its forward, its derived backward, and the path of its gradients to the optimizer."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.graphs.offloaded_inputs import offload_input
from stagedb.graphs.recomputation import RecomputedPart, cached, recompute
from stagedb.graphs.ring_turns import spell_out, with_both_ends
from stagedb.ir.autodiff import differentiate, handed_over
from stagedb.ir.collective_matcher import Matching, Rules, match, redistribution, wanted
from stagedb.ir.layouts import MESH_AXES, Layout, Partial
from stagedb.ir.redistribution_order import by_way_of, next_move
from stagedb.ir.tensors import Operation, Tensor, Tracer
from stagedb.workflows import DEFAULT, Workflow

PORT_REGION = "between"

CORE = "_core"
"""The end of the names of regions in which ranks that exchange heads for tokens have the whole sequence of some."""

EXCHANGED = ("cp", "cpa")
"""The mesh axes whose ranks exchange heads."""
"""The region whose rules lay out the tensors between blocks."""


@dataclass(frozen=True)
class BlockPlan:
    """How one block is traced.

    name: of the block in the graph. repeat: how often the model has it, an expression such as `L`. trace: writes the
    forward, from the block's input to its result. input: the block before hands over its result; the first block has
    none, and its trace gets a tensor that no operation makes. loss: the result is the loss, whose gradient starts the
    backward; otherwise the block passes its result on and waits for the gradient of it. recomputed: the parts of the
    forward that the backward runs again, each on its own. cut_gradients: where a weight is sharded and its gradient is
    made whole, the gradient is cut at once; otherwise the step cuts it. layers: the numbers of the layers, as in
    `BlockSpec`. trains: whether a weight of this name has a gradient; others are frozen. below: whether something
    before the block is trained, so that its input has a gradient.
    """

    name: str
    repeat: str
    trace: Callable[[Tracer, Tensor], Tensor]
    input: bool
    loss: bool
    recomputed: tuple[RecomputedPart, ...] = ()
    cut_gradients: bool = True
    layers: tuple[int, ...] | None = None
    trains: Callable[[str], bool] = lambda name: True
    below: bool = True

    def wanted(self, tracer: Tracer, port: Tensor) -> frozenset[str]:
        """The tensors of the block, once its forward is traced, whose gradients something outside reads.

        port: the tensor that the block is traced with.
        """
        of_input = {port.name} if self.input and self.below else set()
        return frozenset({weight.name for weight in tracer.weights if self.trains(weight.name)} | of_input)


@dataclass(frozen=True)
class LaidOut:
    """A traced block on the mesh: its operations in issue order, with all collectives that change layouts.

    plan: from which it was traced. layouts: by name of a tensor. weights: those that it reads. input, output: tensors
    of the forward; None in the first block, and for a loss. output_gradient: what arrives from the next block.
    input_gradient: what goes to the block before. Comments explain the other fields.
    """

    plan: BlockPlan
    operations: tuple[Operation, ...]
    layouts: Mapping[str, Layout]
    weights: tuple[Tensor, ...]
    rows: Mapping[str, int]  # by weight: how many of its first axes sharding takes as one dimension
    gradients: Mapping[str, Tensor]  # by weight
    repeats: Mapping[str, str]  # by tensor that the backward computes again: the forward's tensor
    given: tuple[Tensor, ...]  # tensors that no operation of the block makes, without weights
    input: Tensor | None
    output: Tensor | None
    output_gradient: Tensor | None
    input_gradient: Tensor | None
    kept: frozenset[str] = frozenset()  # tensors that live until the backward, even if nothing reads them there


def lay_out(
    plan: BlockPlan,
    rules: Rules,
    choices: Matching,
    hidden: tuple[str, ...],
    weight_gradient_first: Callable[[bool], bool],
    stored: Rules | None = None,
    workflow: Workflow = DEFAULT,
) -> LaidOut:
    """Trace a block's forward, derive its backward if the workflow has one, and match the layouts of both.

    stored: by region, the layouts in which its weights are kept, where these differ from the layouts that operators
    need. rules: by region, the layouts that operators need. choices: of collectives. hidden: the axes of the tensor
    between blocks. weight_gradient_first: whether an operator makes the gradient of its weight before that of its
    input, by whether it has a bias.
    """
    tracer = Tracer(plan.name, weight_gradient_first=weight_gradient_first, caches=workflow.caches)
    tracer.trains, tracer.below = plan.trains, plan.below
    port_tensor = tracer.tensor("input", hidden, "act", "activation")
    result = plan.trace(tracer, port_tensor)
    x = port_tensor if plan.input else None
    arriving, grads = None, dict[str, Tensor]()
    wanted_gradients = plan.wanted(tracer, port_tensor)
    if workflow.differentiates and wanted_gradients:
        arriving = tracer.gradient(result, f"{result.name}.gradient")
        grads = differentiate(tracer, handed_over(tracer) or {result.name: arriving}, wanted_gradients)

    given = _given(tracer)
    layouts, leave = _known_layouts(tracer, given, rules, stored or {}), dict[str, Layout]()
    port = wanted(hidden, rules[PORT_REGION])
    if x is not None:
        layouts[x.name] = port
    if x is not None and x.name in grads:
        leave[grads[x.name].name] = port
    if not plan.loss:
        leave[result.name] = port
    if arriving is not None and not plan.loss:
        layouts[arriving.name] = port
    matched, handed = match(tracer.operations, rules, choices, layouts, leave)
    gradients, layouts = {w.name: grads[w.name] for w in tracer.weights if w.name in grads}, dict(matched.layouts)
    operations = spell_out(matched.operations, layouts)
    operations = _led_to_parts(operations, tracer.weights, gradients, layouts, plan.cut_gradients)
    operations, repeats, kept = _recomputed(operations, plan.recomputed, layouts, x)
    return LaidOut(
        plan=plan,
        operations=with_both_ends(operations),
        layouts={**layouts, **{name: layouts[of] for name, of in repeats.items()}},
        weights=tuple(tracer.weights),
        rows=tracer.rows,
        gradients=gradients,
        repeats=repeats,
        given=tuple(given.values()),
        input=x,
        output=None if plan.loss else handed[result.name],
        output_gradient=None if plan.loss else arriving,
        input_gradient=handed[grads[x.name].name] if x is not None and x.name in grads else None,
        kept=kept,
    )


def _recomputed(
    operations: tuple[Operation, ...],
    parts: Iterable[RecomputedPart],
    layouts: dict[str, Layout],
    x: Tensor | None,
) -> tuple[tuple[Operation, ...], dict[str, str], frozenset[str]]:
    """The operations with those that run again, for each of their tensors the one that it repeats, and tensors that are
    kept for the backward, even if nothing reads them there.

    x: the block's input; on the host, if a part keeps it there. Its layout is added.
    """
    repeats, kept = dict[str, str](), frozenset[str]()
    for part in parts:
        kept |= cached(operations, part)
        operations, again = recompute(operations, part)
        repeats |= again
        if part.offloads and again and x is not None:
            operations, there, back = offload_input(operations, x, PORT_REGION)
            layouts[there.name], repeats[back.name] = layouts[x.name], x.name
    return operations, repeats, kept


def _given(tracer: Tracer) -> dict[str, Tensor]:
    """The tensors that no operation makes, without weights."""
    made = {tensor.name for op in tracer.operations for tensor in op.outputs}
    read = (tensor for op in tracer.operations for tensor in op.inputs)
    return {tensor.name: tensor for tensor in read if tensor.name not in made and tensor.role != "weight"}


def _known_layouts(tracer: Tracer, given: Mapping[str, Tensor], rules: Rules, stored: Rules) -> dict[str, Layout]:
    """The layouts of weights and given tensors: those that their first readers need."""
    regions = {tensor.name: op.region for op in reversed(tracer.operations) for tensor in op.inputs}
    held = {**rules, **stored}
    weights = {tensor.name: wanted(tensor.axes, held[regions[tensor.name]]) for tensor in tracer.weights}
    # Ranks that exchange heads for tokens read what belongs to their own heads, and keep all that a rank of tp has
    # (Megatron-LM's `MambaContextParallel`, and the sinks of Transformer Engine).
    for name in (name for name in weights if regions[name].endswith(CORE) and regions[name] not in stored):
        for mesh_axis in EXCHANGED:
            weights[name] = weights[name].with_(mesh_axis, None)
    return weights | {name: wanted(tensor.axes, rules[regions[name]]) for name, tensor in given.items()}


def cut(gradient: Tensor, layouts: dict[str, Layout], weight: Tensor, like: Operation) -> Operation | None:
    """A move of a gradient, on one mesh axis, towards the parts in which its weight is kept; None if it has them.

    A sum for a whole weight stays partial: it is reduced together with others. The new tensor's layout is added to
    `layouts`; the operation is issued as `like`.
    """
    have, want = layouts[gradient.name], layouts[weight.name]
    for mesh_axis in have.partials():
        if want.on(mesh_axis) is None:
            want = want.with_(mesh_axis, have.on(mesh_axis))
    differ = [mesh_axis for mesh_axis in reversed(MESH_AXES) if have.on(mesh_axis) != want.on(mesh_axis)]
    if not differ:
        return None
    # Partial sums are reduced first: a slice may wait for the optimizer's step, but a reduction that was begun may not.
    mesh_axis, goal = next_move(have, want, sorted(differ, key=lambda m: not isinstance(have.on(m), Partial)))
    way = by_way_of(have, want, gradient.axes)
    if way is not None:
        mesh_axis, goal = "tp", way
    elif goal is None and mesh_axis in EXCHANGED and like.region.endswith(CORE):
        # A slice's gradient has zeros elsewhere, and is reduced with all others.
        goal = Partial()
    move = redistribution(mesh_axis, have.on(mesh_axis), goal)
    part = dataclasses.replace(gradient, name=f"{gradient.name}.{move.move}.{mesh_axis}")
    layouts[part.name] = have.with_(mesh_axis, goal)
    return dataclasses.replace(like, name=part.name, operator=move, inputs=(gradient,), outputs=(part,))


def summed(block: LaidOut, weight: str, over: Iterable[str]) -> LaidOut:
    """The block with the gradient of a weight summed over mesh axes where it is made, and not together with others."""
    operations, gradients, layouts = list(block.operations), dict(block.gradients), dict(block.layouts)
    for mesh_axis in over:
        gradient = gradients[weight]
        at = next(i for i, op in enumerate(operations) if gradient in op.outputs)
        move = redistribution(mesh_axis, layouts[gradient.name].on(mesh_axis), None)
        whole = dataclasses.replace(gradient, name=f"{gradient.name}.{move.move}.{mesh_axis}")
        layouts[whole.name] = layouts[gradient.name].with_(mesh_axis, None)
        like = dataclasses.replace(operations[at], name=whole.name, operator=move, inputs=(gradient,), outputs=(whole,))
        operations.insert(at + 1, like)
        gradients[weight] = whole
    return dataclasses.replace(block, operations=tuple(operations), gradients=gradients, layouts=layouts)


def _only_cut(have: Layout, want: Layout) -> bool:
    """Whether only slices are left to do."""
    return all(have.on(m) in (None, p) for m, p in want.placements) and all(
        isinstance(p, Partial) or want.on(m) == p for m, p in have.placements
    )


def _led_to_parts(
    operations: tuple[Operation, ...],
    weights: Iterable[Tensor],
    gradients: dict[str, Tensor],
    layouts: dict[str, Layout],
    slices: bool,
) -> tuple[Operation, ...]:
    """Move each gradient to the layout of its weight. A whole gradient is cut, unless the step does that.

    Raises UsageError for a weight to whose parts no moves lead: of some strategies one move takes back the last one.
    """
    rows = list(operations)
    for weight in weights:
        if weight.name not in gradients:
            continue
        at = next(i for i, op in enumerate(rows) if gradients[weight.name] in op.outputs)
        last = at + 2 * len(MESH_AXES)
        while (part := cut(gradients[weight.name], layouts, weight, rows[at])) is not None:
            if not slices and _only_cut(layouts[gradients[weight.name].name], layouts[weight.name]):
                break
            if at == last:
                raise UsageError(
                    f"no moves lead the gradient of {weight.name} to the parts in which the strategy keeps it: give "
                    "its region the same mesh axes in `weights` as in `regions`, or leave the region out of `weights`"
                )
            at += 1
            rows.insert(at, part)
            gradients[weight.name] = part.outputs[0]
    return tuple(rows)
