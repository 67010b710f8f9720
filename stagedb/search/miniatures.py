"""What one layer of each kind takes and holds under a plan: lower bounds for stages of any depth.

A miniature is the program of a model with two or four layers of each kind on one stage, made by the code that makes
that of the whole model. Its figures are of one rank:

- ns that the compute stream needs for a layer and a template, with the communication that the layer waits for: the
  longest path from the end of what computes before it to the end of the layer. Paths of consecutive layers follow each
  other, so that their sum is a path through a task of a stage.
- bytes that the forward of a layer saves for its backward, and bytes of its parameters, gradients and optimizer states.

A second one has two stages. It has what ranks of data parallelism communicate, the optimizer, and the messages between
stages.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TypeVar

import numpy as np

from stagedb.collectives import gathers
from stagedb.frameworks import bucket_policy
from stagedb.ir.expressions import evaluate
from stagedb.ir.facts import Casts
from stagedb.ir.operators.optimizer import ToHost
from stagedb.ir.quotients import symbols
from stagedb.ir.symbolic_graph import BlockSpec, Collective, SymGraph
from stagedb.lowering.columns import (
    CLOSED,
    COLLECTIVE,
    COMPUTE,
    DATA,
    EVERY,
    LAST,
    ONCE,
    RUNS,
    SEND,
    TASK_KINDS,
    ClassColumns,
    Ints,
    Origins,
    Program,
    Workload,
)
from stagedb.lowering.graph_values import of_experts
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.lowering.stage_blocks import PSEUDO_BLOCKS, Block, lay_out
from stagedb.memory import ClassMemory
from stagedb.memory.chunk_tensors import Chunk
from stagedb.memory.class_memory import memory_of_classes
from stagedb.memory.class_program import ChunkProgram, PlacedWeight, programs
from stagedb.memory.lifetimes import Category, Lives, Moment
from stagedb.memory.resident_state import offloaded, states_at
from stagedb.memory.tensor_lifetimes import saved
from stagedb.plans import Plan
from stagedb.search.transfers import STREAMS, ClockMap, LayerPlace, Part, transfers
from stagedb.systems import System
from stagedb.timing.framework_terms import DATA_AXES
from stagedb.timing.lanes import Lane, find_lanes, group_of
from stagedb.timing.network_position import placed
from stagedb.timing.op_durations import members_of, sent_by_member
from stagedb.timing.step_profile import lane_durations
from stagedb.workflows import RECOMPUTE

K = TypeVar("K", tuple[str, bool], str)

_VALUES = (Category.ACTIVATIONS, Category.RECOMPUTED, Category.TEMPORARIES)
"""What a micro-batch holds of its own."""

_UPDATED = (Category.OPTIMIZER, Category.MASTER)
"""What a rank that updates whole weights has of its own ones alone. Which these are follows from all of the model, so
that it counts for nothing, and neither do their updates and gathers.
"""


@dataclass(frozen=True)
class PartTimes:
    """Lower bounds of the time of a part in a kind of task, ns: `chain` with what it waits for, `busy` without it.

    early: of `busy`, before it needs what it reads: it runs a forward again, or casts weights. exposed: by
    axis, the ns of `chain` in which the part waits for communication along it.
    """

    chain: int
    busy: int
    early: int
    exposed: Mapping[str, int]


@dataclass(frozen=True)
class MicroBatchFigures:
    """The figures of each part of a model in a micro-batch.

    times: by the name of a kind of task and part. saved: bytes that a forward saves for its backward. sent: by the name
    of a kind of task and part, bytes that a rank sends in collectives of every micro-batch. loss: bytes that the last
    part holds beyond what its forward saves, where the backward begins.
    """

    times: Mapping[str, Mapping[Part, PartTimes]]
    saved: Mapping[Part, int]
    sent: Mapping[str, Mapping[Part, int]]
    loss: int


@dataclass(frozen=True)
class StateFigures:
    """What a rank holds of each block of a model, and sends of it once a step.

    held: bytes of parameters, gradients that a framework keeps, and states of the optimizer. reduced: bytes that it
    sends when gradients are reduced and parameters gathered. gathered: by axis, bytes of its part of the parameters
    that are gathered after the optimizer. left_gathered: bytes of a layer's parameters that a forward leaves gathered,
    and regathered: that its backward gathers again. scattered_gradients: bytes of a layer's gradients in the format of
    their reduction, before it scatters them. kept_gradients: bytes of the gradients that a rank has until the update,
    if `held` has not. copied: bytes of buckets into which gradients are copied.
    """

    held: Mapping[str, int]
    reduced: Mapping[str, int]
    gathered: Mapping[str, Mapping[str, int]]
    left_gathered: Mapping[str, int]
    regathered: Mapping[str, int]
    scattered_gradients: Mapping[str, int]
    kept_gradients: Mapping[str, int]
    copied: Mapping[str, int]


@dataclass(frozen=True)
class TaskTransfers:
    """For one kind of task, such as a forward: what each part of the model does to the clocks of a rank (`ClockMap`).

    transfers: by the part and its neighbours. A part that is no key runs nothing in such a task, and leaves clocks as
    they are.
    """

    transfers: Mapping[LayerPlace, ClockMap]

    def of(self, place: LayerPlace) -> ClockMap | None:
        """The map of a part at a place, or the least of its maps at other places; None if it does nothing."""
        if place in self.transfers:
            return self.transfers[place]
        mine = {there: one for there, one in self.transfers.items() if there.part == place.part}
        later = {there: one for there, one in mine.items() if there.later == place.later}
        near = {there: one for there, one in later.items() if there.earlier == place.earlier}
        # The least of each entry: no map of a part is below that.
        least: ClockMap | None = np.minimum.reduce(list((near or later or mine).values())) if mine else None
        return least


@dataclass(frozen=True)
class StageMiniature:
    """The maps of a plan's layers, the optimizer, and the messages between stages.

    streams: of a rank, in the order of their states, each with its axes. transfers: by kind of task, and by `opened`
    and `last` of its position (`TaskPosition`). parts: those that the miniature has. layers: blocks that are layers.
    optimizer: ns by block. updates: by axis, the kind of the collective and the ranks of the group in which updated
    parameters are gathered at the end. messages: bytes of a message by kind of task.
    """

    streams: tuple[frozenset[str], ...]
    transfers: Mapping[tuple[str, bool, bool], TaskTransfers]
    parts: frozenset[Part]
    layers: frozenset[str]
    optimizer: Mapping[str, int]
    updates: Mapping[str, tuple[str, tuple[int, ...]]]
    messages: Mapping[str, int]

    @property
    def states(self) -> int:
        """The number of states of a rank."""
        return STREAMS + len(self.streams)

    def with_places_of(self, other: "StageMiniature") -> "StageMiniature":
        """With the places of another miniature, whose chunks are of other depths. The least map of both counts."""
        found = dict(self.transfers)
        for key, of in other.transfers.items():
            maps = dict(found[key].transfers) if key in found else {}
            for place, one in of.transfers.items():
                maps[place] = np.minimum(maps[place], one) if place in maps else one
            found[key] = TaskTransfers(maps)
        return replace(self, transfers=found)


def shortened(graph: SymGraph, copies: int) -> SymGraph:
    """The graph of a model with few layers of each kind, in the order in which the kinds begin.

    copies: layers of each kind.
    """
    layers = [block.name for block in graph.blocks if _is_layer(block)]
    return _with_layers(graph, [name for name in layers for _ in range(copies)])


def beginning(graph: SymGraph, layers: int) -> SymGraph:
    """The graph of a model with so many of its layers, which follow each other: the first ones, if all kinds are there.

    A framework may reduce the gradients of a chunk in one bucket, so that chunks must not mix kinds in a way that no
    chunk of the model does: one with the largest kind alone has a larger bucket than all of them.
    """
    blocks = [
        Block(each.name, None if each.once else evaluate(each.repeat, graph.sizes), each.layers)
        for each in graph.blocks
    ]
    places = lay_out(blocks, (graph.sizes["L"],))[0].places
    names = [place.block for place in places if place.layer is not None]
    # A stage's deepest chunk may have more than its share of the model.
    names += names[-1:] * (layers - len(names))
    begin = max(range(len(names) - layers + 1), key=lambda at: len({*names[at : at + layers]}))
    return _with_layers(graph, names[begin : begin + layers])


def _with_layers(graph: SymGraph, names: Sequence[str]) -> SymGraph:
    """The graph of a model with these layers. names: of their blocks."""
    blocks = []
    for block in graph.blocks:
        if _is_layer(block):
            numbers = tuple(at for at, name in enumerate(names) if name == block.name)
            # Its numbers mark it as a layer, also where it is there once, as blocks outside layers are.
            block = replace(block, repeat=str(len(numbers)), layers=numbers)
        blocks.append(block)
    return replace(graph, blocks=tuple(blocks), sizes={**graph.sizes, "L": len(names)})


def layer_kinds(graph: SymGraph) -> int:
    """The number of kinds of layers."""
    return sum(map(_is_layer, graph.blocks))


def _is_layer(block: BlockSpec) -> bool:
    return not block.once and block.name not in PSEUDO_BLOCKS


def micro_batch_figures(graph: IndexedGraph, plan: Plan, system: System) -> MicroBatchFigures:
    """The figures of a shortened graph. plan: one stage.

    Raises UsageError if the plan does not suit the model, or the system has no rate for it.
    """
    program = lower(graph, plan, first_of_cp=True)
    columns = program.workload.classes[0]
    carried = program.carried.get(columns.number, {})
    (memory,) = memory_of_classes(program.graph, program.plan, [(columns, carried)])
    parts = parts_of(memory.program)
    times = part_times(program, parts, system)
    return MicroBatchFigures(
        times, _least(_saved(memory.program, parts)), _sent(program, plan, parts), _of_loss(memory)
    )


def state_figures(graph: IndexedGraph, plan: Plan) -> StateFigures:
    """The figures of a shortened graph. plan: one stage. Raises UsageError if the plan does not suit the model."""
    program = lower(graph, plan, first_of_cp=True)
    columns = program.workload.classes[0]
    chunk = Chunk(only_chunk(program), plan, plan.options.framework.memory)
    members = members_of(program.workload, columns)
    passing = list(_passing(program, plan, columns, of_experts(graph.stored)))
    reduced = _least(_by_block(_reduced(passing, columns, members), columns.origins))
    gathered = {axis: _least(_by_block(of, columns.origins)) for axis, of in _gathered(passing, columns).items()}
    left, again = (_least(_gathered_units(chunk, each)) for each in (False, True))
    scattered, kept = (_least(_gradients(chunk, each)) for each in (True, False))
    return StateFigures(_least(_held(chunk)), reduced, gathered, left, again, scattered, kept, _least(_copied(chunk)))


def only_chunk(program: Program) -> ChunkProgram:
    """The chunk of a plan with one stage."""
    columns = program.workload.classes[0]
    carried = {op: tuple(PlacedWeight(*each) for each in of) for op, of in program.carried[columns.number].items()}
    return programs(program.graph, program.plan, columns, carried)[0]


def parts_of(chunk: ChunkProgram) -> dict[int, Part]:
    """The part of the model at each position."""
    return {position: (block, position in chunk.recomputing) for position, block in chunk.places}


def _least(found: Iterable[tuple[K, int]]) -> dict[K, int]:
    """By part or block, the least of its places."""
    least: dict[K, int] = {}
    for part, size in found:
        least[part] = min(size, least.get(part, size))
    return least


def _saved(made: ChunkProgram, parts: Mapping[int, Part]) -> Iterator[tuple[Part, int]]:
    items = made.items[made.forward]
    hosted = {key[0] for item in items if item.op.kind == ToHost.kind for key in item.writes}
    for position, tensors in saved(made).items():
        yield parts[position], sum(size for name, size in tensors.items() if name not in hosted)


def _of_loss(memory: ClassMemory) -> int:
    """Bytes that the last part holds where the backward begins, beyond what its forward saves: those of the loss.

    memory: of a plan with one micro-batch. Looked at are operators before the first gradient of a weight, which the
    halves of a backward have in the same order.
    """
    chunk = memory.program
    if not chunk.backwards:
        return 0
    last, task = chunk.places[-1][0], chunk.backwards[0]

    def made_here(moment: Moment) -> bool:
        items = chunk.items[moment.kind]
        return not moment.kind.once and moment.index < len(items) and items[moment.index].position == last

    lives = tuple(each for each in memory.usage.held.lives if each.category in _VALUES and made_here(each.begin))
    usage = replace(memory.usage, held=Lives((), lives))
    levels = usage.levels([each.kind for each in usage.tasks].index(task)).sum(axis=0).tolist()
    forward = {key: item.position for item in chunk.items[chunk.forward] for key in item.writes}
    read = {key for kind in chunk.backwards for item in chunk.items[kind] for key in item.reads}
    kept = sum(chunk.sizes[key[0]] for key in read if forward.get(key) == last)
    most = kept
    for item, level in zip(chunk.items[task], levels, strict=False):
        if item.position != last or any(key in chunk.gradients for key in item.writes):
            break
        most = max(most, level)
        if any(forward.get(key, last) != last for key in item.reads):
            break  # what others made for it may be freed now
    return most - kept


def _held(chunk: Chunk) -> Iterator[tuple[str, int]]:
    program, shares, offload = chunk.program, chunk.buffered, chunk.plan.options.offload
    words = {
        t.facts.word: t.dtype
        for t in program.tensors.values()
        if t.role == "optimizer_state" and t.name in program.sizes and offload != "optimizer"
    }
    width = sum(chunk.width(dtype) for dtype in words.values())
    for position, block in program.places:
        here, _ = offloaded(states_at(chunk, position, block), chunk.plan)
        if chunk.plan.options.owns_layers:
            here = tuple(state for state in here if state.category not in _UPDATED)
        size = sum(state.bytes for state in here)
        # The optimizer's states of a buffer are those of a part of it; its padding is left out here.
        mine = [(program.sizes[name], share) for (name, at), share in shares.items() if at == position]
        elements = sum(size // chunk.width("param") * share for size, share in mine)
        yield block, size + int(elements * width)


def _gathered_units(chunk: Chunk, again: bool) -> Iterator[tuple[str, int]]:
    """By block, bytes of parameters that a layer's forward gathers. again: those that its backward gathers again."""
    sizes: Counter[int] = Counter()
    for item in chunk.program.items[chunk.program.forward]:
        unit = None if item.bucket is None or not item.bucket.gathers else chunk.unit(item.bucket)
        if item.bucket is not None and unit is not None and (unit in chunk.regathered) == again:
            sizes[unit.position] += item.bucket.bytes_out
    return _by_place(chunk, sizes)


def _gradients(chunk: Chunk, scattered: bool) -> Iterator[tuple[str, int]]:
    """By block, bytes of whole gradients that are scattered, as sums over micro-batches have them, or of all others."""
    grad, wide = chunk.width("grad"), max(chunk.width("grad"), chunk.width("reduce"))
    sizes: Counter[int] = Counter()
    for key in chunk.first_gradients:
        weight = chunk.program.gradients[key]
        if (weight in chunk.scatters) == scattered and (scattered or not chunk.held.gradient_buffer):
            sizes[weight[1]] += chunk.program.sizes[key[0]] // grad * wide if scattered else chunk.gradient_size(key)
    return _by_place(chunk, sizes)


def _copied(chunk: Chunk) -> Iterator[tuple[str, int]]:
    """By block, bytes of the buckets into which its gradients are copied, by the shares of its weights."""
    sizes: Counter[int] = Counter()
    for item in chunk.weights_items:
        if item.bucket is not None and bucket_policy(item.op.bucket).copied:
            members = [(each.position, chunk.program.sizes[each.weight]) for each in item.bucket.members]
            whole = sum(size for _, size in members)
            for position, size in members:
                sizes[position] += item.bucket.bytes_in * size // whole
    return _by_place(chunk, sizes)


def _by_place(chunk: Chunk, sizes: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    """By block, the sizes of positions; 0 outside layers, where a pipeline may have other weights, or tied ones."""
    for position, block in chunk.program.places:
        yield block, sizes.get(position, 0) if chunk.program.layers.get(position) is not None else 0


def _sent(program: Program, plan: Plan, parts: Mapping[int, Part]) -> dict[str, dict[Part, int]]:
    """Bytes that a rank sends in a micro-batch, by kind of task and part, but not over dp."""
    columns = program.workload.classes[0]
    ops, origins, members = columns.ops, columns.origins, members_of(program.workload, columns)
    found: dict[str, dict[Part, int]] = {}
    for kind in plan.workflow.kinds:
        if kind.once:
            continue
        rows = np.isin(ops.template, RUNS[TASK_KINDS.index(kind.name)]) & (ops.when == EVERY)
        sizes = dict.fromkeys(parts, Fraction(0))
        for row in np.flatnonzero(rows & (ops.type == COLLECTIVE)).tolist():
            position = int(origins.position[row])
            if ops.axis[row] not in DATA_AXES and position in parts and origins.block[row] not in PSEUDO_BLOCKS:
                operand = Fraction(int(ops.operand[row]))
                sizes[position] += sent_by_member(ops.kind[row], operand, members[ops.axis[row]])
        found[kind.name] = _least((parts[position], int(size)) for position, size in sizes.items())
    return found


@dataclass(frozen=True)
class _Passing:
    """A weight in a bucket that runs once: its position, the row of the bucket, and the bytes that it adds to it."""

    position: int
    row: int
    operand: Fraction


def _passing(program: Program, plan: Plan, columns: ClassColumns, experts: frozenset[str]) -> Iterator[_Passing]:
    """The weights in buckets, each of which runs once.

    Buckets of the whole model have other weights together. So this is what each weight adds to them, without padding.
    experts: the buckets with nothing but experts.
    """
    graph, origins = program.graph, columns.origins
    env = {**plan.env(graph.sizes), **plan.rank_symbols(graph.sizes, *columns.origins.member[:2])}
    by_name, tensors = {op.name: op for op in graph.ops}, {tensor.name: tensor for tensor in graph.tensors}
    for row, weights in program.carried[columns.number].items():
        work = by_name[origins.sym[row]].work
        for position, name, _ in weights:
            about = tensors[name].parameter
            if about is None or not isinstance(work, Collective):
                continue
            if plan.options.owns_layers and gathers(columns.ops.kind[row]):
                continue
            elements = evaluate(about.elements, env)
            shard = evaluate(about.shard or "0", env)
            if bucket_policy(work.bucket).extent is not None:
                # The parts of a buffer are equal, while a weight's own shard is of whole rows: of 4 experts on 8 ranks
                # of edp it is one, twice what the buffer has of it.
                shard = elements // (plan.edp // plan.hsdp if origins.sym[row] in experts else plan.shards)
            if not shard and "shard" in symbols(work.comm_bytes):
                # Fewer elements than ranks, as the scales of hyper-connections have.
                continue
            size = evaluate(work.comm_bytes, {**env, "elements": elements, "shard": shard})
            yield _Passing(position, row, Fraction(size))


def _reduced(passing: Iterable[_Passing], columns: ClassColumns, members: Mapping[str, int]) -> dict[int, Fraction]:
    """By position, the bytes that a rank sends for its weights in buckets."""
    found = defaultdict[int, Fraction](Fraction)
    for each in passing:
        kind, axis = columns.ops.kind[each.row], columns.ops.axis[each.row]
        found[each.position] += sent_by_member(kind, each.operand, members[axis])
    return found


def _gathered(passing: Iterable[_Passing], columns: ClassColumns) -> dict[str, dict[int, Fraction]]:
    """By axis and position, the bytes of a rank's part of the parameters that are gathered after the optimizer."""
    found, ops = defaultdict[str, dict[int, Fraction]](lambda: defaultdict(Fraction)), columns.ops
    for each in passing:
        if ONCE[ops.template[each.row]] and ops.axis[each.row] in DATA_AXES and gathers(ops.kind[each.row]):
            found[ops.axis[each.row]][each.position] += each.operand
    return found


def _by_block(found: Mapping[int, Fraction], origins: Origins) -> Iterator[tuple[str, int]]:
    blocks = {
        int(position): block
        for position, block in zip(origins.position.tolist(), origins.block, strict=True)
        if block not in PSEUDO_BLOCKS
    }
    for position, block in blocks.items():
        yield block, int(found.get(position, 0))


def part_times(program: Program, parts: Mapping[int, Part], system: System) -> dict[str, dict[Part, PartTimes]]:
    """The times of the parts of a program with one stage, by the name of a kind of task. parts: by position."""
    columns, plan = program.workload.classes[0], program.plan
    system = _alone(system)
    ns = _of_a_task(columns, lane_durations(program.workload, system, count=1).ns[0], system)
    found: dict[str, dict[Part, PartTimes]] = {}
    for kind in plan.workflow.kinds:
        if kind.once:
            continue
        for position, times in _segments(columns, ns, RUNS[TASK_KINDS.index(kind.name)], parts).items():
            part, of_kind = parts[position], found.setdefault(kind.name, {})
            if part not in of_kind or times.chain < of_kind[part].chain:
                of_kind[part] = times
    return found


def _alone(system: System) -> System:
    """The system on which nothing that dp sends slows down computing, and the host issues everything in time: how much
    either takes, follows from all layers of a stage."""
    return replace(system, overlap=replace(system.overlap.without_host, taken=0))


def _of_a_task(columns: ClassColumns, ns: Ints, system: System) -> Ints:
    """Durations without casts of weights, if the framework makes them once a step: no task has a known share."""
    if not system.overlap.casts:
        return ns
    once = np.array([facts.casts in (Casts.WEIGHT, Casts.WEIGHT_AGAIN) for facts in columns.ops.facts], bool)
    return np.where(once, 0, ns)


def stage_miniature(graph: IndexedGraph, plan: Plan, system: System, ahead: int) -> StageMiniature:
    """The figures of a shortened graph on few stages. ahead: as in `transfers`. The errors are those of
    `micro_batch_figures`."""
    workload, system = lower(graph, plan).workload, _alone(system)
    lanes = find_lanes(workload, placed(workload, system)[0].network(len(workload.ranks)))
    ns_of: dict[int, Ints] = {}
    by_number = {each.number: each for each in workload.classes}
    for lane, whole in zip(lanes, lane_durations(workload, system).ns, strict=True):
        own = _of_a_task(by_number[lane.rank_class], whole, system)
        ns_of[lane.rank_class] = np.minimum(ns_of.get(lane.rank_class, own), own)
    axes = sorted({axis for each in workload.classes for axis in each.ops.axis} - {"", "pp"})
    streams = {axis: STREAMS + (number if system.overlap.streams == "axis" else 0) for number, axis in enumerate(axes)}
    layers = frozenset(block.name for block in graph.graph.blocks if _is_layer(block))
    optimizer: list[tuple[str, int]] = []
    messages: dict[str, int] = {}
    found: dict[tuple[str, bool, bool], dict[LayerPlace, ClockMap]] = defaultdict(dict)
    seen = set[Part]()
    for columns in workload.classes:
        ops, ns = columns.ops, ns_of[columns.number]
        parts = _parts(columns, plan)
        seen |= set(parts.values())
        computes = ONCE[ops.template] & (ops.type == COMPUTE)
        for (chunk, position), (block, _) in parts.items():
            mine = computes & (ops.chunk == chunk) & (columns.origins.position == position)
            optimizer.append((block, int(ns[mine].sum())))
        closes, ends = bool((ops.when == CLOSED).any()), bool((ops.when == LAST).any())
        for kind in (kind for kind in plan.workflow.kinds if not kind.once):
            templates = RUNS[TASK_KINDS.index(kind.name)]
            mine = np.isin(ops.template, templates) & (ops.type == SEND) & ~ops.rings
            if mine.any():
                messages[kind.name] = min(int(ops.size[mine].min()), messages.get(kind.name, 1 << 62))
            runs = np.isin(ops.template, templates)
            closed, final = (bool((runs & (ops.when == when)).any()) for when in (CLOSED, LAST))
            known: dict[tuple[bool, bool], dict[LayerPlace, ClockMap]] = {}
            for opened, last in product((False, True), repeat=2):
                if (opened and not closes) or (last and not ends):
                    continue
                # Tasks of this kind differ only if some of their operators run in one of the two alone.
                same = (opened and closed, last and final)
                if same not in known:
                    known[same] = transfers(
                        columns, ns, templates, streams, parts, layers=layers, ahead=ahead, opened=same[0], last=same[1]
                    )
                for place, one in known[same].items():
                    of = found[kind.name, opened, last]
                    of[place] = np.minimum(of[place], one) if place in of else one
    return StageMiniature(
        tuple(frozenset(axis for axis in axes if streams[axis] == state) for state in sorted(set(streams.values()))),
        {key: TaskTransfers(each) for key, each in found.items()},
        frozenset(seen),
        layers,
        {} if plan.options.owns_layers else _least(optimizer),
        _updates(workload, lanes) if not system.overlap.gathered else {},
        messages,
    )


def _updates(workload: Workload, lanes: Sequence[Lane]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By axis, the collective that gathers updated parameters, and its group, if there is one for all of them."""
    found = defaultdict[str, set[tuple[str, tuple[int, ...]]]](set)
    by_number = {each.number: each for each in workload.classes}
    for lane in lanes:
        ops = by_number[lane.rank_class].ops
        for row in np.flatnonzero(ONCE[ops.template] & (ops.type == COLLECTIVE)).tolist():
            if ops.axis[row] in DATA_AXES and gathers(ops.kind[row]):
                ranks = group_of(workload.groups, ops.axis[row], lane.rank)
                found[ops.axis[row]].add((ops.kind[row], tuple(rank - ranks[0] for rank in ranks)))
    return {axis: one for axis, (one, *others) in found.items() if not others}


def _parts(columns: ClassColumns, plan: Plan) -> dict[tuple[int, int], Part]:
    """The part of the model at each chunk and position of a stage."""
    origins = columns.origins
    rows = zip(
        columns.ops.chunk.tolist(), origins.position.tolist(), origins.block, origins.layer.tolist(), strict=True
    )
    found = {(chunk, at): (block, layer) for chunk, at, block, layer in rows if block not in PSEUDO_BLOCKS}
    first: dict[int, int] = {}
    for (chunk, _), (_, layer) in found.items():
        if layer >= 0:
            first[chunk] = min(layer, first.get(chunk, layer))
    return {
        (chunk, at): (block, layer >= 0 and plan.recomputes(layer, layer - first[chunk]))
        for (chunk, at), (block, layer) in found.items()
    }


def _segments(
    columns: ClassColumns, ns: Ints, templates: Sequence[int], parts: Mapping[int, Part]
) -> dict[int, PartTimes]:
    """The times of each position in a task of these templates.

    The compute stream runs the operators in their order. Time begins for a position when the operator that computed
    last before it is over; what else came before it is taken to be over too. Only what every micro-batch runs counts.
    """
    ops, origins = columns.ops, columns.origins
    rows = np.flatnonzero(np.isin(ops.template, templates) & (ops.when == EVERY))
    rows = rows[np.argsort(ops.order[rows], kind="stable")]
    before = defaultdict[int, list[int]](list)
    for source, target, kind in zip(
        columns.edges.source.tolist(), columns.edges.target.tolist(), columns.edges.kind.tolist(), strict=True
    ):
        if kind == DATA:
            before[target].append(source)
    ends: dict[int, int] = {}
    found: dict[int, PartTimes] = {}
    clock, busy, ahead, leads, exposed = 0, 0, 0, True, Counter[str]()
    last = {int(origins.position[row]): row for row in rows.tolist() if ops.type[row] == COMPUTE}
    for row in rows.tolist():
        computes = ops.type[row] == COMPUTE
        if not computes and (ops.type[row] != COLLECTIVE or ops.axis[row] in DATA_AXES):
            continue
        awaited = max(before[row], key=lambda source: ends.get(source, 0), default=row)
        begin = max(ends.get(awaited, 0), clock if computes else 0)
        ends[row] = begin + int(ns[row])
        if not computes:
            continue
        if begin > clock:
            exposed[ops.axis[awaited]] += begin - clock
        clock, busy = ends[row], busy + int(ns[row])
        leads = leads and (ops.phase[row] == RECOMPUTE or ops.facts[row].casts in (Casts.WEIGHT, Casts.WEIGHT_AGAIN))
        ahead = busy if leads else ahead
        position = int(origins.position[row])
        if last[position] == row and position in parts:
            found[position] = PartTimes(clock, busy, ahead, dict(exposed))
            clock, busy, ahead, leads, exposed = 0, 0, 0, True, Counter[str]()
            ends.clear()
    return found
