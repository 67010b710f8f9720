"""A symbolic graph as rows of its nodes and relationships, and the graph of such rows."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stagedb.files.stored_values import json_list, json_mapping
from stagedb.ir.facts import OpFacts, TensorFacts
from stagedb.ir.operators import Momentum, Orthogonalisation
from stagedb.ir.operators.optimizer import GRADIENTS, UPDATES, ToHost
from stagedb.ir.symbolic_graph import (
    BlockSpec,
    Collective,
    Compute,
    EdgeKind,
    Hop,
    MessageEnd,
    OpType,
    Parameter,
    SymEdge,
    SymGraph,
    SymLoop,
    SymOp,
    SymTensor,
    When,
)
from stagedb.workflows import Template, template_named


def graph_of(
    row: Mapping[str, Any],
    tensors: Sequence[Mapping[str, Any]],
    ops: Sequence[Mapping[str, Any]],
    edges: Sequence[Mapping[str, Any]],
    reads: Mapping[str, tuple[str, ...]],
    writes: Mapping[str, tuple[str, ...]],
) -> SymGraph:
    """The graph of its nodes' properties in the order of their numbers.

    edges: source, target (names), kind, hop, present. reads, writes: by name of an op, the names of its tensors. row:
    the properties of the node of the graph.
    """
    return SymGraph(
        key=row["id"],
        name=row["name"],
        recipe=row["recipe"],
        options=row["options"],
        sizes=json_mapping(row["sizes"], "sizes"),
        blocks=blocks_of(row["blocks"]),
        tensors=tuple(_tensor(each) for each in tensors),
        ops=tuple(_op(each, reads, writes) for each in ops),
        edges=tuple(
            SymEdge(each["source"], each["target"], EdgeKind(each["kind"]), Hop(each["hop"]), each["present"])
            for each in edges
        ),
    )


def blocks_of(text: str) -> tuple[BlockSpec, ...]:
    """The blocks of a graph. text: the JSON of the property `blocks` of its node."""
    return tuple(BlockSpec(**_values(block, _BLOCK)) for block in json_list(text, "blocks"))


_ON_THE_WAY = (Momentum.kind, Orthogonalisation.kind, ToHost.kind)
"""The kinds of operators that make something of gradients for the optimizer: matrices, and copies on the host."""


def gradient_rows(graph: SymGraph) -> list[dict[str, str]]:
    """The rows that the statement `build/gradients` takes: each weight with its gradient."""
    key = graph.key
    return [{"gradient": f"{key}/{gradient}", "weight": f"{key}/{weight}"} for gradient, weight in _gradients(graph)]


def _gradients(graph: SymGraph) -> Iterator[tuple[str, str]]:
    """Pairs of a gradient and its weight: what an optimizer reads, and what it was made of: each reduction's operand,
    the matrices of Muon, and copies on the host."""
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    makers = [op for op in graph.ops if op.type is OpType.COLLECTIVE or op.kind in _ON_THE_WAY]
    reductions = {name: op for op in makers for name in op.writes if roles[name] in GRADIENTS}
    for op in graph.ops:
        if op.kind not in UPDATES:
            continue
        weights = [name for name in op.reads if roles[name] == "weight"]
        gradients = [name for name in op.reads if roles[name] in GRADIENTS]
        for weight, gradient in zip(weights, gradients, strict=True):
            yield gradient, weight
            while gradient in reductions:
                gradient = reductions[gradient].reads[0]
                yield gradient, weight


def graph_rows(graph: SymGraph) -> dict[str, list[dict[str, Any]]]:
    """Rows of each statement, in the order in which the statements run. `number` keeps the order of a graph."""
    key = graph.key
    return {
        "tensors": [
            {**_tensor_properties(tensor), "id": f"{key}/{tensor.name}", "graph": key, "number": number}
            for number, tensor in enumerate(graph.tensors)
        ],
        "ops": [
            {**_op_properties(op), "id": f"{key}/{op.name}", "graph": key, "number": number}
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


def graph_digest(graph: SymGraph) -> str:
    """sha256 of all nodes and relationships of a graph, and of what its own node has."""
    own = [graph.name, graph.recipe, graph.options, graph.sizes, [block_row(block) for block in graph.blocks]]
    return hashlib.sha256(json.dumps([own, graph_rows(graph)], sort_keys=True).encode()).hexdigest()


def _op_properties(op: SymOp) -> dict[str, Any]:
    """The properties of an operator. One that computes nothing has the costs 0, so that queries can add them."""
    loop = {} if op.loop is None else {"times": op.loop.times, "loop": op.loop.first, "previous": op.loop.previous}
    arrives = {"comm_out_bytes": op.work.comm_out_bytes} if isinstance(op.work, MessageEnd) else {}
    common = {name: getattr(op, name) for name in (*_OP, "type")}
    return _plain({**_NO_COSTS, **common, **vars(op.work), **arrives, **loop, **vars(op.facts)})


def _tensor_properties(tensor: SymTensor) -> dict[str, Any]:
    own = {name: getattr(tensor, name) for name in _TENSOR}
    known = {name: value or None for name, value in vars(tensor.facts).items()}
    return _plain({**_NO_PARAMETER, **own, **({} if tensor.parameter is None else vars(tensor.parameter)), **known})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a database takes them, without those that are None."""
    return {
        name: list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str | Template) else value
        for name, value in values.items()
        if value is not None
    }


def block_row(block: BlockSpec) -> dict[str, Any]:
    """A block's fields, without the numbers of its layers where its repeats follow each other."""
    fields = dataclasses.asdict(block)
    return fields if block.layers is not None else {name: value for name, value in fields.items() if name != "layers"}


_BLOCK = tuple(field.name for field in dataclasses.fields(BlockSpec))
_TENSOR = tuple(field.name for field in dataclasses.fields(SymTensor) if field.name not in ("parameter", "facts"))
_PARAMETER = tuple(field.name for field in dataclasses.fields(Parameter))
_APART = ("reads", "writes", "work", "loop", "facts")
_OP = tuple(field.name for field in dataclasses.fields(SymOp) if field.name not in _APART)
_COMPUTE, _COLLECTIVE, _MESSAGE = (
    tuple(field.name for field in dataclasses.fields(work)) for work in (Compute, Collective, MessageEnd)
)
_TENSOR_FACTS = tuple(field.name for field in dataclasses.fields(TensorFacts))
_NO_COSTS = {**vars(Compute()), "previous": ()}
_NO_PARAMETER = dict.fromkeys(("buckets", "grads", "gathers", "readers"), ())


def _tensor(row: Mapping[str, Any]) -> SymTensor:
    parameter = Parameter(**_values(row, _PARAMETER)) if row.get("elements") is not None else None
    facts = TensorFacts(**_values(row, _TENSOR_FACTS))
    return SymTensor(**_values(row, _TENSOR), parameter=parameter, facts=facts)


def _op(
    row: Mapping[str, Any],
    reads: Mapping[str, tuple[str, ...]],
    writes: Mapping[str, tuple[str, ...]],
) -> SymOp:
    name = row["name"]
    return SymOp(
        **{**_values(row, _OP), "template": template_named(row["template"]), "when": When(row["when"])},
        reads=reads.get(name, ()),
        writes=writes.get(name, ()),
        work=_work(row),
        loop=None if row.get("loop") is None else SymLoop(row["times"], row["loop"], tuple(row["previous"])),
        facts=OpFacts.of(row),
    )


def _work(row: Mapping[str, Any]) -> Compute | Collective | MessageEnd:
    match OpType(row["type"]):
        case OpType.COMPUTE:
            return Compute(**_values(row, _COMPUTE))
        case OpType.COLLECTIVE:
            return Collective(**_values(row, _COLLECTIVE))
        case (OpType.SEND | OpType.RECV) as end:
            return MessageEnd(**{**_values(row, _MESSAGE), "type": end})


def _values(row: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    known = {name: row[name] for name in names if row.get(name) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
