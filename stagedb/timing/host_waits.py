"""Computing that waits for the host, which issues the matmuls of experts one by one.

A host issues kernels ahead of the accelerator, so that its own time is seldom seen. It takes some for every matmul of
every expert of the rank (GroupedLinear of Transformer Engine, transformer_engine/pytorch/module/grouped_linear.py).
With many experts, and few tokens for each, kernels end before the next one is issued.

Where tokens choose their experts freely, a host is hardly ahead: in each layer it waits until the accelerator has
counted how many tokens each expert has (Megatron-Core, megatron/core/transformer/moe/token_dispatcher.py). What it
issues from there on, for attention or in a backward, takes it about as long as that runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stagedb.lowering.columns import COMPUTE, EVERY, ONCE_A_STEP, RECV, RUNS, SEND, ClassColumns, Ints, Ops, Workload
from stagedb.mentions import Word
from stagedb.systems import System
from stagedb.systems.measured_durations import MEASURED
from stagedb.timing.op_durations import JobDurations, runs_of

_SIZES = 4
"""Sizes of a matmul of experts: how many experts it is for, and the three of each."""


def with_host(workload: Workload, rank_classes: Sequence[int], durations: JobDurations, system: System) -> JobDurations:
    """The durations in which an op also waits for the host, until it is issued.

    rank_classes: the class of each lane. durations: those of kernels; waits in them are left out first. system: its
    `overlap.issued` has the host's ns for a matmul of one expert. Measured ops have what the host adds to them.
    """
    if not system.overlap.issued:
        return durations
    by_number = {columns.number: columns for columns in workload.classes}
    calls = {number: _calls(by_number[number].ops, system) for number in set(rank_classes)}
    if not any(own.any() for own in calls.values()):
        return durations
    waits = _behind if workload.plan.get("capacity_factor") is not None else _between
    lanes = []
    for number, lane in zip(rank_classes, durations.lanes, strict=True):
        own = calls[number]
        if durations.coverage.measured_ops:
            own = np.where([rule == MEASURED for rule in lane.rule], 0, own)
        waited = waits(by_number[number], lane.kernels, own)
        lanes.append(replace(lane, ns=lane.kernels + waited, waits=waited))
    return replace(durations, lanes=tuple(lanes))


def _calls(ops: Ops, system: System) -> Ints:
    """The ns in which the host issues each op; 0 for what it issues in time."""
    issued = dict(system.overlap.issued)
    calls = np.zeros(len(ops), np.int64)
    for op in np.flatnonzero(ops.type == COMPUTE).tolist():
        if ops.kind[op] == "matmul" and ops.facts[op].of_experts and len(ops.dims[op]) == _SIZES:
            dtype = "fp8" if ops.dtype[op].startswith("fp8") and "fp8" in issued else "bf16"
            calls[op] = ops.dims[op][0] * issued.get(dtype, 0)
    return calls


def _runs(columns: ClassColumns) -> Iterator[Ints]:
    """The ops of each task that a micro-batch has, in the order in which they are issued: for every chunk its forward,
    and its backward or the parts of it."""
    ops, tasks = columns.ops, columns.tasks
    each = (ops.type != SEND) & (ops.type != RECV) & ((ops.when == EVERY) | (ops.type == COMPUTE))
    for kind in np.unique(tasks.kind[~ONCE_A_STEP[tasks.kind]]).tolist():
        of_kind = each & np.isin(ops.template, RUNS[kind])
        for chunk in np.unique(tasks.chunk[tasks.kind == kind]).tolist():
            rows = np.flatnonzero(of_kind & (ops.chunk == chunk))
            yield rows[np.argsort(ops.order[rows], kind="stable")]


def _between(columns: ClassColumns, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host is ahead by one op at most: an op is issued from when the one before it begins.

    The first one of a task is issued from when it could begin.
    """
    waits = np.zeros(len(columns.ops), np.int64)
    for rows in _runs(columns):
        before = np.append(0, ns[rows][:-1]) if len(rows) else rows
        waits[rows] = np.maximum(calls[rows] - before, 0)
    return waits


def _behind(columns: ClassColumns, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host may be ahead by any number of ops: for what it takes longer than a micro-batch runs."""
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


def host_notes(waited: int, step: int) -> tuple[str, ...]:
    """A note for a step of which waits for the host are more than a hundredth. waited, step: ns."""
    if not step or waited < NOTED * step:
        return ()
    return (
        f"note: a rank waits {waited / step:.0%} of the step for its host, which issues a matmul for each of its "
        f"experts: a larger {Word('ep')}, more tokens in a micro-batch or {Word('capacity_factor')} shorten that",
    )
