"""From laid-out blocks to the stored form: costs, step operators, gradient buckets, messages between stages, edges."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.collectives import ALL_GATHER
from stagedb.graphs.block import LaidOut
from stagedb.graphs.costs import Sizes
from stagedb.graphs.operations import data_edges, either, sym_op, with_bypasses, without_repeats
from stagedb.graphs.optimizer_step import MASTER, OwnedLayers, Tie, UpdateRule, is_master, parameters_of, step
from stagedb.graphs.sharing import ReductionRules, all_buckets, bucket_ops, shard_elements
from stagedb.ir.expressions import largest, parse, smallest, symbol
from stagedb.ir.facts import OpFacts
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.operators import KEYS, SLICE, Einsum, Redistribution, dump
from stagedb.ir.operators.optimizer import HOST_ACTIVATION, ON_HOST, ToHost
from stagedb.ir.packed_weights import PACKED
from stagedb.ir.symbolic_graph import (
    BlockSpec,
    Collective,
    MessageEnd,
    OpType,
    Parameter,
    SymEdge,
    SymOp,
    SymTensor,
    When,
)
from stagedb.ir.tensors import Operation, Tensor
from stagedb.models.named_facts import FIRST_TOKENS, is_tokens, op_facts, tensor_facts
from stagedb.workflows import RECOMPUTE, Template
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT

AGAIN = symbol("runs") - 1
"""1 in a layer that recomputes the parts that the graph's options name, else 0."""


@dataclass(frozen=True)
class Assembled:
    """The rows of a graph: its blocks, tensors, operators and edges."""

    blocks: tuple[BlockSpec, ...]
    tensors: tuple[SymTensor, ...]
    ops: tuple[SymOp, ...]
    edges: tuple[SymEdge, ...]


def assemble(
    blocks: tuple[LaidOut, ...],
    usual: Sizes,
    own: Mapping[str, Sizes],
    reduction_rules: ReductionRules,
    tie: Tie | None,
    rule: UpdateRule,
    buffers: tuple[tuple[Tensor, Layout], ...] = (),
    scattered: bool = False,
) -> Assembled:
    """All rows of a graph whose blocks are in this order. `buffers` are held on every stage, in their layouts.

    usual: the sizes of axes. own: those of blocks that have others, by the block's name.
    scattered: ranks of tp hold the same tensor, and each sends a part of it to the next stage, which gathers the parts.
    rule: what updates weights.
    """
    ops: list[SymOp] = []
    tensors: dict[str, SymTensor] = {}
    parameters: dict[str, Parameter] = {}
    for number, block in enumerate(blocks):
        sizes = own.get(block.plan.name, usual)
        owned = OwnedLayers.of(number, block, sizes) if reduction_rules.owned else None
        once_a_step, step_tensors, layouts, buckets = step(
            block, reduction_rules, tie, rule, repeats="kv_heads" in sizes.replicable
        )
        rows = [*block.operations, *once_a_step]
        for place, op in enumerate(rows):
            here = sizes if owned is None else owned.sizes_of(op)
            row = sym_op(block, op, place, here, layouts, reduction_rules, tie)
            ops.append(row if owned is None else owned.placed(op, row))
        parameters |= _parameters(block, rows, sizes, layouts, buckets, reduction_rules, tie)
        tensors |= {row.name: row for row in _tensors(block, rows, step_tensors, sizes, layouts, tie)}
    used = {name for each in parameters.values() for name in (*each.buckets, *each.gathers)}
    parameters = _share_tied_gradients(parameters, tie)
    tensors |= {name: dataclasses.replace(tensors[name], parameter=each) for name, each in parameters.items()}
    ops += bucket_ops([bucket for bucket in all_buckets(reduction_rules) if bucket.name in used])
    cut_ops, cut_tensors = _cut(blocks, usual, scattered)
    ops += cut_ops
    tensors |= {tensor.name: tensor for tensor in cut_tensors}
    tensors |= {tensor.name: _sym_tensor("stage", tensor, usual, layout) for tensor, layout in buffers}
    specs = tuple(_spec(block) for block in blocks)
    grads = () if tie is None else parameters[tie.first].grads
    tied = (grads[-1], f"{blocks[0].plan.name}.optimizer") if grads else None
    edges = with_bypasses(ops, data_edges(specs, ops, tied))
    again = {name: of for block in blocks for name, of in block.repeats.items()}
    if again:
        once = without_repeats(ops, again)
        edges = either(edges, with_bypasses(once, data_edges(specs, once, tied)), AGAIN)
        ops = [_if_again(op) if _recomputes(op) else op for op in ops]
    packed = {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype in PACKED}
    ops = [dataclasses.replace(op, facts=_facts(op, packed)) for op in ops]
    return Assembled(specs, tuple(tensors.values()), tuple(ops), edges)


def _facts(op: SymOp, packed: Mapping[str, str]) -> OpFacts:
    """The facts of an operation. packed: the formats of weights in 4 bits, by their names."""
    formats = (packed[name] for name in op.reads if name in packed and op.kind == Einsum.kind)
    return dataclasses.replace(op_facts(op.name), packed=next(formats, None))


def _tensors(
    block: LaidOut,
    operations: list[Operation],
    step_tensors: list[Tensor],
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    tie: Tie | None,
) -> Iterator[SymTensor]:
    """The tensors of a block as rows. step_tensors: those that its operations once a step have in addition."""
    storages = {op.outputs[0].name: op.inputs[0].name for op in operations if op.operator.in_place}
    storages |= {each.name: FIRST_TOKENS for each in block.given if is_tokens(each) and each.name != FIRST_TOKENS}
    storages |= {
        op.outputs[place].name: op.inputs[0].name for op in operations for place in op.operator.views[: len(op.outputs)]
    }
    others = [*block.given, *(t for op in operations for t in (*op.inputs, *op.outputs)), *step_tensors]
    for tensor in dict.fromkeys(others):
        if tensor.role != "weight":
            yield _sym_tensor(
                block.plan.name,
                tensor,
                sizes,
                layouts[tensor.name],
                operations,
                present=_present_tensor(block, tensor, tie),
                repeats=block.repeats.get(tensor.name),
                storage=storages.get(tensor.name),
                kept=tensor.name in block.kept,
            )
    for weight in block.weights:
        parted = str(symbol("pp") - 1) if tie is not None and weight.name == tie.second else None
        yield _sym_tensor(block.plan.name, weight, sizes, layouts[weight.name], present=parted)


def _recomputes(op: SymOp) -> bool:
    """Whether an operation is there only in layers that recompute."""
    kept = op.kind == ToHost.kind and not op.template.once
    return kept or (op.phase == RECOMPUTE and op.block != "bucket")


def _if_again(op: SymOp) -> SymOp:
    present = AGAIN if op.present is None else smallest(parse(op.present), AGAIN)
    return dataclasses.replace(op, present=str(present))


def _spec(block: LaidOut) -> BlockSpec:
    def name(tensor: Tensor | None) -> str | None:
        return None if tensor is None else tensor.name

    return BlockSpec(
        block.plan.name,
        block.plan.repeat,
        name(block.input),
        name(block.output),
        name(block.output_gradient),
        name(block.input_gradient),
        block.plan.layers,
    )


def _present_tensor(block: LaidOut, tensor: Tensor, tie: Tie | None) -> str | None:
    """The condition under which a master copy or a recomputed tensor exists; None for all other tensors.

    A tied copy has a master copy where stages part it.
    """
    if tensor.name in block.repeats or tensor.role == HOST_ACTIVATION:
        return str(AGAIN)
    parted = tie is not None and tensor.name.startswith(f"{tie.second}.")
    if parted and tensor.role in ON_HOST:
        return str(symbol("pp") - 1)
    if not is_master(tensor):
        return None
    return str(smallest(MASTER, symbol("pp") - 1) if parted else MASTER)


def _kept_sizes(cache: Tensor, rows: Iterable[Operation], sizes: Sizes) -> Sizes:
    """The sizes of what a cache keeps: of a sequence's positions those that later steps may read."""
    if KEYS not in cache.axes:
        return sizes  # the cache is a state, whose size does not depend on the length of the sequence
    readers = (op.operator for op in rows if cache in op.inputs)
    kept = largest(*(reader.keys_kept(sizes.axes.__getitem__) for reader in readers))
    return Sizes({**sizes.axes, KEYS: kept}, sizes.replicable)


def _sym_tensor(
    block: str, tensor: Tensor, sizes: Sizes, layout: Layout, operations: Iterable[Operation] = (), **more: Any
) -> SymTensor:
    """A tensor of a block as a row.

    operations: those of the block, which decide what a cache keeps. more: further fields of the row.
    """
    held = _kept_sizes(tensor, operations, sizes) if tensor.role == "cache" else sizes
    return SymTensor(
        name=tensor.name,
        block=block,
        role=tensor.role,
        dtype=tensor.dtype,
        axes=tensor.axes,
        shape=tuple(map(str, sizes.shape(tensor))),
        local=tuple(map(str, sizes.local_shape(tensor, layout))),
        layout=layout.texts(),
        bytes=str(held.bytes(tensor, layout)),
        facts=tensor_facts(tensor.name, tensor.role),
        **more,
    )


def _parameters(
    block: LaidOut,
    operations: list[Operation],
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    buckets: Mapping[str, list[str]],
    reduction_rules: ReductionRules,
    tie: Tie | None,
) -> dict[str, Parameter]:
    found = {}
    copies = {weight.name: {weight.name} for weight in block.weights}
    for op in operations:
        for name in copies.keys() & {t.name for t in op.inputs}:
            if isinstance(op.operator, Redistribution):
                copies[name] |= {t.name for t in op.outputs}
    readers: dict[str, dict[str, None]] = {}
    for op in operations:
        for tensor in op.inputs:
            readers.setdefault(tensor.name, {})[op.name] = None
    places = {op.name: place for place, op in enumerate(operations)}
    makers = {tensor.name: op for op in block.operations for tensor in op.outputs}
    issued = {op.name: place for place, op in enumerate(block.operations)}
    for order, weight in enumerate(block.weights):
        layout = layouts[weight.name]
        shape = sizes.local_shape(weight, layout)
        if reduction_rules.owned:
            shard = sizes.elements(weight, layout) / parameters_of(weight, layout, sizes)
        else:
            shard = shard_elements(shape, block.rows[weight.name], layout, reduction_rules.columns)
        updated = reduction_rules.sharded or weight.name in block.gradients
        sharded: dict[str, Any] = {
            "rows": block.rows[weight.name],
            "shard": str(shard),
            "gathers": tuple(bucket.name for bucket in reduction_rules.parameters if updated and bucket.takes(layout)),
            "readers": tuple(
                sorted({name for copy in copies[weight.name] for name in readers.get(copy, ())}, key=places.__getitem__)
            ),
        }
        found[weight.name] = Parameter(
            order,
            elements=str(sizes.elements(weight, layout)),
            buckets=tuple(buckets[weight.name]),
            grads=_made_with(block.gradients[weight.name], makers, issued) if weight.name in block.gradients else (),
            tied=tie.first if tie is not None and weight.name == tie.second else None,
            **(sharded if reduction_rules.optimizer or reduction_rules.owned else {}),
        )
    return found


def _made_with(grad: Tensor, makers: Mapping[str, Operation], issued: Mapping[str, int]) -> tuple[str, ...]:
    """The operation that makes a weight's gradient and, if it is issued later, the one that makes the input's gradient.

    Frameworks release a gradient when the whole backward of the layer has run, so a bucket waits for both.
    makers: the operation of the block that makes a tensor. issued: the places of its operations in issue order.
    """
    maker = makers[grad.name]
    if isinstance(maker.operator, Redistribution):
        return (*_made_with(maker.inputs[0], makers, issued), maker.name)
    twin = f"{maker.origin}.input_gradient"
    return (maker.name, twin) if issued.get(twin, -1) > issued[maker.name] else (maker.name,)


def _share_tied_gradients(parameters: dict[str, Parameter], tie: Tie | None) -> dict[str, Parameter]:
    """If one stage holds both ends of a tie, the operations of both ends make the gradient of the first weight."""
    if tie is None:
        return parameters
    first, second = parameters[tie.first], parameters[tie.second]
    twin = any(name.endswith(".input_gradient") for name in second.grads[-1:])
    made = second.grads[:1] if twin else second.grads[-1:]
    grads, readers = (*first.grads, *made), (*first.readers, *second.readers)
    return {**parameters, tie.first: dataclasses.replace(first, grads=grads, readers=readers)}


def _cut(blocks: tuple[LaidOut, ...], sizes: Sizes, scattered: bool) -> tuple[list[SymOp], list[SymTensor]]:
    """The messages between stages: hidden states onward, their gradients back, in the layout between blocks.

    Blocks read `cut.recv_…` and leave `cut.send_…`. Both are whole, even if messages are scattered.
    """
    tensors: list[SymTensor] = []
    ops: list[SymOp] = []
    backward = next((block for block in blocks if block.output_gradient is not None), blocks[0])
    for word, source, tensor, template in (
        ("forward", blocks[0], blocks[0].output, FORWARD),
        ("backward", backward, backward.output_gradient, INPUT_GRADIENT),
    ):
        if tensor is None:
            continue
        layout = source.layouts[tensor.name]
        made = _scattered if scattered else _whole
        for op, rows in made(word, tensor, template, layout, sizes):
            ops.append(dataclasses.replace(op, order=len(ops)))
            tensors += rows
    return ops, tensors


NewOps = Iterator[tuple[SymOp, list[SymTensor]]]
"""The ops of a message, and the new tensors of each op."""


def _whole(word: str, tensor: Tensor, template: Template, layout: Layout, sizes: Sizes) -> NewOps:
    for kind in ("recv", "send"):
        row = _cut_tensor(f"{kind}_{word}", tensor, layout, sizes)
        yield _end(kind, word, template, row, row.bytes), [row]


def _scattered(word: str, tensor: Tensor, template: Template, layout: Layout, sizes: Sizes) -> NewOps:
    """Megatron's scatter/gather: each rank of tp sends its part, a view, and the receiving ranks gather the parts.

    The part is one of a flat tensor, whose outermost axis is the sequence.
    """
    row = _cut_tensor(f"recv_{word}", tensor, layout, sizes)
    part = _cut_tensor(f"part_{word}", tensor, layout.with_("tp", Partitioned("seq")), sizes)
    yield _end("recv", word, template, part, part.bytes), [part]
    gather = SymOp(
        name=f"cut.gather_{word}",
        block="cut",
        template=template,
        kind=ALL_GATHER.name,
        phase=template.phase,
        when=When.EVERY,
        order=0,
        reads=(part.name,),
        writes=(row.name,),
        work=Collective("tp", part.bytes, row.bytes, row.dtype),
        semantics=dump(Redistribution(ALL_GATHER.name, "tp", source="seq")),
    )
    yield gather, [row]
    whole = _cut_tensor(f"send_{word}", tensor, layout, sizes)
    send = _end("send", word, template, whole, part.bytes)
    yield dataclasses.replace(send, semantics=dump(Redistribution(SLICE, "tp", target="seq"))), [whole]


def _cut_tensor(name: str, like: Tensor, layout: Layout, sizes: Sizes) -> SymTensor:
    return _sym_tensor("cut", Tensor(f"cut.{name}", like.axes, like.dtype, like.role), sizes, layout)


def _end(kind: str, word: str, template: Template, row: SymTensor, message: str) -> SymOp:
    """One end of a message of this many bytes. The message is a tensor."""
    return SymOp(
        name=f"cut.{kind}_{word}",
        block="cut",
        template=template,
        kind=kind,
        phase=template.phase,
        when=When.EVERY,
        order=0,
        reads=(row.name,) if kind == "send" else (),
        writes=(row.name,) if kind == "recv" else (),
        work=MessageEnd(OpType.SEND if kind == "send" else OpType.RECV, "pp", message, row.dtype),
    )
