"""The program of a stored rank class in a step: ops of each kind of task in issue order, and the storages they use.

The class's ops are read from its instance. Their reads and writes and the sizes of tensors are read from the graph of
the instance.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from stagedb.collectives import gathers, resizes
from stagedb.graphs.costs import BLOCKED
from stagedb.graphs.optimizer_step import STATE
from stagedb.ir.expressions import evaluate, symbol
from stagedb.ir.facts import InExperts, OpFacts
from stagedb.ir.layouts import parse_layout
from stagedb.ir.operators.optimizer import GRADIENTS, UPDATES
from stagedb.ir.symbolic_graph import BlockSpec, SymGraph, SymOp, SymTensor
from stagedb.lowering.columns import RUNS, TASK_KINDS, ClassColumns
from stagedb.lowering.copied_rows import is_at_end
from stagedb.lowering.rank_classes import Parameters, Weight, dealt, owner_places, parameter_group
from stagedb.lowering.stage_blocks import BUCKET, CUT
from stagedb.plans import FORMAT_BYTES, Plan, groups
from stagedb.plans.request_batches import repeated_bytes
from stagedb.schedules import Task, splits
from stagedb.workflows import TASK_KINDS as KINDS
from stagedb.workflows import TaskKind

# What a rank of dp has of weights that it updates whole, and holds while updated weights are gathered.


@dataclass(frozen=True)
class OwnedGather:
    """A gather of updated weights.

    shares: by weight, the part of its parameters that is the rank's own. held: numbers that it holds until the weights
    are written: its own weights in one tensor, which is a copy unless there is only one (`_flatten_dense_tensors`), a
    tensor for the weights of each rank, and, where these are of one size, the one result of NCCL's all-gather
    (`ProcessGroupNCCL::allgather`).
    """

    shares: Mapping[Weight, Fraction]
    held: int


def owned_gather(plan: Plan, member: tuple[int, int, int], axis: str, parameters: Sequence[Parameters]) -> OwnedGather:
    """What a rank has of the weights that a gather carries.

    plan: of the step. member: its coordinates on cp, ep and dp. axis: of the gather. parameters: those of the weights,
    in the order of the model. Source: Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer.allgather_params` in
    megatron/core/optimizer/layer_wise_optimizer.py.
    """
    of_ranks = dealt(parameters, plan.shards if axis == "dp" else plan.edp)
    sizes = {each.weight: each.elements for each in parameters}
    totals = [sum(sizes[weight] * count for weight, count in own.items()) for own in of_ranks]
    place = owner_places(plan, member)[axis]
    own = of_ranks[place]
    flat = totals[place] if own.total() > 1 else 0
    results = sum(totals) * (2 if len({*totals}) == 1 else 1)
    return OwnedGather({each.weight: Fraction(own[each.weight], each.count) for each in parameters}, flat + results)


# Which part of what ranks share one of them has.


@dataclass(frozen=True)
class SharePlace:
    """The part of sharded weights that a rank has.

    dense: its place among the ranks that share weights. experts: among those that share experts which ranks divide.
    """

    dense: int = 0
    experts: int = 0

    @classmethod
    def of_rank(cls, plan: Plan, rank: int) -> "SharePlace":
        """The place of a rank of a plan."""
        place_on = {group.axis: rank // group.stride % group.size for group in groups(plan, 1, ("dp", "edp"))}
        return cls(place_on.get("dp", 0), place_on.get("edp", 0))

    def of(self, weight: SymTensor, plan: Plan) -> int:
        """The place among those that share this weight."""
        divided = plan.ep > 1 and parse_layout(weight.layout).on("ep") is not None
        return self.experts if divided else self.dense


FIRST = SharePlace()

Key = tuple[str, int]
"""A tensor of the block at a position of the stage."""


@dataclass(frozen=True)
class BlockPlace:
    """A block at a position of a chunk. layer: counted over the chunks of the stage, None outside layers."""

    position: int
    block: str
    layer: int | None


@dataclass(frozen=True, order=True)
class PlacedWeight:
    """A weight of a block that is at this position of a chunk of the stage."""

    position: int
    weight: str
    chunk: int = 0


@dataclass(frozen=True)
class BucketStorage:
    """The collective of a bucket in the memory of a rank.

    gathers: it gathers parameters; otherwise it reduces gradients. bytes_in, bytes_out: of operand and result on one
    rank. members: the weights whose parameters, or whose gradients, it carries. held: bytes that a gather of whole
    weights holds until these are written.
    """

    gathers: bool
    bytes_in: int
    bytes_out: int
    members: tuple[PlacedWeight, ...]
    held: int = 0


@dataclass(frozen=True)
class Item:
    """One operator, or the collective of a bucket, in the issue order of a task.

    op: in the graph. row: its place among the ops of the class. position: of its block on the stage. reads, writes:
    storages of tensors, each once. temporary: bytes that it allocates only while it runs. message: bytes of its
    operand, if it communicates. bucket: whose collective it is; None for an operator.
    """

    op: SymOp
    row: int
    position: int
    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    temporary: int = 0
    message: int = 0
    bucket: BucketStorage | None = None

    @property
    def facts(self) -> OpFacts:
        """Facts of the item's operator that do not depend on the plan, such as its layer part."""
        return self.op.facts


Forward = tuple[str, int]
"""A forward operator, by name and position."""


def forward_of(item: Item) -> Forward:
    """The forward operator that an operator of a backward belongs to."""
    return item.facts.origin or item.op.name, item.position


@dataclass(frozen=True)
class ChunkProgram:
    """A chunk's items by kind of task in issue order, and its tensors. The items of a step are the chunk's own.

    items: kinds are in the order in which a micro-batch runs them. chunk: its number on the stage. sizes: bytes on one
    rank of the tensors that exist there. parts: bytes of one rank's part of weights and of the optimizer's state, where
    dp shards them. own: the same without the padding of a rank's last rows. columns: the weights whose parts are cut
    along their second axis. places: position and block. layers: by position, counted from the stage's first; None
    outside layers. recomputing: positions of layers that recompute something. storage: for each tensor, the tensor
    whose bytes it uses. gradients: the weight of each gradient that a backward makes. given, gives: the chunks of the
    same stage that are before and after it in the pipeline, which hand over without a message; None where they are
    elsewhere. shares: the part of each weight that the rank updates, where ranks of dp update weights of their own.
    repeated: bytes of caches that requests of all micro-batches share, once for each request but one.
    """

    chunk: int
    items: Mapping[TaskKind, tuple[Item, ...]]
    tensors: Mapping[str, SymTensor]
    sizes: Mapping[str, int]
    parts: Mapping[str, int]
    own: Mapping[str, int]
    columns: frozenset[str]
    places: Sequence[tuple[int, str]]
    layers: Mapping[int, int | None]
    recomputing: frozenset[int]
    storage: Mapping[Key, Key]
    gradients: Mapping[Key, Key]
    given: int | None = None
    gives: int | None = None
    shares: Mapping[Key, Fraction] = field(default_factory=dict)
    repeated: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def by_block(self) -> Mapping[str, list[SymTensor]]:
        """The tensors of each block of the model."""
        tensors_of: dict[str, list[SymTensor]] = {}
        for tensor in self.tensors.values():
            tensors_of.setdefault(tensor.block, []).append(tensor)
        return tensors_of

    def port(self, name: str) -> Key:
        """The storage of a message's tensor: `recv_forward` and `send_backward` are at the first end.

        name: of the tensor, without its block.
        """
        first = name in ("recv_forward", "send_backward")
        return self.resolve((f"{CUT}.{name}", -1 if first else len(self.places)))

    @property
    def forward(self) -> TaskKind:
        """The kind of task that a micro-batch runs first."""
        return next(iter(self.items))

    @property
    def backwards(self) -> tuple[TaskKind, ...]:
        """The kinds that make gradients: one, the two halves of a split backward, or an empty tuple."""
        return tuple(kind for kind in self.items if kind.differentiates)

    @property
    def last(self) -> TaskKind:
        """The kind that ends a step: the one that runs once a step, or a micro-batch's last one."""
        return list(self.items)[-1]

    def once_a_step(self) -> Iterator[tuple[TaskKind, int, Item]]:
        """The items that run once a step, in order."""
        return ((kind, at, item) for kind in self.items if kind.once for at, item in enumerate(self.items[kind]))

    def resolve(self, key: Key) -> Key:
        """The storage that a tensor uses: its own, or that of a tensor that it is a view of."""
        return storage_of(self.storage, key)

    def updated(self, name: str, weight: Key) -> int:
        """Bytes of a tensor of a weight's update, such as a state, of which a rank has that of its own weights.

        name: of the tensor. weight: name and position of the weight.
        """
        return int(self.sizes[name] * self.shares.get(weight, 1))


def storage_of(storage: Mapping[Key, Key], key: Key) -> Key:
    """The tensor whose bytes a tensor uses: itself or another one.

    storage: for each tensor that has no bytes of its own, the tensor that it is a part or another view of.
    """
    while key in storage:
        key = storage[key]
    return key


Carried = Mapping[int, tuple[PlacedWeight, ...]]
"""By place among the ops of a class, the weights that a bucket carries."""


def tasks_of(columns: ClassColumns) -> tuple[Task, ...]:
    """The tasks of a class in the order in which it runs them."""
    tasks = columns.tasks
    rows = zip(tasks.kind.tolist(), tasks.microbatch.tolist(), tasks.chunk.tolist(), strict=True)
    return tuple(Task(KINDS[TASK_KINDS[kind]], microbatch, chunk) for kind, microbatch, chunk in rows)


def programs(
    graph: SymGraph, plan: Plan, columns: ClassColumns, carried: Carried, place: SharePlace = FIRST
) -> tuple[ChunkProgram, ...]:
    """The programs of the chunks of a rank class; `columns` are those of an instance of the graph under the plan.

    place: of the rank among those that share weights. Later ones have fewer rows of weights that do not divide.
    """
    chunks = 1 + int(columns.ops.chunk.max(initial=0))
    return tuple(_Making(graph, plan, columns, carried, chunk, place).make() for chunk in range(chunks))


def local_chunk(plan: Plan, columns: ClassColumns, chunk: int, towards: int) -> int | None:
    """The chunk of the next number of the pipeline (towards 1) or the previous one, if the same stage has it."""
    placement, stages = plan.placement, plan.pp
    number = placement.position(columns.stages[0], chunk, stages)
    if not 0 <= number + towards < stages * plan.virtual_stages:
        return None
    way = placement.route(number, towards, stages)
    return None if way.hop else chunk + way.step


class _Making:
    """The tables for making a program."""

    def __init__(
        self, graph: SymGraph, plan: Plan, columns: ClassColumns, carried: Carried, chunk: int, place: SharePlace
    ) -> None:
        self.graph, self.plan, self.columns, self.carried, self.chunk = graph, plan, columns, carried, chunk
        self.place = place
        self.split = splits([task for task in tasks_of(columns) if task.chunk == chunk])
        self.env = {**plan.env(graph.sizes), **plan.rank_symbols(graph.sizes, *columns.origins.member[:2])}
        self.widths = {name: FORMAT_BYTES[format_] for name, format_ in plan.dtypes.names().items()}
        self.values: dict[str, int] = {}
        self.tensors = {tensor.name: tensor for tensor in graph.tensors}
        self.ops = {op.name: op for op in graph.ops}
        self.by_block: dict[str, list[SymOp]] = {}
        for op in graph.ops:
            self.by_block.setdefault(op.block, []).append(op)
        self.rows = np.flatnonzero(columns.ops.chunk == chunk).tolist()
        self.places, self.ends = self._places()
        self.given, self.gives = (local_chunk(plan, columns, chunk, towards) for towards in (-1, 1))
        has_previous = self.given is not None or "previous" in self.ends.values()
        has_next = self.gives is not None or "next" in self.ends.values()
        self.storage: dict[Key, Key] = {
            **dict(_ports(graph.blocks, self.places, has_previous, has_next)),
            **dict(_ties(self.tensors, {place.block: place.position for place in self.places if place.layer is None})),
        }
        present = self._present()
        for position, block, again in self._all_places():
            for op in self.by_block[block]:
                at_end = is_at_end(self.ends.get(position), op.type, op.template)
                if at_end and (op.name, position) not in present and op.reads:
                    # A tensor that an absent op would update in place exists without the op.
                    new = (made for made in op.writes if made not in op.reads)
                    self.storage |= {(made, position): (op.reads[0], position) for made in new}
            for tensor in graph.tensors:
                if tensor.block == block and tensor.storage is not None:
                    # The tokens of a micro-batch are one tensor of the stage, wherever layers read them.
                    at = 0 if tensor.role == "input" else position
                    self.storage[tensor.name, position] = (tensor.storage, at)
                if tensor.block == block and tensor.repeats is not None and not again:
                    self.storage[tensor.name, position] = (tensor.repeats, position)

    def _places(self) -> tuple[list[BlockPlace], dict[int, str]]:
        """The blocks of the chunk in forward order, and the positions at which messages lead to other stages."""
        origins = self.columns.origins
        place_at: dict[int, BlockPlace] = {}
        cuts = set()
        for row in self.rows:
            position, block, layer = int(origins.position[row]), origins.block[row], int(origins.layer[row])
            if block == CUT:
                cuts.add(position)
            elif block != BUCKET:
                place_at[position] = BlockPlace(position, block, None if layer < 0 else layer)
        return [place_at[position] for position in sorted(place_at)], {
            position: "previous" if position < 0 else "next" for position in cuts
        }

    def _all_places(self) -> Iterator[tuple[int, str, bool]]:
        """Position and block of every place, cuts included, and whether it recomputes."""
        for place in self.places:
            yield place.position, place.block, self.recomputes(place)
        for position in self.ends:
            yield position, CUT, True

    def _present(self) -> set[Key]:
        """Symbolic ops that are copied, by position; for a loop, the ops of its first turn."""
        origins = self.columns.origins
        present = set()
        for row in self.rows:
            sym = origins.sym[row]
            if self.ops[sym].loop is None or self.columns.ops.turn[row] == 0:
                present.add((sym, int(origins.position[row])))
        return present

    def make(self) -> ChunkProgram:
        sizes = {tensor.name: self.value(tensor.bytes) for tensor in self.graph.tensors if self.present(tensor)}
        again = [place.position for place in self.places if place.layer is not None and self.recomputes(place)]
        parts = list(self.parts())
        return ChunkProgram(
            chunk=self.chunk,
            items=self.ordered({kind: self.items(kind) for kind in self.plan.workflow.running(self.split)}),
            tensors=self.tensors,
            sizes=sizes,
            repeated=dict(self.repeated()),
            parts={name: padded for name, padded, *_ in parts},
            own={name: own for name, _, own, _ in parts},
            columns=frozenset(name for name, *_, columns in parts if columns),
            places=[(place.position, place.block) for place in self.places],
            layers={place.position: place.layer for place in self.places},
            recomputing=frozenset(again),
            storage=self.storage,
            gradients=dict(self.gradients()),
            given=self.given,
            gives=self.gives,
            shares={
                (name, at): share
                for gather in self.owned.values()
                for (chunk, at, name), share in gather.shares.items()
                if chunk == self.chunk
            },
        )

    def recomputes(self, place: BlockPlace) -> bool:
        if place.layer is None:
            return self.plan.recomputes_all
        first = next(each.layer for each in self.places if each.layer is not None)
        return self.plan.recomputes(place.layer, place.layer - first)

    def value(self, text: str) -> int:
        if text not in self.values:
            self.values[text] = self.plan.evaluate(text, self.env)
        return self.values[text]

    def repeated(self) -> Iterator[tuple[str, int]]:
        """Each cache with what is counted for several requests of all micro-batches, and kept once."""
        batch = self.plan.request_batch
        for tensor in self.graph.tensors if batch is not None else ():
            if batch is not None and tensor.role == "cache" and self.present(tensor):
                yield tensor.name, repeated_bytes(tensor.bytes, self.env, batch, self.plan.microbatches, tensor.name)

    def present(self, tensor: SymTensor) -> bool:
        return tensor.present is None or self.value(tensor.present) > 0

    def resolve(self, key: Key) -> Key:
        return storage_of(self.storage, key)

    def items(self, kind: TaskKind) -> tuple[Item, ...]:
        codes = RUNS[TASK_KINDS.index(kind.name)]
        ops = self.columns.ops
        rows = [row for row in self.rows if int(ops.template[row]) in codes]
        return tuple(self.item(row) for row in sorted(rows, key=lambda row: int(ops.order[row])))

    def ordered(self, items: dict[TaskKind, tuple[Item, ...]]) -> dict[TaskKind, tuple[Item, ...]]:
        """The items with those of a second half in the order of the forward, if the framework goes through weights so.

        What is reduced has its place among the weights that it carries, so that then nothing changes.
        """
        if not self.plan.options.framework.memory.retains_graph:
            return items
        forward = {item.op.name: index for index, item in enumerate(next(iter(items.values())))}
        for kind, own in items.items():
            if kind.half and not kind.sends and all(item.bucket is None or item.op.when == "last" for item in own):
                made = [item for item in own if item.bucket is None]
                made.sort(key=lambda item: (item.position, forward.get(forward_of(item)[0], 0)))
                items[kind] = (*made, *(item for item in own if item.bucket is not None))
        return items

    def item(self, row: int) -> Item:
        ops, origins = self.columns.ops, self.columns.origins
        op, position, size = self.ops[origins.sym[row]], int(origins.position[row]), int(ops.operand[row])
        if op.block == BUCKET:
            members, owned = self.carried.get(row, ()), self.owned.get(row)
            held = 0 if owned is None else owned.held * self.widths["param"]
            storage = BucketStorage(gathers(op.kind), size, int(ops.result[row]), members, held)
            return Item(op, row, position, bucket=storage)
        reads, writes = (
            tuple(dict.fromkeys(self.resolve((name, position)) for name in names)) for names in (op.reads, op.writes)
        )
        temporary = int(origins.temporary[row])
        if self.plan.options.framework.memory.rearranges and op.axis == "tp" and resizes(op.kind):
            temporary = max(size, int(ops.result[row]))
        returns = op.facts.experts is InExperts.RETURN
        if self.plan.options.expert_unit and returns and self.env["E"] > self.plan.ep:
            # Tokens are returned in a hook, during which the call of the experts holds their result next to the copy
            # that is sent. The result of a single expert needs no copy: it is in the order of ranks already.
            temporary += size
        return Item(op, row, position, reads, writes, temporary, size)

    @cached_property
    def owned(self) -> Mapping[int, OwnedGather]:
        """The gathers of whole weights, by their rows."""
        columns, found = self.columns, dict[int, OwnedGather]()
        for row, members in self.carried.items() if self.plan.options.owns_layers else ():
            if gathers(columns.ops.kind[row]):
                weights = [self.parameters(member) for member in sorted(members, key=self.in_model)]
                found[row] = owned_gather(self.plan, columns.origins.member, columns.ops.axis[row], weights)
        return found

    def in_model(self, placed: PlacedWeight) -> tuple[int, int, int]:
        """The place of a weight among those of its stage, as they are registered."""
        about = self.tensors[placed.weight].parameter
        return placed.chunk, placed.position, 0 if about is None else about.order

    def parameters(self, placed: PlacedWeight) -> Parameters:
        tensor = self.tensors[placed.weight]
        about = tensor.parameter
        if about is None or about.shard is None:
            raise ValueError(f"{placed.weight} is no weight that a rank updates whole")
        each, muon = self.value(about.shard), f"{placed.weight}.{STATE}" in self.tensors
        group = parameter_group(placed.weight, tensor.axes, muon)
        weight = placed.chunk, placed.position, placed.weight
        return Parameters(weight, each, self.value(about.elements) // each, group)

    def parts(self) -> Iterator[tuple[str, int, int, bool]]:
        """Bytes of a rank's part of each sharded tensor, padded and its own, and whether it is cut along columns."""
        for name, tensor in self.tensors.items():
            owner = tensor if tensor.facts.owner is None else self.tensors[tensor.facts.owner]
            parameter = owner.parameter
            if parameter is None or parameter.shard is None or not self.present(owner):
                continue
            padded = self.value(parameter.shard)
            sizes = [self.value(text) for text in owner.local]
            rows, row = math.prod(sizes[: parameter.rows]), math.prod(sizes[parameter.rows :])
            share, columns = divmod(padded, row)
            # Columns are cut into equal parts, rows into whole ones, so that the last ranks may have fewer.
            own = padded if columns else min(share, max(rows - self.place.of(owner, self.plan) * share, 0)) * row
            yield name, self.bytes_of(padded, tensor.dtype), self.bytes_of(own, tensor.dtype), bool(columns)

    def bytes_of(self, numbers: int, dtype: str) -> int:
        """Bytes of so many numbers of a class of formats; a scale counts with the numbers that share it."""
        if dtype not in BLOCKED:
            return numbers * self.widths[dtype]
        return evaluate(str(BLOCKED[dtype](symbol("numbers"))), {**self.env, "numbers": numbers}) if numbers else 0

    def gradients(self) -> Iterator[tuple[Key, Key]]:
        for place in self.places:
            step = [op for op in self.by_block[place.block] if op.template.once]
            makers = {name: op for op in step for name in op.writes}
            for op in step:
                if op.kind not in UPDATES:
                    continue
                weights = [name for name in op.reads if self.tensors[name].role == "weight"]
                finals = [name for name in op.reads if self.tensors[name].role in GRADIENTS]
                for weight, gradient in zip(weights, finals, strict=True):
                    while gradient in makers:
                        gradient = makers[gradient].reads[0]
                    yield self.resolve((gradient, place.position)), self.resolve((weight, place.position))


def _ports(
    blocks: Sequence[BlockSpec], places: Sequence[BlockPlace], has_previous: bool, has_next: bool
) -> Iterator[tuple[Key, Key]]:
    """The tensors between blocks, and those of the messages at the stage's ends."""
    specs = {block.name: block for block in blocks}
    for place in places:
        spec, at = specs[place.block], place.position
        before, after = at > 0 or has_previous, at < len(places) - 1 or has_next
        if before and spec.input is not None:
            source = specs[places[at - 1].block].output if at > 0 else "cut.recv_forward"
            if source is not None:
                yield (spec.input, at), (source, at - 1)
            if at == 0 and spec.input_gradient is not None:
                yield ("cut.send_backward", -1), (spec.input_gradient, at)
        if after and spec.output is not None:
            inside = at < len(places) - 1
            source = specs[places[at + 1].block].input_gradient if inside else "cut.recv_backward"
            if source is not None and spec.output_gradient is not None:
                yield (spec.output_gradient, at), (source, at + 1)
            if not inside:
                yield ("cut.send_forward", at + 1), (spec.output, at)


def _ties(tensors: Mapping[str, SymTensor], positions: Mapping[str, int]) -> Iterator[tuple[Key, Key]]:
    """A tied weight shares the storage of the other one where a stage holds both."""
    for tensor in tensors.values():
        tied = None if tensor.parameter is None else tensor.parameter.tied
        first = None if tied is None else tensors.get(tied)
        if first is not None and tensor.block in positions and first.block in positions:
            yield (tensor.name, positions[tensor.block]), (first.name, positions[first.block])
