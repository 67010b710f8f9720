"""What a step would gain without each of its losses: the what-ifs that need no choice by a user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from stagedb.advice.moved_times import moved
from stagedb.lowering.columns import COLLECTIVE, SEND, Ints
from stagedb.mentions import OPTIONS, Word
from stagedb.systems import System
from stagedb.systems.system import FLAT
from stagedb.timing import Scaling, StepTimes, run_step
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.timeline import clock
from stagedb.timing.whatif import scaled

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
    launch; no rank waits for another stage. Measured durations keep their values where the system changes.
    """
    found = [*_halved(times, durations, system, blocking), *_accelerated(times, durations, system, blocking)]
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
        step = _step(times, scaled(network, durations.ns, scalings), system, blocking)
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
            ns = [
                moved(own.ns, before.ns, after.ns, np.array([rule != "measured" for rule in own.rule]))
                for own, before, after in lanes
            ]
            yield WhatIf(name, _step(times, ns, system, blocking))


def _step(times: StepTimes, ns: Sequence[Ints], system: System, blocking: Sequence[str]) -> int:
    """The step with other durations. Streams in issue order keep their order; others decide it anew."""
    compute = system.overlap.compute
    if compute == "out-of-order":
        return run_step(times.network, ns, compute, blocking=blocking).step
    return clock(times.timeline.order, times.network.lengths(ns)).step
