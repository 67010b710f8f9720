"""What kernels take in a framework's step, as against each alone.

Six terms, by what a system's `overlap` has of its framework. Kernels with a measured time are slower in a step, where
power limits the clocks and other kernels use caches and memory: their time is stretched. Casts to fp8 that the kernel
before makes on the way take no time; those of weights are made once a step, with their transposes. Gradients of
weights are added to a sum in fp32, which is read and written once more than the table's kernel does, or by a kernel of
its own, which reads them too. Turns of a ring are merged (`ring_merges`), and keys copied to all heads
(`repeated_keys`). Collectives of data-parallel ranks take multiprocessors from what computes while they run.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stagedb.ir.facts import Casts
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, EVERY, TEMPLATES, Ints, Ops, Workload
from stagedb.plans.dtypes import FORMAT_BYTES
from stagedb.systems import System
from stagedb.systems.system import inverse
from stagedb.timing.fp8_gathers import SHARDS, casts_made
from stagedb.timing.hidden_communication import DATA_AXES
from stagedb.timing.op_durations import JobDurations, LaneDurations
from stagedb.timing.repeated_keys import REPEATED, repeat_ns
from stagedb.timing.ring_merges import merge_ns
from stagedb.timing.unit_copies import add_copies
from stagedb.workflows.training import WEIGHT_GRADIENT

TABLE, FUSED, APART = "table:", "fused", "apart"
_WEIGHTS = TEMPLATES.index(WEIGHT_GRADIENT.name)


def in_step(workload: Workload, rank_classes: list[int], durations: JobDurations, system: System) -> JobDurations:
    """The durations with the terms of the system's framework. rank_classes: the class of each lane."""
    overlap = system.overlap
    if not overlap.of_kernels:
        return durations
    factors = dict(overlap.stretch)
    by_number = {columns.number: columns for columns in workload.classes}
    of_lanes: list[LaneDurations] = []
    for number, lane in zip(rank_classes, durations.lanes, strict=True):
        ops, tasks = by_number[number].ops, by_number[number].tasks
        microbatches = 1 + int(tasks.microbatch.max(initial=0))
        ns = lane.ns.copy()
        made = casts_made(by_number[number], int(workload.plan.get("tp", 1))) if overlap.casts == SHARDS else {}
        for op in np.flatnonzero(ops.type == COMPUTE).tolist():
            casts = ops.facts[op].casts
            if op in made:
                ns[op] = ns[op] // made[op] if made[op] else 0
            elif overlap.casts == FUSED and casts is Casts.INPUT:
                ns[op] = 0
            elif overlap.casts and casts in (Casts.WEIGHT, Casts.WEIGHT_AGAIN):
                ns[op] = 0 if casts is Casts.WEIGHT_AGAIN else ns[op] // microbatches
            elif lane.rule[op].startswith(TABLE):
                ns[op] = round(int(ns[op]) * factors.get(_measured(ops, op), 1))
            if overlap.sums and ops.template[op] == _WEIGHTS and ops.kind[op] == "matmul":
                ns[op] += _summed(math.prod(ops.dims[op][:-1]), _bytes_of_sum(workload.plan, overlap.sums), system)
            if overlap.merges:
                ns[op] += merge_ns(ops, op, overlap.merges, overlap.keys == REPEATED, system.accelerator)
            if overlap.keys == REPEATED:
                ns[op] += repeat_ns(ops, op, system.accelerator)
        if overlap.copies:
            dtype = str(workload.plan.get("dtype", "bf16"))
            add_copies(by_number[number], ns, overlap.copies, dtype, system.accelerator)
        _slow_down(ops, ns, overlap.taken)
        of_lanes.append(replace(lane, ns=ns))
    return replace(durations, lanes=tuple(of_lanes))


def _measured(ops: Ops, op: int) -> str:
    """The operator whose table has an op's time, as `stretch` names it."""
    if ops.kind[op].startswith("attention"):
        return "attention"
    return "matmul-fp8" if ops.dtype[op].startswith("fp8") else "matmul"


def _bytes_of_sum(plan: Mapping[str, Any], sums: str) -> int:
    """Bytes an element that adding a gradient moves: the sum twice, and itself where a kernel of its own reads it."""
    if sums != APART:
        return 2 * FORMAT_BYTES["fp32"]
    return 2 * FORMAT_BYTES[str(plan["grad_dtype"])] + FORMAT_BYTES[str(plan["dtype"])]


def _summed(elements: int, width: int, system: System) -> int:
    """ns in which elements are moved. width: bytes of each element that are moved."""
    size, memory = max(elements * width, 1), system.accelerator
    return round(size / memory.memory.at(size) * inverse(memory.bandwidth))


def _slow_down(ops: Ops, ns: Ints, taken: int) -> None:
    """Lengthen what computes by its share of the time in which collectives of dp run in each micro-batch."""
    if not taken:
        return
    apart = np.array([axis in DATA_AXES for axis in ops.axis], bool) & (ops.type == COLLECTIVE) & (ops.when == EVERY)
    for template in np.unique(ops.template[apart]).tolist():
        of_template = ops.template == template
        computes = of_template & (ops.type == COMPUTE)
        alone, beyond = int(ns[computes].sum()), int(ns[of_template & apart].sum())
        if alone:
            ns[computes] += ns[computes] * min(alone, beyond) * taken // (1000 * alone)
