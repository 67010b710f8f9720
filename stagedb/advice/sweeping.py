"""Plans on systems, timed one by one: the points of a sweep."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from stagedb.advice.bounds import bound_of
from stagedb.advice.moved_times import durations_on
from stagedb.advice.trials import Trials
from stagedb.errors import UsageError
from stagedb.lowering.columns import Workload
from stagedb.lowering.program import Program
from stagedb.memory import memory_of, peak_of
from stagedb.plans import Plan
from stagedb.shared_work import Answer, shared
from stagedb.systems import System
from stagedb.timing import merit_of, node_graph_of, run_step, step_times
from stagedb.timing.domain_straddles import placed
from stagedb.timing.timeline import step_length


@dataclass(frozen=True)
class SweepPoint:
    """A plan to time on a system.

    name: what differs from other points, in words. measured_on: the system whose tables of measured times are used.
    """

    name: str
    plan: Plan
    system: System
    measured_on: System


@dataclass(frozen=True)
class PointOutcome:
    """The result of timing one point of a sweep.

    ranks: of the plan. step: ns. peak: bytes of the fullest rank. fits: whether an accelerator of the system holds
    them. mfu: from 0 to 1; None without a finite peak. tokens: a second and accelerator; None without an acceptance of
    drafts. bound, share: what bounds the step (`Bound`), and its share of the step.
    """

    ranks: int
    step: int
    peak: int
    fits: bool
    mfu: float | None
    tokens: float | None
    bound: str
    share: float


@dataclass(frozen=True)
class Refusal:
    """Why a point has no outcome. message: that of the UsageError."""

    message: str


@dataclass
class PointTrials:
    """A sweep's points timed one by one. The last program is kept, because points with the same plan follow each other.

    trials: makes and times programs.
    """

    trials: Trials
    _last: tuple[Plan, Program, int] | None = field(default=None, init=False)

    def lowered(self, plan: Plan) -> tuple[Program, int]:
        """The program of a plan, and the bytes that its fullest rank holds. UsageError for a misfit."""
        if self._last is None or self._last[0] != plan:
            copied = self.trials.copied(plan)
            self._last = plan, copied, peak_of(memory_of(copied))
        return self._last[1], self._last[2]

    def outcome(self, point: SweepPoint) -> PointOutcome:
        """The outcome of a point. UsageError if plan and system do not suit the model or each other."""
        copied, peak = self.lowered(point.plan)
        system = point.system
        workload, room = copied.workload, system.accelerator.room
        world = len(workload.ranks)
        durations = durations_on(workload, system, point.measured_on)
        has = placed(workload, system)[0]
        graph = node_graph_of(workload, has.overlap.streams, has.network(world))
        times = step_times(run_step(graph, durations.ns, has.overlap.compute, blocking=self.trials.blocking))
        merit = merit_of(times, has)
        bound = bound_of(times, peak, room)
        return PointOutcome(
            ranks=world,
            step=times.step,
            peak=peak,
            fits=room is None or peak <= room,
            mfu=merit.mfu,
            tokens=merit.tokens_per_second_per_accelerator,
            bound=bound.words,
            share=bound.share,
        )

    def step(self, workload: Workload, system: System) -> int:
        """The step [ns] of a workload on a system with the tables of `trials.system`, alone."""
        durations = durations_on(workload, system, self.trials.system)
        has = placed(workload, system)[0]
        graph = node_graph_of(workload, has.overlap.streams, has.network(len(workload.ranks)))
        return step_length(graph, durations.ns, has.overlap.compute, self.trials.blocking)


def sweep(trials: Trials, points: Sequence[SweepPoint]) -> Iterator[tuple[int, PointOutcome | Refusal]]:
    """The place of each point and its outcome, as they end, in processes of their own.

    A point whose plan does not suit the model or the system is refused. Raises StagedbError if a process ends before
    its point does.
    """
    tried = PointTrials(trials)

    def work(at: int) -> Answer:
        try:
            return asdict(tried.outcome(points[at]))
        except UsageError as error:
            return {"message": error.message}

    _build_first(trials, points)
    for at, answer in shared(work, [each.name for each in points], trials.processes):
        yield at, Refusal(**answer) if "message" in answer else PointOutcome(**answer)


def _build_first(trials: Trials, points: Sequence[SweepPoint]) -> None:
    """Build the graph of the first plan, which most points share, before the processes are copied."""
    for point in points:
        try:
            trials.graph(point.plan.options)
        except UsageError:
            continue
        return
