"""An instance's step on a system, from its columns to its figures of merit: the content of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.lowering.columns import Workload
from stagedb.mentions import Word
from stagedb.plans import GROUP_AXES
from stagedb.systems import Durations, System
from stagedb.timing.domain_straddles import JobPlacement, placed, remarks
from stagedb.timing.figures_of_merit import Merit, merit_of
from stagedb.timing.framework_terms import in_step
from stagedb.timing.hidden_communication import hidden
from stagedb.timing.lanes import Lane, find_lanes
from stagedb.timing.node_graph import NodeGraph, node_graph_of
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.time_spent import StepTimes, step_times
from stagedb.timing.timeline import Timeline, check_blocking, run_step, step_length
from stagedb.timing.whatif import Scaling, scaled


@dataclass(frozen=True)
class JobProfile:
    """A step of a workload on a system, and the inputs of its times.

    blocking: mesh axes whose communication a rank waits for. durations: ns of each lane's ops, scaled; `rule` and
    `dimension` are those of the times before scaling. times: where the time of the step goes. unscaled: ns of the step
    without the scalings; equal to the step where there are none. placements: where the system names no number of
    accelerators, the numbers on which the job is placed; `system` has them.
    """

    workload: Workload
    system: System
    measured: Durations | None
    scalings: tuple[Scaling, ...]
    blocking: tuple[str, ...]
    durations: JobDurations
    times: StepTimes
    merit: Merit
    unscaled: int
    placements: tuple[JobPlacement, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes and warnings on the places of the job's ranks."""
        return remarks(self.placements, self.workload, self.system)

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.times.step

    @property
    def gain(self) -> int:
        """The ns by which the scalings shorten the step; below 0 where they lengthen it."""
        return self.unscaled - self.step


def blocking_axes(given: str | Sequence[str], system: System) -> tuple[str, ...]:
    """Mesh axes of a text such as `tp,pp`, or of their names, each once and in one order.

    given: the text or the names. Raises UsageError for an unknown axis, with the list of axes, and for a system on
    which nothing can wait. An axis on which a job has no neighbours is accepted: whether a framework waits does not
    depend on the job.
    """
    named = given.split(",") if isinstance(given, str) else given
    names = {name.strip() for name in named} - {""}
    for name in sorted(names - set(GROUP_AXES)):
        raise UsageError(
            f"unknown axis {shown(name)}: {Word('blocking')} takes axes on which ranks communicate, "
            f"{', '.join(GROUP_AXES)}"
        )
    check_blocking(names, system.overlap.compute)
    return tuple(axis for axis in GROUP_AXES if axis in names)


def timed_step(
    workload: Workload, system: System, measured: Durations | None, blocking: tuple[str, ...]
) -> tuple[JobDurations, Timeline]:
    """Durations of a workload's ops, and its step with them, on the system's best placement (`placed`).

    The errors are those of `profile_job`. measured: durations that replace those of the cost model. blocking: mesh axes
    whose communication a rank waits for.
    """
    return _timed(workload, placed(workload, system)[0], measured, blocking)


def step_of(workload: Workload, system: System, blocking: tuple[str, ...] = ()) -> int:
    """The step of `timed_step` alone [ns], for many plans: it has no timeline, and no critical path.

    blocking: mesh axes whose communication a rank waits for.
    """
    system = placed(workload, system)[0]
    network, durations = _durations(workload, system, None)
    return step_length(network, durations.ns, system.overlap.compute, blocking)


def _timed(
    workload: Workload, system: System, measured: Durations | None, blocking: tuple[str, ...]
) -> tuple[JobDurations, Timeline]:
    network, durations = _durations(workload, system, measured)
    return durations, run_step(network, durations.ns, system.overlap.compute, blocking=blocking)


def _durations(workload: Workload, system: System, measured: Durations | None) -> tuple[NodeGraph, JobDurations]:
    network = node_graph_of(workload, system.overlap.streams, system.network(len(workload.ranks)))
    return network, _of_lanes(workload, network.lanes, system, measured)


def lane_durations(workload: Workload, system: System, count: int | None = None) -> JobDurations:
    """The durations that `step_of` has of the ops of each lane, without a step.

    count: how many lanes, from the first one; None: all.
    """
    system = placed(workload, system)[0]
    return _of_lanes(workload, find_lanes(workload, system.network(len(workload.ranks)))[:count], system, None)


def _of_lanes(workload: Workload, lanes: Sequence[Lane], system: System, measured: Durations | None) -> JobDurations:
    alone = time_ops(workload, lanes, system, measured)
    durations = in_step(workload, [lane.rank_class for lane in lanes], alone, system)
    durations = hidden(workload, lanes, durations, system)
    return durations if measured is None else _measured_kept(alone, durations)


def _measured_kept(alone: JobDurations, durations: JobDurations) -> JobDurations:
    """The durations, with those that were measured as they were: a measured op already has what a step adds to it."""
    lanes = []
    for before, after in zip(alone.lanes, durations.lanes, strict=True):
        measured = np.array([rule == "measured" for rule in before.rule], bool)
        lanes.append(replace(after, ns=np.where(measured, before.ns, after.ns)))
    return replace(durations, lanes=tuple(lanes))


def profile_job(
    workload: Workload,
    system: System,
    measured: Durations | None = None,
    scalings: Sequence[Scaling] = (),
    blocking: str | Sequence[str] = (),
) -> JobProfile:
    """Time a step of a workload: durations of its ops, a timeline of all lanes, and the figures that follow from it.

    measured: durations that replace the model's. scalings: which ops take longer or shorter, and by which factor.
    blocking: mesh axes (`tp,pp`) whose communication a rank waits for before it computes on, because its framework
    does. The job has the best placement of a system that names none. Raises UsageError if the system has no room or no
    rate for the job, if measured rows contradict each other, for a scaling that matches nothing, and for an unknown
    axis. Raises StagedbError for a step that never ends.
    """
    axes = blocking_axes(blocking, system)
    system, placements = placed(workload, system)
    durations, timeline = _timed(workload, system, measured, axes)
    unscaled = timeline.step
    if scalings:
        ns = scaled(timeline.network, durations.ns, scalings)
        lanes = tuple(replace(lane, ns=of_lane) for lane, of_lane in zip(durations.lanes, ns, strict=True))
        durations = replace(durations, lanes=lanes)
        timeline = run_step(timeline.network, durations.ns, system.overlap.compute, blocking=axes)
    times = step_times(timeline)
    merit = merit_of(times, system)
    return JobProfile(workload, system, measured, tuple(scalings), axes, durations, times, merit, unscaled, placements)
