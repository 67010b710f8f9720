"""Dataflow between operators of a block, across blocks, and around collectives that groups of one member leave out."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

from stagedb.ir.expressions import Expression, parse, smallest, symbol
from stagedb.ir.symbolic_graph import BlockSpec, EdgeKind, Hop, OpType, SymEdge, SymOp


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
