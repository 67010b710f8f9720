"""Computing that waits for the host, which issues the matmuls of experts one by one.

A host issues kernels ahead of the accelerator, so that its own time is seldom seen. It takes some for every matmul of
every expert of the rank (GroupedLinear of Transformer Engine, transformer_engine/pytorch/module/grouped_linear.py).
With many experts, and few tokens for each, kernels end before the next one is issued.

Where tokens choose their experts freely, a host is hardly ahead: in each layer it waits until the accelerator has
counted how many tokens each expert has (Megatron-Core, megatron/core/transformer/moe/token_dispatcher.py). What it
issues from there on, for attention or in a backward, takes it about as long as that runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stagedb.lowering.columns import COLLECTIVE, COMPUTE, EVERY, ONCE_A_STEP, RUNS, ClassColumns, Ints, Ops, Workload
from stagedb.systems import System
from stagedb.systems.system import FP8_SCALES
from stagedb.timing.framework_terms import DATA_AXES
from stagedb.timing.op_durations import JobDurations, runs_of
from stagedb.workflows import find_workflow

_SIZES = 4
"""Sizes of a matmul of experts: how many experts it is for, and the three of each."""


LINEAR_LAYER: Mapping[str, int] = {"bf16": 191_278, "fp8": 690_735}
"""ns in which an x86 host issues a matmul of a linear layer of Transformer Engine, by format.

A third of a forward and backward of 1,024 x 1,024 with 1,024 tokens on an H100, which take 0.573835 ms and 2.072206 ms
(issue 445 of NVIDIA/TransformerEngine). In fp8 each matrix is cast with a scale of its own.
"""

_, BLOCK = FP8_SCALES


def issued_by(system: System) -> dict[str, int]:
    """By format, ns in which the host of a system issues a matmul of one expert; none where it issues all as one.

    Where blocks of a matrix have scales, all experts are cast in one call (pull request 1793 of
    NVIDIA/TransformerEngine), so that fp8 takes as long as bf16.
    """
    overlap, chip = system.overlap, system.accelerator
    if overlap.issued or not overlap.issue_share:
        return dict(overlap.issued)
    bf16 = LINEAR_LAYER["bf16"] * overlap.issue_share if chip.issue is None else chip.issue
    fp8 = bf16 if chip.fp8_scales == BLOCK else bf16 * LINEAR_LAYER["fp8"] / LINEAR_LAYER["bf16"]
    return {"bf16": round(bf16), "fp8": round(fp8)}


def with_host(workload: Workload, rank_classes: Sequence[int], durations: JobDurations, system: System) -> JobDurations:
    """The durations in which an op also waits for the host, until it is issued. Only training waits.

    rank_classes: the class of each lane. durations: those of kernels, without waits. system: its `overlap` and its
    accelerator have the host's time. Measured ops have what the host adds to them.
    """
    issued = issued_by(system)
    if not issued or not find_workflow(str(workload.plan["workflow"])).differentiates:
        return durations
    by_number = {columns.number: columns for columns in workload.classes}
    calls = {number: _calls(by_number[number].ops, issued) for number in set(rank_classes)}
    if not any(own.any() for own in calls.values()):
        return durations
    waits = _behind if workload.plan.get("capacity_factor") is not None else _between
    lanes = []
    for number, lane in zip(rank_classes, durations.lanes, strict=True):
        own = calls[number]
        if durations.coverage.measured_ops:
            own = np.where(lane.measured, 0, own)
        waited = waits(by_number[number], lane.ns, own)
        lanes.append(replace(lane, ns=lane.ns + waited, waits=waited))
    return replace(durations, lanes=tuple(lanes))


def _calls(ops: Ops, issued: Mapping[str, int]) -> Ints:
    """The ns in which the host issues each op; 0 for what it issues in time."""
    calls = np.zeros(len(ops), np.int64)
    for op in np.flatnonzero(ops.type == COMPUTE).tolist():
        if ops.kind[op] == "matmul" and ops.facts[op].of_experts and len(ops.dims[op]) == _SIZES:
            dtype = "fp8" if ops.dtype[op].startswith("fp8") and "fp8" in issued else "bf16"
            calls[op] = ops.dims[op][0] * issued.get(dtype, 0)
    return calls


def _runs(columns: ClassColumns) -> Iterator[Ints]:
    """The ops of each task that a micro-batch has, in the order in which they are issued: for every chunk its forward,
    and its backward or the parts of it. Collectives of dp, which run in parallel, are left out."""
    ops, tasks = columns.ops, columns.tasks
    parallel = np.array([axis in DATA_AXES for axis in ops.axis], bool)
    each = (ops.type == COMPUTE) | ((ops.type == COLLECTIVE) & (ops.when == EVERY) & ~parallel)
    for kind in np.unique(tasks.kind[~ONCE_A_STEP[tasks.kind]]).tolist():
        of_kind = each & np.isin(ops.template, RUNS[kind])
        for chunk in np.unique(tasks.chunk[tasks.kind == kind]).tolist():
            rows = np.flatnonzero(of_kind & (ops.chunk == chunk))
            yield rows[np.argsort(ops.order[rows], kind="stable")]


def _between(columns: ClassColumns, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host is ahead by one op at most: a matmul is issued from when the op before it begins.

    Casts of its operands are issued with it, so that it is the op before these. The first op of a task is issued from
    when it could begin.
    """
    ops, waits = columns.ops, np.zeros(len(columns.ops), np.int64)
    for rows in _runs(columns):
        for place in np.flatnonzero(calls[rows]).tolist():
            before = place - 1
            while before > 0 and ops.facts[rows[before]].casts is not None:
                before -= 1
            ran = int(ns[rows[max(before, 0) : place]].sum())
            waits[rows[place]] = max(int(calls[rows[place]]) - ran, 0)
    return waits


def _behind(columns: ClassColumns, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host may be ahead by any number of ops: for what it takes longer than the ops of a micro-batch
    take one after another."""
    took, ran = int(calls.sum()), sum(int(ns[rows].sum()) for rows in _runs(columns))
    waits: Ints = calls * max(took - ran, 0) // max(took, 1)
    return waits


def longest_wait(columns: Sequence[ClassColumns], durations: JobDurations) -> int:
    """ns in which the rank that waits most for its host does so in a step. columns: those of each lane's class."""
    waits = [(own, lane.waits) for own, lane in zip(columns, durations.lanes, strict=True) if lane.waits is not None]
    runs = {own.number: runs_of(own) for own in {each.number: each for each, _ in waits}.values()}
    return max((int((own * runs[each.number]).sum()) for each, own in waits), default=0)


NOTED = 0.01
"""The least share of a step that waits for the host are noted from."""


def host_notes(waited: int, step: int, plan: Mapping[str, Any]) -> tuple[str, ...]:
    """A note for a step of which waits for the host are more than a hundredth.

    waited, step: ns. plan: the words of its plan.
    """
    if not step or waited < NOTED * step:
        return ()
    ways = ["a larger ep", "more tokens in a micro-batch"]
    ways += ["a capacity factor"] if plan.get("capacity_factor") is None else []
    return (
        f"note: a rank waits {waited / step:.0%} of the step for its host, which issues a matmul for each of its "
        f"experts: {', '.join(ways[:-1])} or {ways[-1]} shorten that",
    )
