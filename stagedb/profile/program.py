"""What a rank class runs in a step: operators of each kind of task in issue order, and the storages that they use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stagedb.graph.symbolic import BlockSpec, OpType, SymGraph, SymOp, SymTensor, Template
from stagedb.instance import Bucket, Place, RankClass
from stagedb.parallel import WIDTHS, Plan, TaskKind, splits
from stagedb.symbols import evaluate

Key = tuple[str, int]
"""A tensor of the block at a position of the stage."""

TEMPLATES: Mapping[TaskKind, tuple[Template, ...]] = {
    TaskKind.FORWARD: (Template.FORWARD,),
    TaskKind.BACKWARD: (Template.INPUT_GRADIENT, Template.WEIGHT_GRADIENT),
    TaskKind.INPUT_GRADIENT: (Template.INPUT_GRADIENT,),
    TaskKind.WEIGHT_GRADIENT: (Template.WEIGHT_GRADIENT,),
    TaskKind.STEP: (Template.STEP,),
}


@dataclass(frozen=True)
class Item:
    """One operator, or one bucket's collective, where it is issued. `reads` and `writes` are storages, each once.

    temporary: bytes that it holds beside them while it runs. message: bytes of its operand, where it communicates.
    """

    op: SymOp
    position: int
    number: int
    reads: tuple[Key, ...] = ()
    writes: tuple[Key, ...] = ()
    temporary: int = 0
    message: int = 0
    bucket: Bucket | None = None


@dataclass(frozen=True)
class Program:
    """A chunk's items by kind of task in issue order, and its tensors. Of a step, the items are the chunk's own.

    backwards: the kinds of task that make gradients, in the order in which a micro-batch comes to them: one, or the
    two halves of a split backward. chunk: its number on the stage. sizes: bytes on one rank of the tensors that
    exist there. parts: those of one rank's part of weights and what the optimizer keeps of them, where dp shares
    them. places: position and block. layers: by position, counted from the stage's first; None outside layers.
    recomputing: positions of layers that recompute something. storage: to a tensor the one whose bytes it is.
    gradients: weights by the gradients that a backward makes of them.
    """

    chunk: int
    backwards: tuple[TaskKind, ...]
    items: Mapping[TaskKind, tuple[Item, ...]]
    tensors: Mapping[str, SymTensor]
    sizes: Mapping[str, int]
    parts: Mapping[str, int]
    places: Sequence[tuple[int, str]]
    layers: Mapping[int, int | None]
    recomputing: frozenset[int]
    storage: Mapping[Key, Key]
    gradients: Mapping[Key, Key]

    def resolve(self, key: Key) -> Key:
        """The storage of a tensor."""
        return storage_of(self.storage, key)


def storage_of(storage: Mapping[Key, Key], key: Key) -> Key:
    """The tensor whose bytes a tensor has, itself or another one's."""
    while key in storage:
        key = storage[key]
    return key


def programs(graph: SymGraph, plan: Plan, each: RankClass) -> tuple[Program, ...]:
    """The programs of the chunks of a rank class of a graph's instance under a plan."""
    return tuple(_Making(graph, plan, each, chunk).make() for chunk in range(len(each.work.chunks)))


class _Making:
    """What making a program looks things up in."""

    def __init__(self, graph: SymGraph, plan: Plan, each: RankClass, chunk: int) -> None:
        self.graph, self.plan, self.chunk, self.work = graph, plan, chunk, each.work.chunks[chunk]
        self.stage, self.split = self.work.stage, splits(each.work.tasks)
        self.env = {**plan.env(graph.sizes), **plan.rank_symbols(graph.sizes, *each.work.member)}
        self.widths = {name: WIDTHS[format_] for name, format_ in plan.dtypes.names().items()}
        self.values: dict[tuple[str, bool, int], int] = {}
        self.tensors = {tensor.name: tensor for tensor in graph.tensors}
        self.by_block: dict[str, list[SymOp]] = {}
        for op in graph.ops:
            self.by_block.setdefault(op.block, []).append(op)
        self.storage: dict[Key, Key] = {
            **dict(_ports(graph.blocks, self.stage.places, self.stage.has_previous, self.stage.has_next)),
            **dict(_ties(self.tensors, self.stage.standing())),
        }
        for place in self.stage.with_cuts():
            again = self.recomputes(place)
            for op in self.by_block[place.block]:
                if not self.present(op, again) and op.reads:
                    self.storage |= {(made, place.position): (op.reads[0], place.position) for made in op.writes}
            for tensor in graph.tensors:
                if tensor.block == place.block and tensor.storage is not None:
                    self.storage[tensor.name, place.position] = (tensor.storage, place.position)
                if tensor.block == place.block and tensor.repeats is not None and not again:
                    self.storage[tensor.name, place.position] = (tensor.repeats, place.position)

    def make(self) -> Program:
        sizes = {tensor.name: self.value(tensor.bytes) for tensor in self.graph.tensors if self.present(tensor)}
        again = [place.position for place in self.stage.places if place.layer is not None and self.recomputes(place)]
        places = self.stage.places
        halves = (TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT)
        backwards = halves if self.split else (TaskKind.BACKWARD,)
        return Program(
            chunk=self.chunk,
            backwards=backwards,
            items={kind: self.items(kind) for kind in (TaskKind.FORWARD, *backwards, TaskKind.STEP)},
            tensors=self.tensors,
            sizes=sizes,
            parts=dict(self.parts()),
            places=[(place.position, place.block) for place in places],
            layers={place.position: place.layer for place in places},
            recomputing=frozenset(again),
            storage=self.storage,
            gradients=dict(self.gradients()),
        )

    @cached_property
    def widest(self) -> int:
        """The most ops that a loop has."""
        return max((1 + op.order - op.loop for op in self.graph.ops if op.loop is not None), default=0)

    def recomputes(self, place: Place) -> bool:
        return place.layer is None or self.plan.recomputes(place.layer)

    def value(self, text: str, again: bool = True, step: int = 0) -> int:
        if (text, again, step) not in self.values:
            env = {**self.env, "step": step + 1}
            self.values[text, again, step] = evaluate(text, env if again else {**env, "runs": 1})
        return self.values[text, again, step]

    def present(self, row: SymOp | SymTensor, again: bool = True, step: int = 0) -> bool:
        return row.present is None or self.value(row.present, again, step) > 0

    def turns(self, op: SymOp, place: Place) -> Iterator[tuple[int, int]]:
        """In which turns an op runs, and its number in each; one that is in no loop runs once."""
        slots = self.work.order.slots
        upward = op.template in (Template.FORWARD, Template.STEP)
        begin = self.work.order.upward if upward else self.work.order.downward
        if op.times is None or op.loop is None:
            yield 0, begin(place.position) + op.order * slots
            return
        width = self.widest
        for step in range(self.value(op.times)):
            yield step, begin(place.position) + op.loop * slots + step * width + op.order - op.loop

    def resolve(self, key: Key) -> Key:
        return storage_of(self.storage, key)

    def items(self, kind: TaskKind) -> tuple[Item, ...]:
        templates = TEMPLATES[kind]
        found = []
        for place in self.stage.with_cuts():
            for op in self.by_block[place.block]:
                if op.template not in templates or not _stands(op, place):
                    continue
                reads, writes = (
                    tuple(dict.fromkeys(self.resolve((name, place.position)) for name in names))
                    for names in (op.reads, op.writes)
                )
                for step, number in self.turns(op, place):
                    if self.present(op, self.recomputes(place), step):
                        message = 0 if op.comm_bytes is None else self.value(op.comm_bytes, step=step)
                        temporary = self.value(op.temporary, step=step)
                        found.append(Item(op, place.position, number, reads, writes, temporary, message))
        ops = {op.name: op for op in self.by_block.get("bucket", ())}
        for bucket in self.work.buckets:
            if ops[bucket.op].template in templates:
                found.append(Item(ops[bucket.op], bucket.position, bucket.base + bucket.slot, bucket=bucket))
        return tuple(sorted(found, key=lambda item: item.number))

    def parts(self) -> Iterator[tuple[str, int]]:
        for name, tensor in self.tensors.items():
            owner = tensor
            if tensor.role == "optimizer_state":
                owner = self.tensors[name.rpartition(".")[0]]
            if owner.shard is not None and self.present(owner):
                yield name, self.value(owner.shard) * self.widths[tensor.dtype]

    def gradients(self) -> Iterator[tuple[Key, Key]]:
        for place in self.stage.places:
            step = [op for op in self.by_block[place.block] if op.template is Template.STEP]
            makers = {name: op for op in step for name in op.writes}
            for op in step:
                if op.kind != "optimizer":
                    continue
                weights = [name for name in op.reads if self.tensors[name].role == "weight"]
                finals = [name for name in op.reads if self.tensors[name].role == "gradient"]
                for weight, gradient in zip(weights, finals, strict=True):
                    while gradient in makers:
                        gradient = makers[gradient].reads[0]
                    yield self.resolve((gradient, place.position)), self.resolve((weight, place.position))


def _stands(op: SymOp, place: Place) -> bool:
    """Whether a message is sent, or received and gathered, at this end of the stage; all else stands in its block."""
    if place.end is None:
        return True
    return (place.end == "previous") == ((op.type is not OpType.SEND) == (op.template is Template.FORWARD))


def _ports(
    blocks: Sequence[BlockSpec], places: Sequence[Place], has_previous: bool, has_next: bool
) -> Iterator[tuple[Key, Key]]:
    """What blocks hand to each other, and to and from the messages at the stage's ends."""
    specs = {block.name: block for block in blocks}
    for place in places:
        spec, at = specs[place.block], place.position
        before, after = at > 0 or has_previous, at < len(places) - 1 or has_next
        if before and spec.input is not None and spec.input_gradient is not None:
            source = specs[places[at - 1].block].output if at > 0 else "cut.recv_forward"
            if source is not None:
                yield (spec.input, at), (source, at - 1)
            if at == 0:
                yield ("cut.send_backward", -1), (spec.input_gradient, at)
        if after and spec.output is not None and spec.output_gradient is not None:
            inside = at < len(places) - 1
            source = specs[places[at + 1].block].input_gradient if inside else "cut.recv_backward"
            if source is not None:
                yield (spec.output_gradient, at), (source, at + 1)
            if not inside:
                yield ("cut.send_forward", at + 1), (spec.output, at)


def _ties(tensors: Mapping[str, SymTensor], standing: Mapping[str, int]) -> Iterator[tuple[Key, Key]]:
    """A tied weight is the other one where a stage holds both."""
    for tensor in tensors.values():
        first = tensors.get(tensor.tied or "")
        if first is not None and tensor.block in standing and first.block in standing:
            yield (tensor.name, standing[tensor.block]), (first.name, standing[first.block])
