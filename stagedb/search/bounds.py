"""Lower bounds of a plan's step and memory, from the figures of its layers: in microseconds, not in parts of a second.

No plan is faster or leaner than its bounds, so that a search need not try a plan whose bounds already lose. A step
lasts at least as long as a stage's layers compute, with the communication that they wait for, and as the first forward
needs to get there and the last backward to come back. A rank holds at least its parameters and states, and what the
forwards under way have saved.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stagedb.advice.trials import GraphOf
from stagedb.expressions import evaluate
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.copied_rows import IndexedGraph
from stagedb.lowering.stage_blocks import Block, Stage, lay_out
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.aspects.degrees import RANK_ORDER
from stagedb.schedules import Order, splits
from stagedb.search.miniatures import Miniature, Part, PartTimes, miniature, shortened
from stagedb.systems import System

Times = Mapping[str, Mapping[Part, PartTimes]]
"""By kind of task and part of the model."""


@dataclass(frozen=True)
class ChunkParts:
    """How often a chunk of a pipeline has each part of the model, and the part that it has first."""

    parts: tuple[tuple[Part, int], ...]
    first: Part


Chunks = tuple[ChunkParts, ...]
"""By number in the pipeline."""


@dataclass(frozen=True)
class PlanBound:
    """Lower bounds of a plan: step [ns], and bytes of the fullest rank. terms: ns of the step by what takes it."""

    step: int
    peak: int
    terms: Mapping[str, int]


@dataclass(frozen=True)
class Bounds:
    """Bounds of the plans of one model on one system. They remember what plans have in common."""

    graph_of: GraphOf
    sizes: Mapping[str, int]
    system: System
    _graphs: dict[object, IndexedGraph] = field(default_factory=dict)
    _miniatures: dict[object, Miniature] = field(default_factory=dict)
    _chunks: dict[object, Chunks] = field(default_factory=dict)
    _recomputing: dict[object, list[tuple[tuple[int, ...], Chunks]]] = field(default_factory=dict)
    _orders: dict[object, "_Orders"] = field(default_factory=dict)

    def bound(self, plan: Plan, chunks: Chunks) -> PlanBound:
        """The bounds of a plan whose chunks have these layers. UsageError if the system has no rate for it."""
        step, terms = self._step(plan, chunks)
        return PlanBound(step, self._peak(plan, chunks), terms)

    def work(self, plan: Plan, waits: bool) -> int:
        """The least ns of a micro-batch on the whole model. plan: one stage. waits: for communication, too."""
        times = self._miniature(plan, timed=True).times
        costs = _task_costs(times, self.chunks(plan)[0], waits and self._waits(plan))
        return costs.forward + min(costs.backward, costs.halves)

    def _waits(self, plan: Plan) -> bool:
        """Whether the communication of a layer counts. It does not where something else is computed in its time, and
        where the ranks of its groups are placed in another way than those of a miniature.
        """
        alone = self.system.overlap.compute != "out-of-order" and not plan.overlap_experts
        return alone and plan.rank_order == RANK_ORDER

    def saved(self, plan: Plan) -> int:
        """Bytes that one forward of the whole model saves, if every layer recomputes. plan: one stage."""
        saved = self._miniature(plan, timed=True).saved
        return sum(saved[part] * count for part, count in self.chunks(plan, 1)[0].parts)

    def held(self, plan: Plan) -> int:
        """Bytes of parameters, gradients and states that a rank would hold of the whole model. plan: one stage."""
        held = self._miniature(plan, timed=False).held
        return sum(held[block] * count for (block, _), count in self.chunks(plan)[0].parts)

    def _step(self, plan: Plan, chunks: Chunks) -> tuple[int, Mapping[str, int]]:
        """A lower bound of the step. Every chunk has its stage's rank alone while one of its tasks runs."""
        times = self._miniature(plan, timed=True).times
        waits = self._waits(plan)
        costs = {chunk: _task_costs(times, chunk, waits) for chunk in set(chunks)}
        tasks = [costs[chunk] for chunk in chunks]
        split = self._flights(plan).splits
        best, terms, placement = 0, dict[str, int](), plan.placement
        for stage in range(plan.pp):
            numbers = placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            first = min(numbers)
            each = [tasks[number] for number in numbers]
            busy = plan.microbatches * sum(one.forward + (one.halves if split else one.backward) for one in each)
            fill = sum(one.forward for one in tasks[:first])
            # A stage may end with gradients of weights, for which no other stage waits.
            drain = 0 if split else max(0, sum(one.sent for one in tasks[:first]) - tasks[first].after_sending)
            if busy + fill + drain > best:
                best = busy + fill + drain
                terms = _terms(
                    times, [chunks[number] for number in numbers], plan.microbatches, fill + drain, busy, waits
                )
        return best, terms

    def _peak(self, plan: Plan, chunks: Chunks) -> int:
        held, saved = self._miniature(plan, timed=False).held, self._miniature(plan, timed=True).saved
        size = {
            chunk: (
                sum(held[block] * count for (block, _), count in chunk.parts),
                sum(saved[part] * count for part, count in chunk.parts),
            )
            for chunk in set(chunks)
        }
        peak, placement = 0, plan.placement
        for stage, flights in enumerate(self._flights(plan).most):
            numbers = placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            sizes = [size[chunks[number]] for number in numbers]
            own = sum(
                of_states + count * of_forward for (of_states, of_forward), count in zip(sizes, flights, strict=True)
            )
            peak = max(peak, own)
        return peak

    def _flights(self, plan: Plan) -> "_Orders":
        options = plan.options
        key = (plan.schedule, plan.pp, plan.microbatches, plan.virtual_stages, options.recipe, plan.overlap_experts)
        if key not in self._orders:
            self._orders[key] = _Orders.of(plan)
        return self._orders[key]

    def chunks(self, plan: Plan, every: int | None = None) -> Chunks:
        """The parts of the model in each chunk of a pipeline. every: in place of the plan's `recompute_every`."""
        graph = self._graph(plan.options, 0).graph
        number = 1 if plan.options.recompute == "none" else every or plan.recompute_every
        layers = plan.chunk_layers(self.sizes["L"])
        key = (graph.blocks, layers, plan.virtual_stages, plan.placement, number)
        if key not in self._chunks:
            blocks = [
                Block(each.name, None if each.once else evaluate(each.repeat, self.sizes), each.layers)
                for each in graph.blocks
            ]

            def variants(layer: int) -> tuple[int, ...]:
                return (int((layer + 1) % number == 0),)

            stages = lay_out(blocks, layers, variants, (), plan.virtual_stages, plan.placement)
            self._chunks[key] = tuple(map(_chunk_of, stages))
        return self._chunks[key]

    def recomputing(self, plan: Plan, numbers: Sequence[int]) -> list[tuple[tuple[int, ...], Chunks]]:
        """The values of `recompute_every` that give each chunk equally many layers that recompute, with its parts."""
        found: dict[Chunks, tuple[int, ...]] = {}
        layers = plan.chunk_layers(self.sizes["L"])
        key = (plan.options, layers, plan.virtual_stages, plan.placement, tuple(numbers))
        if key not in self._recomputing:
            for number in numbers:
                chunks = self.chunks(plan, number)
                found[chunks] = (*found.get(chunks, ()), number)
            self._recomputing[key] = [(every, chunks) for chunks, every in found.items()]
        return self._recomputing[key]

    def graph(self, options: GraphOptions) -> SymGraph:
        """The graph of the model with these options."""
        return self._graph(options, 0).graph

    def _graph(self, options: GraphOptions, copies: int) -> IndexedGraph:
        """The graph of these options; with copies above 0, that of a miniature."""
        key = (options, copies)
        if key not in self._graphs:
            made = self.graph_of(options) if not copies else shortened(self._graph(options, 0).graph, copies)
            self._graphs[key] = IndexedGraph.of(made)
        return self._graphs[key]

    def _miniature(self, plan: Plan, timed: bool) -> Miniature:
        degrees = (plan.tp, plan.cp, plan.ep, plan.ulysses, plan.node_ranks)
        mine = (plan.micro_batch_size, min(plan.recompute_every, 2)) if timed else (plan.dp, plan.hsdp)
        key = (timed, plan.options, degrees, mine)  # all plans of a search have the same formats
        if key not in self._miniatures:
            small = small_plan(plan, timed)
            graph = self._graph(small.options, 2 * min(small.recompute_every, 2))
            self._miniatures[key] = miniature(graph, small, self.system if timed else None)
        return self._miniatures[key]


@dataclass(frozen=True)
class _Orders:
    """What bounds follow from the order of tasks.

    most: by stage and chunk, micro-batches between their forward and their backward when most are. splits: whether some
    stage computes gradients of weights apart.
    """

    most: tuple[tuple[int, ...], ...]
    splits: bool

    @classmethod
    def of(cls, plan: Plan) -> "_Orders":
        orders = plan.tasks()
        most = tuple(_most_in_flight(order, plan.virtual_stages) for order in orders)
        return cls(most, any(map(splits, orders)))


@dataclass(frozen=True)
class _TaskCosts:
    """Lower bounds of the tasks of a chunk [ns].

    halves: of a backward in two halves. sent: from the beginning of a backward until its message is ready.
    after_sending: what it computes after that.
    """

    forward: int
    backward: int
    halves: int
    sent: int
    after_sending: int


def _task_costs(times: Times, chunk: ChunkParts, waits: bool) -> _TaskCosts:
    def cost(kind: str, parts: Sequence[tuple[Part, int]] = chunk.parts) -> int:
        of = times.get(kind, {})
        return sum(count * (of[part].chain if waits else of[part].busy) for part, count in parts if part in of)

    backward, first = cost("backward"), [(chunk.first, 1)]
    # The gradients of the weights of the first layer may be computed after the message.
    after = max(0, cost("backward", first) - cost("input_gradient", first))
    halves = cost("input_gradient") + cost("weight_gradient")
    return _TaskCosts(cost("forward"), backward, min(backward, halves), backward - after, after)


def _terms(
    times: Times, chunks: Sequence[ChunkParts], microbatches: int, bubble: int, busy: int, waits: bool
) -> dict[str, int]:
    """What a stage does in the time of a bound."""
    found = Counter[str]()
    own = [each for chunk in chunks for each in chunk.parts] if waits else []
    for of_kind in (times.get(kind, {}) for kind in ("forward", "backward")):
        for part, count in own:
            exposed = of_kind[part].exposed if part in of_kind else {}
            found.update({f"exposed {axis}": microbatches * count * ns for axis, ns in exposed.items()})
    return {"compute": busy - sum(found.values()), **found, "bubble": bubble}


OF_STAGES = frozenset(
    (
        *("pp", "schedule", "virtual_stages", "chunk_placement", "task_order", "layers_per_stage", "layers_per_chunk"),
        *("counted_ends", "global_batch_size", "overlap_experts", "rank_order"),
    )
)
"""Words of a plan that are about its stages, or about more than one micro-batch: a miniature has none of them."""

_SHARDING = ("zero", "hsdp", "reshard", "reshard_to", "expert_unit", "grad_sync", "clip_norm")
"""Words of a plan that are about the ranks of dp."""


def small_plan(plan: Plan, timed: bool) -> Plan:
    """The plan of the miniature with a plan's layers: one stage, one micro-batch, all that layers do not depend on left
    out. timed: with the micro-batch, and few ranks of dp; otherwise with those that share states, and one sequence."""
    words = {word: value for word, value in plan.to_dict().items() if word not in OF_STAGES}
    words |= {"scatter_gather": False, "recompute_every": min(plan.recompute_every, 2)}
    if timed:
        # What dp shards changes neither what a layer computes nor what it saves.
        words = {word: value for word, value in words.items() if word not in _SHARDING}
        inner = plan.cp * (plan.tp if plan.options.experts_over_tp else 1)
        words |= {"dp": math.lcm(plan.ep, inner) // inner}
    else:
        words |= {"micro_batch_size": 1, "recompute": "none", "recompute_every": 1}
    return Plan.from_mapping(words)


def _chunk_of(stage: Stage) -> ChunkParts:
    parts = [(place.block, place.layer is not None and bool(place.variant)) for place in stage.places]
    return ChunkParts(tuple(Counter(parts).items()), parts[0])


def _most_in_flight(order: Order, chunks: int) -> tuple[int, ...]:
    flying, most, begun = [0] * chunks, (0,) * chunks, [0] * chunks
    for task, following in zip(order, (*order[1:], None), strict=True):
        if task.kind.keeps:
            begun[task.chunk] += 1
        elif task.kind.sends and task.kind.differentiates:
            flying[task.chunk] -= 1
        if following is None or not following.joined:
            # A backward that runs together with a forward may free what that one saves.
            flying = [sum(each) for each in zip(flying, begun, strict=True)]
            begun = [0] * chunks
            most = max(most, tuple(flying), key=sum)
    return most
