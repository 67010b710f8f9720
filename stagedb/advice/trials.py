"""Plans tried out: the step and the peak memory of each, by the code that instances, profiles and memory have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stagedb.advice.bounds import ns_of_losses
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.copied_rows import IndexedGraph
from stagedb.lowering.program import Program, lower
from stagedb.memory import memory_of, peak_of
from stagedb.plans import GraphOptions, Plan
from stagedb.systems import System
from stagedb.timing import profile_job, step_of

GraphOf = Callable[[GraphOptions], SymGraph]
"""The graph of the model with these options. UsageError where it cannot be built."""


@dataclass(frozen=True)
class Outcome:
    """A plan's step [ns], and the bytes that its fullest rank holds at the peak."""

    step: int
    peak: int


@dataclass(frozen=True)
class Trials:
    """Plans of one model on one system, timed one after another. Plans with the same graph share it.

    graph_of: makes the graph of some options. sizes: the model's symbols. blocking: mesh axes whose communication a
    rank waits for. processes: how many processes try plans; None for one on each core.
    """

    graph_of: GraphOf
    sizes: Mapping[str, int]
    system: System
    blocking: tuple[str, ...] = ()
    processes: int | None = None
    _graphs: dict[str, IndexedGraph] = field(default_factory=dict)

    def graph(self, options: GraphOptions) -> IndexedGraph:
        """The graph with these options, built once. UsageError where it cannot be built."""
        key = repr(sorted(options.to_dict().items()))
        if key not in self._graphs:
            self._graphs[key] = IndexedGraph.of(self.graph_of(options))
        return self._graphs[key]

    def copied(self, plan: Plan) -> Program:
        """The program of a plan. UsageError for a plan that does not suit the model."""
        return lower(self.graph(plan.options), plan)

    def step(self, copied: Program) -> int:
        """Nanoseconds of a program's step. UsageError if the system has no room or no rate for it."""
        return step_of(copied.workload, self.system, self.blocking)

    def terms(self, copied: Program) -> dict[str, int]:
        """Where a program's step goes: ns of `compute`, `bubble`, `idle` and `exposed AXIS`, the mean of all ranks.

        The terms add up to the step.
        """
        times = profile_job(copied.workload, self.system, blocking=self.blocking).times
        world = len(copied.workload.ranks)
        busy, lost = ns_of_losses(times)
        found = {"compute": busy // world, "bubble": lost["bubble"] // world}
        found |= {f"exposed {axis}": ns // world for axis, ns in lost.items() if axis not in ("bubble", "idle") and ns}
        return {**found, "idle": times.step - sum(found.values())}

    def outcome(self, plan: Plan) -> Outcome:
        """The step and the peak of a plan."""
        copied = self.copied(plan)
        return Outcome(self.step(copied), peak_of(memory_of(copied)))

    def outcome_that_fits(self, plan: Plan) -> Outcome | None:
        """Step and peak of a plan that fits into an accelerator's memory; None for others, whose step is not timed."""
        copied = self.copied(plan)
        peak, room = peak_of(memory_of(copied)), self.system.accelerator.room
        return None if room is not None and peak > room else Outcome(self.step(copied), peak)
