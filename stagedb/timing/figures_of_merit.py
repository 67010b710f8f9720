"""Figures of merit of a step: tokens and FLOPs a second, and their share of the accelerators' peak."""

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stagedb.lowering.columns import COMPUTE
from stagedb.plans import Plan
from stagedb.systems import System
from stagedb.timing.time_spent import StepTimes
from stagedb.workflows import RECOMPUTE
from stagedb.workflows.training import STEP

SECOND = 10**9
"""Nanoseconds."""


@dataclass(frozen=True)
class Merit:
    """Figures of merit of a step. step: ns. tokens: in all sequences of a step. The rates are of `Plan.tokens`.

    model_flops: FLOPs of all ranks in a step, without recomputation and without the optimizer's. hardware_flops: with
    both. dtype: the format in which most FLOPs are computed, by its name in a system's file; None where there are no
    FLOPs. peak: FLOP/s of one accelerator in this format. mfu, hfu: FLOPs divided by the FLOPs that the peak of all
    accelerators gives in the step; None without a finite peak, and for a step of no time. The rates are also None for a
    step of no time, and of drafts without an acceptance.
    """

    step: int
    world: int
    tokens: int
    tokens_per_second: float | None
    tokens_per_second_per_accelerator: float | None
    model_flops: int
    hardware_flops: int
    dtype: str | None
    peak: float | None
    mfu: float | None
    hfu: float | None


def merit_of(times: StepTimes, system: System) -> Merit:
    """The figures of a step on a system."""
    workload = times.network.workload
    plan, world = Plan.from_mapping(workload.plan), len(workload.ranks)
    formats: Counter[str] = Counter()
    hardware = model = 0
    for lane, columns, spent in zip(times.network.lanes, times.network.columns, times.lanes, strict=True):
        ops = columns.ops
        for op in np.flatnonzero((ops.type == COMPUTE) & (ops.flops > 0)).tolist():
            flops = int(ops.flops[op]) * int(spent.ops.runs[op]) * lane.ranks
            hardware += flops
            model += flops if ops.phase[op] not in (RECOMPUTE, STEP.phase) else 0
            formats["fp8" if ops.dtype[op].startswith("fp8") else ops.dtype[op]] += flops
    dtype = max(sorted(formats), key=formats.__getitem__, default=None)
    peak = None if dtype is None else system.accelerator.peak.get(dtype)
    tokens, gained = plan.batch * plan.seq_len, plan.tokens
    step = times.step
    rate = None if gained is None or not step else gained * SECOND / step
    capacity = None
    if peak is not None and peak != math.inf and step:
        capacity = Fraction(peak) * 1000 * step * world  # a TFLOP/s is a thousand FLOPs a nanosecond
    return Merit(
        step=step,
        world=world,
        tokens=tokens,
        tokens_per_second=None if rate is None else float(rate),
        tokens_per_second_per_accelerator=None if rate is None else float(rate / world),
        model_flops=model,
        hardware_flops=hardware,
        dtype=dtype,
        peak=None if peak is None or peak == math.inf else float(peak) * 1e12,
        mfu=None if capacity is None else float(model / capacity),
        hfu=None if capacity is None else float(hardware / capacity),
    )
