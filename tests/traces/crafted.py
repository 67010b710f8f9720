"""A small trace set written with the protobuf library: two pipeline stages of two tensor-parallel ranks."""

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.proto import serialize_length_prefixed

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import ATTRIBUTE_FIELDS

WORLD = 4
GROUPS = {10: [0, 1], 11: [2, 3]}


@dataclass(frozen=True)
class CraftedNode:
    """One node; `fields` overrides the value type of an attribute."""

    id: int
    type: int
    data_deps: tuple[int, ...] = ()
    ctrl_deps: tuple[int, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    name: str | None = None
    micros: int = 0

    def message(self) -> pb.Node:
        word = pb.NodeType.Name(self.type) if self.type in pb.NodeType.values() else "UNKNOWN"
        node = pb.Node(id=self.id, name=self.name or f"op.{self.id} {word}", type=self.type)  # type: ignore[arg-type]
        node.duration_micros = self.micros
        node.data_deps.extend(self.data_deps)
        node.ctrl_deps.extend(self.ctrl_deps)
        for name, value in {"is_cpu_op": False, **self.attributes}.items():
            if value is not None:
                attribute = node.attr.add(name=name)
                setattr(attribute, self.fields.get(name, ATTRIBUTE_FIELDS[name]), value)
        return node

    def but(self, **attributes: Any) -> "CraftedNode":
        """The node with other attributes; None leaves one out."""
        return replace(self, attributes={**self.attributes, **attributes})


def compute(id: int, *data: int, ctrl: tuple[int, ...] = ()) -> CraftedNode:
    return CraftedNode(id, pb.COMP_NODE, data, ctrl, {"num_ops": 100, "tensor_size": 64})


def all_reduce(id: int, group: int, *data: int, ctrl: tuple[int, ...] = (), size: int = 1024) -> CraftedNode:
    attributes = {"comm_type": pb.ALL_REDUCE, "comm_size": size, "pg_name": str(group)}
    return CraftedNode(id, pb.COMM_COLL_NODE, data, ctrl, attributes)


def send(id: int, to: int, tag: int, *data: int, ctrl: tuple[int, ...] = ()) -> CraftedNode:
    attributes = {"comm_dst": to, "comm_tag": tag, "comm_size": 512}
    return CraftedNode(id, pb.COMM_SEND_NODE, data, ctrl, attributes)


def recv(id: int, source: int, tag: int) -> CraftedNode:
    return CraftedNode(id, pb.COMM_RECV_NODE, (), (), {"comm_src": source, "comm_tag": tag, "comm_size": 512})


Set = dict[int, list[CraftedNode]]


def sound() -> Set:
    """Every rule holds, and the replay ends."""
    first = [
        [compute(1), all_reduce(2, 10, 1), send(3, rank + 2, 0, 2), recv(4, rank + 2, 1), compute(5, 4)]
        for rank in (0, 1)
    ]
    last = [
        [recv(1, rank - 2, 0), compute(2, 1), all_reduce(3, 11, 2), compute(4, 3), send(5, rank - 2, 1, 4, ctrl=(3,))]
        for rank in (2, 3)
    ]
    chained = [[*nodes[:2], replace(nodes[2], ctrl_deps=()), *nodes[3:]] for nodes in first]
    return dict(enumerate([*chained, *last]))


def measured() -> Set:
    """The sound set as a converter of a measured run writes it: durations, the names of kernels, nothing counted."""

    def as_measured(node: CraftedNode) -> CraftedNode:
        name = "void at::native::elementwise<4, float>" if node.type == pb.COMP_NODE else "nccl:all_reduce"
        bare = node.but(num_ops=None, tensor_size=None) if node.type == pb.COMP_NODE else node
        return replace(bare, name=name, micros=node.id)

    return {rank: [as_measured(node) for node in row] for rank, row in sound().items()}


def write(directory: Path, nodes: Set, groups: dict[int, list[int]] | None = None) -> Path:
    """The set as files `crafted.<rank>.et` and its groups."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, row in nodes.items():
        out = io.BytesIO()
        serialize_length_prefixed(pb.GlobalMetadata(version="0.0.4"), out)
        for node in row:
            serialize_length_prefixed(node.message(), out)
        (directory / f"crafted.{rank}.et").write_bytes(out.getvalue())
    chosen = GROUPS if groups is None else groups
    (directory / "crafted.json").write_text(json.dumps({str(group): ranks for group, ranks in chosen.items()}))
    return directory
