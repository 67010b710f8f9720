"""Where a chunk's tensors are made, read, gathered and scattered: the tables from which lifetimes follow."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from stagedb.collectives import gathers, scatters
from stagedb.frameworks import FrameworkMemory, bucket_policy
from stagedb.ir.facts import LOSS_TOKENS, TensorFacts
from stagedb.ir.operators import Adafactor, AdamW, HandOver
from stagedb.ir.operators.optimizer import FromHost
from stagedb.ir.symbolic_graph import OpType, SymOp
from stagedb.memory.class_program import BucketStorage, ChunkProgram, Forward, Item, Key, PlacedWeight, forward_of
from stagedb.memory.lifetimes import Moment, TaskSelector
from stagedb.plans import FORMAT_BYTES, Plan
from stagedb.schedules import ACTIVE, SCHEDULES
from stagedb.workflows import RECOMPUTE, TaskKind

# What the calls of a layer's modules hold in a forward until they return.


def held_arguments(
    program: ChunkProgram, begins: Mapping[Key, tuple[TaskKind, int, Item]]
) -> Iterator[tuple[Key, tuple[TaskKind, int]]]:
    """What a call holds, and the item at which it returns.

    Attention and feed-forward hold their inputs, before and after they are gathered. Attention holds queries, keys and
    values. A linear layer holds its input until its result is reduced. Experts are one call, which holds what it gets:
    their matmuls are no calls of their own. begins: the item that makes each tensor.
    """
    kind = program.forward
    items = program.items[kind]
    last: dict[tuple[int, str], int] = {}
    for index, item in enumerate(items):
        last |= dict.fromkeys(((item.position, _part(item)), (item.position, _call(item))), index)
    sources = {key: item.reads for item in items if gathers(item.op.kind) for key in item.writes}
    for item in items:
        part = _part(item)
        for key in item.reads if part and item.bucket is None else ():
            if key not in begins or (_of_experts(item) and _of_experts(begins[key][2])):
                continue
            entering = _part(begins[key][2]) != part
            whole_call = entering or item.op.kind == "attention"
            over = kind, last[item.position, part if whole_call else _call(item)]
            yield key, over
            for held in sources.get(key, ()) if entering else ():
                yield held, over


def _part(item: Item) -> str:
    """The part of a layer that an operator of it is in: `attn` or `ffn`; empty for norms, sums and all others."""
    return item.facts.part or "" if item.facts.module else ""


def _of_experts(item: Item) -> bool:
    return item.facts.of_experts


def _call(item: Item) -> str:
    """The call of a layer's module that an operator is in: of `layer.ffn.w2.reduce_scatter.tp`, `layer.ffn.w2`."""
    return item.facts.module or ""


# What FSDP gathers and reduces together.


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered, and whose gradients are reduced, together: those of a layer.

    position: of its block. depth: of a layer of multi-token prediction, which is a part of that block, from 1; 0 for
    others. experts: those of the layer, as a unit of their own.
    """

    position: int
    depth: int = 0
    experts: bool = False

    @classmethod
    def of_layer(cls, position: int, weight: TensorFacts, apart: bool) -> "Unit":
        """The FSDP unit of a layer's weight.

        position: of the layer. apart: the layer's experts are a unit of their own.
        """
        return cls(position, experts=apart and weight.experts)

    def has(self, item: Item) -> bool:
        """Whether an operator is one of the unit."""
        inside = item.bucket is None and item.position == self.position
        if self.experts:
            return inside and item.facts.experts is not None
        return inside and (not self.depth or (item.message == 0 and item.facts.depth == self.depth))


# What the graph of a split backward's first half holds until the second half is over.
#
# `torch.distributed.pipelining` differentiates a chunk's inputs with `retain_graph=True`, and keeps the operators at
# which the gradients of weights branch off. Each of them holds all operators below it, with what their forwards saved.
# The second half releases what belongs to an operator that it runs, and the rest at its end.

Place = tuple[TaskKind, int]
"""An item of a kind of task, by its index."""


@dataclass(frozen=True)
class SplitGraph:
    """What autograd's graph holds between the two halves of a chunk's backward. program: of the chunk."""

    program: ChunkProgram

    def _differentiating(self, kind: TaskKind) -> Iterator[tuple[int, Item]]:
        for index, item in enumerate(self.program.items[kind]):
            if item.op.type is OpType.COMPUTE and item.facts.origin is not None:
                yield index, item

    @cached_property
    def branches(self) -> Mapping[Forward, int]:
        """For each forward operator that the second half differentiates, the index of its last item there."""
        return {forward_of(item): index for index, item in self._differentiating(self.program.backwards[-1])}

    @cached_property
    def again(self) -> Mapping[Forward, tuple[int, Item]]:
        """The operators that make gradients of inputs and of weights in one call, which the second half runs again.

        By forward operator, the item of the second half before which it does, and the operator of the first. The
        second half goes through weights in the order of the forward.
        """
        first, second = self.program.backwards
        order = {(item.op.name, item.position): i for i, item in enumerate(self.program.items[self.program.forward])}
        places = [(index, order.get(forward_of(item), -1)) for index, item in self._differentiating(second)]
        run_again: dict[Forward, tuple[int, Item]] = {}
        for _, item in self._differentiating(first):
            if any(key in self.program.gradients for key in item.writes):
                own = order.get(forward_of(item), -1)
                after = (index for index, other in places if other > own)
                run_again[forward_of(item)] = next(after, len(self.program.items[second])), item
        return run_again

    def _branch(self, forward: Forward) -> int | None:
        """The item of the second half after which an operator's part is released; None if it has no weights."""
        if forward in self.branches:
            return self.branches[forward]
        return max(self.again[forward][0] - 1, 0) if forward in self.again else None

    def held(self, made: Mapping[Key, TaskKind]) -> Iterator[tuple[Key, Place]]:
        """Storages that the first half reads, each with the item until whose end the graph holds it.

        made: by storage, the kind of task that makes it. Above the last operator with weights nothing is held longer
        than the first half. An operator that runs again needs the gradient of its result too.
        """
        first, second = self.program.backwards
        operators = [(index, item, self._branch(forward_of(item))) for index, item in self._differentiating(first)]
        top = min((index for index, _, branch in operators if branch is not None), default=None)
        ends = {kind: len(self.program.items[kind]) - 1 for kind in (first, second)}
        for index, item, branch in operators:
            if branch is not None:
                over = second, branch
            elif top is not None and index > top:
                over = second, ends[second]
            else:
                over = first, ends[first]
            again = forward_of(item) in self.again
            for key in item.reads:
                if made.get(key) is self.program.forward or (again and made.get(key) is first):
                    yield key, over

    def following(self, item: Item, index: int) -> int:
        """The item until whose end a gradient of weights is held, in addition to the sum that it is added to.

        The gradient has a name in the code until the next group of gradients is there. index: of `item`.
        """
        branches = self.branches
        over = branches.get(forward_of(item), index)
        if any(place == over + 1 for place, _ in self.again.values()):
            return over
        later = sorted(item_at for item_at in branches.values() if item_at > over)
        return later[0] if later else len(self.program.items[self.program.backwards[-1]]) - 1


def loss_of(program: ChunkProgram) -> tuple[str, int] | None:
    """Name and forward item of the loss, where the stage has it: the last loss without axes."""
    loss = None
    for index, item in enumerate(program.items[program.forward]):
        if item.op.kind == "loss" and item.op.writes and not program.tensors[item.op.writes[0]].axes:
            loss = item.op.writes[0], index
    return loss


def means_of(program: ChunkProgram) -> tuple[tuple[str, int], ...]:
    """Names and forward items of the means over tokens, where the stage has the loss: one for each token predicted."""
    means = []
    for index, item in enumerate(program.items[program.forward]):
        axes = [program.tensors[name].axes for name in (*item.op.reads[:1], *item.op.writes[:1])]
        if item.op.kind == "loss" and len(axes) == 2 and axes[0] and not axes[1]:
            means.append((item.op.writes[0], index))
    return tuple(means)


def in_parts(program: ChunkProgram, index: int) -> bool:
    """Whether a forward item works on a part of the tokens of a loss, whose gradients are made in the forward.

    index: of the item among those of the forward.
    """
    item = program.items[program.forward][index]
    return any(LOSS_TOKENS in program.tensors[name].axes for name in (*item.op.reads[:1], *item.op.writes[:1]))


def _fills_shared_buffer(op: SymOp) -> bool:
    """Whether a bucket's collective scatters gradients out of one padded buffer."""
    return scatters(op.kind) and bucket_policy(op.bucket).extent is not None


@dataclass(frozen=True)
class Chunk:
    """A virtual stage of a rank class, with the tables from which lifetimes of its tensors follow.

    program: its items. plan: of the instance. held: what the framework holds in memory beyond the tensors of operators.
    State that a stage holds once, such as a buffer for all chunks, is counted in chunk 0.
    """

    program: ChunkProgram
    plan: Plan
    held: FrameworkMemory

    @property
    def first(self) -> bool:
        """Whether state that the stage holds once is counted here."""
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
        """The tasks of a micro-batch, in the order in which they run."""
        return tuple(kind for kind in self.program.items if not kind.once)

    @property
    def running(self) -> Iterator[tuple[TaskKind, int, Item]]:
        """The items that run for a micro-batch, in order."""
        return ((kind, index, item) for kind in self.kinds for index, item in enumerate(self.program.items[kind]))

    @property
    def weights_items(self) -> tuple[Item, ...]:
        """The items of the task that makes gradients of weights; empty without a backward."""
        return self.program.items[self.weights_task] if self.program.backwards else ()

    @property
    def step_end(self) -> Moment:
        """The moment at which a step ends: after the last item of its last task."""
        return Moment(self.program.last, len(self.program.items[self.program.last]), TaskSelector.LAST)

    def layer(self, key: Key) -> int | None:
        """The layer that a tensor is in, by its place on the chunk; None outside layers. key: name and position of the
        tensor.
        """
        return self.program.layers.get(key[1])

    def unit(self, bucket: BucketStorage) -> Unit | None:
        """The unit that a bucket's weights are in; None outside layers."""
        return self.unit_of((bucket.members[0].weight, bucket.members[0].position))

    def unit_of(self, key: Key) -> Unit | None:
        """The unit of a weight or its gradient; None outside layers."""
        (name, position), tensors = key, self.program.tensors
        facts = tensors[name].facts
        if self.program.layers[position] is not None:
            return Unit.of_layer(position, facts, self.plan.options.expert_unit)
        return None if facts.depth is None else Unit(position, facts.depth)

    def layer_of(self, unit: Unit | None) -> int | None:
        """The layer that a unit of FSDP is in, by its place on the chunk; None outside layers, and for no unit."""
        return None if unit is None else self.program.layers[unit.position]

    def cut_columns(self, bucket: BucketStorage) -> bool:
        """Whether the parts of a bucket's weights are cut along their second axis, so that copies order them."""
        return any(member.weight in self.program.columns for member in bucket.members)

    def width(self, dtype: str) -> int:
        """Bytes of a number under the plan. dtype: a class of formats, such as `param`."""
        return FORMAT_BYTES[self.plan.dtypes.names()[dtype]]

    @cached_property
    def shared_buffer(self) -> tuple[int, int] | None:
        """Elements of the buffer of gradients that are scattered for the optimizer, whole and a part, or None."""
        buckets = self._shared_buckets
        if not buckets:
            return None
        width = self.width("reduce")
        return sum(bucket.bytes_in for bucket in buckets) // width, sum(bucket.bytes_out for bucket in buckets) // width

    @cached_property
    def buffered(self) -> Mapping[Key, Fraction]:
        """The weights whose gradients pass that buffer, each with the share of its bucket that a rank has.

        Other weights have states of their own. Experts have other shares than other weights.
        """
        return {
            (member.weight, member.position): Fraction(bucket.bytes_out, bucket.bytes_in)
            for bucket in self._shared_buckets
            for member in bucket.members
        }

    @property
    def _shared_buckets(self) -> list[BucketStorage]:
        return [item.bucket for item in self.weights_items if item.bucket is not None and _fills_shared_buffer(item.op)]

    @property
    def one_at_a_time(self) -> bool:
        """Whether each micro-batch's backward follows its forward at once."""
        named = SCHEDULES.get(self.plan.schedule)
        return self.plan.pp == 1 and (self.plan.microbatches == 1 or (named is not None and named.alternates))

    @property
    def sharded(self) -> bool:
        """Whether each rank keeps only a part of the parameters and gradients."""
        return self.plan.options.zero >= 2

    @property
    def gathered_first(self) -> bool:
        """Whether a runtime gathers this chunk before the stage's first task."""
        return self.plan.posts_ahead and self.program.chunk < ACTIVE

    def owned(self, name: str, sharded: bool) -> int:
        """Bytes of a weight, or of a state of the optimizer for a weight, that a rank keeps.

        name: of the tensor. sharded: whether ranks have parts of it.
        """
        return self.program.parts[name] if sharded else self.program.sizes[name]

    def returned_size(self, item: Item) -> int:
        """Bytes of the fp32 copy of a weight, or of a rank's part, that an operator takes from the host; else 0."""
        if item.op.kind != FromHost.kind:
            return 0
        weight = item.op.writes[0].removesuffix(".returned")
        return self.owned(weight, self.plan.options.zero >= 1) // self.width("param") * FORMAT_BYTES["fp32"]

    @cached_property
    def trained(self) -> frozenset[Key]:
        """The weights that have a gradient."""
        return frozenset(self.program.gradients.values())

    def counts_steps(self, weight: str) -> bool:
        """Whether AdamW or Adafactor updates a weight, which counts its own steps for each."""
        words = AdamW.states[0], Adafactor.OF_MATRIX[0], Adafactor.OF_VECTOR
        return any(f"{weight}.{word}" in self.program.tensors for word in words)

    @cached_property
    def begins(self) -> Mapping[Key, tuple[TaskKind, int, Item]]:
        """For each storage, the item that makes it: kind of task, index, item."""
        makers: dict[Key, tuple[TaskKind, int, Item]] = {}
        for kind, index, item in self.running:
            for key in item.writes:
                makers.setdefault(key, (kind, index, item))
        return makers

    @cached_property
    def reads(self) -> Mapping[Key, tuple[TaskKind, int]]:
        """The last item that uses each storage. What a layer computes again from is held until its backward ends."""
        last_read = {key: (kind, index) for kind, index, item in self.running for key in (*item.reads, *item.writes)}
        for kind, index, item in self.running:
            for key in item.reads:
                made = self.begins.get(key)
                if made is None or not kind.differentiates:
                    continue
                if item.op.phase == RECOMPUTE and made[2].position != item.position:
                    last_read[key] = max(
                        last_read[key], (kind, self.over(kind, Unit(item.position)) - 1), key=self._moment
                    )
                elif item.op.kind == HandOver.kind:
                    continue  # a handover: the chunk that gets the tensor has it under another name
                elif made[2].op.phase != item.op.phase and last_read[key] == (kind, index):
                    last_read[key] = kind, self.released[kind].get(forward_of(item), index)
        if self.held.holds_arguments:
            for key, place in held_arguments(self.program, self.begins):
                last_read[key] = max(last_read[key], place, key=self._moment)
        if self.graph is not None:
            for key, over in self.graph.held({key: kind for key, (kind, *_) in self.begins.items()}):
                last_read[key] = max(last_read[key], over, key=self._moment)
        return last_read

    @cached_property
    def handed(self) -> Mapping[Key, tuple[TaskKind, int]]:
        """Gradients that a forward makes (of a loss in parts): the item of the backward that takes each over."""
        return {
            key: (kind, index)
            for kind, index, item in self.running
            if item.op.kind == HandOver.kind
            for key in item.reads
        }

    @cached_property
    def becoming(self) -> frozenset[Key]:
        """Gradients of weights that a forward makes (of a loss in parts) and that stay until the optimizer's step."""
        if self.held.gradient_buffer:
            return frozenset()
        made = {key: self.program.items[kind][index].writes[0] for key, (kind, index) in self.handed.items()}
        weights = {key: self.program.gradients[grad] for key, grad in made.items() if grad in self.program.gradients}
        apart = {*self.scatters, *self.tied}
        return frozenset(key for key, weight in weights.items() if weight not in apart)

    @cached_property
    def graph(self) -> SplitGraph | None:
        """The autograd graph that holds tensors between the halves of a split backward; None if none does."""
        return SplitGraph(self.program) if self.split and self.held.retains_graph else None

    def _moment(self, place: tuple[TaskKind, int]) -> tuple[int, int]:
        return self.kinds.index(place[0]), place[1]

    @cached_property
    def released(self) -> Mapping[TaskKind, Mapping[tuple[str, int], int]]:
        """By kind of task, forward operator and position: the item at which a call that makes several gradients ends.

        Until then the call holds what the forward has saved for it. Empty where each gradient is a call of its own.
        """
        whole_backward = self.plan.options.framework.whole_backward
        return {
            kind: {
                forward_of(item): index
                for index, item in enumerate(self.program.items[kind])
                if whole_backward and item.op.type is OpType.COMPUTE and item.facts.origin is not None
            }
            for kind in self.kinds
        }

    def returned(self, key: Key) -> int:
        """The item at which the call that makes a gradient returns. key: of the gradient."""
        kind, index, item = self.begins[key]
        if self.graph is not None and kind is self.weights_task:
            return self.graph.following(item, index)
        if self._expert(item) and self.plan.tp > 1 and self.plan.options.routes_whole:
            # The weights of experts, which are parts of distributed tensors, become plain tensors where the call of the
            # experts begins.
            return self.last_of_experts[kind, item.position]
        return self.released[kind].get(forward_of(item), index)

    @cached_property
    def last_of_experts(self) -> Mapping[tuple[TaskKind, int], int]:
        """By kind of task and position, the last item that is a gradient of a matmul of experts."""
        return {
            (kind, item.position): index
            for kind in self.kinds
            for index, item in enumerate(self.program.items[kind])
            if self._expert(item)
        }

    def _expert(self, item: Item) -> bool:
        """Whether an operator is a gradient of a matmul of experts."""
        return item.facts.of_experts and item.facts.origin is not None and not item.message

    @cached_property
    def modelled(self) -> int:
        """The first forward item after the model's own forward, which gathers logits over tp; the loss comes later.

        A loss in parts has the head in it, so that the model's forward ends before that.
        """
        items = self.program.items[self.program.forward]
        parts = (index for index in range(len(items)) if in_parts(self.program, index))
        if (first := next(parts, None)) is not None:
            return first
        if self.last_loss is None:
            return len(items)
        head = max(index for index, item in enumerate(items) if item.op.kind == "matmul")
        return next(index for index, item in enumerate(items) if index > head and item.op.kind in ("cast", "loss"))

    @cached_property
    def last_loss(self) -> tuple[str, int] | None:
        """The loss's last tensor; None for a chunk without a loss."""
        return loss_of(self.program)

    @property
    def _keeps_gradients(self) -> bool:
        """Whether the schedule's code holds a gradient that it has sent until it sends the next one."""
        return not self.plan.posts_ahead and self.plan.schedule in self.held.keeps_gradients

    @cached_property
    def sent(self) -> Mapping[Key, tuple[Moment, ...]]:
        """Tensors that a pipeline keeps after their last read: results to the backward, gradients to the next."""
        if not self.held.keeps_sent or self.plan.pp == 1 or not self.program.backwards:
            return {}
        over = self.backward_over()
        freed: dict[Key, tuple[Moment, ...]] = {}
        for _, _, item in self.running:
            if item.op.axis != "pp":
                continue
            if item.op.type is OpType.SEND and item.op.template.upward:
                # A split backward keeps the stage's result for its second half (`backward_state`).
                freed[item.reads[0]] = (Moment(self.weights_task, len(self.weights_items)),)
            elif item.op.type is OpType.SEND and self.split:
                freed[item.reads[0]] = ()  # the gradient is the `grad` of an input, which the next step clears
            elif item.op.type is OpType.SEND and self._keeps_gradients:
                freed[item.reads[0]] = (self.backward_over(TaskSelector.LATER), self.backward_over(TaskSelector.LAST))
        if self.last_loss is not None:
            # The last stage keeps the input of the loss function: the logits before they are cast, or the head's input.
            items = self.program.items[self.program.forward]
            freed[items[self.modelled].reads[0]] = (over,)
        return freed

    @cached_property
    def scatters(self) -> Mapping[Key, tuple[int, Item]]:
        """By weight, the collective that scatters its gradient to parts."""
        return {
            self.program.resolve((member.weight, member.position)): (index, item)
            for index, item in enumerate(self.weights_items)
            if item.bucket is not None and scatters(item.op.kind) and self.sharded
            for member in item.bucket.members
        }

    @cached_property
    def accumulated(self) -> Mapping[Key, Key]:
        """Gradients that only the last micro-batch reduces, each with the tensor that a backward makes for it.

        Both are the same tensor unless the gradient is cut: then a whole one is summed up until the reduction.
        """
        sources: dict[Key, Key] = {}
        for key in self.first_gradients:
            scatter = self.scatters.get(self.program.gradients[key])
            if scatter is None or scatter[1].op.when == "every":
                continue
            source = key
            while self.begins[source][2].op.kind == "slice":
                source = self.begins[source][2].reads[0]
            sources[key] = source
        return sources

    @cached_property
    def tied(self) -> Mapping[Key, tuple[Moment, Moment]]:
        """By weight with gradients at two ends, when their sum is made and when both are freed.

        The sum is made when the second one's operator is over. One that is cut is a view of the whole until then.
        """
        lifetimes: dict[Key, tuple[Moment, Moment]] = {}
        for key in self._second_gradients:
            kind, index, item = self.begins[key]
            over = Moment(kind, index + 1, prepared=True)
            cut = item.op.kind == "slice"
            lifetimes[self.program.gradients[key]] = (
                (Moment(kind, index), Moment(kind, index + 1)) if cut else (over, over)
            )
        return lifetimes

    @cached_property
    def whole_ties(self) -> frozenset[Key]:
        """The gradients of tied weights that are cut at both ends: their sum is one of whole tensors, and is cut."""
        made: dict[Key, list[Key]] = {}
        for key in self.begins:
            if key in self.program.gradients:
                made.setdefault(self.program.gradients[key], []).append(key)
        ties = (keys for keys in made.values() if len(keys) > 1)
        return frozenset(k for keys in ties if all(self.begins[k][2].op.kind == "slice" for k in keys) for k in keys)

    def gradient_size(self, key: Key) -> int:
        """Bytes of a weight's gradient; of the whole one that autograd keeps, if it is cut after a sum."""
        return self.program.sizes[self.begins[key][2].reads[0][0] if key in self.whole_ties else key[0]]

    @property
    def _second_gradients(self) -> Iterator[Key]:
        made = (key for key in self.begins if key in self.program.gradients)
        return (key for key in made if key not in self.first_gradients)

    @cached_property
    def _gradient_of(self) -> Mapping[Key, Key]:
        """By weight, the gradient that the backward makes first of it."""
        return {self.program.gradients[key]: key for key in self.first_gradients}

    def gradient_bytes(self, member: PlacedWeight, which: TaskSelector) -> int:
        """Bytes of the whole gradient of a bucket's weight where it is reduced; `last`: of the sum of micro-batches."""
        key = self._gradient_of[self.program.resolve((member.weight, member.position))]
        size = self.program.sizes[key[0]]
        wider = which in (TaskSelector.LAST, TaskSelector.LAST_PASSED) and self.width("reduce") > self.width("grad")
        return size // self.width("grad") * self.width("reduce") if wider else size

    def summed_bytes(self, member: PlacedWeight) -> int:
        """Bytes of the whole gradient of a bucket's weight that a backward adds to the sum of micro-batches."""
        key = self._gradient_of[self.program.resolve((member.weight, member.position))]
        return self.program.sizes[self.accumulated[key][0]]

    def cut_bytes(self, member: PlacedWeight) -> int:
        """Bytes of this rank's part of the sum of a bucket's weight, if that is whole until it is reduced; else 0."""
        key = self._gradient_of[self.program.resolve((member.weight, member.position))]
        if self.accumulated[key] == key:
            return 0
        return self.program.sizes[key[0]] // self.width("grad") * self.width("reduce")

    def summed_at(self, at: int, unit: Unit | None) -> int:
        """Where the gradients of a unit whose reduction is item `at` are added to sums of a wider format."""
        return min(at, self.over(self.weights_task, unit))

    @cached_property
    def first_gradients(self) -> frozenset[Key]:
        """The gradients that the backward makes first of each weight. Only a tied weight has a second one, at its other
        end."""
        first_by_gradient: dict[Key, Key] = {}
        for key in self.begins:
            if key in self.program.gradients:
                first_by_gradient.setdefault(self.program.gradients[key], key)
        return frozenset(first_by_gradient.values())

    @cached_property
    def regathered(self) -> frozenset[Unit | None]:
        """FSDP units whose parameters the backward gathers again."""
        items = self.program.items[self.inputs_task] if self.program.backwards else ()
        return frozenset(self.unit(item.bucket) for item in items if item.bucket is not None and item.bucket.gathers)

    @property
    def split(self) -> bool:
        """Whether a backward of the chunk runs as two halves."""
        return len(self.program.backwards) > 1

    def backward_over(self, which: TaskSelector = TaskSelector.EVERY) -> Moment:
        """The end of the task that makes gradients of inputs."""
        return Moment(self.inputs_task, len(self.program.items[self.inputs_task]), which)

    def over(self, kind: TaskKind, unit: Unit | None) -> int:
        """The index after the last item of a unit in a kind of task; None, weights outside layers: after all items."""
        if unit is None:
            return len(self.program.items[kind])
        return 1 + max(i for i, item in self.by_position[kind][unit.position] if unit.has(item))

    @cached_property
    def by_position(self) -> Mapping[TaskKind, Mapping[int, list[tuple[int, Item]]]]:
        """The items of each kind of task by position, with their places."""
        items_of: dict[TaskKind, defaultdict[int, list[tuple[int, Item]]]] = {}
        for kind, items in self.program.items.items():
            items_of[kind] = defaultdict(list)
            for index, item in enumerate(items):
                items_of[kind][item.position].append((index, item))
        return items_of

    @cached_property
    def scattering(self) -> Mapping[TaskKind, list[tuple[int, frozenset[PlacedWeight], Item]]]:
        """The items of each kind of task that scatter a bucket's gradients, with their places and members."""
        return {
            kind: [
                (index, frozenset(item.bucket.members), item)
                for index, item in enumerate(items)
                if item.bucket is not None and scatters(item.op.kind)
            ]
            for kind, items in self.program.items.items()
        }

    def recomputed(self, position: int) -> int:
        """The index of the backward's items after the last one that recomputes something at a position.

        Where nothing is recomputed there, it is the end of the position's backward.
        """
        items = self.by_position[self.inputs_task][position]
        again = [i for i, item in items if item.op.phase == RECOMPUTE]
        return 1 + again[-1] if again else self.over(self.inputs_task, Unit(position))

    def given_back(self, bucket: BucketStorage, which: TaskSelector = TaskSelector.EVERY) -> tuple[Moment, ...]:
        """When a bucket's gathered parameters are freed.

        They are freed before their gradients are scattered, or after the backward of their unit. which: for which
        tasks.
        """
        task = self.inputs_task if which is TaskSelector.EVERY else self.weights_task
        over, members = self.over(task, self.unit(bucket)), frozenset(bucket.members)
        for index, scattered, item in self.scattering[task]:
            if members == scattered:
                if which is TaskSelector.EVERY and item.op.when == "last":
                    return Moment(task, over, TaskSelector.EARLIER), Moment(
                        task, index, TaskSelector.LAST, prepared=True
                    )
                return (Moment(task, index, which, prepared=True),)
        return (Moment(task, over, which),)
