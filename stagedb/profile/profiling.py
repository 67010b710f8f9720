"""An instance's step on a system, from its columns to its figures of merit: all that a profile is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stagedb.issue.columns import Workload
from stagedb.profile.merit import Merit, merit_of
from stagedb.profile.network import network_of
from stagedb.profile.spent import StepTimes, step_times
from stagedb.profile.timeline import run_step
from stagedb.profile.times import JobDurations, time_ops
from stagedb.profile.whatif import Scaling, scaled
from stagedb.systems import Durations, System


@dataclass(frozen=True)
class JobProfile:
    """A step of a workload on a system, and what gave it its times.

    durations: of each lane's ops, scaled; `rule` and `dimension` are those of the times before scaling. times: where
    the step goes. unscaled: ns of the step without the scalings; as long as the step where there are none.
    """

    workload: Workload
    system: System
    measured: Durations | None
    scalings: tuple[Scaling, ...]
    durations: JobDurations
    times: StepTimes
    merit: Merit
    unscaled: int

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.times.step

    @property
    def gain(self) -> int:
        """By how many ns the scalings shorten the step; below 0 where they lengthen it."""
        return self.unscaled - self.step


def profile_job(
    workload: Workload, system: System, measured: Durations | None = None, scalings: Sequence[Scaling] = ()
) -> JobProfile:
    """Time a step of a workload: durations of its ops, all lanes together over the step, and what that tells.

    measured: durations that take the model's place. scalings: what takes so many times as long as that. Raises
    UsageError where the system has no room or no rate for the job, where measured rows contradict each other, and for
    a scaling that chooses nothing; StagedbError for a step that never ends.
    """
    network = network_of(workload, system.overlap.streams, system.network(len(workload.ranks)))
    durations = time_ops(workload, network.lanes, system, measured)
    compute = system.overlap.compute
    found = run_step(network, durations.ns, compute)
    unscaled = found.step
    if scalings:
        ns = scaled(network, durations.ns, scalings)
        lanes = tuple(replace(lane, ns=each) for lane, each in zip(durations.lanes, ns, strict=True))
        durations = replace(durations, lanes=lanes)
        found = run_step(network, durations.ns, compute)
    times = step_times(found)
    return JobProfile(workload, system, measured, tuple(scalings), durations, times, merit_of(times, system), unscaled)
