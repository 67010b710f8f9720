"""Laid-out operators as rows of the graph, and the dataflow between them as its edges."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Literal

from stagedb.graphs.block import LaidOut
from stagedb.graphs.costs import CLASS_BYTES, Sizes, cost, temporary
from stagedb.graphs.optimizer_step import OfShards, Tie, absent_bytes
from stagedb.graphs.sharing import ReductionRules, group_of, present_if_shared
from stagedb.ir.expressions import Expression, largest, number, parse, smallest, symbol, total
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import (
    COPIES,
    KV_HEADS,
    PAD,
    SHARE,
    SLICE,
    Cast,
    Contiguous,
    CopyHeads,
    Exchange,
    Redistribution,
    Rotate,
    Send,
    SumCopies,
    Update,
    dump,
)
from stagedb.ir.operators.optimizer import OFFLOADED
from stagedb.ir.operators.token_copies import ExchangeTokens
from stagedb.ir.symbolic_graph import (
    BlockSpec,
    Collective,
    Compute,
    EdgeKind,
    Hop,
    MessageEnd,
    OpType,
    SymEdge,
    SymLoop,
    SymOp,
    When,
)
from stagedb.ir.tensors import Operation, Tensor
from stagedb.workflows import RECOMPUTE


def sym_op(
    block: LaidOut,
    op: Operation,
    order: int,
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    reduction_rules: ReductionRules,
    tie: Tie | None,
) -> SymOp:
    """The row of an operation. order: its index in its block.

    layouts: by name of a tensor, how ranks hold it. sizes: of the tensors' parts on one rank. tie: None without tied
    embeddings.
    """
    move = op.operator
    common: dict[str, Any] = {
        "name": op.name,
        "block": block.plan.name,
        "template": op.template,
        "phase": RECOMPUTE if op.recomputed else op.template.phase,
        "when": When.EVERY,
        "order": order,
        "reads": tuple(t.name for t in op.inputs),
        "writes": tuple(t.name for t in op.outputs),
        "semantics": dump(move),
        "loop": _loop(block, op),
    }
    if (
        reduction_rules.optimizer
        and (reduction_rules.sharded or isinstance(move, (Update, *OFFLOADED)))
        and op.template.once
    ):
        rows = {**block.rows, **{grad.name: block.rows[name] for name, grad in block.gradients.items()}}
        sizes = OfShards(sizes.axes, sizes.replicable, rows, reduction_rules.columns)
    if isinstance(move, Exchange):
        return _exchange(op, move, sizes, layouts, common)
    if isinstance(move, ExchangeTokens):
        return _tokens(op, move, sizes, layouts, common)
    if isinstance(move, Rotate) or (isinstance(move, Redistribution) and move.collective is not None):
        return _collective(op, move, sizes, layouts, common)
    return _compute(op, sizes, layouts, reduction_rules, tie, common)


def _loop(block: LaidOut, op: Operation) -> SymLoop | None:
    """How often an operator of a loop runs, and where the loop begins."""
    loop = op.loop
    if loop is None:
        return None
    first = next(i for i, each in enumerate(block.operations) if each.loop is not None and each.loop.name == loop.name)
    return SymLoop(str(loop.times), first, loop.previous)


def _exchange(
    op: Operation, move: Exchange, sizes: Sizes, layouts: Mapping[str, Layout], common: Mapping[str, Any]
) -> SymOp:
    ends = op.inputs if isinstance(move, Send) else op.outputs
    message = str(move.message([sizes.bytes(tensor, layouts[tensor.name]) for tensor in ends]))
    return SymOp(
        kind=move.kind,
        work=MessageEnd(_end(move), move.mesh_axis, message, ends[0].dtype, str(move.peer())),
        present=_text(move.present()),
        **common,
    )


def _end(move: Exchange) -> Literal[OpType.SEND, OpType.RECV]:
    return OpType.SEND if isinstance(move, Send) else OpType.RECV


def _collective(
    op: Operation, move: Rotate | Redistribution, sizes: Sizes, layouts: Mapping[str, Layout], common: Mapping[str, Any]
) -> SymOp:
    tensor, result = op.inputs[0], op.outputs[0]
    redistributes = isinstance(move, Redistribution)
    axis = group_of(move.mesh_axis) if redistributes else move.mesh_axis
    return SymOp(
        kind=move.move if isinstance(move, Redistribution) else move.kind,
        work=Collective(
            axis,
            str(sizes.bytes(tensor, layouts[tensor.name])),
            str(sizes.bytes(result, layouts[result.name])),
            tensor.dtype,
        ),
        present=_text(present_if_shared(axis) if redistributes else move.present()),
        **common,
    )


def _tokens(
    op: Operation, move: ExchangeTokens, sizes: Sizes, layouts: Mapping[str, Layout], common: Mapping[str, Any]
) -> SymOp:
    """An exchange of tokens. All that it carries is one message for each target."""
    sent, came = (
        total(sizes.bytes(tensor, layouts[tensor.name]) for tensor in move.carried(tensors))
        for tensors in (op.inputs, op.outputs)
    )
    return SymOp(
        kind=move.kind,
        work=Collective(move.mesh_axis, str(sent), str(came), op.inputs[0].dtype),
        present=None,
        **common,
    )


LOCAL: Mapping[str, str] = {SLICE: "slice", SHARE: "elementwise", PAD: "elementwise"}
"""The kinds of the redistributions that a rank does alone."""


def _compute(
    op: Operation,
    sizes: Sizes,
    layouts: Mapping[str, Layout],
    reduction_rules: ReductionRules,
    tie: Tie | None,
    common: Mapping[str, Any],
) -> SymOp:
    """The row of an operator that a rank runs alone. A redistribution without a message is one of these."""
    move = op.operator
    costs = cost(op, sizes, layouts)
    absent = absent_bytes(op, sizes, layouts, tie) if isinstance(move, Update) else (number(0),) * 2
    if move.reads_gradients and reduction_rules.clips:
        # Clipping reads all gradients for their norms, then reads and writes them to scale them.
        clipped = total(sizes.bytes(t, layouts[t.name]) for t in op.inputs if t.role == "gradient")
        absent = (absent[0] - 2 * clipped, absent[1] - clipped)
    present = present_if_shared(group_of(move.mesh_axis)) if isinstance(move, Redistribution) else move.present()
    if isinstance(move, Cast):
        present = _present_if_wider(op.inputs[0].dtype, op.outputs[0].dtype)
    if isinstance(move, Contiguous) and present is not None:
        # The rows of a single head are in the same order with heads first or tokens first.
        heads = sizes.local("heads", layouts[op.outputs[0].name].cuts("heads"))
        present = smallest(present, heads - 1)
    if isinstance(move, OFFLOADED) and tie is not None and op.name.startswith(f"{tie.second}."):
        present = symbol("pp") - 1
    if isinstance(move, CopyHeads | SumCopies):
        present = _present_if_copied(op, sizes, layouts)
    return SymOp(
        kind=LOCAL[move.move] if isinstance(move, Redistribution) else move.kind,
        work=Compute(
            flops=str(costs.flops),
            bytes_read=str(costs.bytes_read - absent[0]),
            bytes_written=str(costs.bytes_written - absent[1]),
            temporary=str(temporary(op, sizes, layouts)) if reduction_rules.temporaries else "0",
            dims=tuple(map(str, costs.dims)),
            dtype=None if costs.flops == 0 else move.computes_in or _computed_in(op.inputs[0]),
        ),
        present=_text(present),
        **common,
    )


def _computed_in(operand: Tensor) -> str:
    """The class of formats that an operation computes in: that of activations for what a kernel reads from a cache."""
    return "act" if operand.role == "cache" else operand.dtype


def _text(condition: Expression | None) -> str | None:
    return None if condition is None else str(condition)


def _present_if_copied(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Above 0 where a rank has more copies of key/value heads than heads."""
    counts = {axis: sizes.local(axis, layouts[t.name].cuts(axis)) for t in (*op.inputs, *op.outputs) for axis in t.axes}
    return counts[COPIES] - counts[KV_HEADS]


def _present_if_wider(source: str, target: str) -> Expression:
    """Above 0 where two dtype classes differ in width: a cast to the format that a tensor has already is left out."""
    return largest(CLASS_BYTES[source] - CLASS_BYTES[target], CLASS_BYTES[target] - CLASS_BYTES[source])


# Dataflow between operators of a block, across blocks, and around collectives that groups of one member leave out.


def data_edges(blocks: tuple[BlockSpec, ...], ops: list[SymOp], tied: tuple[str, str] | None) -> list[SymEdge]:
    """An edge for every read of a value that another operator writes.

    tied: the operator that makes the second half of a tied weight's gradient, and the operator that waits for it if one
    stage has both ends. blocks: of the graph. ops: all operators, in order.
    """
    writers: dict[str, str] = {}
    edges: dict[SymEdge, None] = {}
    turns = {name: op.name for op in ops if op.loop is not None for name in op.writes}
    for op in ops:
        for name in op.reads:
            if op.loop is not None and name in op.loop.previous:
                edges[SymEdge(turns[name], op.name, EdgeKind.DATA, Hop.TURN)] = None
            elif name in writers and writers[name] != op.name:
                edges[SymEdge(writers[name], op.name, EdgeKind.DATA, Hop.SAME)] = None
        # Weights and optimizer states are updated in place: the step writes the tensors that it reads.
        writers |= {name: op.name for name in op.writes if name not in op.reads or op.loop is not None}
    readers: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        for name in op.reads:
            readers[name].append(op.name)
    for edge in (*_between(blocks, writers, readers), *_turn(blocks, writers, readers), *_sent(ops, [*edges])):
        edges.setdefault(edge, None)
    if tied is not None:
        together = str(2 - symbol("pp"))
        edges[SymEdge(tied[0], tied[1], EdgeKind.DATA, Hop.BLOCK, together)] = None
    return list(edges)


def _between(
    blocks: tuple[BlockSpec, ...], writers: dict[str, str], readers: dict[str, list[str]]
) -> Iterable[SymEdge]:
    """A block's input is its predecessor's output. The order of blocks decides which ones can be neighbours."""
    near = _neighbours(blocks)
    for i, before in enumerate(blocks):
        for j, after in enumerate(blocks):
            if (i, j) not in near:
                continue
            yield from _hop(writers, readers, before.output, after.input, Hop.PREVIOUS)
            yield from _hop(writers, readers, after.input_gradient, before.output_gradient, Hop.NEXT)
    for block in blocks:
        yield from _hop(writers, readers, "cut.recv_forward", block.input, Hop.PREVIOUS)
        yield from _hop(writers, readers, block.output, "cut.send_forward", Hop.PREVIOUS)
        yield from _hop(writers, readers, "cut.recv_backward", block.output_gradient, Hop.NEXT)
        yield from _hop(writers, readers, block.input_gradient, "cut.send_backward", Hop.NEXT)


def _turn(blocks: tuple[BlockSpec, ...], writers: dict[str, str], readers: dict[str, list[str]]) -> Iterable[SymEdge]:
    """The backward begins after the loss, although its gradient is a constant that reads nothing."""
    for block in blocks:
        if block.output is None:
            loss = f"{block.name}.loss"
            for reader in readers[f"{loss}.gradient"]:
                yield SymEdge(writers[loss], reader, EdgeKind.PROGRAM, Hop.SAME)


def _sent(ops: list[SymOp], edges: list[SymEdge]) -> Iterable[SymEdge]:
    """A loop sends no message before all inputs of its compute are there: one call starts both."""
    loops = {op.name: (op.block, op.loop.first) for op in ops if op.loop is not None}
    sends = {loops[op.name]: op.name for op in ops if op.type is OpType.SEND and op.loop is not None}
    known = {(edge.source, edge.target) for edge in edges}
    for edge in edges:
        send = sends.get(loops[edge.target]) if edge.target in loops else None
        if send is not None and edge.source not in loops and (edge.source, send) not in known:
            yield SymEdge(edge.source, send, EdgeKind.PROGRAM, edge.hop)


def _neighbours(blocks: tuple[BlockSpec, ...]) -> set[tuple[int, int]]:
    """Which blocks, by their places among the graph's blocks, can follow each other on a stage."""
    if any(block.layers is not None for block in blocks):
        first, *_, last = range(len(blocks))
        layers = [(number, i) for i, block in enumerate(blocks) for number in block.layers or ()]
        return set(pairwise((first, *(i for _, i in sorted(layers)), last)))
    pairs = ((i, j) for i in range(len(blocks)) for j in range(len(blocks)))
    return {
        (i, j) for i, j in pairs if (j in (i, i + 1) or _skippable(blocks, i, j)) and not (i == j and blocks[i].once)
    }


def _skippable(blocks: tuple[BlockSpec, ...], i: int, j: int) -> bool:
    """Whether a stage may have none of the blocks between the two, as all of these are repeated ones."""
    return i < j and not any(block.once for block in blocks[i + 1 : j])


def _hop(
    writers: dict[str, str], readers: dict[str, list[str]], source: str | None, target: str | None, hop: Hop
) -> Iterable[SymEdge]:
    if source is None or target is None or source not in writers:
        return
    for reader in readers[target]:
        yield SymEdge(writers[source], reader, EdgeKind.DATA, hop)


def absent(present: str) -> Expression:
    """Above 0 exactly where `present` (a degree minus one) is 0."""
    return 1 - parse(present)


def with_bypasses(ops: list[SymOp], edges: list[SymEdge]) -> tuple[SymEdge, ...]:
    """The edges, and bypasses: one edge for every path through operators that may be left out.

    ops: all operators of the graph, in order. edges: those between neighbouring operators.
    """
    # If a loop's last turn leaves its exchange out, no operator of that turn reads the exchange.
    optional = {
        op.name: op.present
        for op in ops
        if op.present is not None and op.block not in ("bucket", "cut") and op.loop is None
    }
    leaving: dict[str, list[SymEdge]] = defaultdict(list)
    for edge in edges:
        leaving[edge.source].append(edge)
    found: dict[SymEdge, None] = dict.fromkeys(edges)

    def walk(start: SymEdge, hop: Hop, missing: tuple[str, ...]) -> None:
        """`start` leads to an optional operator: connect its source to the operators after it."""
        name = missing[-1]
        if optional[name] == optional.get(start.source):
            return  # both ends of the edge are absent under the same condition
        for edge in leaving[name]:
            if hop is not Hop.SAME and edge.hop is not Hop.SAME:
                raise ValueError(f"a path over {name} leaves its block twice")
            onward = edge.hop if hop is Hop.SAME else hop
            conditions = sorted({optional[m] or "" for m in missing})
            gone = smallest(*(absent(c) for c in conditions)) if len(conditions) > 1 else absent(conditions[0])
            found[SymEdge(start.source, edge.target, EdgeKind.DATA, onward, str(gone))] = None
            if edge.target in optional:
                walk(start, onward, (*missing, edge.target))

    for edge in edges:
        # Ends that are optional under the same condition are absent at the same time, so that no bypass is needed.
        if edge.target in optional and optional.get(edge.source) != optional[edge.target]:
            walk(edge, edge.hop, (edge.target,))
    return tuple(found)


def either(edges: Iterable[SymEdge], others: Iterable[SymEdge], condition: Expression) -> tuple[SymEdge, ...]:
    """The first edges where a condition is 1, the others where it is 0; edges in both sets always."""
    first, second = dict.fromkeys(edges), dict.fromkeys(others)
    return (
        *(edge if edge in second else _where(edge, condition) for edge in first),
        *(_where(edge, 1 - condition) for edge in second if edge not in first),
    )


def _where(edge: SymEdge, condition: Expression) -> SymEdge:
    both = condition if edge.present is None else smallest(parse(edge.present), condition)
    return dataclasses.replace(edge, present=str(both))


def without_repeats(ops: list[SymOp], repeats: Mapping[str, str]) -> list[SymOp]:
    """The operators as they are without recomputation. Readers of a recomputed tensor read the forward's.

    repeats: the forward's tensor of each recomputed one. ops: all operators of the graph.
    """
    kept = [op for op in ops if not any(name in repeats for name in op.writes)]
    return [dataclasses.replace(op, reads=tuple(repeats.get(name, name) for name in op.reads)) for op in kept]
