"""Durations on a system with other numbers than the one on which its tables were measured.

The measured time of an operator changes as the formula does that the system has for it without tables: in the same
proportion. So a faster memory shortens a measured norm, and leaves a measured matmul as it is that computing bounds.
"""

from dataclasses import replace

import numpy as np

from stagedb.lowering.columns import Ints, Workload
from stagedb.systems import System
from stagedb.timing.domain_straddles import placed
from stagedb.timing.op_durations import JobDurations
from stagedb.timing.step_profile import lane_durations


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
    lanes = tuple(
        replace(lane, ns=moved(lane.ns, old.ns, new.ns, np.ones(len(lane.ns), bool)))
        for lane, old, new in zip(own.lanes, before.lanes, after.lanes, strict=True)
    )
    return replace(own, lanes=lanes)


def _with_measured_numbers(system: System, measured_on: System) -> System:
    """The system with the numbers of the other one on which the times of tables depend."""
    if not system.tables:
        return system
    has, near = measured_on.accelerator, measured_on.dimensions[0]
    accelerator = replace(system.accelerator, peak=has.peak, bandwidth=has.bandwidth, launch=has.launch)
    first = replace(system.dimensions[0], bandwidth=near.bandwidth, latency=near.latency)
    return replace(system, accelerator=accelerator, dimensions=(first, *system.dimensions[1:]))
