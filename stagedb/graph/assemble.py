"""From laid-out blocks to the stored form: costs, step operators, gradient buckets, messages between stages, edges."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sympy

from stagedb.graph.block import LaidOut, cut
from stagedb.graph.costs import WIDTHS, Sizes, cost
from stagedb.graph.edges import data_edges, either, with_bypasses, without_repeats
from stagedb.graph.layout import Layout
from stagedb.graph.operators import AdamW, Cast, Exchange, Operator, Redistribution, Rotate, Send, dump
from stagedb.graph.symbolic import BlockSpec, OpType, SymEdge, SymOp, SymTensor, Template, When
from stagedb.graph.temporaries import temporary
from stagedb.graph.tensors import Operation, Tensor
from stagedb.symbols import canonical, parse, symbol

PHASES = {
    Template.FORWARD: "forward",
    Template.INPUT_GRADIENT: "backward",
    Template.WEIGHT_GRADIENT: "backward",
    Template.STEP: "optimizer",
}


@dataclass(frozen=True)
class Tie:
    """Two weights of one value: `second` (in another block) is a copy of `first` where stages part them."""

    first: str
    second: str


MASTER = symbol("copies") - 1
"""1 where the optimizer keeps an fp32 copy of the parameters beside them, else 0."""

AGAIN = symbol("runs") - 1
"""1 in a layer that recomputes what the graph's options say, else 0."""

SHARDS = symbol("dp") * symbol("cp") / symbol("hsdp")
"""Members of a group over which something is sharded: those of dp and cp, but for replicas (hybrid sharding)."""


def _of_experts(weight: Layout) -> bool:
    return weight.on("ep") is not None


def _shards(weight: Layout) -> sympy.Expr:
    """Members of a group that shares a weight: of experts, those that hold the same ones."""
    return symbol("edp") / symbol("hsdp") if _of_experts(weight) else SHARDS


@dataclass(frozen=True)
class Bucket:
    """A collective over many weights, or their gradients: its rule, mesh axis, and when it runs.

    `only` is a condition beside that its group has more than one member, of which there are `members` (None: as the
    mesh axis says). `dtype` is the class on the wire. `parts`: an
    all-reduce is over one rank's parts of the gradients, not whole ones; gathers and scatters always are of parts.
    of: whether it takes all weights, only those of `experts` that ranks of ep divide among them, or only `dense` ones.
    """

    name: str
    kind: str
    rule: str
    axis: str
    template: Template
    when: When = When.EVERY
    dtype: str = "reduce"
    only: sympy.Expr | None = None
    parts: bool = False
    members: sympy.Expr | None = None
    of: Literal["all", "dense", "experts"] = "all"

    def takes(self, weight: Layout) -> bool:
        """Whether a weight of this layout passes it."""
        return self.of == "all" or (self.of == "experts") == _of_experts(weight)

    def bytes(self) -> tuple[sympy.Expr, sympy.Expr]:
        """What one weight adds to the operand and to the result: it has `elements`, or `shard` of them on a rank."""
        if self.kind == "all_reduce":
            whole = (symbol("shard") if self.parts else symbol("elements")) * WIDTHS[self.dtype]
            return whole, whole
        part, shards = symbol("shard") * WIDTHS[self.dtype], symbol("edp") if self.axis == "edp" else SHARDS
        return (part, part * shards) if self.kind == "all_gather" else (part * shards, part)


@dataclass(frozen=True)
class Habits:
    """How gradients are reduced before the optimizer reads them, and parameters gathered before they are read.

    gradients: the buckets that gradients pass over dp, in that order. parameters: those that put sharded parameters
    together. partial: the bucket for gradients that are partial over tp, or None where each is reduced on its own once
    a step. sharded: whether each rank keeps a part of the parameters alone. optimizer: whether it updates a part alone.
    temporaries: whether gradients are computed by several kernels, with values between them (`graph.temporaries`).
    """

    gradients: tuple[Bucket, ...]
    parameters: tuple[Bucket, ...] = ()
    partial: Bucket | None = None
    sharded: bool = False
    optimizer: bool = False
    temporaries: bool = True


REPLICATED_HEADS = "bucket.gradients.kv"


@dataclass(frozen=True)
class Assembled:
    """The rows of a graph."""

    blocks: tuple[BlockSpec, ...]
    tensors: tuple[SymTensor, ...]
    ops: tuple[SymOp, ...]
    edges: tuple[SymEdge, ...]


def present_if_shared(axis: str) -> sympy.Expr:
    """Above 0 where the group of an axis has more than one member."""
    if axis == "kv":
        return sympy.Max(symbol("tp") - symbol("KV"), 0)
    if axis == "embedding":
        return symbol("pp") - 1
    if axis == "dp":
        return SHARDS - 1
    if axis == "edp":
        return symbol("edp") - 1
    if axis == "dp_replicate":
        return symbol("hsdp") - 1
    return symbol(axis) - 1


def assemble(
    blocks: tuple[LaidOut, ...],
    sizes: Sizes,
    habits: Habits,
    tie: Tie | None,
    buffers: tuple[tuple[Tensor, Layout], ...] = (),
) -> Assembled:
    """All rows of the graph whose blocks stand in this order. `buffers` are held on every stage, in their layouts."""
    ops: list[SymOp] = []
    tensors: dict[str, SymTensor] = {}
    used: set[str] = set()
    for block in blocks:
        step, step_tensors, layouts, buckets = _step(block, habits, tie)
        rows = [*block.operations, *step]
        ops += [_sym_op(block, op, i, sizes, layouts, habits, tie) for i, op in enumerate(rows)]
        weight_rows = _weights(block, rows, sizes, layouts, buckets, habits, tie)
        storages = {op.outputs[0].name: op.inputs[0].name for op in rows if op.operator.in_place}
        others = [*block.given, *(t for op in rows for t in (*op.inputs, *op.outputs)), *step_tensors]
        for tensor in others:
            if tensor.role != "weight":
                tensors[tensor.name] = dataclasses.replace(
                    _sym_tensor(block.plan.name, tensor, sizes, layouts[tensor.name]),
                    present=_present_tensor(block, tensor, tie),
                    repeats=block.repeats.get(tensor.name),
                    storage=storages.get(tensor.name),
                    kept=tensor.name in block.kept,
                )
        tensors |= weight_rows
        used |= {name for row in weight_rows.values() for name in (*row.buckets, *row.gathers)}
    tensors = _share_tied_gradients(tensors, tie)
    ops += _bucket_ops([bucket for bucket in _buckets(habits) if bucket.name in used])
    cut_ops, cut_tensors = _cut(blocks, sizes)
    ops += cut_ops
    tensors |= {tensor.name: tensor for tensor in cut_tensors}
    tensors |= {tensor.name: _sym_tensor("stage", tensor, sizes, layout) for tensor, layout in buffers}
    specs = tuple(_spec(block) for block in blocks)
    tied = None if tie is None else (tensors[tie.first].grads[-1], f"{blocks[0].plan.name}.optimizer")
    edges = with_bypasses(ops, data_edges(specs, ops, tied))
    repeats = {name: of for block in blocks for name, of in block.repeats.items()}
    if repeats:
        once = without_repeats(ops, repeats)
        edges = either(edges, with_bypasses(once, data_edges(specs, once, tied)), AGAIN)
        ops = [_if_again(op) if op.phase == "recompute" else op for op in ops]
    return Assembled(specs, tuple(tensors.values()), tuple(ops), edges)


def _if_again(op: SymOp) -> SymOp:
    present = AGAIN if op.present is None else sympy.Min(parse(op.present), AGAIN)
    return dataclasses.replace(op, present=canonical(present))


def _spec(block: LaidOut) -> BlockSpec:
    def name(tensor: Tensor | None) -> str | None:
        return None if tensor is None else tensor.name

    ports = map(name, (block.input, block.output, block.output_gradient, block.input_gradient))
    return BlockSpec(block.plan.name, block.plan.repeat, *ports)


def _buckets(habits: Habits) -> tuple[Bucket, ...]:
    """All buckets, in the order in which they are issued where they are due at the same time."""
    partial = () if habits.partial is None else (habits.partial,)
    heads = Bucket(REPLICATED_HEADS, "all_reduce", "one", "kv", Template.STEP, parts=habits.sharded)
    return (*habits.parameters, *partial, *habits.gradients, heads)


def _step(
    block: LaidOut, habits: Habits, tie: Tie | None
) -> tuple[list[Operation], list[Tensor], dict[str, Layout], dict[str, list[str]]]:
    """The once-a-step operations of a block: reductions of gradients one by one, then the optimizer.

    Returns also the new tensors, all layouts, and for each weight the buckets that its gradient passes.
    """
    layouts = dict(block.layouts)
    step: list[Operation] = []
    states: list[Tensor] = []
    buckets: dict[str, list[str]] = {}
    ready: list[Tensor] = []
    for weight in block.weights:
        grad = block.gradients[weight.name]
        partial = layouts[grad.name].partials()
        names = buckets.setdefault(weight.name, [])
        early = habits.partial is not None and habits.partial.template is not Template.STEP
        if "tp" in partial and habits.partial is not None and early:
            names.append(habits.partial.name)
        if "dp" in partial or "edp" in partial:
            names += [bucket.name for bucket in habits.gradients if bucket.takes(layouts[weight.name])]
        if "kv_heads" in weight.axes and "packed" not in weight.axes:
            names.append(REPLICATED_HEADS)
        if "tp" in partial and not early:
            if habits.partial is not None:
                names.append(habits.partial.name)
            else:
                grad = _reduce(step, layouts, block, grad, "tp")
        if tie is not None and weight.name in (tie.first, tie.second):
            grad = _reduce(step, layouts, block, grad, "embedding")
        while (part := cut(grad, layouts, weight, _in_step(grad))) is not None:
            step.append(part)
            (grad,) = part.outputs
        ready.append(grad)
        for word, dtype in (("exp_avg", "opt"), ("exp_avg_sq", "opt"), ("master", "fp32")):
            state = Tensor(f"{weight.name}.{word}", weight.axes, dtype, "optimizer_state")
            layouts[state.name] = layouts[weight.name]
            states.append(state)
    if block.weights:
        step.append(
            Operation(
                f"{block.plan.name}.optimizer",
                AdamW(),
                (*block.weights, *ready, *states),
                (*block.weights, *states),
                "step",
                Template.STEP,
                f"{block.plan.name}.optimizer",
            )
        )
    return step, states, layouts, buckets


def _in_step(grad: Tensor) -> Operation:
    return Operation(grad.name, Redistribution("slice", "tp"), (grad,), (), "step", Template.STEP, grad.name)


def _reduce(step: list[Operation], layouts: dict[str, Layout], block: LaidOut, grad: Tensor, axis: str) -> Tensor:
    name = f"{grad.name}.all_reduce.{axis}"
    reduced = Tensor(name, grad.axes, grad.dtype, grad.role)
    layouts[name] = layouts[grad.name].with_(axis, None)
    step.append(Operation(name, Redistribution("all_reduce", axis), (grad,), (reduced,), "step", Template.STEP, name))
    return reduced


def _operand(sizes: Sizes, move: Operator, tensor: Tensor, layout: Layout) -> sympy.Expr:
    """Bytes of a collective's operand. All ranks of ep call with one size: the largest."""
    uneven = isinstance(move, Redistribution) and move.mesh_axis == "ep"
    return sizes.message(tensor, layout) if uneven else sizes.bytes(tensor, layout)


def _sym_op(
    block: LaidOut,
    op: Operation,
    order: int,
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    habits: Habits,
    tie: Tie | None,
) -> SymOp:
    reads, writes = tuple(t.name for t in op.inputs), tuple(t.name for t in op.outputs)
    common: dict[str, Any] = {
        "block": block.plan.name,
        "template": op.template,
        "phase": "recompute" if op.recomputed else PHASES[op.template],
        "when": When.EVERY,
    }
    move = op.operator
    if op.loop is not None:
        loop = op.loop
        first = next(
            i for i, each in enumerate(block.operations) if each.loop is not None and each.loop.name == loop.name
        )
        common |= {"times": canonical(loop.times), "loop": first, "previous": loop.previous}
    if habits.optimizer and (habits.sharded or isinstance(move, AdamW)) and op.template is Template.STEP:
        rows = {**block.rows, **{block.gradients[name].name: rows for name, rows in block.rows.items()}}
        sizes = _OfShards(sizes.axes, sizes.replicable, rows)
    if isinstance(move, Exchange):
        sent = isinstance(move, Send)
        ends = op.inputs if sent else op.outputs
        message = canonical(move.message([sizes.bytes(tensor, layouts[tensor.name]) for tensor in ends]))
        present = move.present()
        return SymOp(
            name=op.name,
            type=OpType(move.kind),
            kind=move.kind,
            order=order,
            reads=reads,
            writes=writes,
            axis="cp",
            comm_bytes=message,
            comm_out_bytes=message,
            dtype=ends[0].dtype,
            peer=canonical(move.peer()),
            present=None if present is None else canonical(present),
            semantics=dump(move),
            **common,
        )
    if isinstance(move, Rotate) or (isinstance(move, Redistribution) and move.move != "slice"):
        tensor, result = op.inputs[0], op.outputs[0]
        present = present_if_shared(move.mesh_axis) if isinstance(move, Redistribution) else move.present()
        return SymOp(
            name=op.name,
            type=OpType.COLLECTIVE,
            kind=move.move if isinstance(move, Redistribution) else move.kind,
            order=order,
            reads=reads,
            writes=writes,
            axis=move.mesh_axis,
            comm_bytes=canonical(_operand(sizes, move, tensor, layouts[tensor.name])),
            comm_out_bytes=canonical(sizes.bytes(result, layouts[result.name])),
            dtype=tensor.dtype,
            present=None if present is None else canonical(present),
            semantics=dump(move),
            **common,
        )
    costs = cost(op, sizes, layouts)
    absent = _absent_bytes(op, sizes, layouts, tie) if isinstance(move, AdamW) else (sympy.Integer(0),) * 2
    sliced = isinstance(move, Redistribution)
    present = present_if_shared(move.mesh_axis) if isinstance(move, Redistribution) else move.present()
    if isinstance(move, Cast):
        present = _present_if_wider(op.inputs[0].dtype, op.outputs[0].dtype)
    return SymOp(
        name=op.name,
        type=OpType.COMPUTE,
        kind="slice" if sliced else move.kind,
        dtype=None if costs.flops == 0 else op.inputs[0].dtype,
        order=order,
        reads=reads,
        writes=writes,
        flops=canonical(costs.flops),
        bytes_read=canonical(costs.bytes_read - absent[0]),
        bytes_written=canonical(costs.bytes_written - absent[1]),
        temporary=canonical(temporary(op, sizes, layouts)) if habits.temporaries else "0",
        dims=tuple(map(canonical, costs.dims)),
        present=None if present is None else canonical(present),
        semantics=dump(move),
        **common,
    )


@dataclass(frozen=True)
class _OfShards(Sizes):
    """Sizes of the parts of weights, and what has their shape, that a rank holds where dp shards them.

    `rows` is by weight and by gradient; moments and reduced gradients have names that begin with theirs.
    """

    rows: Mapping[str, int] = field(default_factory=dict)

    def elements(self, tensor: Tensor, layout: Layout) -> sympy.Expr:
        origin = next(name for name in self.rows if tensor.name == name or tensor.name.startswith(f"{name}."))
        return shard_elements(self.local_shape(tensor, layout), self.rows[origin], _shards(layout))


def shard_elements(shape: tuple[sympy.Expr, ...], rows: int, shards: sympy.Expr = SHARDS) -> sympy.Expr:
    """Elements of one rank's part of a parameter that is cut into equal parts of whole rows, the last ones padded."""
    return sympy.ceiling(sympy.Mul(*shape[:rows]) / shards) * sympy.Mul(*shape[rows:])


def _absent_bytes(
    op: Operation, sizes: Sizes, layouts: Mapping[str, Layout], tie: Tie | None
) -> tuple[sympy.Expr, sympy.Expr]:
    """What the optimizer does not touch of all that it names.

    A tied copy where one stage holds both ends: everything of it. Else, without master copies those; with them it does
    not read the parameters, which it makes from them.
    """
    together = 0 if tie is None else 1 - sympy.Min(symbol("pp") - 1, 1)
    owners = dict(zip((t.name for t in _gradients(op)), (w.name for w in _weights_of(op)), strict=True))

    def share(tensor: Tensor, unused: sympy.Expr) -> sympy.Expr:
        copy = tie is not None and owners.get(tensor.name, tensor.name).startswith(tie.second)
        left_out = 1 - (1 - together) * (1 - unused) if copy else unused
        return left_out * sizes.bytes(tensor, layouts[tensor.name])

    def read_in_vain(tensor: Tensor) -> sympy.Expr:
        return MASTER if tensor.role == "weight" else written_in_vain(tensor)

    def written_in_vain(tensor: Tensor) -> sympy.Expr:
        return 1 - MASTER if _is_master(tensor) else sympy.Integer(0)

    return (
        sympy.Add(*(share(t, read_in_vain(t)) for t in op.inputs)),
        sympy.Add(*(share(t, written_in_vain(t)) for t in op.outputs)),
    )


def _is_master(tensor: Tensor) -> bool:
    return tensor.role == "optimizer_state" and tensor.name.endswith(".master")


def _present_tensor(block: LaidOut, tensor: Tensor, tie: Tie | None) -> str | None:
    """Under which condition a master copy, or what is computed again, is there; None for all else.

    A tied copy has a master copy where stages part it.
    """
    if tensor.name in block.repeats:
        return canonical(AGAIN)
    if not _is_master(tensor):
        return None
    parted = tie is not None and tensor.name.startswith(f"{tie.second}.")
    return canonical(sympy.Min(MASTER, symbol("pp") - 1) if parted else MASTER)


def _present_if_wider(source: str, target: str) -> sympy.Expr:
    """Above 0 where two dtype classes differ in width: a cast to the format that a tensor has already is left out."""
    return sympy.Max(WIDTHS[source] - WIDTHS[target], WIDTHS[target] - WIDTHS[source])


def _weights_of(op: Operation) -> list[Tensor]:
    return [t for t in op.inputs if t.role == "weight"]


def _gradients(op: Operation) -> list[Tensor]:
    return [t for t in op.inputs if t.role == "gradient"]


def _sym_tensor(block: str, tensor: Tensor, sizes: Sizes, layout: Layout) -> SymTensor:
    return SymTensor(
        name=tensor.name,
        block=block,
        role=tensor.role,
        dtype=tensor.dtype,
        axes=tensor.axes,
        shape=tuple(map(canonical, sizes.shape(tensor))),
        local=tuple(map(canonical, sizes.local_shape(tensor, layout))),
        layout=layout.texts(),
        bytes=canonical(sizes.bytes(tensor, layout)),
    )


def _weights(
    block: LaidOut,
    operations: list[Operation],
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    buckets: Mapping[str, list[str]],
    habits: Habits,
    tie: Tie | None,
) -> dict[str, SymTensor]:
    rows = {}
    copies = {weight.name: {weight.name} for weight in block.weights}
    for op in operations:
        for name in copies.keys() & {t.name for t in op.inputs}:
            if isinstance(op.operator, Redistribution):
                copies[name] |= {t.name for t in op.outputs}
    for order, weight in enumerate(block.weights):
        layout = layouts[weight.name]
        copy = tie is not None and weight.name == tie.second
        shard = shard_elements(sizes.local_shape(weight, layout), block.rows[weight.name], _shards(layout))
        sharded: dict[str, Any] = {
            "rows": block.rows[weight.name],
            "shard": canonical(shard),
            "gathers": tuple(bucket.name for bucket in habits.parameters if bucket.takes(layout)),
            "readers": tuple(op.name for op in operations if copies[weight.name] & {t.name for t in op.inputs}),
        }
        rows[weight.name] = SymTensor(
            **{
                **vars(_sym_tensor(block.plan.name, weight, sizes, layout)),
                "order": order,
                "elements": canonical(sizes.elements(weight, layout)),
                "buckets": tuple(buckets[weight.name]),
                "grads": _made_with(block, block.gradients[weight.name]),
                "tied": tie.first if tie is not None and copy else None,
                "present": canonical(symbol("pp") - 1) if copy else None,
                **(sharded if habits.optimizer else {}),
            }
        )
    return rows


def _made_with(block: LaidOut, grad: Tensor) -> tuple[str, ...]:
    """The operation that makes a weight's gradient and, where it is issued later, its twin for the input.

    Frameworks hand a gradient on when the whole backward of the layer has run, so a bucket waits for both.
    """
    names = {op.name: i for i, op in enumerate(block.operations)}
    (maker,) = [op for op in block.operations if grad.name in {t.name for t in op.outputs}]
    if isinstance(maker.operator, Redistribution):
        return (*_made_with(block, maker.inputs[0]), maker.name)
    twin = f"{maker.origin}.input_gradient"
    return (maker.name, twin) if names.get(twin, -1) > names[maker.name] else (maker.name,)


def _share_tied_gradients(tensors: dict[str, SymTensor], tie: Tie | None) -> dict[str, SymTensor]:
    """Where one stage holds both ends of a tie, the first weight's gradient is made by both ends' operations."""
    if tie is None:
        return tensors
    first, second = tensors[tie.first], tensors[tie.second]
    grads, readers = (*first.grads, second.grads[0]), (*first.readers, *second.readers)
    shared = SymTensor(**{**vars(first), "grads": grads, "readers": readers})
    return {**tensors, tie.first: shared}


def _bucket_ops(buckets: list[Bucket]) -> list[SymOp]:
    return [
        SymOp(
            name=bucket.name,
            block="bucket",
            template=bucket.template,
            type=OpType.COLLECTIVE,
            kind=bucket.kind,
            phase=PHASES[bucket.template],
            when=bucket.when,
            order=order,
            reads=(),
            writes=(),
            axis=bucket.axis,
            comm_bytes=canonical(bucket.bytes()[0]),
            comm_out_bytes=canonical(bucket.bytes()[1]),
            dtype=bucket.dtype,
            present=canonical(_present(bucket)),
            bucket=bucket.rule,
        )
        for order, bucket in enumerate(buckets)
    ]


def _present(bucket: Bucket) -> sympy.Expr:
    shared = present_if_shared(bucket.axis) if bucket.members is None else bucket.members - 1
    return shared if bucket.only is None else sympy.Min(shared, bucket.only)


def _cut(blocks: tuple[LaidOut, ...], sizes: Sizes) -> tuple[list[SymOp], list[SymTensor]]:
    """The messages between stages: hidden states onward, their gradients back, in the layout between blocks."""
    source = blocks[0]
    if source.output is None or source.output_gradient is None:
        return [], []
    tensors, ops = [], []
    for word, tensor, template, order in (
        ("forward", source.output, Template.FORWARD, 0),
        ("backward", source.output_gradient, Template.INPUT_GRADIENT, 2),
    ):
        layout = source.layouts[tensor.name]
        for end, kind in enumerate(("recv", "send")):
            name = f"cut.{kind}_{word}"
            row = _sym_tensor("cut", Tensor(name, tensor.axes, tensor.dtype, tensor.role), sizes, layout)
            tensors.append(row)
            ops.append(
                SymOp(
                    name=name,
                    block="cut",
                    template=template,
                    type=OpType(kind),
                    kind=kind,
                    phase=PHASES[template],
                    when=When.EVERY,
                    order=order + end,
                    reads=(name,) if kind == "send" else (),
                    writes=(name,) if kind == "recv" else (),
                    axis="pp",
                    comm_bytes=row.bytes,
                    comm_out_bytes=row.bytes,
                    dtype=row.dtype,
                )
            )
    return ops, tensors
