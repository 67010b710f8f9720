"""What ranks of a recorded run computed and communicated, in the order of issue, in the terms of a plan."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stagedb.matching.degrees import GroupCall
from stagedb.matching.planned_ops import ATTENTION, WORK, matmul_dims
from stagedb.runs.clocks import BARRIER, MESSAGES
from stagedb.runs.lane_rows import ELEMENT_BYTES
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.rank_trace import NONE
from stagedb.runs.stored_run import RunOpFacts, StoredRun

DTYPES: Mapping[str, str] = {
    "Float": "fp32",
    "float": "fp32",
    "BFloat16": "bf16",
    "c10::BFloat16": "bf16",
    "Half": "fp16",
    "c10::Half": "fp16",
    "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8",
}
"""PyTorch's names of formats, and those of plans."""

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class SeenOp:
    """An op that a rank executed.

    place: among the ops of its lane. kind: matmul, attention, all_gather, send … dims: as those of `PlannedOp`, None if
    no shapes were recorded. group: global ranks, ascending, None if they are not known; for a message this rank and
    its peer. sent: bytes of the operand, None if unknown. dtype: as plans write it. scalar:
    a barrier, or a collective of one element, by which programs agree on a number. name: of the kernel or operator.
    start, end: in ns from the begin of the run.
    """

    place: int
    kind: str
    dims: tuple[int, ...] | None
    group: tuple[int, ...] | None
    sent: int | None
    dtype: str
    scalar: bool
    name: str
    phase: str
    step: int | None
    start: int
    end: int


def seen_ops(run: StoredRun, rank: int) -> list[SeenOp]:
    """The matmuls, attentions and communications of a rank, in the order of issue."""
    lane, timed = run.lane_of[rank], run.timed[rank]
    groups = run.groups_of[rank]
    found = []
    for place in sorted(range(len(lane.ops)), key=_issued(timed).__getitem__):
        op = lane.ops[place]
        if op.type == "compute" and op.kind in WORK:
            dims = _dims(op)
            if dims is None and op.shapes is not None:
                continue
        elif op.type not in ("collective", *MESSAGES):
            continue
        else:
            dims = None
        group = groups.get(place)
        found.append(_seen(op, place, dims, group, int(timed.start[place]), int(timed.end[place])))
    return found


def _seen(
    op: RunOpFacts, place: int, dims: tuple[int, ...] | None, group: tuple[int, ...] | None, start: int, end: int
) -> SeenOp:
    return SeenOp(
        place=place,
        kind=op.kind,
        dims=dims,
        group=group,
        sent=op.message or None,
        dtype=DTYPES.get(op.dtype or "", op.dtype or ""),
        scalar=_is_scalar(op),
        name=op.name,
        phase=op.phase,
        step=op.step_number,
        start=start,
        end=end,
    )


def _dims(op: RunOpFacts) -> tuple[int, ...] | None:
    """The dimensions of a matmul or attention from the shapes of its operator; None for one that has no known form."""
    if op.shapes is None:
        return None
    shapes = json.loads(op.shapes)
    operator = (op.launcher or op.name).removeprefix("aten::")
    if op.kind == ATTENTION:
        return _attention(operator, shapes)
    made = _MATMULS.get(operator)
    try:
        return None if made is None else matmul_dims(made(shapes))
    except (IndexError, ValueError):
        return None


def _mm(shapes: Shapes) -> tuple[int, ...]:
    (m, k), (_, n) = shapes[0], shapes[1]
    return m, n, k


def _bmm(shapes: Shapes) -> tuple[int, ...]:
    (batch, m, k), (_, _, n) = shapes[0], shapes[1]
    return batch, m, n, k


def _linear(shapes: Shapes) -> tuple[int, ...]:
    *rows, k = shapes[0]
    return prod(rows), shapes[1][0], k


_MATMULS: Mapping[str, Callable[[Shapes], tuple[int, ...]]] = {
    "mm": _mm,
    "addmm": lambda shapes: _mm(shapes[1:]),
    "_scaled_mm": _mm,
    "bmm": _bmm,
    "baddbmm": lambda shapes: _bmm(shapes[1:]),
    "linear": _linear,
}
"""Operators of matmuls, and the dimensions `[batch,] m, n, k` from the shapes of their operands."""


def _attention(operator: str, shapes: Shapes) -> tuple[int, ...] | None:
    """Batch, heads, heads of keys, queries, keys, head; the gradient of the result is before these operands.

    Kernels of requests of several lengths have one axis of all their tokens: the first, fourth and fifth are then 0.
    """
    operands = [shape for shape in shapes if len(shape) == 4]
    if "backward" in operator:
        operands = operands[1:]
    if len(operands) < 3:
        return _packed_attention(shapes)
    (batch, heads, queries, head), (_, key_heads, keys, _), (_, _, _, value) = operands[:3]
    return (batch, heads, key_heads, queries, keys, head, *(() if value == head else (value,)))


def _packed_attention(shapes: Shapes) -> tuple[int, ...] | None:
    operands = [shape for shape in shapes[:3] if len(shape) == 3]
    if len(operands) < 3 or operands[0][2] != operands[1][2]:
        return None
    (_, heads, head), (_, key_heads, _), (_, _, value) = operands
    return (0, heads, key_heads, 0, 0, head, *(() if value == head else (value,)))


def is_packed(op: SeenOp) -> bool:
    """Whether an op is an attention of requests of several lengths, whose recorded shapes do not have these lengths."""
    return op.kind == ATTENTION and op.dims is not None and not op.dims[3]


def group_calls(run: StoredRun) -> dict[int, list[GroupCall]]:
    """What each rank communicates in the first step that was recorded, with the share of its computing before that.

    Left out: barriers and sums of one number, by which programs agree, and collectives whose ranks are not known.
    """
    steps = [op.step_number for lane in run.lanes for op in lane.ops if op.step_number is not None]
    first = min(steps, default=None)
    found = {}
    for rank, timed in run.timed.items():
        lane, groups = run.lane_of[rank], run.groups_of[rank]
        ops = [place for place, op in enumerate(lane.ops) if first is None or op.step_number == first]
        computing = [(int(timed.start[place]), int(timed.end[place] - timed.start[place])) for place in ops
                     if lane.ops[place].type == "compute"]  # fmt: skip
        begins = np.array([begin for begin, _ in computing], np.int64)
        done = np.concatenate(([0], np.cumsum([length for _, length in computing])))
        own, issued = [], _issued(timed)
        for place in sorted(ops, key=issued.__getitem__):
            op = lane.ops[place]
            group = groups.get(place)
            if op.type not in ("collective", *MESSAGES) or group is None or _is_scalar(op):
                continue
            before = int(done[np.searchsorted(begins, issued[place])])
            begin = int(timed.start[place])
            own.append(GroupCall(op.kind, group, op.message or 0, before / max(int(done[-1]), 1), begin, op.gradients))
        found[rank] = own
    return found


def _issued(timed: TimedOps) -> list[int]:
    """When each op of a rank was issued: launched, or begun where its launch is not known."""
    found: list[int] = np.where(timed.launched == NONE, timed.start, timed.launched).tolist()
    return found


def _is_scalar(op: RunOpFacts) -> bool:
    """Whether it is a barrier, or a collective of one element."""
    element = ELEMENT_BYTES.get(op.dtype or "", 0)
    return op.kind == BARRIER or (op.type == "collective" and 0 < (op.message or 0) <= element)
