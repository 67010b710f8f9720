"""A graph small enough to read: an embedding, layers of one tensor-parallel matmul, a head, and what a stage needs."""

import dataclasses
import json
from typing import Any

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
    SymOp,
    SymTensor,
    When,
)
from stagedb.plans import GraphOptions
from stagedb.workflows import Template
from stagedb.workflows.training import FORWARD, INPUT_GRADIENT, STEP, WEIGHT_GRADIENT

F, I, W, S = FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, STEP  # noqa: E741
SHARE = {"dtype": "reduce", "comm_bytes": "e_reduce*elements", "comm_out_bytes": "e_reduce*elements"}
HIDDEN = "B*S*H*e_act/dp"
PHASES = {F: "forward", I: "backward", W: "backward", S: "optimizer"}


def op(name: str, template: Template, order: int, kind: str = "matmul", **more: Any) -> SymOp:
    """An op of the block that its name begins with."""
    costs = {field.name for field in dataclasses.fields(Compute)}
    work = more.pop("work", None) or Compute(**{word: more.pop(word) for word in costs & more.keys()})
    fields: dict[str, Any] = {"work": work, "when": When.EVERY, "reads": (), "writes": (), **more}
    return SymOp(
        name=name,
        block=name.split(".")[0],
        template=template,
        kind=kind,
        phase=PHASES[template],
        order=order,
        **fields,
    )


def comm(name: str, template: Template, order: int, axis: str, kind: str, **more: Any) -> SymOp:
    """A collective, or one end of a message."""
    if kind in ("send", "recv"):
        message = MessageEnd(OpType.SEND if kind == "send" else OpType.RECV, axis, HIDDEN, "act")
        return op(name, template, order, kind, work=message, **more)
    words = {field.name for field in dataclasses.fields(Collective)} & more.keys()
    sizes = {"comm_bytes": HIDDEN, "comm_out_bytes": HIDDEN, "dtype": "act", **{word: more.pop(word) for word in words}}
    return op(name, template, order, kind, work=Collective(axis, **sizes), **more)


def weight(name: str, order: int, elements: str, grads: tuple[str, ...], *buckets: str, **more: Any) -> SymTensor:
    """A weight whose gradient passes the named buckets."""
    return SymTensor(
        name=name,
        block=name.split(".")[0],
        role="weight",
        dtype="param",
        axes=("out", "in"),
        shape=("H", "H"),
        local=("H", "H"),
        layout=(),
        bytes=f"e_param*{elements}",
        parameter=Parameter(order, elements, buckets=tuple(f"bucket.{name}" for name in buckets), grads=grads),
        **more,
    )


TP: dict[str, Any] = {"present": "tp - 1"}
MATMUL: dict[str, Any] = {"flops": "2*B*S*H**2/(dp*tp)", "dims": ("B*S/dp", "H/tp", "H"), "bytes_read": HIDDEN}

OPS = (
    op("embedding.look_up", F, 0, "embedding", bytes_read=HIDDEN, bytes_written=HIDDEN),
    op("embedding.look_up.gradient", W, 1, "embedding", bytes_read=HIDDEN),
    op("embedding.optimizer", S, 2, "optimizer", bytes_read="V*H*e_opt"),
    op("layer.project", F, 0, **MATMUL),
    comm("layer.project.all_reduce", F, 1, "tp", "all_reduce", **TP),
    op("layer.project.weight_gradient", W, 2, **MATMUL),
    op("layer.project.input_gradient", I, 3, **MATMUL),
    comm("layer.project.input_gradient.all_reduce", I, 4, "tp", "all_reduce", **TP),
    op("layer.optimizer", S, 5, "optimizer"),
    op("head.loss", F, 0, "loss", flops="2*B*S*H*V/(dp*tp)"),
    op("head.loss.gradient", I, 1, "loss"),
    op("head.optimizer", S, 2, "optimizer"),
    comm("cut.recv_forward", F, 0, "pp", "recv"),
    comm("cut.send_forward", F, 1, "pp", "send"),
    comm("cut.recv_backward", I, 2, "pp", "recv"),
    comm("cut.send_backward", I, 3, "pp", "send"),
    comm("bucket.dp", W, 0, "dp", "all_reduce", present="dp - 1", bucket="ddp", when=When.LAST, **SHARE),
    comm("bucket.tp", S, 1, "tp", "all_reduce", present="tp - 1", bucket="one", **SHARE),
    # Exists only where key/value heads are shared; elsewhere its size would not even be whole.
    comm("layer.kv", W, 1, "kv", "all_reduce", present="max(tp - KV, 0)", comm_bytes="tp/KV", comm_out_bytes="tp/KV"),
)

WEIGHTS = (
    weight("embedding.table", 0, "V*H/tp", ("embedding.look_up.gradient",), "dp"),
    weight("layer.norm", 0, "H", ("layer.project.input_gradient",), "dp", "tp"),
    weight("layer.weight", 1, "H**2/tp", ("layer.project.weight_gradient",), "dp"),
    weight("head.weight", 0, "V*H/tp", ("head.loss.gradient",), "dp"),
    weight("head.copy", 1, "1/tp", ("head.loss.gradient",), "dp", present="1 - tp"),
)


def edge(source: str, target: str, hop: Hop = Hop.SAME, present: str | None = None) -> SymEdge:
    """A data edge."""
    return SymEdge(source, target, EdgeKind.DATA, hop, present)


ONE = "2 - tp"
EDGES = (
    edge("layer.project", "layer.project.all_reduce"),
    edge("layer.project.input_gradient", "layer.project.input_gradient.all_reduce"),
    edge("layer.project", "layer.project.weight_gradient"),
    edge("layer.project.weight_gradient", "layer.optimizer"),
    edge("layer.project.input_gradient", "layer.optimizer"),
    edge("embedding.look_up.gradient", "embedding.optimizer"),
    edge("head.loss", "head.loss.gradient"),
    edge("head.loss.gradient", "head.optimizer"),
    edge("layer.project.weight_gradient", "layer.kv"),
    # Where each stage's or block's input comes from; those with a condition go around the all-reduce of one rank.
    *(edge("embedding.look_up", target, Hop.PREVIOUS) for target in ("layer.project", "cut.send_forward")),
    *(edge("cut.recv_forward", target, Hop.PREVIOUS) for target in ("layer.project", "head.loss")),
    *(edge("cut.recv_backward", f"layer.project.{to}_gradient", Hop.NEXT) for to in ("weight", "input")),
    edge("cut.recv_backward", "embedding.look_up.gradient", Hop.NEXT),
    *(edge("head.loss.gradient", f"layer.project.{to}_gradient", Hop.NEXT) for to in ("weight", "input")),
    edge("head.loss.gradient", "cut.send_backward", Hop.NEXT),
    *(
        row
        for target in ("layer.project", "head.loss", "cut.send_forward")
        for row in (
            edge("layer.project.all_reduce", target, Hop.PREVIOUS),
            edge("layer.project", target, Hop.PREVIOUS, ONE),
        )
    ),
    *(
        row
        for target in (
            "layer.project.weight_gradient",
            "layer.project.input_gradient",
            "embedding.look_up.gradient",
            "cut.send_backward",
        )
        for row in (
            edge("layer.project.input_gradient.all_reduce", target, Hop.NEXT),
            edge("layer.project.input_gradient", target, Hop.NEXT, ONE),
        )
    ),
    edge("embedding.look_up", "head.loss", Hop.BLOCK),
)


def small_graph(
    layers: int = 2, hidden: int = 8, vocabulary: int = 32, key: str = "small", kv_heads: int = 4
) -> SymGraph:
    """The graph with the given sizes. Graphs of different sizes need different keys."""
    return SymGraph(
        key=key,
        name="toy",
        recipe="torch",
        options=json.dumps(GraphOptions().to_dict()),
        sizes={"L": layers, "H": hidden, "A": 4, "KV": kv_heads, "D": 2, "F": 16, "V": vocabulary},
        blocks=(BlockSpec("embedding", "1"), BlockSpec("layer", "L"), BlockSpec("head", "1")),
        tensors=WEIGHTS,
        ops=OPS,
        edges=EDGES,
    )
