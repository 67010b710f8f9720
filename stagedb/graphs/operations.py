"""One laid-out operator as a row of the graph: its computation or its communication."""

from collections.abc import Mapping
from typing import Any, Literal

from stagedb.graphs.block import LaidOut
from stagedb.graphs.costs import CLASS_BYTES, Sizes, cost
from stagedb.graphs.optimizer_step import OfShards, Tie, absent_bytes
from stagedb.graphs.sharing import ReductionRules, group_of, present_if_shared
from stagedb.graphs.temporaries import temporary
from stagedb.ir.expressions import Expression, largest, number, smallest, symbol, total
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
from stagedb.ir.symbolic_graph import Collective, Compute, MessageEnd, OpType, SymLoop, SymOp, When
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
