"""What instantiation reads of a stored graph, and its expressions evaluated for a plan."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.instance.buckets import BucketOp, Gradient, Weight
from stagedb.instance.layout import BUCKET, Block
from stagedb.parallel import GROUP_AXES, Plan
from stagedb.store import Store
from stagedb.symbols import evaluate

COSTS = ("flops", "bytes_read", "bytes_written", "comm_bytes", "comm_out_bytes")
"""Columns of a symbolic op that hold one expression each; `dims` holds several."""


@dataclass(frozen=True)
class StoredGraph:
    """The rows of a graph that decide the shape of its instances: a few hundred, whatever the model's depth."""

    id: str
    name: str
    options: Mapping[str, Any]
    sizes: Mapping[str, int]
    blocks: tuple[tuple[str, str], ...]  # name and how often it repeats
    ops: tuple[Mapping[str, Any], ...]
    weights: tuple[Mapping[str, Any], ...]
    edge_conditions: tuple[str, ...]


@dataclass(frozen=True)
class Evaluated:
    """A graph under a plan: the value of every expression that a present op, edge or weight holds."""

    values: Mapping[str, int]
    blocks: tuple[Block, ...]
    weights: Mapping[str, tuple[Weight, ...]]
    buckets: tuple[BucketOp, ...]
    axes: Mapping[str, str]  # on which present collectives run, and one of them
    orders: int


def read_graph(store: Store, graph: str) -> StoredGraph:
    """Raises UsageError when the store has no whole graph of this id."""
    rows = store.read("instantiate/graph", graph=graph)
    if not rows:
        raise UsageError(f"the store has no graph {graph!r}: `stagedb ls` lists them, `stagedb build` makes one")
    (row,) = rows
    return StoredGraph(
        id=graph,
        name=row["name"],
        options=json.loads(row["options"]),
        sizes=json.loads(row["sizes"]),
        blocks=tuple((block["name"], block["repeat"]) for block in json.loads(row["blocks"])),
        ops=tuple(store.read("instantiate/ops", graph=graph)),
        weights=tuple(store.read("instantiate/weights", graph=graph)),
        edge_conditions=tuple(row["present"] for row in store.read("instantiate/edge_conditions", graph=graph)),
    )


def evaluate_graph(graph: StoredGraph, plan: Plan) -> Evaluated:
    """Evaluate each distinct expression once, but none of what is absent under the plan: it need not come out whole."""
    values = _Values(plan.env(graph.sizes))
    ops = [op for op in graph.ops if values.present(op, op["name"])]
    for op in ops:
        if op["times"] is not None:
            raise StagedbError(f"{op['name']} of graph {graph.id} is to be unrolled, which this version cannot do")
        if op["block"] == BUCKET:
            continue  # its costs are sums over its members
        for column in COSTS:
            if op[column] is not None:
                values.of(op[column], f"{column} of {op['name']}")
        for dim in op["dims"] or ():
            values.of(dim, f"dims of {op['name']}")
    for condition in graph.edge_conditions:
        values.of(condition, "the condition of an edge")
    by_name = {op["name"]: op for op in ops}
    blocks = tuple(
        Block(name, None if repeat == "1" else values.of(repeat, f"repeat of block {name}"))
        for name, repeat in graph.blocks
    )
    return Evaluated(
        values=values.known,
        blocks=blocks,
        weights=_weights(graph, by_name, values),
        buckets=tuple(
            BucketOp(op["name"], op["bucket"], op["order"], op["template"] == "step")
            for op in ops
            if op["block"] == BUCKET
        ),
        axes=_axes(ops),
        orders=1 + max((op["order"] for op in graph.ops), default=0),
    )


class _Values:
    """Expressions evaluated so far; each text once."""

    def __init__(self, env: Mapping[str, int]) -> None:
        self._env = env
        self.known: dict[str, int] = {}

    def of(self, text: str, what: str) -> int:
        if text not in self.known:
            self.known[text] = evaluate(text, self._env, what=what)
        return self.known[text]

    def present(self, row: Mapping[str, Any], what: str) -> bool:
        return row["present"] is None or self.of(row["present"], f"the condition of {what}") > 0


def _weights(
    graph: StoredGraph, ops: Mapping[str, Mapping[str, Any]], values: _Values
) -> dict[str, tuple[Weight, ...]]:
    weights: dict[str, list[Weight]] = {}
    for row in sorted(graph.weights, key=lambda row: (row["block"], row["order"])):
        buckets = tuple(name for name in row["buckets"] or () if name in ops)
        if not buckets or not values.present(row, row["name"]):
            continue
        gradients = tuple(
            Gradient(name, ops[name]["block"], ops[name]["order"]) for name in row["grads"] or () if name in ops
        )
        size = values.of(row["grad_bytes"], f"gradient bytes of {row['name']}")
        weights.setdefault(row["block"], []).append(
            Weight(row["name"], row["block"], row["order"], size, gradients, buckets)
        )
    return {block: tuple(rows) for block, rows in weights.items()}


def _axes(ops: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    axes = {op["axis"]: op["name"] for op in ops if op["type"] == "collective"}
    unknown = sorted(set(axes) - set(GROUP_AXES))
    if unknown:
        raise StagedbError(f"the graph has collectives on axis {unknown[0]!r}; known are {', '.join(GROUP_AXES)}")
    return axes
