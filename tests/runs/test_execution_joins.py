"""Execution traces with profiles of devices: what a file has of collectives and shapes, in files of all ages."""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun
from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.rank_trace import NONE, RankTrace, RecordedCollective
from stagedb.runs.run_files import RunFiles
from tests.runs.recordings import Recording, measured

Operand = tuple[Any, list[Any], str]
"""An input of a node: its value, its shape, and its type."""

GROUPS = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}])


def tensor(elements: int, *shape: int, kind: str = "float") -> Operand:
    return [7, 8, 0, elements, 4, "cuda:0"], list(shape), f"Tensor({kind})"


def number(value: int) -> Operand:
    return value, [], "Int"


def text(value: str) -> Operand:
    return value, [], "String"


def splits() -> list[Operand]:
    return [([], [], "GenericList[]")] * 2


def node(schema: str, at: tuple[int, int, int], name: str, inputs: list[Operand], **attrs: Any) -> dict[str, Any]:
    """A node as this schema has it. at: its id, that of the node around it, and its number."""
    values, shapes, types = ([each[part] for each in inputs] for part in range(3))
    tensors = [each for each in inputs[:1] if each[2].startswith("Tensor")]
    out = {"values": [each[0] for each in tensors], "types": [each[2] for each in tensors], "shapes": []}
    if schema == "1.0.1":
        lists = {"inputs": values, "input_shapes": shapes, "input_types": types}
        after = {"outputs": out["values"], "output_shapes": [], "output_types": out["types"]}
        return {"name": name, "id": at[0], "rf_id": at[2], "parent": at[1], **lists, **after}
    return {
        "id": at[0],
        "name": name,
        "ctrl_deps": at[1],
        "inputs": {"values": values, "shapes": shapes, "types": types},
        "outputs": out,
        "attrs": [{"name": key, "value": value} for key, value in {"rf_id": at[2], **attrs}.items()],
    }


def nodes(schema: str, rank: int, shift: int = 0) -> list[dict[str, Any]]:
    """The nodes of a matmul and two collectives. shift: added to all numbers."""
    group: list[Operand] = [(94_594_108, [], "Int")]
    last: list[Operand] = []
    if schema != "1.0.1":
        group = [(["0", "default_pg"], [[], []], "Tuple[String,String]")]
        last = [number(0), number(1), number(2)]
    rows = [
        (2, 1, 0, "[pytorch|profiler|execution_trace|thread]", []),
        (5, 2, 11, "aten::mm", [tensor(24, 4, 6), tensor(48, 6, 8)]),
        (8, 2, 12, "c10d::alltoall_base_", [tensor(96, 96)]),
        (9, 8, 13, "record_param_comms",
         [tensor(96, 96), number(41), *group, number(rank), text("all_to_allv"), *splits(), *last]),
        (12, 2, 14, "record_param_comms", [number(41), number(0), number(rank), text("wait"), *splits()]),
        (20, 2, 15, "record_param_comms",
         [tensor(3, 3, kind="long int"), number(42), *group, number(rank), text("allreduce"), *splits(), *last]),
    ]  # fmt: skip
    found = [node(schema, (id, above, of + shift if of else 0), name, inputs) for id, above, of, name, inputs in rows]
    listed = node(schema, (3, 2, 10 + shift), "## process_group:init ##", [text(GROUPS)])
    return found if schema == "1.0.1" else [*found, listed]


def execution_trace(directory: Path, schema: str, rank: int = 0, pid: int = 1, **more: Any) -> Path:
    path = directory / f"rank{rank}.et.json"
    path.write_text(json.dumps({"schema": schema, "pid": pid, "nodes": nodes(schema, rank, **more)}))
    return path


def profile(
    directory: Path, rank: int = 0, key: str = "Record function id", kinds: str = "ar", pid: int = 1, **last: Any
) -> Path:
    """A profile of the same program, without shapes and sizes. kinds: of the collectives, in their order.

    last: what the profile has of the last one.
    """
    found = Recording(rank, 2)
    kernels = {"a": ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8", 13), "r": ("ncclKernel_AllReduce_RING_LL_Sum", 15)}
    calls = [("ampere_sgemm", "aten::mm", 11)]
    calls += [(kernels[each][0], "record_param_comms", kernels[each][1]) for each in kinds]
    for place, (kernel, operator, its) in enumerate(calls):
        at, found.number = 1_000 * (place + 1), place + 1
        more = last if place == len(kinds) else {}
        found.span("cpu_op", operator, at - 5, 100, (pid, 1), **{key: its, **more})
        found.span("cuda_runtime", "cudaLaunchKernel", at, 50, (pid, 1), correlation=place + 1)
        found.span("kernel", kernel, at + 300, 200, (0, 7), device=0, stream=7, correlation=place + 1)
    return found.write(directory)


def read(*paths: Path) -> MeasuredRun:
    return measured(RunFiles.of(paths))


def communicated(trace: RankTrace) -> list[RecordedCollective]:
    return [trace.collectives[place] for place in trace.ops.collective.tolist() if place != NONE]


def shapes(trace: RankTrace) -> list[str | None]:
    return [trace.shapes[place] if place != NONE else None for place in trace.ops.shapes.tolist()]


SCHEMAS = ["1.0.1", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4"]


@pytest.mark.parametrize("key", ["Record function id", "External id"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_collectives_and_shapes_are_those_of_the_numbers(schema: str, key: str, tmp_path: Path) -> None:
    trace = read(profile(tmp_path, key=key), execution_trace(tmp_path, schema)).ranks[0]
    first, second = communicated(trace)
    assert (first.kind, first.dtype, first.sent, first.received, first.sequence) == ("all_to_all", "Float", 96, 96, 41)
    assert (second.kind, second.dtype, second.sent, second.sequence) == ("all_reduce", "Long", 3, 42)
    assert shapes(trace)[0] == "[[4,6],[6,8]]" and trace.left_out == ()
    known = ("", (), None) if schema == "1.0.1" else ("0", (0, 1), 2)
    assert (first.group, first.ranks, first.size) == known


def test_the_order_of_launches_decides_where_numbers_are_others(tmp_path: Path) -> None:
    trace = read(profile(tmp_path, key="External id"), execution_trace(tmp_path, "1.0.1", shift=2)).ranks[0]
    assert [(each.kind, each.sent) for each in communicated(trace)] == [("all_to_all", 96), ("all_reduce", 3)]
    assert shapes(trace) == [None] * 3
    assert trace.left_out == ("numbers of operators are not those of the execution trace: its shapes are not used",)


@pytest.mark.parametrize("kinds", ["ra", "a", "arr"])
def test_collectives_in_another_order_have_no_bytes(kinds: str, tmp_path: Path) -> None:
    paths = profile(tmp_path, key="External id", kinds=kinds), execution_trace(tmp_path, "1.0.1", shift=2)
    trace = read(*paths).ranks[0]
    assert {(each.sent, each.dtype) for each in communicated(trace)} == {(None, "")}
    assert f"{len(kinds)} of {len(kinds)} collectives are not among the 2 of the execution trace" in trace.left_out[0]


def test_a_call_of_several_kernels_has_no_bytes(tmp_path: Path) -> None:
    trace = read(profile(tmp_path, kinds="arr"), execution_trace(tmp_path, "1.0.1")).ranks[0]
    assert [(each.kind, each.sent) for each in communicated(trace)] == [
        ("all_to_all", 96), ("all_reduce", None), ("all_reduce", None)
    ]  # fmt: skip
    assert trace.left_out == ("1 collectives ran as several kernels, whose bytes are not known apart",)


def test_the_rank_decides_where_processes_have_other_numbers(tmp_path: Path) -> None:
    profiles = [profile(tmp_path, rank, pid=5 + rank) for rank in range(2)]
    traces = [execution_trace(tmp_path, SCHEMAS[2], rank, pid=1) for rank in (1, 0)]
    run = read(*profiles, *traces)
    assert [[each.sent for each in communicated(trace)] for trace in run.ranks.values()] == [[96, 3]] * 2
    assert [len(call.members) for call in run.calls] == [2, 2]
    with pytest.raises(UsageError, match=r"rank1\.et\.json has no profiler trace of its rank"):
        read(profiles[0], traces[0])


@pytest.mark.parametrize(("shift", "pid", "rank"), [(2, 1, 0), (2, 9, 0), (0, 1, 1), (0, 9, 1)])
def test_what_contradicts_a_profile_is_refused(shift: int, pid: int, rank: int, tmp_path: Path) -> None:
    """Other operators of the same numbers, another process with them, and another rank."""
    one = execution_trace(tmp_path, SCHEMAS[2], rank, pid, shift=shift)
    with pytest.raises(UsageError, match="has no profiler trace of its rank among the files: none has its process"):
        read(profile(tmp_path), one)


RECORDED: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Long", "In msg nelems": 3, "Group size": 2}


@pytest.mark.parametrize(
    ("name", "value"), [("Collective name", "broadcast"), ("dtype", "Float"), ("In msg nelems", 4), ("Group size", 4)]
)
def test_collectives_that_a_profile_has_otherwise_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    one = execution_trace(tmp_path, SCHEMAS[2])
    assert [each.sent for each in communicated(read(profile(tmp_path, **RECORDED), one).ranks[0])] == [96, 3]
    with pytest.raises(UsageError, match="has no profiler trace of its rank"):
        read(profile(tmp_path, **{**RECORDED, name: value}), one)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_execution_trace_alone_has_its_collectives(schema: str, tmp_path: Path) -> None:
    run = RunFiles.of([execution_trace(tmp_path, schema)]).read()
    assert isinstance(run, UntimedRun)
    (trace,) = run.ranks.values()
    assert shapes(trace)[0] == "[[4,6],[6,8]]" and len(trace.ops) == 3
    assert [(each.kind, each.sent, each.sequence) for each in communicated(trace)] == [
        ("all_to_all", 96, 41), ("all_reduce", 3, 42)
    ]  # fmt: skip
