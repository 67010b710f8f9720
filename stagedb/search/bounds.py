"""Lower bounds of a plan's step and memory, from the figures of its layers: in microseconds, not in parts of a second.

No plan is faster or leaner than its bounds, so that a search need not try a plan whose bounds already lose. A step
lasts at least as long as a stage's layers compute, with the communication that they wait for, and as the first forward
needs to get there and the last backward to come back. A rank holds at least its parameters and states, and what the
forwards under way have saved.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import MessageEnd, OpType, SymGraph
from stagedb.lowering.program import IndexedGraph
from stagedb.lowering.stage_blocks import CUT, Block, Stage, lay_out
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.aspects.degrees import RANK_ORDER
from stagedb.plans.plan_fields import RecomputedLayers
from stagedb.schedules import DEFAULT
from stagedb.search.floors import MARGIN, fastest, floor_times, rounds_little
from stagedb.search.miniatures import (
    MicroBatchFigures,
    PartTimes,
    StageMiniature,
    StateFigures,
    TaskTransfers,
    beginning,
    layer_kinds,
    micro_batch_figures,
    shortened,
    stage_miniature,
    state_figures,
)
from stagedb.search.peak_bounds import ChunkParts, Chunks, StageOrders, fullest_stage, sum_of
from stagedb.search.space import Words
from stagedb.search.transfers import ClockMap, LayerPlace, Part, TaskMap, TaskOrder, TaskSort, after, identity, repeated
from stagedb.search.trials import GraphOf
from stagedb.systems import System
from stagedb.systems.cost_model import Costs, Transfer
from stagedb.timing.framework_terms import DATA_AXES
from stagedb.workflows import TASK_KINDS

F = TypeVar("F", MicroBatchFigures, StateFigures)

Shorten = Callable[[SymGraph, int], SymGraph]
"""Makes the graph of a miniature, with so many layers of each kind."""

Times = Mapping[str, Mapping[Part, PartTimes]]
"""By kind of task and part of the model."""


ALL, NONE = RecomputedLayers(), RecomputedLayers(first=0)
"""All layers recompute, or none."""


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
    _micro_batches: dict[object, MicroBatchFigures] = field(default_factory=dict)
    _states: dict[object, StateFigures] = field(default_factory=dict)
    _floors: dict[object, Times] = field(default_factory=dict)
    _chunks: dict[object, Chunks] = field(default_factory=dict)
    _recomputing: dict[object, list[tuple[tuple[Words, ...], Chunks]]] = field(default_factory=dict)
    _orders: dict[object, StageOrders] = field(default_factory=dict)
    _stages: dict[tuple[int, str], StageMiniature] = field(default_factory=dict)
    _rehearsals: dict[object, TaskOrder] = field(default_factory=dict)
    _costs: dict[int, Costs] = field(default_factory=dict)
    _received: dict[object, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def at_best(self) -> System | None:
        """The system at its best rates, for bounds of all micro-batches."""
        return fastest(self.system)

    def bound(self, plan: Plan, chunks: Chunks, largest: Chunks | None = None) -> PlanBound:
        """The bounds of a plan whose chunks have these layers. largest: in their place for the peak, if given.

        UsageError if the system has no rate for it.
        """
        step, terms = self.step(plan, chunks)
        return PlanBound(step, self.peak(plan, largest or chunks), terms)

    def work(self, plan: Plan, waits: bool) -> int:
        """The least ns of a micro-batch on the whole model. plan: one stage. waits: for communication, too."""
        times = self._of_micro_batch(plan).times
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
        saved = self._of_micro_batch(plan).saved
        return sum(saved[part] * count for part, count in self.chunks(plan, ALL)[0].parts)

    def loss(self, plan: Plan) -> int:
        """Bytes that a rank with the loss holds, beyond what forwards save, where a backward begins."""
        return self._of_micro_batch(plan).loss

    def held(self, plan: Plan) -> int:
        """Bytes of parameters, gradients and states that a rank would hold of the whole model. plan: one stage."""
        held = self._of_states(plan).held
        return sum_of(held, self.chunks(plan)[0])

    def step(self, plan: Plan, chunks: Chunks) -> tuple[int, Mapping[str, int]]:
        """A lower bound of the step of a plan whose chunks have these layers, and its terms [ns].

        Every chunk has its stage's rank alone while one of its tasks runs.
        """
        times = self._of_micro_batch(plan).times
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
            fill = sum(one.answered for one in tasks[:first])
            # A stage may end with gradients of weights, for which no other stage waits.
            drain = 0 if split else max(0, sum(one.sent for one in tasks[:first]) - tasks[first].after_sending)
            if busy + fill + drain > best:
                best = busy + fill + drain
                terms = _terms(
                    times, [chunks[number] for number in numbers], plan.microbatches, fill + drain, busy, waits
                )
        return best, terms

    def rehearsed(self, plan: Plan, first: PlanBound) -> PlanBound:
        """The bounds of a plan with its tasks in their order: closer than those of `bound`, which are `first`."""
        small = self._stage_miniature(plan)
        times = self._of_micro_batch(plan).times
        tasks = _TaskMaps(self, plan, small, self._ordered(plan), times, self._waits(plan))
        order = self._task_order(plan)
        ends = order.ends([tasks.of(each) for each in order.sorts])
        step, terms = first.step, first.terms
        for stage, (computed, *streams) in enumerate(ends):
            numbers = plan.placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            parts = [part for number in numbers for part in tasks.chunks[number]]
            update = self._update(plan, small, [block for block, _ in parts])
            # There are no streams of tasks that run together.
            after = [each + update.after(axes) for each, axes in zip(streams, small.streams, strict=False)]
            last = max([computed + update.end, *after])
            if last > step:
                # With one stage nothing but gathers and reductions of dp can make ranks wait.
                waits = "bubble" if plan.pp > 1 else "exposed dp"
                step, terms = last, {**first.terms, waits: first.terms.get(waits, 0) + last - first.step}
        return PlanBound(step, first.peak, terms)

    def _update(self, plan: Plan, small: StageMiniature, blocks: Sequence[str]) -> "_Update":
        """The update of these blocks, in their order."""
        times = [small.optimizer.get(block, 0) for block in blocks]
        gathers: dict[str, int] = {}
        begins: list[int] = []
        costs = self._costs_of(plan.world)
        for axis, (kind, ranks) in small.updates.items() if self._waits(plan) else ():
            # Not all parameters are gathered: a rank may have experts of its own.
            gathered = self._of_states(plan).gathered.get(axis, {})
            sizes = [gathered.get(block, 0) for block in blocks]
            if any(sizes):
                gathers[axis] = costs.placed(kind, sum(sizes), costs.placement(ranks)).ns
                # Nothing is gathered before the last block with a part of it is updated.
                begins.append(sum(times[: 1 + max(at for at, size in enumerate(sizes) if size)]))
        # The gathers of axes with streams of their own run in parallel.
        together = max(gathers.values(), default=0) if len(small.streams) > 1 else sum(gathers.values())
        if plan.virtual_stages > 1:
            # One chunk is gathered while the next one is updated.
            return _Update(max(sum(times), together), 0, gathers)
        ends = [begin + own for begin, own in zip(begins, gathers.values(), strict=True)]
        return _Update(max(sum(times), min(begins, default=0) + together, *ends), together, gathers)

    def _costs_of(self, world: int) -> Costs:
        if world not in self._costs:
            self._costs[world] = Costs(self.system, world)
        return self._costs[world]

    def sent_by_all(self, plan: Plan, runs: int, whole: bool) -> int:
        """Bytes that ranks with all stages together send at least. plan: one stage.

        runs: the number of micro-batches. whole: with what is reduced and gathered once a step.
        """
        chunk = self.chunks(plan, NONE)[0]
        of_step = self._reduced(plan, chunk) if whole else 0
        return runs * self._sent_in_micro_batch(plan, chunk) + of_step

    def sent(self, plan: Plan, chunks: Chunks) -> int:
        """A lower bound of the bytes that the rank that sends most sends in a step of a plan with these chunks."""
        messages, most, last = self._stage_miniature(plan).messages if plan.pp > 1 else {}, 0, len(chunks) - 1
        for stage in range(plan.pp):
            numbers = plan.placement.chunks_of(stage, plan.pp, plan.virtual_stages)
            often = sum(self._sent_in_micro_batch(plan, chunks[number]) for number in numbers)
            for number in numbers:
                for kind, towards in (("forward", 1), ("backward", -1)):
                    within = 0 <= number + towards <= last
                    if within and plan.placement.route(number, towards, plan.pp).hop:
                        often += messages.get(kind, messages.get("input_gradient", 0) if towards < 0 else 0)
            once = sum(self._reduced(plan, chunks[number]) for number in numbers)
            most = max(most, plan.microbatches * often + once)
        return most

    def _sent_in_micro_batch(self, plan: Plan, chunk: ChunkParts) -> int:
        sent = self._of_micro_batch(plan).sent

        def of(kind: str) -> int:
            return sum(count * sent.get(kind, {}).get(part, 0) for part, count in chunk.parts)

        halves = of("input_gradient") + of("weight_gradient")
        return of("forward") + (min(of("backward"), halves) if "input_gradient" in sent else of("backward"))

    def _reduced(self, plan: Plan, chunk: ChunkParts) -> int:
        reduced = self._of_states(plan).reduced
        return sum(count * reduced.get(block, 0) for (block, _), count in chunk.parts)

    def message(self, plan: Plan, stage: int, hop: int, size: int) -> int:
        """The ns of a message to a stage of the pipeline; 0 where ranks have another order than the usual one.

        stage: the receiver. hop: how many stages before it the sender is. size: in bytes.
        """
        if plan.rank_order != RANK_ORDER:
            return 0
        world, apart = plan.world, plan.world // plan.pp
        costs = self._costs_of(world)
        places = costs.network[0].size or 1
        if apart % places:
            # Messages in a domain and between two take turns: all are taken to be of the faster ones.
            return costs.transfer(Transfer(size, 0, apart)).ns if apart < places else 0
        return costs.transfer(Transfer(size, (stage - hop) * apart, stage * apart)).ns

    def _task_order(self, plan: Plan) -> TaskOrder:
        key = _of_order(plan)
        if key not in self._rehearsals:
            self._rehearsals[key] = TaskOrder.of(plan)
        return self._rehearsals[key]

    def _ordered(self, plan: Plan) -> tuple[tuple[Part, ...], ...]:
        """The parts of each chunk in their order."""
        stages = self._laid_out(plan, plan.chunk_layers(self.sizes["L"]), plan.recomputed)
        return tuple(tuple(_parts_of(stage)) for stage in stages)

    def _stage_miniature(self, plan: Plan) -> StageMiniature:
        """What each layer of a plan does to the clocks of a rank (`ClockMap`), from a model with few layers.

        The few layers have the plan's words and degrees. Chunks are as deep as the plan's, or so deep that each layer
        of the plan has an equal one there, with equal neighbours.
        """
        # A layer's map depends on its neighbours: the layer before, and those for which it gathers parameters ahead. If
        # only each third layer recomputes, or fewer, there are more kinds of neighbours, so that it takes more layers.
        depth = 2 * ahead_of(plan) + (1 if plan.recompute_every < 3 else 4)
        depth = depth if plan.recompute_first is None else 2 * _neighbours(plan)
        # Chunks deeper than the plan's would have larger buckets of gradients than the plan, so `min` below.
        depth *= layer_kinds(self.graph(plan.options))
        layers = plan.chunk_layers(self.sizes["L"])
        some = [each for each in layers if each]
        found = [self._of_depth(plan, each, layers) for each in {min(depth, min(some)), min(depth, max(some))}]
        return found[0] if len(found) == 1 else found[0].with_places_of(found[1])

    def _of_depth(self, plan: Plan, depth: int, layers: Sequence[int]) -> StageMiniature:
        """The miniature whose chunks have `depth` layers each. layers: those of the plan's chunks."""
        small = stage_plan(plan, depth, layers)
        number = sum(small.layers_per_chunk or [depth] * small.pp * small.virtual_stages)
        key = (number, small.to_json())
        if key not in self._stages:
            self._stages[key] = stage_miniature(
                self._graph(small.options, number, beginning), small, self.system, ahead_of(plan)
            )
        return self._stages[key]

    def peak(self, plan: Plan, chunks: Chunks) -> int:
        """A lower bound of the bytes of the fullest rank of a plan whose chunks have these layers."""
        figures = self._of_states(plan), self._of_micro_batch(plan)
        return fullest_stage(plan, chunks, *figures, self._flights(plan).moments, partial(self.received, plan))

    def at_turn(self, plan: Plan) -> int:
        """Bytes of the whole model that one rank would hold when a step turns from forwards to backwards. plan: one
        stage.

        The larger of two moments: when the last chunk of a stage begins its last backward, with all that the
        micro-batch saved and gathered in all chunks; and when all backwards are over, with all gradients.
        """
        states, whole = self._of_states(plan), self.chunks(plan)[0]
        before = self.saved(plan) + sum_of(states.left_gathered, whole) + self.loss(plan)
        return self.held(plan) + sum_of(states.copied, whole) + max(before, sum_of(states.kept_gradients, whole))

    def received(self, plan: Plan, numbers: Iterable[int]) -> int:
        """Bytes of the buffers that a rank has for messages from other stages, all micro-batches of a step at once.

        numbers: the chunks that the rank has, by their places in the pipeline. 0 if the framework receives into no
        buffers of its own.
        """
        if plan.pp == 1 or not plan.options.framework.memory.receive_buffers:
            return 0
        last = plan.pp * plan.virtual_stages - 1
        forward, backward = self._messages(plan)
        return plan.microbatches * sum(forward * (each > 0) + backward * (each < last) for each in numbers)

    def _messages(self, plan: Plan) -> tuple[int, int]:
        """Bytes of a micro-batch's messages between stages, forward and backward."""
        key = (plan.options, plan.dtypes, _degrees(plan), plan.micro_batch_size)
        if key not in self._received:
            graph = self._graph(plan.options, 0).graph
            env, found = plan.env(self.sizes), {"forward": 0, "backward": 0}
            for op in graph.ops:
                if isinstance(op.work, MessageEnd) and (op.block, op.type, op.axis) == (CUT, OpType.RECV, "pp"):
                    found[op.phase] += evaluate(op.work.comm_bytes, env)
            self._received[key] = found["forward"], found["backward"]
        return self._received[key]

    def _flights(self, plan: Plan) -> StageOrders:
        key = _of_order(plan)
        if key not in self._orders:
            self._orders[key] = StageOrders.of(plan)
        return self._orders[key]

    def chunks(self, plan: Plan, which: RecomputedLayers | None = None) -> Chunks:
        """The parts of the model in each chunk of a pipeline. which: layers that recompute, in place of the plan's."""
        graph = self._graph(plan.options, 0).graph
        chosen = ALL if plan.options.recompute == "none" else which or plan.recomputed
        layers = plan.chunk_layers(self.sizes["L"])
        key = (graph.blocks, layers, plan.virtual_stages, plan.placement, chosen)
        if key not in self._chunks:
            self._chunks[key] = tuple(map(_chunk_of, self._laid_out(plan, layers, chosen)))
        return self._chunks[key]

    def _laid_out(self, plan: Plan, layers: Sequence[int], which: RecomputedLayers) -> Sequence[Stage]:
        """The layers of each chunk. which: those that recompute."""
        blocks = [
            Block(each.name, None if each.once else evaluate(each.repeat, self.sizes), each.layers)
            for each in self._graph(plan.options, 0).graph.blocks
        ]

        def variants(layer: int, of_chunk: int) -> tuple[int, ...]:
            return (int(which.has(layer, of_chunk)),)

        return lay_out(blocks, layers, variants, (), plan.virtual_stages, plan.placement)

    def recomputing(self, plan: Plan, choices: Sequence[Words]) -> list[tuple[tuple[Words, ...], Chunks]]:
        """The choices of layers that give each chunk equally many that recompute, with its parts.

        choices: changes of the plan's words; a single one is the plan's own.
        """
        if len(choices) == 1:
            return [(tuple(choices), self.chunks(plan))]
        found: dict[Chunks, tuple[Words, ...]] = {}
        layers = plan.chunk_layers(self.sizes["L"])
        of_choices = tuple(
            RecomputedLayers(each.get("recompute_every", 1), each.get("recompute_first")) for each in choices
        )
        key = (plan.options, layers, plan.virtual_stages, plan.placement, of_choices)
        if key not in self._recomputing:
            for choice, which in zip(choices, of_choices, strict=True):
                chunks = self.chunks(plan, which)
                found[chunks] = (*found.get(chunks, ()), choice)
            self._recomputing[key] = [(own, chunks) for chunks, own in found.items()]
        return self._recomputing[key]

    def graph(self, options: GraphOptions) -> SymGraph:
        """The graph of the model with these options."""
        return self._graph(options, 0).graph

    def _graph(self, options: GraphOptions, copies: int, shorten: Shorten = shortened) -> IndexedGraph:
        """The graph of these options; with copies above 0, that of a miniature."""
        key = (options, copies, shorten)
        if key not in self._graphs:
            made = self.graph_of(options) if not copies else shorten(self._graph(options, 0).graph, copies)
            self._graphs[key] = IndexedGraph.of(made)
        return self._graphs[key]

    def _of_micro_batch(self, plan: Plan) -> MicroBatchFigures:
        def made(graph: IndexedGraph, small: Plan) -> MicroBatchFigures:
            return micro_batch_figures(graph, small, self.system)

        return self._figures(self._micro_batches, self._layers_of(plan), plan, micro_batch_plan, made)

    def _of_states(self, plan: Plan) -> StateFigures:
        key = (plan.options, plan.dtypes, _degrees(plan), plan.dp, plan.hsdp)
        return self._figures(self._states, key, plan, state_plan, state_figures)

    def _figures(
        self,
        known: dict[object, F],
        key: object,
        plan: Plan,
        smaller: Callable[[Plan], Plan],
        made: Callable[[IndexedGraph, Plan], F],
    ) -> F:
        """The figures of a miniature. known: those computed before, by the plan's key and by the miniature's plan."""
        if key not in known:
            # Plans that differ in what a miniature leaves out have the same one: ZeRO stages share it.
            small = smaller(plan)
            of_small = small.to_json()
            if of_small not in known:
                known[of_small] = made(self._shortened(small), small)
            known[key] = known[of_small]
        return known[key]

    def _shortened(self, small: Plan) -> IndexedGraph:
        """The graph of a miniature on one stage."""
        return self._graph(small.options, 2 * min(small.recompute_every, 2))

    def _layers_of(self, plan: Plan) -> object:
        """A key: plans with the same key have layers that compute the same in a micro-batch."""
        return (plan.options, plan.dtypes, _degrees(plan), plan.micro_batch_size, plan.recomputes_all)

    def floor(self, plan: Plan, batch: int, waits: bool) -> Fraction:
        """The least ns of a sequence on the whole model, in any micro-batch that divides `batch`; 0 if unknown.

        plan: one stage, with `batch` sequences in its micro-batch. waits: for communication, too.
        """
        key = self._layers_of(plan)
        if key not in self._floors:
            self._floors[key] = self._floor_times(plan)
        times = self._floors[key]
        costs = _task_costs(times, self.chunks(plan)[0], waits and self._waits(plan))
        return MARGIN * (costs.forward + min(costs.backward, costs.halves)) / batch

    def _floor_times(self, plan: Plan) -> Times:
        if self.at_best is None or not rounds_little(plan):
            return {}
        small = micro_batch_plan(plan)
        try:
            return floor_times(self._shortened(small), small, self.at_best)
        except OverflowError:  # a batch that is too large for one micro-batch
            return {}


def _of_order(plan: Plan) -> object:
    """A key: plans with the same key run their tasks in the same order."""
    return (
        *(plan.schedule, plan.pp, plan.microbatches, plan.virtual_stages, plan.options.recipe, plan.overlap_experts),
        *(plan.chunk_placement, plan.task_order, plan.options.workflow),
    )


def _degrees(plan: Plan) -> tuple[int, ...]:
    return plan.tp, plan.cp, plan.ep, plan.ulysses, plan.node_ranks


@dataclass(frozen=True)
class _Update:
    """Lower bounds of what a rank does after its last task [ns].

    end: from the first update until all parameters are gathered. together: the gathers, if all of them wait for the
    last reductions; otherwise 0. gathers: by axis.
    """

    end: int
    together: int
    gathers: Mapping[str, int]

    def after(self, axes: frozenset[str]) -> int:
        """The least ns for which parameters are gathered after the last task's collectives, on the streams of these
        axes.
        """
        own = sum(self.gathers.get(axis, 0) for axis in axes)
        # Others than those of gradients may end when parameters are gathered: no update waits for them.
        return max(own, self.together) if axes & {*DATA_AXES} else own


@dataclass(frozen=True)
class _TaskCosts:
    """Lower bounds of the tasks of a chunk [ns].

    answered: of a forward, from when its message has arrived. halves: of a backward in two halves. sent: from when a
    backward has its message until its own one is ready. after_sending: what it computes after that.
    """

    forward: int
    answered: int
    backward: int
    halves: int
    sent: int
    after_sending: int


@dataclass(frozen=True)
class _TaskMaps:
    """What the tasks of a plan do to the clocks of their ranks.

    chunks: the parts of each, in order. times: of parts on their own. waits: whether communication counts.
    """

    bounds: Bounds
    plan: Plan
    small: StageMiniature
    chunks: tuple[tuple[Part, ...], ...]
    times: Times
    waits: bool
    _known: dict[object, ClockMap] = field(default_factory=dict)

    def of(self, sort: TaskSort) -> TaskMap:
        """The times of the tasks of a sort."""
        message = 0
        if sort.hop:
            size = self.small.messages.get(sort.kind, 0)
            message = self.bounds.message(self.plan, sort.stage, sort.hop, size)
        return TaskMap(message, self._transfer(sort) if self.waits else self._busy(sort))

    def _busy(self, sort: TaskSort) -> ClockMap:
        """The map of a task if only its computing counts."""
        parts, kind = self.chunks[sort.chunk], TASK_KINDS[sort.kind]
        of = self.times.get(sort.kind, {})
        busy = sum(of[part].busy for part in parts if part in of)
        begins = parts[0 if kind.upward else -1][0]
        early = max((each.early for (block, _), each in of.items() if block == begins), default=0)
        # The gradients of the weights of the first layer may be computed after the message.
        sending = next((name for name, each in TASK_KINDS.items() if each.whole is kind and each.sends), "")
        half = self.times.get(sending, {})
        after = max(0, sum(of[part].busy - half[part].busy for part in parts[:1] if part in of and part in half))
        return np.array([[busy, busy - early], [busy - after, max(0, busy - after - early)]], np.int64)

    def _transfer(self, sort: TaskSort) -> ClockMap:
        parts = self.chunks[sort.chunk] if TASK_KINDS[sort.kind].upward else self.chunks[sort.chunk][::-1]
        key = (sort.kind, sort.opened, sort.last, parts)
        if key not in self._known:
            of_kind = next(
                self.small.transfers[asked]
                for asked in (
                    (sort.kind, sort.opened, sort.last),
                    (sort.kind, False, sort.last),
                    (sort.kind, sort.opened, False),
                    (sort.kind, False, False),
                )
                if asked in self.small.transfers
            )
            self._known[key] = self._product(of_kind, parts)
        return self._known[key]

    def _product(self, of_kind: TaskTransfers, parts: Sequence[Part]) -> ClockMap:
        found = identity(self.small.states)
        others = frozenset(block for block, _ in parts if block not in self.small.layers)
        ahead = 1 + ahead_of(self.plan)
        before = [None, *parts[:-1]]
        places = [
            LayerPlace(part, earlier, tuple(parts[at + 1 : at + ahead]), others)
            for at, (part, earlier) in enumerate(zip(parts, before, strict=True))
        ]
        for place, same in groupby(places):
            one = of_kind.of(place)
            if one is not None:
                found = after(repeated(one, len(list(same))), found)
        return found


def _task_costs(times: Times, chunk: ChunkParts, waits: bool) -> _TaskCosts:
    def cost(kind: str, parts: Sequence[tuple[Part, int]] = chunk.parts) -> int:
        of = times.get(kind, {})
        return sum(count * (of[part].chain if waits else of[part].busy) for part, count in parts if part in of)

    def early(kind: str, block: str) -> int:
        """What is over when the message arrives: all that the part then waits for, too."""
        own = [each for (name, _), each in times.get(kind, {}).items() if name == block and each.early]
        return max((each.early + (each.chain - each.busy if waits else 0) for each in own), default=0)

    forward = cost("forward")
    backward, first = cost("backward"), [(chunk.first, 1)]
    # The gradients of the weights of the first layer may be computed after the message.
    after = max(0, cost("backward", first) - cost("input_gradient", first))
    halves = cost("input_gradient") + cost("weight_gradient")
    answered = forward - early("forward", chunk.first[0])
    sent = max(0, backward - after - early("backward", chunk.last))
    return _TaskCosts(forward, answered, backward, min(backward, halves), sent, after)


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

_SHARDING = ("zero", "hsdp", "reshard", "reshard_to", "fsdp_version", "expert_unit", "grad_sync", "clip_norm")
"""Words of a plan that are about the ranks of dp."""

_RECOMPUTING = (
    "recompute",
    "recompute_every",
    "recompute_first",
    "recompute_operators",
    "recompute_modules",
    "early_stop",
)
"""Words of a plan that are about what is computed again."""


def micro_batch_plan(plan: Plan) -> Plan:
    """The plan of the miniature with what a plan's layers compute: one stage, one micro-batch, and few ranks of dp.

    What dp shards changes neither what a layer computes nor what it saves.
    """
    words = _without(_of_layers(plan), _SHARDING, "optimizer")
    inner = plan.cp * (plan.tp if plan.options.experts_over_tp else 1)
    return Plan.from_mapping({**words, "dp": math.lcm(plan.ep, inner) // inner})


def state_plan(plan: Plan) -> Plan:
    """The plan of the miniature with a plan's states: one stage, the ranks that share them, and few sequences."""
    words = _without(_of_layers(plan), _RECOMPUTING, "activations")
    # A strategy may deal whole sequences to the ranks of tp and cp.
    return Plan.from_mapping({**words, "micro_batch_size": plan.tp * plan.cp if plan.options.strategy else 1})


def _without(words: Mapping[str, Any], left_out: Container[str], kept: str) -> dict[str, Any]:
    """The words without some, and without what is kept on the host because of these."""
    others = {word: value for word, value in words.items() if word not in left_out}
    return {**others, "offload": "none"} if others["offload"] == kept else others


def _of_layers(plan: Plan) -> dict[str, Any]:
    """The words of a plan on which its layers depend. Every second layer recomputes for all plans in which some do: a
    miniature has layers of both."""
    words = {word: value for word, value in plan.to_dict().items() if word not in OF_STAGES}
    return {
        **words,
        "scatter_gather": False,
        "recompute_every": 1 if plan.recomputes_all else 2,
        "recompute_first": None,
    }


def ahead_of(plan: Plan) -> int:
    """The number of later layers for which a layer issues something: parameters are gathered up to two ahead."""
    return 2 if plan.options.zero > 1 else 1


def _neighbours(plan: Plan) -> int:
    """The number of equal layers in a row after which one more layer has no new neighbourhood."""
    return 2 * ahead_of(plan) + 1


def stage_plan(plan: Plan, depth: int, layers: Sequence[int]) -> Plan:
    """The plan of the miniature with all ranks of a stage: few stages, whose layers have the words of the plan.

    depth: the layers of a chunk. layers: of the plan's chunks, of which the ends may have none.
    """
    left_out = (
        *("layers_per_stage", "layers_per_chunk", "counted_ends", "chunk_placement", "task_order", "overlap_experts"),
    )
    words = {word: value for word, value in plan.to_dict().items() if word not in left_out}
    if plan.options.zero < 2 and plan.pp > 2 and (depth > 1 or plan.recompute_every == 1):
        # Nothing is gathered or reduced for a single task, so that all schedules have the same. Three stages have all
        # kinds of chunks: the first one, the last one, and others.
        words |= {"schedule": DEFAULT.name, "virtual_stages": 1}
    chunks = min(words["virtual_stages"], 2)
    words |= {
        "pp": min(plan.pp, 3 if chunks == 1 else 2),
        "virtual_stages": chunks,
        "global_batch_size": 6 * plan.dp * plan.micro_batch_size,
        "recompute_every": min(plan.recompute_every, ahead_of(plan) + 3, depth * chunks),
    }
    if plan.recompute_first is not None:
        # As many layers of a chunk as have all neighbours, or all of those that do not recompute.
        others = max(layers) - plan.recompute_first
        words |= {"recompute_first": min(plan.recompute_first, max(_neighbours(plan), depth - others), depth)}
    count = words["pp"] * chunks
    if not min(layers[0], layers[-1]):
        first, last = (depth if each else 0 for each in (layers[0], layers[-1]))
        words |= {"layers_per_chunk": [first, *[depth] * (count - 2), last]}
    return Plan.from_mapping(words)


def _parts_of(stage: Stage) -> list[Part]:
    """The parts of a chunk in their order."""
    return [(place.block, place.layer is not None and bool(place.variant)) for place in stage.places]


def _chunk_of(stage: Stage) -> ChunkParts:
    parts = _parts_of(stage)
    return ChunkParts(tuple(Counter(parts).items()), parts[0], parts[-1][0])
