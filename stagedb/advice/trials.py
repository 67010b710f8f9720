"""Plans tried out: the step and the peak memory of each, by the code that instances, profiles and memory have."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stagedb.ir.symbolic_graph import SymGraph
from stagedb.memory.class_memory import ClassMemory, class_memory
from stagedb.memory.class_program import PlacedWeight
from stagedb.plans import GraphOptions, Plan
from stagedb.systems import System
from stagedb.timing import timed_step
from stagedb.workload.copied_instances import CopiedInstance, GraphInMemory, copy_in_memory

GraphOf = Callable[[GraphOptions], SymGraph]
"""The graph of the model with these options. UsageError where it cannot be built."""


@dataclass(frozen=True)
class Outcome:
    """A plan's step [ns], and the bytes that its fullest rank holds at the peak."""

    step: int
    peak: int


@dataclass(frozen=True)
class Trials:
    """Plans of one model on one system. Plans with the same graph share it.

    blocking: mesh axes whose communication a rank waits for.
    """

    graph_of: GraphOf
    sizes: Mapping[str, int]
    system: System
    blocking: tuple[str, ...] = ()
    _graphs: dict[str, GraphInMemory] = field(default_factory=dict)

    def copied(self, plan: Plan) -> CopiedInstance:
        """The instance of a plan. UsageError for a plan that does not suit the model."""
        key = repr(sorted(plan.options.to_dict().items()))
        if key not in self._graphs:
            self._graphs[key] = GraphInMemory.of(self.graph_of(plan.options))
        return copy_in_memory(self._graphs[key], plan)

    def step(self, copied: CopiedInstance) -> int:
        """Nanoseconds of an instance's step. UsageError if the system has no room or no rate for it."""
        _, found = timed_step(copied.workload, self.system, None, self.blocking)
        return found.step

    def outcome(self, plan: Plan) -> Outcome:
        """The step and the peak of a plan."""
        copied = self.copied(plan)
        return Outcome(self.step(copied), peak_of(memory_of(copied)))

    def outcome_that_fits(self, plan: Plan) -> Outcome | None:
        """The same for a plan that fits into an accelerator's memory; None for others, whose step is not run."""
        copied = self.copied(plan)
        peak, room = peak_of(memory_of(copied)), self.system.accelerator.room
        return None if room is not None and peak > room else Outcome(self.step(copied), peak)


def memory_of(copied: CopiedInstance) -> tuple[ClassMemory, ...]:
    """The memory of every rank class of an instance."""
    found = []
    for columns in copied.workload.classes:
        members = copied.carried.get(columns.number, {})
        carried = {op: tuple(PlacedWeight(*each) for each in weights) for op, weights in members.items()}
        found.append(class_memory(copied.graph, copied.plan, columns, carried))
    return tuple(found)


def peak_of(memory: tuple[ClassMemory, ...]) -> int:
    """Bytes of the fullest rank class at its peak."""
    return max(sum(each.usage.at(each.peak).values()) for each in memory)
