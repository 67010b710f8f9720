"""Plans tried out: the step, what bounds it, and the peak memory, by the code that instances and profiles have."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stagedb.errors import UsageError
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.columns import Program
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.memory import memory_of, peak_of
from stagedb.plans import GraphOptions, Plan
from stagedb.systems import System
from stagedb.timing import StepTimes, profile_job, step_of
from stagedb.timing.step_profile import SECOND

# What bounds a step: the accelerator's memory, a loss such as the bubble, or computing itself.

LARGE = 0.1
"""A loss below this share of the step does not bound it: computing does."""

WORDS = {
    "tp": "activations over tp",
    "kv": "key/value heads over tp",
    "cp": "sequences over cp",
    "cpr": "sequences over cp",
    "cpa": "heads over cp",
    "ep": "tokens of experts over ep",
    "epn": "tokens of experts between nodes",
    "epr": "tokens of experts inside nodes",
    "edp": "gradients of experts over edp",
    "data": "gradients over dp",
    "dp": "gradients and parameters over dp",
    "dp_replicate": "gradients over copies of dp",
    "dp_reshard": "parameters over neighbours of dp",
    "pp": "messages between stages",
    "embedding": "gradients of the tied embedding",
}
"""What the ranks of an axis exchange."""


@dataclass(frozen=True)
class Bound:
    """What bounds a step, in words, and its share of the step (mean of all ranks); for memory, of the capacity.

    kind: `memory`, `compute`, `bubble`, `idle`, or the axis whose communication is exposed. busy: the share in which a
    rank computes.
    """

    kind: str
    share: float
    busy: float

    @property
    def words(self) -> str:
        """What bounds the step, in words such as `communication of tp`."""
        if self.kind == "memory":
            return "memory"
        named = {
            "compute": "computing",
            "bubble": "the bubble",
            "idle": "waiting for ranks of the same stage, or for the host",
        }
        return named.get(self.kind) or f"communication of {WORDS.get(self.kind, self.kind)}"


def ns_of_losses(times: StepTimes) -> tuple[int, Counter[str]]:
    """The ns in which ranks compute, and those that they lose, by `bubble`, `idle` or the axis whose communication is
    exposed. All are sums over the ranks.
    """
    busy, lost = 0, Counter[str]()
    for lane, columns, spent in zip(times.network.lanes, times.network.columns, times.lanes, strict=True):
        busy += spent.busy * lane.ranks
        lost["bubble"] += spent.bubble * lane.ranks
        lost["idle"] += spent.idle * lane.ranks
        # The time in which several axes communicate at once is divided among them.
        exposed = {axis: 0 for axis in columns.ops.axis if axis}
        for axis, ns in zip(columns.ops.axis, spent.ops.exposed.tolist(), strict=True):
            if axis:
                exposed[axis] += ns
        whole = max(sum(exposed.values()), 1)
        for axis, ns in exposed.items():
            lost[axis] += spent.exposed * ns * lane.ranks // whole
    return busy, lost


def bound_of(times: StepTimes, peak: int | None = None, room: int | None = None) -> Bound:
    """What bounds a step. peak: bytes of its fullest rank. room: bytes of an accelerator, if it has a limit."""
    busy, lost = ns_of_losses(times)
    total = max(times.step * len(times.network.workload.ranks), 1)
    computing = busy / total
    if peak is not None and room is not None and peak > room:
        return Bound("memory", peak / room, computing)
    kind, most = max(sorted(lost.items()), key=lambda each: each[1], default=("compute", 0))
    return Bound(kind, most / total, computing) if most / total >= LARGE else Bound("compute", computing, computing)


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


# A step of serving with fewer and more requests: how long each waits for a token, and how many fit.

MOST = 4096
"""Requests on a rank of dp in a micro-batch, at most."""


@dataclass(frozen=True)
class BatchPoint:
    """A step with a number of requests.

    requests: those on all ranks. step: ns. wait: ns for a token of a request, or for the first one where a step
    computes prompts. tokens: a second and accelerator; None without an acceptance of drafts. peak: bytes of the fullest
    rank. fits: whether an accelerator holds them. own: it is the plan itself.
    """

    requests: int
    step: int
    wait: int
    tokens: float | None
    peak: int
    fits: bool
    own: bool


def batch_points(trials: Trials, plan: Plan) -> tuple[BatchPoint, ...]:
    """Steps with 1, 2, 4 and so on requests on a rank of dp in a micro-batch, and with those of the plan, ascending.

    They end with the first one that does not fit. None for workflows without a cache, and for requests of several
    lengths. trials: of the model on its system. Numbers that the model cannot have are left out.
    """
    if not plan.workflow.caches or plan.requests:
        return ()
    found: list[BatchPoint] = []
    for count in sorted({1 << power for power in range(MOST.bit_length())} | {plan.micro_batch_size}):
        words = {"micro_batch_size": count, "global_batch_size": plan.microbatches * count * plan.dp}
        try:
            changed = plan.changed(words)
            changed.check(trials.sizes)
            outcome = trials.outcome(changed)
        except UsageError:
            continue
        room, tokens = trials.system.accelerator.room, changed.tokens
        rate = None if tokens is None or not outcome.step else float(tokens * SECOND / outcome.step / changed.world)
        wait = outcome.step if changed.accepted is None else round(outcome.step / changed.accepted)
        fits = room is None or outcome.peak <= room
        own = count == plan.micro_batch_size
        found.append(BatchPoint(changed.batch, outcome.step, wait, rate, outcome.peak, fits, own))
        if not fits and count >= plan.micro_batch_size:
            break
    return tuple(found)
