"""A step of an instance on a system, with all data of its views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from stagedb.errors import UsageError
from stagedb.lowering.columns import Workload
from stagedb.memory import ClassMemory
from stagedb.mentions import Word
from stagedb.search.trials import BatchPoint
from stagedb.systems import System
from stagedb.timing import JobProfile, Lane, Scaling, StepTimes
from stagedb.timing.op_durations import JobDurations
from stagedb.timing.step_profile import Merit


@dataclass(frozen=True)
class StepView:
    """A timed step, for charts and reports.

    times: when each node runs. durations: the time of each op, and the rule that gave it. merit: figures of merit.
    memory: the memory of each rank class, if it was computed. scalings: factors on durations. blocking: axes whose
    communication a rank waits for. batches: the step with other numbers of requests, if it serves some.
    """

    times: StepTimes
    durations: JobDurations
    system: System
    merit: Merit
    memory: tuple[ClassMemory, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    blocking: tuple[str, ...] = ()
    batches: tuple[BatchPoint, ...] = ()

    @classmethod
    def of(cls, job: JobProfile, memory: tuple[ClassMemory, ...] = ()) -> Self:
        """The view of a step that was timed.

        memory: that of every rank class; empty: not computed.
        """
        return cls(job.times, job.durations, job.system, job.merit, memory, job.scalings, job.blocking)

    @property
    def workload(self) -> Workload:
        """The work that runs."""
        return self.times.network.workload

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Ranks with the same times, by pipeline stage."""
        return self.times.network.lanes

    def label(self, lane: Lane) -> str:
        """A lane in words: its stage, and its class and first rank if the stage has several lanes."""
        several = sum(each.stage == lane.stage for each in self.lanes) > 1
        alike = sum((each.stage, each.rank_class) == (lane.stage, lane.rank_class) for each in self.lanes) > 1
        more = f", class {lane.rank_class}" if several else ""
        return f"stage {lane.stage}{more}{f', rank {lane.rank}' if alike else ''}"

    def of_stages(self, stages: Sequence[int] | None) -> tuple[Lane, ...]:
        """The lanes of these stages (None: all), by stage. Raises UsageError for a stage that does not exist."""
        lanes = sorted(self.lanes, key=lambda lane: (lane.stage, lane.number))
        if stages is None:
            return tuple(lanes)
        count = lanes[-1].stage + 1
        wrong = next((each for each in stages if not 0 <= each < count), None)
        if wrong is not None or not stages:
            raise UsageError(f"there is no stage {wrong}: {Word('only')} takes stages from 0 to {count - 1}")
        return tuple(lane for lane in lanes if lane.stage in stages)
