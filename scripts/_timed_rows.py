"""Published steps whose kernels are timed alone, so that a step with other fitted numbers takes a moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import Workload
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.systems import System, load_system
from stagedb.timing.framework_timing import Calibration, as_used_by
from stagedb.timing.node_graph import NodeGraph, node_graph_of
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.step_profile import as_in_step
from stagedb.timing.timeline import Order, clock, decide, run_step
from stagedb.validation.step_rows import StepJob, StepRow, job_of
from stagedb.validation.step_times import plan_of

Kind = tuple[str, str, str]
"""Accelerator, framework, and dense or experts."""

_Known = tuple[tuple[tuple[str, Fraction], ...], Fraction, Fraction]
"""What the fitted numbers decide of a system: factors by operator, what matmuls sustain, and that of its host."""


@dataclass(eq=False)
class TimedRow:
    """A row with its graph. order: that of its step, which does not depend on durations where computing is in order."""

    job: StepJob
    kernels: str
    workload: Workload
    network: NodeGraph
    order: Order
    _alone: dict[Fraction, JobDurations] = field(default_factory=dict)
    _steps: dict[_Known, float] = field(default_factory=dict)

    @classmethod
    def of(cls, row: StepRow) -> "TimedRow":
        """Build the row's graph and copy it to its plan."""
        job = job_of(row)
        plan = plan_of(job)
        system, kernels = job.system, row.cells.get("kernels", "")
        workload = lower(IndexedGraph.of(build_graph(job.card, plan.options)), plan).workload
        network = node_graph_of(workload, system.overlap.streams, system.network(len(workload.ranks)))
        alone = time_ops(workload, network.lanes, system)
        blocking = job.profile.hides(kernels).blocking
        order = decide(network, network.lengths(alone.ns), system.overlap.compute, blocking)
        return cls(job, kernels, workload, network, order, {system.accelerator.sustained: alone})

    @property
    def row(self) -> StepRow:
        """The published row."""
        return self.job.row

    @property
    def kind(self) -> Kind:
        """The kind of prediction."""
        return self.job.kind

    def step(self, numbers: Sequence[Calibration]) -> float:
        """Seconds of the step with these fitted numbers."""
        system = as_used_by(load_system(self.job.system.name), self.job.profile, self.kernels, numbers)
        known = system.overlap.stretch, system.accelerator.sustained, system.overlap.issue_share
        if known not in self._steps:
            alone = self._time_alone(system)
            ns = as_in_step(self.workload, self.network.lanes, alone, system)
            self._steps[known] = clock(self.order, self.network.lengths(ns.ns)).step / 1e9
        return self._steps[known]

    def unnamed_step(self) -> float:
        """Seconds of the step where no framework is named: its plan on the plain system."""
        system = load_system(self.job.system.name)
        return run_step(self.network, self._time_alone(system).ns, system.overlap.compute).step / 1e9

    def _time_alone(self, system: System) -> JobDurations:
        sustained = system.accelerator.sustained
        if sustained not in self._alone:
            self._alone[sustained] = time_ops(self.workload, self.network.lanes, system)
        return self._alone[sustained]
