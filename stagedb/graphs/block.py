"""A block laid out on the mesh: its forward, its derived backward, and the path of its gradients to the optimizer."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.graphs.recomputation import RecomputedPart, cached, offload_input, recompute
from stagedb.ir.autodiff import differentiate, handed_over
from stagedb.ir.collective_matcher import Matching, Rules, by_way_of, match, next_move, redistribution, wanted
from stagedb.ir.expressions import number, symbol
from stagedb.ir.facts import Tag
from stagedb.ir.layouts import MESH_AXES, Layout, Partial
from stagedb.ir.operators import (
    AddReceived,
    Cast,
    Exchange,
    Operator,
    PackKeys,
    PartAttention,
    Receive,
    Redistribution,
    RingAttention,
    RingAttentionGradient,
    RingStep,
    RingStepGradient,
    Rotate,
    Send,
    UnpackGradients,
    UnpackKeys,
)
from stagedb.ir.tensors import Loop, Operation, Tensor, Tracer
from stagedb.workflows import DEFAULT, Workflow

# Ring attention in turns: the exchanges and the compute of each turn, once layouts are known.
#
# PyTorch (torch.distributed.tensor.experimental): keys and values go to the next rank while the rank attends to those
# that it has. There is one exchange fewer than ranks (or keys and values are gathered once). In the backward they go
# around again. The sums of their gradients, in fp32, go with them and, one exchange further, home.
#
# Transformer Engine (`cp_comm_type="p2p"`, AttnFuncWithCPAndKVP2P): the same by sends and receives, and results are
# merged in the format of activations. The backward begins with the keys that came last and goes the other way around,
# so that the rank's own keys come last. The first exchange has only keys and values. The middle ones also have the sums
# of their gradients, in the format of keys, in a message of twice the size. The last one has only the sums. With
# `all_gather` (AttnFuncWithCPAndKVAllGather) keys are gathered first, and each of a rank's two chunks is attended to in
# a call of its own. Transformer Engine has only balanced chunks. For contiguous ones, as PyTorch has them, stagedb
# assumes that turns without compute pass on what they receive. The `a2a+p2p` of Transformer Engine deals chunks to
# neighbours in another order, with equal numbers of tokens.

KEY_AND_VALUE = "key_and_value"
"""The axis of a key and its value next to each other, where they have sizes of their own."""


def _packed(k: Tensor, v: Tensor) -> tuple[str, ...]:
    """The axes of keys and values in one message."""
    return (*k.axes[:3], KEY_AND_VALUE) if k.axes[-1] != v.axes[-1] else (*k.axes[:3], "two", k.axes[-1])


def spell_out(operations: Iterable[Operation], layouts: dict[str, Layout]) -> tuple[Operation, ...]:
    """The operations, with each placeholder replaced by its ring. Layouts of the new tensors are added to `layouts`."""
    rows: list[Operation] = []
    for op in operations:
        if isinstance(op.operator, RingAttention):
            rows += _Ring(op, op.operator, layouts).forward()
        elif isinstance(op.operator, RingAttentionGradient):
            rows += _Ring(op, op.operator, layouts).backward()
        elif isinstance(op.operator, PartAttention) and op.operator.balanced:
            rows.append(_two_chunks(op))
        else:
            rows.append(op)
    return tuple(rows)


def with_both_ends(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations, with each exchange replaced by a send and a receive."""
    rows: list[Operation] = []
    for op in operations:
        move = op.operator
        if isinstance(move, Exchange):
            loop = None if op.loop is None else replace(op.loop, previous=())
            ends = (Send(move.mesh_axis, move.back), Receive(move.mesh_axis, move.back))
            rows.append(replace(op, name=f"{op.name}.send", operator=ends[0], outputs=()))
            rows.append(replace(op, name=f"{op.name}.recv", operator=ends[1], inputs=(), loop=loop))
        else:
            rows.append(op)
    return tuple(rows)


def _two_chunks(op: Operation) -> Operation:
    """Two turns: the second adds to the results of the first."""
    carried = tuple(each.name for each in op.outputs)
    return replace(op, inputs=(*op.inputs, *op.outputs), loop=Loop(f"{op.name}.chunks", number(2), carried))


class _Ring:
    """One attention over a ring."""

    def __init__(self, op: Operation, kind: RingAttention | RingAttentionGradient, layouts: dict[str, Layout]) -> None:
        self.op, self.layouts = op, layouts
        self.passing, self.axis, self.balanced = kind.passing, kind.axis, kind.balanced
        self.gathered = kind.passing == "gathered"
        self.softcap, self.scale, self.value = kind.softcap, kind.scale, kind.value

    def words(self, k: Tensor) -> dict[str, Any]:
        """How a turn scores keys, and their axes."""
        own = {"value": self.value, "head": k.axes[-1], "kv_heads": k.axes[2]}
        return {"softcap": self.softcap, "scale": self.scale, **own}

    def tensor(self, word: str, axes: tuple[str, ...], dtype: str, like: Tensor) -> Tensor:
        """A new tensor with the layout of another one."""
        made = Tensor(f"{self.op.name}.{word}", axes, dtype, like.role)
        self.layouts[made.name] = self.layouts[like.name]
        return made

    def state(self, context: Tensor) -> Tensor:
        """The kernel's random state, each rank's own. Its backward needs the state with and without dropout."""
        made = Tensor(f"{context.name}.random_state", ("state",), "int64", context.role)
        self.layouts[made.name] = Layout()
        return made

    def emit(
        self,
        word: str,
        operator: Operator,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        previous: tuple[Tensor, ...] | None = None,
    ) -> Operation:
        """An operation of the ring; `previous`: it runs in every turn, and reads these as the turn before left them."""
        loop = None
        if previous is not None:
            loop = Loop(f"{self.op.name}.turns", symbol(self.axis), tuple(each.name for each in previous))
        return replace(
            self.op, name=f"{self.op.name}.{word}", operator=operator, inputs=inputs, outputs=outputs, loop=loop
        )

    def keys(self, k: Tensor, v: Tensor) -> tuple[list[Operation], list[Operation], list[Tensor]]:
        """Operations that pack keys and values, operations that each turn sends, and the tensors that a turn reads."""
        axes = _packed(k, v)
        packed = self.tensor("keys", axes, k.dtype, k)
        before = [self.emit("pack", PackKeys(bool(self.value)), (k, v), (packed,))]
        if self.gathered:
            whole = self.tensor(f"keys.{ALL_GATHER.name}", axes, k.dtype, k)
            self.layouts[whole.name] = self.layouts[k.name].with_(self.axis, None)
            gather = Redistribution(ALL_GATHER.name, self.axis, source=k.axes[1])
            return [*before, self.emit(gather.move, gather, (packed,), (whole,))], [], [whole]
        came = self.tensor("keys.came", axes, k.dtype, k)
        move = Exchange(self.axis) if self.passing == "sent" else Rotate(self.axis, last=False)
        return before, [self.emit("exchange", move, (packed, came), (came,), (came,))], [packed, came]

    def forward(self) -> list[Operation]:
        (q, k, v), (context, lse) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        sent = self.passing == "sent"
        merged = context if sent else self.tensor("merged", context.axes, "fp32", context)
        inputs, carried = (q, *held, merged, lse), (*held[1:], merged, lse)
        step = RingStep(self.gathered, self.axis, self.balanced, **self.words(k))
        turn.append(self.emit("turn", step, inputs, (merged, lse, state), carried))
        if sent:
            return [*before, *turn]
        # For code outside, all iterations of the ring and the cast are one call.
        result = self.emit("result", Cast(), (merged,), (context,))
        return [*before, *turn, replace(result, marks=result.marks | {Tag.SAVED})]

    def backward(self) -> list[Operation]:
        if self.passing == "sent":
            return self.sent_back()
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        state = self.state(context)
        before, turn, held = self.keys(k, v)
        of_q = self.tensor("queries", dq.axes, "fp32", dq)
        axes = _packed(k, v)
        of_keys, came = (self.tensor(word, axes, "fp32", dk) for word in ("gradients", "gradients.came"))
        # Where some turns compute nothing, received keys are still passed on.
        own = of_keys if self.balanced else self.tensor("gradients.own", axes, "fp32", dk)
        adds = (came,) if self.balanced else ()
        inputs = (dy, q, *held, context, lse, state, of_q, *adds)
        step = RingStepGradient(self.gathered, self.axis, self.balanced, adds=self.balanced, **self.words(k))
        turn.append(self.emit("turn", step, inputs, (of_q, own), (*held[1:], of_q, *adds)))
        if not self.balanced:
            turn.append(self.emit("add", AddReceived(), (own, came), (of_keys,), (came,)))
        turn.append(self.emit("return", Rotate(self.axis, last=True), (of_keys,), (came,), ()))
        return [*before, *turn, self.emit("results", UnpackGradients(self.value), (of_q, came), (dq, dk, dv))]

    def sent_back(self) -> list[Operation]:
        """The backward of a ring of sends: the other way around, from the keys that came last."""
        (dy, q, k, v, context, lse), (dq, dk, dv) = self.op.inputs, self.op.outputs
        axes = _packed(k, v)
        kept = Tensor(f"{context.name}.keys.came", axes, dk.dtype, context.role)
        came = self.tensor("keys.came", axes, dk.dtype, dk)
        own, with_keys, sums = (self.tensor(f"gradients{word}", axes, dk.dtype, dk) for word in (".own", ".came", ""))
        step = RingStepGradient(False, self.axis, self.balanced, back=True, adds=False, **self.words(k))
        inputs = (dy, q, kept, came, context, lse, self.state(context), dq)
        exchange = Exchange(self.axis, back=True)
        return [
            self.emit("exchange", exchange, (kept, came, sums), (came, with_keys), (came, sums)),
            self.emit("turn", step, inputs, (dq, own), (came, dq)),
            self.emit("add", AddReceived(), (own, with_keys), (sums,), ()),
            self.emit("unpack", UnpackKeys(self.value), (sums,), (dk, dv)),
        ]


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
