"""From when to when each tensor of a rank class lives, tied to the tasks of its schedule.

A micro-batch's forward opens what its backward closes, so a life is said once for all micro-batches: where in which
kind of task it begins and ends, and for which of the tasks of that kind.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from stagedb.graph.symbolic import OpType, SymOp, SymTensor
from stagedb.instance import Bucket
from stagedb.parallel import RECIPES, WIDTHS, Held, Plan, TaskKind
from stagedb.profile.program import Item, Key, Program


class Category(StrEnum):
    """What memory is held for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer_state"
    MASTER = "master_weights"
    INPUTS = "inputs_and_buffers"
    ACTIVATIONS = "activations"
    RECOMPUTED = "recomputed"
    GATHERED = "gathered_parameters"
    COMMUNICATION = "communication_buffers"
    TEMPORARIES = "temporaries"


class Which(StrEnum):
    """For which tasks of a kind something happens; `later` is every one but the first."""

    EVERY = "every"
    FIRST = "first"
    LAST = "last"
    LATER = "later"

    def fits(self, first: bool, last: bool) -> bool:
        """Whether it happens in a task that is, or is not, the first and the last of its kind."""
        return {Which.EVERY: True, Which.FIRST: first, Which.LAST: last, Which.LATER: not first}[self]


@dataclass(frozen=True)
class Moment:
    """Right before the item of this index of a task of this kind and chunk; at the task's end for the number of items.

    A step is that of all chunks, and has chunk 0.
    """

    kind: TaskKind
    index: int
    which: Which = Which.EVERY
    chunk: int = 0


@dataclass(frozen=True)
class Life:
    """`bytes` of a tensor from `begin` until one of `ends`; without any they are never given back.

    `layer` is counted from the stage's first, None outside layers.
    """

    name: str
    layer: int | None
    bytes: int
    category: Category
    begin: Moment
    ends: tuple[Moment, ...]


@dataclass(frozen=True)
class State:
    """`bytes` that a rank holds before the step and after it."""

    name: str
    layer: int | None
    bytes: int
    category: Category


@dataclass(frozen=True)
class Lives:
    """Everything that a rank of a class holds in a step."""

    states: tuple[State, ...]
    lives: tuple[Life, ...]


FORWARD, STEP = TaskKind.FORWARD, TaskKind.STEP

SCALAR = 4
"""Bytes of a loss, of its gradient, and of the number of tokens that it is the mean over."""


def saved(program: Program) -> dict[int, dict[str, int]]:
    """By position the tensors of a forward that the backward of the block there is the last to read: their bytes."""
    made = {key for item in program.items[FORWARD] for key in item.writes}
    backward = [item for kind in program.backwards for item in program.items[kind]]
    readers = {key: item for item in backward for key in item.reads if key in made}
    found: dict[int, dict[str, int]] = {position: {} for position, _ in program.places}
    for (name, position), item in readers.items():
        tensors = found[item.position]
        label = name if position == item.position else f"{name} of {position}"
        tensors[label] = program.sizes[name]
    loss = _loss(program)
    if loss is not None:
        name, index = loss
        found[program.items[FORWARD][index].position][f"{name}.tokens"] = SCALAR
    return found


def _loss(program: Program) -> tuple[str, int] | None:
    """Name and forward item of the loss, where the stage has it: the one value without axes."""
    for index, item in enumerate(program.items[FORWARD]):
        if item.op.kind == "loss" and item.op.writes and not program.tensors[item.op.writes[0]].axes:
            return item.op.writes[0], index
    return None


def lives(programs: Sequence[Program], plan: Plan) -> Lives:
    """The states and lives of a rank class under a plan, whose chunks have these programs."""
    held = RECIPES[plan.options.recipe].held
    states: list[State] = []
    found: list[Life] = []
    total, before = sum(len(program.items[STEP]) for program in programs), 0
    for program in programs:
        making = _Making(program, plan, held)
        states += making.states()
        own = len(program.items[STEP])

        def on_stage(moment: Moment, chunk: int = program.chunk, own: int = own, before: int = before) -> Moment:
            if moment.kind is not STEP:
                return dataclasses.replace(moment, chunk=chunk)
            # The end of a step is that of all chunks' steps, which follow each other.
            return dataclasses.replace(moment, index=total if moment.index == own else before + moment.index)

        for life in making.lives():
            ends = tuple(map(on_stage, life.ends))
            found.append(dataclasses.replace(life, begin=on_stage(life.begin), ends=ends))
        before += own
    return Lives(tuple(states), tuple(found))


@dataclass(frozen=True)
class _Making:
    """Of one chunk. What a stage holds once is told with its first chunk."""

    program: Program
    plan: Plan
    held: Held

    @property
    def first(self) -> bool:
        """Whether it tells what a stage holds once."""
        return self.program.chunk == 0

    @property
    def inputs_task(self) -> TaskKind:
        """The task that makes gradients of inputs: a backward, or its first half."""
        return self.program.backwards[0]

    @property
    def weights_task(self) -> TaskKind:
        """The task that makes gradients of weights: a backward, or its second half."""
        return self.program.backwards[-1]

    @property
    def kinds(self) -> tuple[TaskKind, ...]:
        """The tasks of a micro-batch, in the order in which it comes to them."""
        return (FORWARD, *self.program.backwards)

    @property
    def running(self) -> Iterator[tuple[TaskKind, int, Item]]:
        """What runs for a micro-batch, in order."""
        return ((kind, index, item) for kind in self.kinds for index, item in enumerate(self.program.items[kind]))

    # What is there before the step.

    def states(self) -> Iterator[State]:
        for position, block in self.program.places:
            for tensor in self.program.tensors.values():
                key = (tensor.name, position)
                there = tensor.name in self.program.sizes and self.program.resolve(key) == key
                if tensor.block == block and there:
                    yield from self.state_of(key)
        yield from self.shared_states()
        yield from self.inputs()
        yield from self.buffers()

    def shared_states(self) -> Iterator[State]:
        """What a distributed optimizer keeps of this rank's part of one buffer, whichever weights are in that."""
        if self.shared_buffer is None:
            return
        tensors = self.program.tensors.values()
        words = {t.name.rpartition(".")[2]: t.dtype for t in tensors if t.name in self.program.sizes and _is_state(t)}
        for word, dtype in words.items():
            category = Category.MASTER if word == "master" else Category.OPTIMIZER
            yield State(f"buffer.{word}", None, self.shared_buffer * self.width(dtype), category)

    def state_of(self, key: Key) -> Iterator[State]:
        name, layer = key[0], self.layer(key)
        role = self.program.tensors[name].role
        if role == "weight":
            yield State(name, layer, self.owned(name, self.sharded), Category.PARAMETERS)
            if self.held.gradient_buffer:
                elements = self.owned(name, self.sharded) // self.width("param")
                yield State(f"{name}.main_gradient", layer, elements * self.width("grad"), Category.GRADIENTS)
            if self.held.optimizer_scalar:
                yield State(f"{name}.step", layer, self.held.optimizer_scalar, Category.OPTIMIZER)
        elif role == "optimizer_state":
            weight, _, word = name.rpartition(".")
            if self.shared_buffer is not None:
                return
            if self.program.resolve((weight, key[1])) == (weight, key[1]):
                category = Category.MASTER if word == "master" else Category.OPTIMIZER
                yield State(name, layer, self.owned(name, self.plan.options.zero >= 1), category)

    def inputs(self) -> Iterator[State]:
        here = {block for _, block in self.program.places}
        for tensor in self.program.tensors.values():
            if tensor.role == "buffer" and self.first:
                yield State(tensor.name, None, self.program.sizes[tensor.name], Category.INPUTS)
            if tensor.role == "input" and (self.first if self.held.whole_batch else tensor.block in here):
                times = self.plan.microbatches if self.held.whole_batch else 1
                yield State(tensor.name, None, times * self.program.sizes[tensor.name], Category.INPUTS)

    def buffers(self) -> Iterator[State]:
        plan, held = self.plan, self.held
        for _, _, item in self.running:
            if held.receive_buffers and item.op.type is OpType.RECV and item.op.axis == "pp":
                size = plan.microbatches * item.message
                yield State(f"{item.op.name}.buffers", None, size, Category.COMMUNICATION)
        if held.reducer_copies:
            copies = [
                item
                for item in self.program.items[self.weights_task]
                if item.bucket is not None and item.op.bucket == "ddp"
            ]
            for name in dict.fromkeys(item.op.name for item in copies):
                size = sum(item.bucket.bytes_in for item in copies if item.bucket is not None and item.op.name == name)
                yield State(name, None, size, Category.COMMUNICATION)
        times = int(self.first) + int(plan.pp > 1 and self.last_loss is not None)
        if held.bookkeeping and times:
            yield State("bookkeeping", None, times * held.bookkeeping, Category.COMMUNICATION)
        degrees = (plan.tp, plan.pp, plan.cp, plan.dp // plan.hsdp, plan.hsdp)
        if self.first and held.mesh_rank and sum(degree > 1 for degree in degrees) > 1:
            yield State("mesh", None, held.mesh_rank * plan.world, Category.COMMUNICATION)

    # What comes and goes.

    def lives(self) -> Iterator[Life]:
        for kind, index, item in self.running:
            if item.temporary:
                name = f"{item.op.name}.temporary"
                layer = self.program.layers.get(item.position)
                yield _brief(name, layer, item.temporary, Category.TEMPORARIES, kind, index)
        for key, (kind, index, item) in self.begins.items():
            role = self.program.tensors[key[0]].role
            buffered = item.op.type is OpType.RECV and item.op.axis == "pp" and self.held.receive_buffers
            if role not in ("activation", "gradient") or buffered:
                continue
            if key in self.program.gradients:
                yield from self.gradient(key, kind, index)
            else:
                yield self.value(key, kind, index, item)
        yield from self.reduced()
        yield from self.loss()
        yield from self.collected()

    def value(self, key: Key, kind: TaskKind, index: int, item: Item) -> Life:
        """A tensor from the operator that makes it to the last one that reads it."""
        name, position = key
        end_kind, end = self.reads[key]
        ends: tuple[Moment, ...] = (Moment(end_kind, end + 1),)
        kept = self.program.tensors[name].kept and position in self.program.recomputing
        if kept and end_kind is FORWARD:
            ends = (Moment(self.inputs_task, self.over(self.inputs_task, position)),)
        if key in self.sent:
            ends = self.sent[key]
        category = Category.TEMPORARIES
        if item.op.phase == "recompute":
            category = Category.RECOMPUTED
        elif kind is not ends[0].kind:
            # Of a forward for its backward, or what a split backward's first half leaves for the second.
            category = Category.ACTIVATIONS
        return Life(name, self.layer(key), self.program.sizes[name], category, Moment(kind, index), ends)

    def gradient(self, key: Key, kind: TaskKind, index: int) -> Iterator[Life]:
        """A weight's gradient: each backward makes one, which is added to the first or scattered to parts."""
        name, layer, size = key[0], self.layer(key), self.program.sizes[key[0]]
        scatter = self.scatters.get(self.program.gradients[key])
        if key not in self.first_gradients and not self.held.gradient_buffer:
            yield _brief(name, layer, size, Category.TEMPORARIES, kind, index)  # added to the other end's of a tie
            return
        if scatter is None:
            if self.held.gradient_buffer:
                return  # added to the buffer by the kernel that makes it
            ends = (Moment(STEP, len(self.program.items[STEP])),)
            yield Life(name, layer, size, Category.GRADIENTS, Moment(kind, index, Which.FIRST), ends)
            yield _brief(name, layer, size, Category.TEMPORARIES, kind, index, Which.LATER)
            return
        at, item = scatter
        if item.op.when == "every":
            yield Life(
                name, layer, size, Category.TEMPORARIES, Moment(kind, index), (Moment(self.weights_task, at + 1),)
            )
        else:
            begin, end = Moment(kind, index, Which.FIRST), Moment(self.weights_task, at + 1, Which.LAST)
            yield Life(name, layer, size, Category.GRADIENTS, begin, (end,))
            yield _brief(name, layer, size, Category.TEMPORARIES, kind, index, Which.LATER)

    def reduced(self) -> Iterator[Life]:
        """What the step makes of gradients before the optimizer, which reads all of it."""
        items = self.program.items[STEP]
        for index, item in enumerate(items):
            for key in item.writes:
                if self.program.tensors[key[0]].role == "gradient":
                    size, end = self.program.sizes[key[0]], Moment(STEP, len(items))
                    yield Life(key[0], self.layer(key), size, Category.TEMPORARIES, Moment(STEP, index), (end,))

    def loss(self) -> Iterator[Life]:
        """The loss, the number of tokens that it is the mean over, and the gradient that a backward starts from."""
        if self.last_loss is None:
            return
        name, index = self.last_loss
        begin, end = Moment(FORWARD, index), Moment(self.inputs_task, 1)
        yield Life(f"{name}.tokens", None, SCALAR, Category.ACTIVATIONS, begin, (end,))
        yield _brief(f"{name}.gradient", None, SCALAR, Category.TEMPORARIES, self.inputs_task, 0)
        begin, later = Moment(FORWARD, index + 1), Moment(FORWARD, index + 1, Which.LATER)
        if self.plan.pp == 1:
            yield Life(name, None, SCALAR, Category.ACTIVATIONS, begin, (later,))
            return
        # A pipeline collects the losses of a step and hands on their mean.
        over = Moment(STEP, len(self.program.items[STEP]))
        yield Life(name, None, SCALAR, Category.ACTIVATIONS, begin, (over,) * self.plan.microbatches)
        turn = self.backward_over(Which.LAST)
        yield Life(f"{name}.mean", None, SCALAR, Category.ACTIVATIONS, turn, ())

    def collected(self) -> Iterator[Life]:
        """What bucketed collectives bring: gathered parameters, scattered gradients, and the buffers of both."""
        for index, item in enumerate(self.program.items[FORWARD]):
            if item.bucket is not None and item.bucket.gathers:
                yield from self.gathered(index, item.op, item.bucket)
        for kind, index, item in self.running:
            if item.bucket is None or kind is FORWARD:
                continue
            if item.bucket.gathers:
                yield from self.gathered_again(index, item.op, item.bucket)
            elif item.op.kind == "reduce_scatter" and self.sharded:
                yield from self.scattered(index, item.op, item.bucket)
        if self.first and self.sharded and self.scatters and self.held.sharded_bookkeeping:
            end = Moment(STEP, len(self.program.items[STEP]))
            size = self.held.sharded_bookkeeping
            yield Life("sharding", None, size, Category.COMMUNICATION, Moment(FORWARD, 0, Which.FIRST), (end,))

    def gathered(self, index: int, op: SymOp, bucket: Bucket) -> Iterator[Life]:
        """A unit gathered before its forward: given back after it, where its backward gathers it once more."""
        unit, size, which = self.unit(bucket), bucket.bytes_out, Which(op.when)
        layer, name = self.layer_of(unit), op.name
        yield _brief(f"{name}.buffer", layer, size, Category.COMMUNICATION, FORWARD, index, which)
        if unit in self.regathered:
            end = Moment(FORWARD, self.over(FORWARD, unit))
        elif which is Which.EVERY and self.one_at_a_time:
            end = Moment(self.inputs_task, self.given_back(unit))
        else:
            # It is gathered again for each micro-batch; those in flight share one copy.
            which = Which.FIRST
            end = self.backward_over(Which.LAST)
        yield Life(name, layer, size, Category.GATHERED, Moment(FORWARD, index, which), (end,))

    def gathered_again(self, index: int, op: SymOp, bucket: Bucket) -> Iterator[Life]:
        """A unit gathered ahead of its backward: in the collective's buffer until that begins."""
        unit, size = self.unit(bucket), bucket.bytes_out
        layer, name = self.layer_of(unit), op.name
        items = self.program.items[self.inputs_task]
        begun = next(i for i, each in enumerate(items) if each.position == unit and each.bucket is None)
        before = items[begun - 1].bucket
        # It is copied out of the buffer before the next unit's gather, which is issued first, takes one of its own.
        copied = begun - 1 if before is not None and before.gathers and begun - 1 > index else begun
        end = Moment(self.inputs_task, self.given_back(unit))
        buffer = Moment(self.inputs_task, index + 1), (Moment(self.inputs_task, begun),)
        yield Life(f"{name}.buffer", layer, size, Category.COMMUNICATION, *buffer)
        yield Life(name, layer, size, Category.GATHERED, Moment(self.inputs_task, copied), (end,))

    def scattered(self, index: int, op: SymOp, bucket: Bucket) -> Iterator[Life]:
        """The buffer that a unit's gradients are scattered from, there until the next one is; and the parts left."""
        layer, name, which = self.layer_of(self.unit(bucket)), op.name, Which(op.when)
        items = self.program.items[self.weights_task]
        later = (i for i, each in enumerate(items) if i > index and each.op.name == op.name)
        end = Moment(self.weights_task, next(later, len(items)), which)
        yield Life(
            f"{name}.buffer",
            layer,
            bucket.bytes_in,
            Category.COMMUNICATION,
            Moment(self.weights_task, index, which),
            (end,),
        )
        if self.held.gradient_buffer:
            return  # added to the part that is always there
        task = self.weights_task
        reduced = Moment(task, index + 1, which), (Moment(task, min(index + 2, len(items)), which),)
        if self.width("reduce") != self.width("param"):
            yield Life(f"{name}.reduced", layer, bucket.bytes_out, Category.TEMPORARIES, *reduced)
        for member in bucket.members:
            part, over = self.program.parts[member.weight], Moment(STEP, len(self.program.items[STEP]))
            label = f"{member.weight}.gradient"
            first = Which.FIRST if which is Which.EVERY else which
            place = self.program.layers[member.position]
            yield Life(label, place, part, Category.GRADIENTS, Moment(self.weights_task, index + 1, first), (over,))
            if which is Which.EVERY:
                added = Moment(self.weights_task, min(index + 2, len(items)), Which.LATER)
                begin = Moment(self.weights_task, index + 1, Which.LATER)
                yield Life(label, place, part, Category.TEMPORARIES, begin, (added,))

    # Where things are.

    def layer(self, key: Key) -> int | None:
        return self.program.layers.get(key[1])

    def unit(self, bucket: Bucket) -> int | None:
        """The position of the layer that a bucket's weights are in; None outside layers."""
        position = bucket.members[0].position
        return None if self.program.layers[position] is None else position

    def layer_of(self, unit: int | None) -> int | None:
        return None if unit is None else self.program.layers[unit]

    def width(self, dtype: str) -> int:
        return WIDTHS[self.plan.dtypes.names()[dtype]]

    @cached_property
    def shared_buffer(self) -> int | None:
        """Elements of this rank's part of the buffer whose gradients are scattered for the optimizer, where one is."""
        scatters = [
            item.bucket.bytes_out // self.width("reduce")
            for item in self.program.items[self.weights_task]
            if item.bucket is not None and item.op.kind == "reduce_scatter" and item.op.bucket == "buffer"
        ]
        return sum(scatters) if scatters else None

    @property
    def one_at_a_time(self) -> bool:
        """Whether each micro-batch's backward follows its forward at once."""
        return self.plan.pp == 1 and (self.plan.schedule == "1f1b" or self.plan.microbatches == 1)

    @property
    def sharded(self) -> bool:
        """Whether each rank keeps a part of the parameters and gradients alone."""
        return self.plan.options.zero >= 2

    def owned(self, name: str, sharded: bool) -> int:
        """Bytes of a weight, or of what the optimizer keeps of it, that a rank keeps."""
        return self.program.parts[name] if sharded else self.program.sizes[name]

    @cached_property
    def begins(self) -> Mapping[Key, tuple[TaskKind, int, Item]]:
        """The item that makes each storage."""
        found: dict[Key, tuple[TaskKind, int, Item]] = {}
        for kind, index, item in self.running:
            for key in item.writes:
                found.setdefault(key, (kind, index, item))
        return found

    @cached_property
    def reads(self) -> Mapping[Key, tuple[TaskKind, int]]:
        """The last item that uses each storage."""
        return {key: (kind, index) for kind, index, item in self.running for key in (*item.reads, *item.writes)}

    @cached_property
    def last_loss(self) -> tuple[str, int] | None:
        return _loss(self.program)

    @cached_property
    def sent(self) -> Mapping[Key, tuple[Moment, ...]]:
        """What a pipeline keeps beyond its last reader: results until their backward, gradients until the next one."""
        if not self.held.keeps_sent or self.plan.pp == 1:
            return {}
        over = self.backward_over()
        found: dict[Key, tuple[Moment, ...]] = {}
        for _, _, item in self.running:
            if item.op.axis != "pp":
                continue
            if item.op.type is OpType.SEND and item.op.phase == "forward":
                found[item.reads[0]] = (over,)
            elif item.op.type is OpType.SEND:
                found[item.reads[0]] = (self.backward_over(Which.LATER), self.backward_over(Which.LAST))
        if self.last_loss is not None:
            # The last stage's result is what the loss function is given: the logits before they are cast.
            items = self.program.items[FORWARD]
            head = max(index for index, item in enumerate(items) if item.op.kind == "matmul")
            given = next(item for item in items[head + 1 :] if item.op.kind in ("cast", "loss"))
            found[given.reads[0]] = (over,)
        return found

    @cached_property
    def scatters(self) -> Mapping[Key, tuple[int, Item]]:
        """By weight the collective that scatters its gradient to parts."""
        return {
            self.program.resolve((member.weight, member.position)): (index, item)
            for index, item in enumerate(self.program.items[self.weights_task])
            if item.bucket is not None and item.op.kind == "reduce_scatter" and self.sharded
            for member in item.bucket.members
        }

    @cached_property
    def first_gradients(self) -> frozenset[Key]:
        """Of the gradients that a backward makes of one weight, those of a tie's both ends, the first."""
        found: dict[Key, Key] = {}
        for key in self.begins:
            if key in self.program.gradients:
                found.setdefault(self.program.gradients[key], key)
        return frozenset(found.values())

    @cached_property
    def regathered(self) -> frozenset[int | None]:
        """Units that their backward gathers once more."""
        items = self.program.items[self.inputs_task]
        return frozenset(self.unit(item.bucket) for item in items if item.bucket is not None and item.bucket.gathers)

    def backward_over(self, which: Which = Which.EVERY) -> Moment:
        """The end of the task that makes gradients of inputs."""
        return Moment(self.inputs_task, len(self.program.items[self.inputs_task]), which)

    def over(self, kind: TaskKind, position: int | None) -> int:
        """Where the items of a position end in a kind of task; of what stands outside layers, where all end."""
        items = self.program.items[kind]
        if position is None:
            return len(items)
        return 1 + max(i for i, item in enumerate(items) if item.position == position and item.bucket is None)

    def given_back(self, unit: int | None) -> int:
        """Where gathered parameters are given back: before the unit's gradients are scattered, in its backward."""
        items = self.program.items[self.inputs_task]
        found = [
            i
            for i, item in enumerate(items)
            if item.bucket is not None and item.op.kind == "reduce_scatter" and self.unit(item.bucket) == unit
        ]
        return found[0] if found else self.over(self.inputs_task, unit)


def _is_state(tensor: SymTensor) -> bool:
    return tensor.role == "optimizer_state"


def _brief(
    name: str, layer: int | None, size: int, category: Category, kind: TaskKind, index: int, which: Which = Which.EVERY
) -> Life:
    """A life for one item."""
    return Life(name, layer, size, category, Moment(kind, index, which), (Moment(kind, index + 1, which),))
