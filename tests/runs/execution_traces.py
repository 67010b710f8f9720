"""Execution traces as PyTorch writes them, made up: a step of a linear layer under data parallelism."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.run_files import RunFiles

PROFILER = "[pytorch|profiler|execution_trace|"
ANNOTATION = 7


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program: its number, that of its storage, its shape and its type in C++."""

    number: int
    storage: int
    shape: tuple[int, ...]
    kind: str = "float"

    @property
    def value(self) -> list[Any]:
        elements = 1
        for each in self.shape:
            elements *= each
        return [self.number, self.storage, 0, elements, 4, "cuda:0"]


def operands(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Operands as a node has them: tensors, numbers, texts, and lists of tensors."""
    found: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
    for each in values:
        if isinstance(each, Tensor):
            row: tuple[Any, list[Any], str] = each.value, list(each.shape), f"Tensor({each.kind})"
        elif isinstance(each, list) and each and isinstance(each[0], Tensor):
            tensors = ",".join(f"Tensor({one.kind})" for one in each)
            row = [one.value for one in each], [list(one.shape) for one in each], f"GenericList[{tensors}]"
        elif isinstance(each, str):
            row = each, [], "String"
        else:
            row = each, [], "Int" if isinstance(each, int) else "GenericList[]"
        for name, value in zip(("values", "shapes", "types"), row, strict=True):
            found[name].append(value)
    return found


@dataclass
class CallTree:
    """The calls of a process, in the order of their begins."""

    nodes: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        name: str,
        inside: int,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        thread: int = 1,
        **more: Any,
    ) -> int:
        """Add a call, and return its id. inside: id of the call around it. more: attributes."""
        id = len(self.nodes) + 1
        attributes = {"rf_id": id - 1, "seq_id": -1, "scope": 0, "tid": thread, "op_schema": "", **more}
        self.nodes.append(
            {
                "id": id,
                "name": name,
                "ctrl_deps": inside,
                "inputs": operands(inputs),
                "outputs": operands(outputs),
                "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
            }
        )
        return id

    def write(self, path: Path, schema: str = "1.1.0-chakra.0.0.4") -> Path:
        """Write the trace. Nodes of the oldest schema have lists in place of operands, and no attributes."""
        nodes = [_of_before(each) for each in self.nodes] if schema == "1.0.1" else self.nodes
        # A node is written when its call ends.
        path.write_text(json.dumps({"schema": schema, "pid": 7, "nodes": nodes[::-1]}))
        return path


def _of_before(node: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": node["name"],
        "id": node["id"],
        "parent": node["ctrl_deps"],
        **{each["name"]: each["value"] for each in node["attrs"]},
        **{
            f"{which}put{end}": node[f"{which}puts"][part]
            for which in ("in", "out")
            for end, part in (("s", "values"), ("_shapes", "shapes"), ("_types", "types"))
        },
    }


def linear_step(rank: int, world: int = 2, width: int = 8) -> CallTree:
    """A step: a linear layer, its gradient, which is reduced, and an optimizer. width: of the layer's output."""
    x, w, b = Tensor(1, 11, (4, 6)), Tensor(2, 12, (width, 6)), Tensor(3, 13, (width,))
    wt, y, z = Tensor(4, 12, (6, width)), Tensor(5, 15, (4, width)), Tensor(6, 16, (4, width))
    grad, gw = Tensor(7, 17, (4, width)), Tensor(8, 18, (width, 6))
    made = CallTree()
    process = made.add(f"{PROFILER}process]", 1, scope=ANNOTATION)
    main = made.add(f"{PROFILER}thread]", process, scope=ANNOTATION)
    groups = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": world}])
    made.add("## process_group:init ##", main, [groups], scope=ANNOTATION)
    step = made.add("ProfilerStep#3", main, scope=ANNOTATION)
    forward = made.add("DistributedDataParallel.forward", step, scope=ANNOTATION)
    linear = made.add("aten::linear", forward, [x, w, b], [y], seq_id=5)
    made.add("aten::t", linear, [w], [wt])
    addmm = made.add("aten::addmm", linear, [b, x, wt], [y])
    made.add("aten::expand", addmm, [b], [b])
    made.add("aten::relu", forward, [y], [z])
    engine = made.add(f"{PROFILER}thread]", process, scope=ANNOTATION, thread=2)
    node = made.add("autograd::engine::evaluate_function: AddmmBackward0", engine, thread=2, seq_id=5)
    backward = made.add("AddmmBackward0", node, [z], [gw], thread=2, scope=1, seq_id=5)
    made.add("aten::clone", backward, [z], [grad], thread=2)
    made.add("aten::mm", backward, [grad, x], [gw], thread=2)
    call = made.add("c10d::allreduce_", node, [[gw]], [[gw]], thread=2)
    values = [[gw], 41, 0, 0, "allreduce", [], [], 0, 1, world]
    recorded = {"pg_name": "0", "pg_desc": "default_pg", "dtype": "Float", "pg_size": world}
    sizes = {"in_msg_nelems": width * 6, "out_msg_nelems": width * 6, "global_rank_start": 0, "global_rank_stride": 1}
    record = made.add("record_param_comms", call, values, [[gw]], thread=2, **recorded, **sizes)
    _rank_of(made.nodes[record - 1], rank)
    made.add("nccl:all_reduce", record, scope=ANNOTATION, thread=2)
    made.add("record_param_comms", engine, [41, 0, rank, "wait", [], []], thread=2)
    optimizer = made.add("Optimizer.step#SGD.step", step, scope=ANNOTATION)
    schema = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()"
    made.add("aten::_foreach_add_", optimizer, [[w], [gw], -1], op_schema=schema)
    made.add("aten::t", step, [w], [wt])
    return made


def _rank_of(node: dict[str, Any], rank: int) -> None:
    """Set the rank of a record of a collective, which is before the collective's name."""
    node["inputs"]["values"][3] = rank


def untimed_step() -> UntimedRun:
    """The run of two ranks of `linear_step`."""
    with TemporaryDirectory() as directory:
        files = [linear_step(rank).write(Path(directory) / f"rank{rank}.json") for rank in range(2)]
        run = RunFiles.of(files).read()
    assert isinstance(run, UntimedRun)
    return run
