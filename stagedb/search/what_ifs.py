"""What a step would gain without each of its losses: the what-ifs that need no choice by a user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from stagedb.lowering.columns import COLLECTIVE, SEND, Ints, Workload
from stagedb.mentions import OPTIONS, Word
from stagedb.systems import System
from stagedb.systems.system import FLAT
from stagedb.timing import Scaling, StepTimes, run_step
from stagedb.timing.lanes import find_lanes
from stagedb.timing.network_position import placed
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.step_profile import lane_durations, with_kernels
from stagedb.timing.timeline import clock
from stagedb.timing.whatif import scaled

# Durations on a system with other numbers than the one on which its tables were measured.
#
# The measured time of an operator changes as the formula does that the system has for it without tables: in the same
# proportion. So a faster memory shortens a measured norm, and leaves a measured matmul as it is that computing bounds.


def moved(own: Ints, before: Ints, after: Ints, modelled: np.ndarray) -> Ints:
    """Measured durations [ns], changed by as much as the durations of the cost model change.

    own: the measured durations. before, after: durations of the model on the first system and on the other one.
    modelled: by op, whether its duration may change. A scaling (what-if) of an op remains.
    """
    share = np.where(before > 0, after / np.maximum(before, 1), 1.0)
    changed: Ints = np.where(modelled & (after != before), np.rint(own * share), own).astype(np.int64)
    return np.where(own == before, np.where(modelled, after, own), changed)


def durations_on(workload: Workload, system: System, measured_on: System) -> JobDurations:
    """The durations of the ops of each lane on a system whose tables were measured on another one.

    The tables have the times of the accelerator and of the innermost network dimension as they were measured. Where
    these have the same rates, launch and latency, they are those of a profile on the system.
    """
    system = placed(workload, system)[0]
    kept = _with_measured_numbers(system, measured_on)
    own = lane_durations(workload, kept)
    if not system.tables or kept == system:
        return own
    before, after = (lane_durations(workload, replace(each, tables=())) for each in (kept, system))
    kernels = [
        moved(lane.kernels, old.kernels, new.kernels, np.ones(len(lane.ns), bool))
        for lane, old, new in zip(own.lanes, before.lanes, after.lanes, strict=True)
    ]
    return with_kernels(workload, find_lanes(workload, system.network(len(workload.ranks))), own, kernels, system)


def _with_measured_numbers(system: System, measured_on: System) -> System:
    """The system with the numbers of the other one on which the times of tables depend."""
    if not system.tables:
        return system
    has, near = measured_on.accelerator, measured_on.dimensions[0]
    accelerator = replace(system.accelerator, peak=has.peak, bandwidth=has.bandwidth, launch=has.launch)
    first = replace(system.dimensions[0], bandwidth=near.bandwidth, latency=near.latency)
    return replace(system, accelerator=accelerator, dimensions=(first, *system.dimensions[1:]))


HALF = Fraction(1, 2)

MATMULS = ("matmul", "experts")
"""The measured tables of matmuls, which a what-if leaves out."""


@dataclass(frozen=True)
class WhatIf:
    """A step in which one thing that takes time is gone or faster.

    name: of this change, in words. step: ns. options: those of `profile` that time this step, if any do.
    """

    name: str
    step: int
    options: tuple[str, ...] = ()


def what_ifs(
    times: StepTimes, durations: JobDurations, system: System, blocking: Sequence[str] = ()
) -> tuple[WhatIf, ...]:
    """The what-ifs of a timed step, the shortest step first.

    The communication of each axis takes half as long; matmuls reach the accelerator's peak; no kernel takes time to
    launch; no rank waits for its host; none waits for another stage. Measured durations keep their values where the
    system changes.
    """
    found = [*_halved(times, durations, system, blocking), *_accelerated(times, durations, system, blocking)]
    if any(lane.waits is not None and lane.waits.any() for lane in durations.lanes):
        prompt = replace(system, overlap=system.overlap.without_host)
        ns = _kernels(times, durations, durations.kernels, prompt)
        found.append(WhatIf("no waits for the host", _step(times, ns, system, blocking)))
    lanes = times.lanes
    if any(lane.bubble for lane in lanes):
        # Without bubbles the step is as long as the busiest lane computes, communicates and waits in its own stage.
        found.append(WhatIf("no bubble", max(times.step - lane.bubble for lane in lanes)))
    return tuple(sorted(found, key=lambda each: (each.step, each.name)))


def _halved(times: StepTimes, durations: JobDurations, system: System, blocking: Sequence[str]) -> Iterator[WhatIf]:
    network = times.network
    there = {
        (word, axis)
        for columns in network.columns
        for type_, axis in zip(columns.ops.type.tolist(), columns.ops.axis, strict=True)
        for word, code in (("collective", COLLECTIVE), ("send", SEND))
        if type_ == code
    }
    for axis in sorted({axis for _, axis in there}):
        scalings = [Scaling(word, axis, HALF) for word in ("collective", "send") if (word, axis) in there]
        ns = _kernels(times, durations, scaled(network, durations.kernels, scalings), system)
        step = _step(times, ns, system, blocking)
        options = tuple(part for each in scalings for part in (OPTIONS.word(Word("scale")), str(each)))
        yield WhatIf(f"communication over {axis} twice as fast", step, options)


def _accelerated(
    times: StepTimes, durations: JobDurations, system: System, blocking: Sequence[str]
) -> Iterator[WhatIf]:
    accelerator = system.accelerator
    others = tuple(table for table in system.tables if table.operator not in MATMULS)
    faster = {
        "matmuls at the peak": replace(system, accelerator=replace(accelerator, matmul=FLAT), tables=others),
        "no launch overhead": replace(system, accelerator=replace(accelerator, launch=Fraction(0))),
    }
    model = None
    for name, other in faster.items():
        if other != system:
            model = model or time_ops(times.network.workload, times.network.lanes, system)
            changed = time_ops(times.network.workload, times.network.lanes, other)
            lanes = zip(durations.lanes, model.lanes, changed.lanes, strict=True)
            kernels = [moved(own.kernels, before.ns, after.ns, ~own.measured) for own, before, after in lanes]
            yield WhatIf(name, _step(times, _kernels(times, durations, kernels, system), system, blocking))


def _kernels(times: StepTimes, durations: JobDurations, ns: Sequence[Ints], system: System) -> Sequence[Ints]:
    """The durations [ns] with those of other kernels."""
    return with_kernels(times.network.workload, times.network.lanes, durations, ns, system).ns


def _step(times: StepTimes, ns: Sequence[Ints], system: System, blocking: Sequence[str]) -> int:
    """The step with other durations. Streams in issue order keep their order; others decide it anew."""
    compute = system.overlap.compute
    if compute == "out-of-order":
        return run_step(times.network, ns, compute, blocking=blocking).step
    return clock(times.timeline.order, times.network.lengths(ns)).step
