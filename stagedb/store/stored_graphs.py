"""Symbolic graphs, written to a store and read back equal."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.faults import fault_point
from stagedb.ir.symbolic_graph import (
    FORMAT,
    BlockSpec,
    EdgeKind,
    Hop,
    OpType,
    SymEdge,
    SymGraph,
    SymOp,
    SymTensor,
    When,
)
from stagedb.store.connection import Store
from stagedb.store.leases import building
from stagedb.store.typed_properties import graph_properties
from stagedb.workflows import Template, template_named


def write_graph(store: Store, graph: SymGraph) -> bool:
    """Write a graph to the store, unless it exists. True if it was written.

    The graph is invisible until it is complete. If two processes write the same graph, one waits for the other.
    """
    properties = {
        **graph_properties(graph.options, graph.sizes),
        "name": graph.name,
        "recipe": graph.recipe,
        "options": graph.options,
        "sizes": json.dumps(graph.sizes, sort_keys=True),
        "blocks": json.dumps([_block(block) for block in graph.blocks]),
        "format": FORMAT,
    }
    with building(store, "Graph", graph.key, properties) as lease:
        if lease is None:
            return False
        for name, rows in _rows(graph).items():
            store.write_rows(f"build/{name}", rows, **({"graph": graph.key} if name in _OF_GRAPH else {}))
            lease.renew()
            fault_point(f"build.{name}")
    return True


def read_graph(store: Store, id: str) -> SymGraph:
    """The graph with this id, equal to the one that was written. Raises UsageError if there is none."""
    found = store.read("build/graph", id=id)
    if not found:
        raise UsageError(f"the store has no graph {id!r}: `stagedb ls` lists them, `stagedb build` makes one")
    (row,) = found
    if row["format"] != FORMAT:
        raise UsageError(
            f"graph {id} has format {row['format']}, and this stagedb reads format {FORMAT}: "
            "remove it with `stagedb rm` and build it again"
        )
    reads = _ends(store, "reads", id)
    writes = _ends(store, "writes", id)
    return SymGraph(
        key=id,
        name=row["name"],
        recipe=row["recipe"],
        options=row["options"],
        sizes=json.loads(row["sizes"]),
        blocks=blocks_of(row["blocks"]),
        tensors=tuple(_tensor(each["tensor"]) for each in store.read("build/all_tensors", id=id)),
        ops=tuple(_op(each["op"], reads, writes) for each in store.read("build/all_ops", id=id)),
        edges=tuple(
            SymEdge(each["source"], each["target"], EdgeKind(each["kind"]), Hop(each["hop"]), each["present"])
            for each in store.read("build/all_edges", id=id)
        ),
    )


def blocks_of(text: str) -> tuple[BlockSpec, ...]:
    """The blocks of a graph from the JSON that the store has of them."""
    return tuple(BlockSpec(**_values(block, _BLOCK)) for block in json.loads(text))


def gradient_rows(graph: SymGraph) -> list[dict[str, str]]:
    """Rows of `build/gradients`."""
    key = graph.key
    return [{"gradient": f"{key}/{gradient}", "weight": f"{key}/{weight}"} for gradient, weight in _gradients(graph)]


def _gradients(graph: SymGraph) -> Iterator[tuple[str, str]]:
    """Pairs of a gradient and its weight: what an optimizer reads, and what each reduction of it has read before."""
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    reductions = {name: op for op in graph.ops if op.type is OpType.COLLECTIVE for name in op.writes}
    for op in graph.ops:
        if op.kind != "optimizer":
            continue
        weights = [name for name in op.reads if roles[name] == "weight"]
        gradients = [name for name in op.reads if roles[name] == "gradient"]
        for weight, gradient in zip(weights, gradients, strict=True):
            yield gradient, weight
            while gradient in reductions:
                gradient = reductions[gradient].reads[0]
                yield gradient, weight


_OF_GRAPH = ("tensors", "ops")
"""Statements that connect the nodes they write to their graph."""


def _rows(graph: SymGraph) -> dict[str, list[dict[str, Any]]]:
    """Rows of each statement, in the order in which the statements run. `number` keeps the order of a graph."""
    key = graph.key
    return {
        "tensors": [
            {**_plain(tensor), "id": f"{key}/{tensor.name}", "graph": key, "number": number}
            for number, tensor in enumerate(graph.tensors)
        ],
        "ops": [
            {**_plain(op, "reads", "writes"), "id": f"{key}/{op.name}", "graph": key, "number": number}
            for number, op in enumerate(graph.ops)
        ],
        "reads": [
            {"op": f"{key}/{op.name}", "tensor": f"{key}/{tensor}", "slot": slot}
            for op in graph.ops
            for slot, tensor in enumerate(op.reads)
        ],
        "writes": [
            {"op": f"{key}/{op.name}", "tensor": f"{key}/{tensor}", "slot": slot}
            for op in graph.ops
            for slot, tensor in enumerate(op.writes)
        ],
        "gradients": gradient_rows(graph),
        "edges": [
            {
                "source": f"{key}/{edge.source}",
                "target": f"{key}/{edge.target}",
                "number": number,
                "kind": str(edge.kind),
                "hop": str(edge.hop),
                "present": edge.present,
            }
            for number, edge in enumerate(graph.edges)
        ],
    }


def _plain(row: SymTensor | SymOp, *without: str) -> dict[str, Any]:
    """The fields as a database takes them, without those that are None."""
    values = {field.name: getattr(row, field.name) for field in dataclasses.fields(row) if field.name not in without}
    return {
        name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str | Template) else value
        for name, value in values.items()
        if value is not None
    }


def _ends(store: Store, name: str, id: str) -> dict[str, tuple[str, ...]]:
    return {row["op"]: tuple(row["tensors"]) for row in store.read(f"build/all_{name}", id=id)}


def _block(block: BlockSpec) -> dict[str, Any]:
    """A block's fields, without the numbers of its layers where its repeats follow each other."""
    fields = dataclasses.asdict(block)
    return fields if block.layers is not None else {name: value for name, value in fields.items() if name != "layers"}


_BLOCK = tuple(field.name for field in dataclasses.fields(BlockSpec))
_TENSOR = tuple(field.name for field in dataclasses.fields(SymTensor))
_OP = tuple(field.name for field in dataclasses.fields(SymOp))


def _tensor(row: Mapping[str, Any]) -> SymTensor:
    return SymTensor(**_values(row, _TENSOR))


def _op(row: Mapping[str, Any], reads: Mapping[str, tuple[str, ...]], writes: Mapping[str, tuple[str, ...]]) -> SymOp:
    name = row["name"]
    kinds = {"template": template_named(row["template"]), "type": OpType(row["type"]), "when": When(row["when"])}
    ends = {"reads": reads.get(name, ()), "writes": writes.get(name, ())}
    return SymOp(**{**_values(row, _OP), **kinds, **ends})


def _values(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    known = {name: row[name] for name in names if row.get(name) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
