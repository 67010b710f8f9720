"""Computing that waits for the host, which issues the matmuls of experts one by one.

A host issues kernels ahead of the accelerator, so that its own time is seldom seen. It takes some for every matmul of
every expert of the rank (GroupedLinear of Transformer Engine, transformer_engine/pytorch/module/grouped_linear.py).
With many experts, and few tokens for each, kernels end before the next one is issued.

Where tokens choose their experts freely, a host is hardly ahead: in each layer it waits until the accelerator has
counted how many tokens each expert has (Megatron-Core, megatron/core/transformer/moe/token_dispatcher.py). What it
issues from there on, for attention or in a backward, takes it about as long as that runs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stagedb.lowering.columns import COMPUTE, EVERY, RECV, SEND, TEMPLATES, Ints, Ops, Workload
from stagedb.systems import System
from stagedb.systems.measured_durations import MEASURED
from stagedb.timing.op_durations import JobDurations
from stagedb.workflows.training import STEP

_STEP = TEMPLATES.index(STEP.name)
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
    waits = _behind if workload.plan.get("capacity_factor") is not None else _between
    lanes = []
    for number, lane in zip(rank_classes, durations.lanes, strict=True):
        measured = np.array([rule == MEASURED for rule in lane.rule], bool)
        waited = waits(by_number[number].ops, lane.kernels, np.where(measured, 0, calls[number]))
        lanes.append(replace(lane, ns=lane.kernels + waited, waits=waited))
    return replace(durations, lanes=tuple(lanes))


def _calls(ops: Ops, system: System) -> Ints:
    """The ns in which the host issues each op; 0 for what it issues in time."""
    issued = dict(system.overlap.issued)
    calls = np.zeros(len(ops), np.int64)
    for op in np.flatnonzero(ops.type == COMPUTE).tolist():
        if ops.kind[op] == "matmul" and ops.facts[op].of_experts and len(ops.dims[op]) == _SIZES:
            calls[op] = ops.dims[op][0] * issued.get("fp8" if ops.dtype[op].startswith("fp8") else "bf16", 0)
    return calls


def _runs(ops: Ops) -> Ints:
    """The ops that run for every micro-batch one after another, those of a chunk's forward, or of a part of its
    backward, next to each other."""
    each = (ops.template != _STEP) & (ops.type != SEND) & (ops.type != RECV)
    rows = np.flatnonzero(each & ((ops.when == EVERY) | (ops.type == COMPUTE)))
    return rows[np.lexsort((rows, ops.template[rows], ops.chunk[rows]))]


def _between(ops: Ops, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host is ahead by one op at most: an op is issued from when the one before it begins.

    The first one of a forward, or of a part of a backward, is issued from when it could begin.
    """
    waits, rows = np.zeros(len(ops), np.int64), _runs(ops)
    follows = np.diff(ops.template[rows], prepend=-1) == 0
    before = np.where(follows, np.roll(ns[rows], 1), 0)
    waits[rows] = np.maximum(calls[rows] - before, 0)
    return waits


def _behind(ops: Ops, ns: Ints, calls: Ints) -> Ints:
    """Waits where the host may be ahead by any number of ops: for what it takes longer than a micro-batch runs."""
    took = int(calls.sum())
    waits: Ints = calls * max(took - int(ns[_runs(ops)].sum()), 0) // max(took, 1)
    return waits


NOTED = 0.01
"""The least share of a step that waits for the host are noted from."""


def host_notes(waited: int, step: int) -> tuple[str, ...]:
    """A note for a step of which waits for the host are more than a hundredth. waited, step: ns."""
    if not step or waited < NOTED * step:
        return ()
    return (
        f"note: ranks wait {waited / step:.0%} of the step for their host, which issues the matmuls of experts one by "
        "one: fewer experts on a rank (ep), or more tokens in a micro-batch, shorten that",
    )
