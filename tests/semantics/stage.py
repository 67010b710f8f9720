"""One number of a simulated pipeline: a stage, or one of its chunks. What it keeps, and what its tasks do with it.

It keeps the activations of each micro-batch that is under way, its weights (or its parts of them), and what has
been summed of each gradient. With others it shares only what it posts.
"""

from collections import ChainMap, deque
from collections.abc import Generator, Mapping, MutableMapping, Sequence

import numpy as np

from stagedb.ir.operators import Array
from stagedb.ir.symbolic_graph import OpType, SymOp, SymTensor, When
from stagedb.workflows import Template, training
from tests.semantics.mesh import SimulatedMesh, Update, Value
from tests.symbolic_rows import parameter, place_of_value, previous

Key = tuple[str, int]
"""A tensor (or weight) of the block at a position of the whole model."""

Task = tuple[str, int] | tuple[str, int, int]
"""What a stage does: a kind and a micro-batch, and the chunk where it has several; the step is ("step", 0).

Kinds are "forward", and "backward" or its halves "input_gradient" and "weight_gradient".
"""

FORWARD, BACKWARD, STEP = "forward", "backward", "step"
HALVES = (str(training.INPUT_GRADIENT), str(training.WEIGHT_GRADIENT))
"""What a split backward is split into."""

Message = tuple[int, str, int]
"""The number that a value is for, what it is (a template, or `TIED`), and its micro-batch."""

TIED = "embedding"
"""The mesh axis on which the first and the last stage sum the gradient of a weight that both have."""

Waiting = Generator[str, None, None]
"""Work that yields, as a text, what it waits for."""


def full(task: Task) -> tuple[str, int, int]:
    """A task with its chunk."""
    return (task[0], task[1], task[2] if len(task) == 3 else 0)


class Stage:
    """The state of a stage's chunk. `index` is its number in the pipeline, of which there are `stages`.
    `places` are its positions in the whole model, with their blocks, in forward order."""

    def __init__(
        self,
        mesh: SimulatedMesh,
        index: int,
        places: Sequence[tuple[int, str]],
        weights: Mapping[Key, Array],
        microbatches: Sequence[Mapping[str, Array]],
        post: MutableMapping[Message, Value],
        recompute_every: int = 1,
        stages: int | None = None,
        counted: int = 0,
        recompute_first: int | None = None,
    ) -> None:
        """`counted`: layers of the stage in its earlier chunks. `microbatches` holds the model's inputs
        (`tokens`, `labels`), whole; `post` is shared by all stages."""
        layers = [place for place, block in places if not mesh.specs[block].once]
        chosen = layers if recompute_first is None else layers[:recompute_first]
        again = (place for at, place in enumerate(chosen, start=counted + 1) if at % recompute_every == 0)
        every_layer = recompute_every == 1 and recompute_first is None
        # What is outside layers recomputes where all layers do.
        ends = (place for place, block in places if mesh.specs[block].once and every_layer)
        self.recomputing = frozenset((*again, *ends))
        self.layers = len(layers)
        self.stages = stages or mesh.env["pp"]
        self.mesh, self.index, self.places = mesh, index, places
        self.blocks = dict(places)
        self.microbatches, self.post = microbatches, post
        self.losses: dict[int, float] = {}
        self.gradients, self.norms = dict[Key, Array](), list[float]()
        # Weights that are whole over dp now, for every micro-batch, and the parts of those that dp shards.
        self.whole: dict[Key, Value] = {}
        self.parts: dict[Key, Value] = {}
        # What neighbours keep of these from a forward to its backward.
        self.kept: dict[Key, Value] = {}
        # By micro-batch: what its tasks have made; it reads `whole` where it has nothing of its own.
        self.running: dict[int, ChainMap[Key, Value]] = {}
        # Gradients by weight and by how many of their buckets they have passed.
        self.summed: dict[tuple[Key, int], Value] = {}
        for place, block in places:
            for row in mesh.weights(block):
                value = mesh.scatter(weights[place_of_value(row, place)], row)
                sharded = any(mesh.templates[name] is not training.STEP for name in parameter(row).gathers)
                if sharded and mesh.sharers(row) > 1:
                    self.parts[row.name, place] = mesh.split(value, row)
                else:
                    self.whole[row.name, place] = value

    def run(self, kind: str, microbatch: int, due: set[When]) -> Waiting:
        """Run a task of this chunk; yields what it waits for, until it is there."""
        tasks = {FORWARD: self.forward, BACKWARD: self.backward}
        tasks |= dict(zip(HALVES, (self.input_gradient, self.weight_gradient), strict=True))
        yield from tasks[kind](microbatch, due)

    def forward(self, microbatch: int, due: set[When]) -> Waiting:
        """The forward of a micro-batch through all positions, then the message to the next stage."""
        values = self.running[microbatch] = ChainMap({}, self.whole)
        yield from self.take(values, training.FORWARD, microbatch)
        for place, block in self.places:
            for row in self.mesh.graph.tensors:
                if row.block == block and row.role == "input":
                    inputs = self.microbatches[microbatch]
                    values[row.name, place] = self.mesh.scatter(inputs[row.name.rpartition(".")[2]], row)
                if row.block == block and row.role == "buffer":
                    values[row.name, place] = self.mesh.table(row)
            self.hand_over(values, training.FORWARD, place)
            self.gather_parameters(values, place, block, training.FORWARD, due)
            self.compute(values, place, block, (training.FORWARD,), due)
            self.give_back(values, place, block)
        if self.index == self.stages - 1:
            name, place = self.loss()
            self.losses[microbatch] = self.mesh.total(values[name, place], name)
        self.send(values, training.FORWARD, microbatch)

    def backward(self, microbatch: int, due: set[When]) -> Waiting:
        """Both gradients of a micro-batch, its message to the stage before, and what is due of gradient buckets."""
        yield from self.gradients_of(microbatch, due, (training.INPUT_GRADIENT, training.WEIGHT_GRADIENT))
        self.collect(microbatch, due)
        self.drop_parameters(due)

    def input_gradient(self, microbatch: int, due: set[When]) -> Waiting:
        """The half of a backward that others wait for. No gathered parameter outlives it."""
        yield from self.gradients_of(microbatch, due, (training.INPUT_GRADIENT,))
        for key in self.parts:
            self.running[microbatch].pop(key, None)
        self.drop_parameters(due)

    def weight_gradient(self, microbatch: int, due: set[When]) -> Waiting:
        """The other half, from what the first has left."""
        yield from ()
        for place, block in reversed(self.places):
            self.compute(self.running[microbatch], place, block, (training.WEIGHT_GRADIENT,), due)
        self.collect(microbatch, due)

    def gradients_of(self, microbatch: int, due: set[When], templates: Sequence[Template]) -> Waiting:
        """A micro-batch's backward through all positions, as far as it is in these templates, with its messages."""
        values = self.running[microbatch]
        yield from self.take(values, training.INPUT_GRADIENT, microbatch)
        if self.index == self.stages - 1:
            name, place = self.loss()
            # The loss is a mean over a micro-batch; the step's is the mean of those, as frameworks scale it.
            values[f"{name}.gradient", place] = [np.asarray(1 / len(self.microbatches)) for _ in self.mesh.ranks]
        for place, block in reversed(self.places):
            self.hand_over(values, training.INPUT_GRADIENT, place)
            self.gather_parameters(values, place, block, training.INPUT_GRADIENT, due)
            self.compute(values, place, block, templates, due)
        self.send(values, training.INPUT_GRADIENT, microbatch)

    def collect(self, microbatch: int, due: set[When]) -> None:
        """Add up a micro-batch's gradients of weights, and lead them through the buckets that are due."""
        values = self.running[microbatch]
        for place, block in self.places:
            for update in self.mesh.updates[block]:
                key = (update.weight.name, place)
                self.accumulate(key, 0, values[update.gradient, place])
                self.reduce(key, update, training.WEIGHT_GRADIENT, due)
        del self.running[microbatch]

    def drop_parameters(self, due: set[When]) -> None:
        """Forget what was gathered for all micro-batches, after the last of them."""
        if When.LAST in due:
            for key in self.parts:
                self.whole.pop(key, None)

    def step(self) -> Waiting:
        """What is reduced once a step; what the optimizers read is put together, and kept. Then its norm."""
        ready: dict[Key, tuple[Update, Value]] = {}
        for place, block in self.places:
            for update in self.mesh.updates[block]:
                key, row = (update.weight.name, place), update.weight
                self.reduce(key, update, training.STEP, set(When))
                # The optimizer reads what has passed every bucket; what has not is lost on it.
                value = self.summed[key, len(update.buckets)]
                for op in update.reductions:
                    if op.axis == TIED and op.name in self.mesh.present:
                        value = yield from self.sum_with_other_end(value)
                    else:
                        (value,) = self.mesh.execute(op, [value])
                self.gradients[key] = self.mesh.gather(self.mesh.join(value, row) if update.sharded else value, row)
                ready[key] = update, value
        if self.mesh.clips:
            yield from self.norm_of(ready)

    def norm_of(self, ready: Mapping[Key, tuple[Update, Value]]) -> Waiting:
        """The norm of all gradients on each rank. Ends of a tied weight on one stage have shares of its gradient."""
        total: Value = [np.zeros(()) for _ in self.mesh.ranks]
        for update, value in ready.values():
            shares = [their for other, their in ready.values() if parameter(other.weight).tied == update.weight.name]
            if parameter(update.weight).tied is None:
                whole = [np.sum(parts, axis=0) for parts in zip(value, *shares, strict=True)]
                total = [a + b for a, b in zip(total, self.mesh.square(update, whole), strict=True)]
        if any(bucket.axis == "pp" for update, _ in ready.values() for bucket in update.norms):
            others = [other for other in range(self.stages) if other != self.index]
            self.post.update(((other, "norm", self.index), total) for other in others)
            for other in others:
                theirs = yield from self.receive("norm", other)
                total = [a + b for a, b in zip(total, theirs, strict=True)]
        self.norms = [float(np.sqrt(each)) for each in total]

    def loss(self) -> Key:
        """The loss of the last stage's last block."""
        place, block = self.places[-1]
        return f"{block}.loss", place

    def compute(
        self,
        values: MutableMapping[Key, Value],
        place: int,
        block: str,
        templates: Sequence[Template],
        due: set[When],
    ) -> None:
        """Run the ops of the block at a position."""
        ops = self.mesh.ops(block, templates)
        for op in ops:
            if op.when in due and (op.phase != "recompute" or place in self.recomputing):
                if op.loop is not None:
                    if op.order == op.loop.first:
                        self.loop(
                            values,
                            place,
                            [each for each in ops if each.loop is not None and each.loop.first == op.loop.first],
                        )
                    continue
                read = [values[self.there(name, place), place] for name in op.reads]
                outputs = self.mesh.execute(op, read, layer=place - 1)
                values.update(zip(((name, place) for name in op.writes), outputs, strict=True))

    def loop(self, values: MutableMapping[Key, Value], place: int, ops: Sequence[SymOp]) -> None:
        """Run the ops of a loop in turns. What an op has of the turn before it has not in the first: nothing.

        A message is on the wire from its send to its receive; ValueError where one of them is not there.
        """
        wire: deque[list[Value]] = deque()
        for step in range(self.mesh.turns(ops[0])):
            before = {name: values.get((name, place)) for op in ops for name in previous(op)} if step else {}
            for op in ops:
                if not self.mesh.runs(op, step):
                    continue
                held = {name: values[self.there(name, place), place] for name in op.reads if name not in previous(op)}
                held |= {name: value for name, value in before.items() if name in op.reads and value is not None}
                if op.type is OpType.SEND:
                    wire.append(self.mesh.sent(op, held, step))
                    continue
                if op.type is OpType.RECV:
                    if not wire:
                        raise ValueError(f"{op.name} waits for a message that nobody sends")
                    outputs = self.mesh.received(op, wire.popleft(), step)
                else:
                    outputs = self.mesh.turn(op, held, step)
                values.update(zip(((name, place) for name in op.writes), outputs, strict=True))
        if wire:
            raise ValueError(f"{len(wire)} messages of {ops[0].name} are not received")

    def there(self, name: str, place: int) -> str:
        """The tensor, or that which it repeats where it is not computed again."""
        origin = self.mesh.tensors[name].repeats
        return name if origin is None or place in self.recomputing else origin

    def hand_over(self, values: MutableMapping[Key, Value], template: Template, place: int) -> None:
        """Give the block at a position what the one that ran before it, or else the cut, has for it."""
        onward = template is training.FORWARD
        neighbour = place - 1 if onward else place + 1
        own = self.mesh.specs[self.blocks[place]]
        target = own.input if onward else own.output_gradient
        if target is None:
            return
        if neighbour in self.blocks:
            before = self.mesh.specs[self.blocks[neighbour]]
            source = (before.output if onward else before.input_gradient) or ""
        else:
            source = self.mesh.arriving(template)[-1].writes[0]
        self.mesh.check_same(source, target)
        values[target, place] = values[source, neighbour]

    def beyond(self, template: Template) -> tuple[int, int]:
        """The stages from which a task's message comes and to which it goes; they may be beyond the pipeline."""
        return (self.index - 1, self.index + 1) if template is training.FORWARD else (self.index + 1, self.index - 1)

    def take(self, values: MutableMapping[Key, Value], template: Template, microbatch: int) -> Waiting:
        """Wait for the message of a task, where it has one, and put it in the place of the cut."""
        if not 0 <= self.beyond(template)[0] < self.stages:
            return
        receiving, *gathering = self.mesh.arriving(template)
        place = self.places[0][0] - 1 if template is training.FORWARD else self.places[-1][0] + 1
        (name,) = receiving.writes
        arrived = yield from self.receive(template.name, microbatch)
        self.mesh.check_local(arrived, name)
        values[name, place] = arrived
        for op in gathering:
            (values[op.writes[0], place],) = self.mesh.execute(op, [values[op.reads[0], place]])

    def send(self, values: Mapping[Key, Value], template: Template, microbatch: int) -> None:
        """Post the message of a task to the neighbour, each rank its own, where there is a neighbour."""
        target = self.beyond(template)[1]
        if not 0 <= target < self.stages:
            return
        place, block = self.places[-1 if template is training.FORWARD else 0]
        spec = self.mesh.specs[block]
        source = (spec.output if template is training.FORWARD else spec.input_gradient) or ""
        op = self.mesh.cut(OpType.SEND, template)
        (name,) = op.reads
        self.mesh.check_same(source, name)
        self.mesh.check_local(values[source, place], name)
        whole = values[source, place]
        self.post[target, template.name, microbatch] = (
            self.mesh.execute(op, [whole])[0] if op.name in self.mesh.operators else whole
        )

    def receive(self, what: str, microbatch: int) -> Generator[str, None, Value]:
        """A posted value, once it is there."""
        while (self.index, what, microbatch) not in self.post:
            yield f"stage {self.index} waits for the {what} of micro-batch {microbatch}"
        return self.post.pop((self.index, what, microbatch))

    def sum_with_other_end(self, value: Value) -> Generator[str, None, Value]:
        """An all-reduce with the ranks of the same coordinates at the other end of the pipeline."""
        other = self.stages - 1 - self.index
        self.post[other, TIED, 0] = value
        theirs = yield from self.receive(TIED, 0)
        return [mine + its for mine, its in zip(value, theirs, strict=True)]

    def accumulate(self, key: Key, passed: int, value: Value) -> None:
        """Add a micro-batch's gradient to what has passed as many buckets."""
        held = self.summed.get((key, passed))
        self.summed[key, passed] = value if held is None else [a + b for a, b in zip(held, value, strict=True)]

    def reduce(self, key: Key, update: Update, template: Template, due: set[When]) -> None:
        """Lead what has been summed of a gradient through the buckets that are due, in their order."""
        for passed, bucket in enumerate(update.buckets):
            if bucket.template is template and bucket.when in due and (key, passed) in self.summed:
                value = self.mesh.reduce(bucket, self.summed.pop((key, passed)), update.weight)
                self.accumulate(key, passed + 1, value)

    def gather_parameters(
        self, values: MutableMapping[Key, Value], place: int, block: str, template: Template, due: set[When]
    ) -> None:
        """Put the parts of a block's weights together, where a bucket of this template is due.

        What is gathered for every micro-batch is that micro-batch's own, and goes with it; what is gathered once stays
        for all, until the last backward; what a backward leaves, until the end of the next forward. What is outside
        layers keeps its weights from the forward.
        """
        for row, key in self.sharded(place, block):
            for bucket in (self.mesh.buckets[name] for name in parameter(row).gathers if name in self.mesh.buckets):
                if bucket.template is template and bucket.when in due:
                    if {"layers": False, "root": True}.get(bucket.bucket or "") is self.repeated(block):
                        continue
                    scope = values if bucket.when is When.EVERY else self.whole
                    kept = self.kept.pop(key, None)
                    parts, axis = (self.parts[key], "") if kept is None else (kept, bucket.axis or "")
                    scope[key] = self.mesh.join(parts, row, axis)

    def give_back(self, values: MutableMapping[Key, Value], place: int, block: str) -> None:
        """After the forward a layer's weights are parts again, where its backward gathers them once more."""
        for row, key in self.sharded(place, block):
            again = any(self.mesh.templates[name] is training.INPUT_GRADIENT for name in parameter(row).gathers)
            if again and self.repeated(block):
                if self.mesh.near:
                    self.kept[key] = self.mesh.split(values[key], row, near=True)
                values.pop(key, None)
                self.whole.pop(key, None)

    def sharded(self, place: int, block: str) -> list[tuple[SymTensor, Key]]:
        """The weights of a block of which this stage has parts."""
        rows = ((row, (row.name, place)) for row in self.mesh.weights(block))
        return [(row, key) for row, key in rows if key in self.parts]

    def repeated(self, block: str) -> bool:
        """Whether a block is a layer."""
        return not self.mesh.specs[block].once


def run_tasks(chunks: Sequence[Stage], order: Sequence[Task]) -> Waiting:
    """Run a stage's tasks one after another; yields what the stage waits for, until it is there."""
    tasks = [full(task) for task in order]
    kinds = [(kind, chunk) for kind, _, chunk in tasks]
    latest: dict[int, str] = {}
    for at, (kind, microbatch, chunk) in enumerate(tasks):
        due = {When.EVERY}
        if (kind, chunk) not in kinds[:at]:
            due.add(When.FIRST)
        if (kind, chunk) not in kinds[at + 1 :]:
            due.add(When.LAST)
        if latest.get(chunk, "forward") == "forward":
            due.add(When.CLOSED)
        if kind != "weight_gradient":
            latest[chunk] = kind
        if kind != STEP:
            yield from chunks[chunk].run(kind, microbatch, due)
            continue
        for each in chunks:
            yield from each.step()
