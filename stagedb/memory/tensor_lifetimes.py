"""Lifetimes of the tensors of a rank class, tied to the tasks of its schedule."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from stagedb.ir.operators import Adafactor, Momentum, Orthogonalisation
from stagedb.ir.operators.optimizer import FromHost, ToHost
from stagedb.ir.symbolic_graph import OpType
from stagedb.memory.chunk_tensors import Chunk, SplitGraph, Unit, in_parts, means_of
from stagedb.memory.class_program import ChunkProgram, Item, Key
from stagedb.memory.collective_buffers import collected
from stagedb.memory.lifetimes import OWN, Category, Life, Lives, Moment, State, TaskSelector, between, brief
from stagedb.memory.resident_state import offloaded, states
from stagedb.plans import Plan
from stagedb.workflows import RECOMPUTE, TaskKind

SCALAR = 4
"""Bytes of a loss, of its gradient, and of the token count that the loss is averaged over."""


def saved(program: ChunkProgram) -> dict[int, dict[str, int]]:
    """Bytes of forward tensors, by position, whose last reader is the backward of the block at that position."""
    made = {key for item in program.items[program.forward] for key in item.writes}
    made |= set() if program.given is None else {program.port("recv_forward")}
    backward = [item for kind in program.backwards for item in program.items[kind]]
    readers = {key: item for item in backward for key in item.reads if key in made}
    by_position: dict[int, dict[str, int]] = {position: {} for position, _ in program.places}
    for (name, position), item in readers.items():
        tensors = by_position[item.position]
        label = name if position == item.position else f"{name} of {position}"
        tensors[label] = program.sizes[name]
    for name, index in means_of(program) if program.backwards else ():
        if in_parts(program, index):
            continue  # a part of the loss, whose gradients the forward has made
        by_position[program.items[program.forward][index].position][f"{name}.tokens"] = SCALAR
    return by_position


def lives(programs: Sequence[ChunkProgram], plan: Plan) -> Lives:
    """The states and lives of a rank class under a plan, whose chunks have these programs."""
    held = plan.options.framework.memory
    resident: list[State] = []
    lives_of_rank: list[Life] = []
    lives_of_host: list[Life] = []
    total, before = sum(1 for program in programs for _ in program.once_a_step()), 0
    chunks = [Chunk(program, plan, held) for program in programs]
    for chunk in chunks:
        program = chunk.program
        resident += states(chunk)
        own = sum(1 for _ in program.once_a_step())

        def on_stage(moment: Moment, number: int = program.chunk, own: int = own, before: int = before) -> Moment:
            if not moment.kind.once:
                if moment.chunk != OWN:
                    return moment
                return Moment(moment.kind, moment.index, moment.which, number, moment.prepared)
            # The end of a step is that of all chunks' steps, which follow each other.
            index = total if moment.index == own else before + moment.index
            return Moment(moment.kind, index, moment.which, 0, moment.prepared)

        for lived, lives in (
            (lives_of_rank, _lives_of(chunk, handed_over(chunk, chunks))),
            (lives_of_host, _on_host(chunk)),
        ):
            for life in lives:
                ends = tuple(map(on_stage, life.ends))
                lived.append(Life(life.name, life.layer, life.bytes, life.category, on_stage(life.begin), ends))
        before += own
    on_rank, host = offloaded(resident, plan)
    return Lives(on_rank, tuple(lives_of_rank), host, tuple(lives_of_host))


def _lives_of(chunk: Chunk, handed: Mapping[Key, tuple[Moment, ...]]) -> Iterator[Life]:
    for kind, index, item in chunk.running:
        if item.temporary:
            name = f"{item.op.name}.temporary"
            layer = chunk.program.layers.get(item.position)
            yield brief(name, layer, item.temporary, Category.TEMPORARIES, kind, index)
    if chunk.graph is not None:
        yield from _run_again(chunk, chunk.graph)
    for key, (kind, index, item) in chunk.begins.items():
        role = chunk.program.tensors[key[0]].role
        if key in chunk.accumulated.values() and key not in chunk.program.gradients:
            continue
        buffered = item.op.type is OpType.RECV and item.op.axis == "pp" and chunk.held.receive_buffers
        if role not in ("activation", "gradient") or buffered:
            continue
        if key in chunk.program.gradients:
            yield from _gradient(chunk, key, kind, index)
        elif key in chunk.becoming:
            yield from _becoming(chunk, key, kind, index)
        else:
            yield _value(chunk, key, kind, index, item, handed.get(key) or chunk.sent.get(key))
    if not chunk.held.whole_batch:
        yield from _tokens(chunk)
    yield from _reduced(chunk)
    yield from _loss(chunk)
    yield from collected(chunk)


def _on_host(chunk: Chunk) -> Iterator[Life]:
    """What layers keep on the host, from the copy until their backward is over, which frees what autograd has saved."""
    for kind, index, item in chunk.running:
        if item.op.kind == ToHost.kind:
            (key,) = item.writes
            end = Moment(chunk.inputs_task, chunk.over(chunk.inputs_task, Unit(item.position)))
            size = chunk.program.sizes[key[0]]
            yield Life(key[0], chunk.layer(key), size, Category.ACTIVATIONS, Moment(kind, index), (end,))


def _run_again(chunk: Chunk, graph: SplitGraph) -> Iterator[Life]:
    """What operators of several kernels hold while the second half of a backward runs them whole again."""
    for index, item in graph.again.values():
        if item.temporary:
            made = sum(chunk.program.sizes[key[0]] for key in item.writes if key not in chunk.program.gradients)
            layer, size = chunk.program.layers.get(item.position), item.temporary + made
            yield between(f"{item.op.name}.again", layer, size, Category.TEMPORARIES, chunk.weights_task, index)


def _tokens(chunk: Chunk) -> Iterator[Life]:
    """Tokens and labels that a stage loads with a micro-batch, and keeps until their last reader, in its backward."""
    for key, (kind, last) in chunk.reads.items():
        if chunk.program.tensors[key[0]].role == "input":
            size, begin = chunk.program.sizes[key[0]], Moment(chunk.program.forward, 0)
            yield Life(key[0], None, size, Category.INPUTS, begin, (Moment(kind, last + 1),))


def handed_over(chunk: Chunk, chunks: Sequence[Chunk]) -> Mapping[Key, tuple[Moment, ...]]:
    """Until when what a chunk hands over to others of its stage lives.

    With receive buffers it takes the place of one when its task ends (torch's `set_local_fwd_input`). Without them it
    lives until the other chunk has read it.
    """
    program, moments = chunk.program, dict[Key, tuple[Moment, ...]]()
    ways = [(program.gives, "send_forward", "recv_forward", program.forward)]
    if program.backwards:
        ways.append((program.given, "send_backward", "recv_backward", chunk.inputs_task))
    for other, out, into, kind in ways:
        if other is None:
            continue
        key, reader = program.port(out), chunks[other]
        if chunk.held.receive_buffers:
            moments[key] = (Moment(kind, len(program.items[kind])),)
        elif not (key in chunk.reads and kind.keeps and chunk.reads[key][0].differentiates):
            theirs = _ends(reader, reader.program.port(into))
            moments[key] = tuple(dataclasses.replace(moment, chunk=other) for moment in theirs)
    return moments


def _ends(chunk: Chunk, key: Key) -> tuple[Moment, ...]:
    """The moment at which the last operator that reads a tensor ends; at which it begins, if it hands the storage on.

    What a layer does not compute again lives until it has computed the rest again.
    """
    name, position = key
    kind, index = chunk.reads[key]
    if chunk.handed.get(key) == (kind, index):
        return (Moment(kind, index),)
    kept = chunk.program.tensors[name].kept and position in chunk.program.recomputing
    if kept and not kind.differentiates:
        return (Moment(chunk.inputs_task, chunk.recomputed(position)),)
    return (Moment(kind, index + 1),)


def _value(
    chunk: Chunk, key: Key, kind: TaskKind, index: int, item: Item, until: tuple[Moment, ...] | None = None
) -> Life:
    """A tensor's life: from the operator that makes it to the last one that reads it, or to a later moment `until`."""
    name = key[0]
    ends = _ends(chunk, key) if until is None else until
    category = Category.TEMPORARIES
    if item.op.phase == RECOMPUTE:
        category = Category.RECOMPUTED
    elif not ends or kind is not ends[0].kind:
        # A forward saves it for its backward, or the first half of a split backward saves it for the second.
        category = Category.ACTIVATIONS
    return Life(name, chunk.layer(key), chunk.program.sizes[name], category, Moment(kind, index), ends)


def _becoming(chunk: Chunk, key: Key, kind: TaskKind, index: int) -> Iterator[Life]:
    """A weight's gradient that a forward makes and keeps: the first one is the tensor that later ones are added to."""
    name, layer, size, ends = key[0], chunk.layer(key), chunk.program.sizes[key[0]], _ends(chunk, key)
    for which, category in ((TaskSelector.FIRST, Category.GRADIENTS), (TaskSelector.LATER, Category.ACTIVATIONS)):
        selected = tuple(dataclasses.replace(end, which=which) for end in ends)
        yield Life(name, layer, size, category, Moment(kind, index, which), selected)


def _gradient(chunk: Chunk, key: Key, kind: TaskKind, index: int) -> Iterator[Life]:
    """A weight's gradient: each backward makes one, which is added to the first or scattered to parts."""
    name, layer, size = key[0], chunk.layer(key), chunk.gradient_size(key)
    scatter = chunk.scatters.get(chunk.program.gradients[key])
    if scatter is None and chunk.held.gradient_buffer:
        return  # the kernel that makes the gradient adds it to the buffer
    each = scatter is not None and scatter[1].op.when == "every"
    if key not in chunk.first_gradients and not (chunk.held.gradient_buffer and each):
        # A tied weight's second gradient is added to the first one when the operator that makes it is over.
        _, over = chunk.tied[chunk.program.gradients[key]]
        if key in chunk.whole_ties:
            return  # a view of what has been made whole
        yield Life(name, layer, size, Category.TEMPORARIES, Moment(kind, index), (over,))
        return
    if scatter is None:
        yield from _added(chunk, key, (chunk.step_end,))
        return
    at, _ = scatter
    if each:
        whole_name, begin, parts = _tied(chunk, key)
        yield from parts
        yield Life(whole_name, layer, size, Category.TEMPORARIES, begin, (Moment(chunk.weights_task, at + 1),))
    else:
        yield from _accumulated(chunk, key, at)


def _tied(chunk: Chunk, key: Key) -> tuple[str, Moment, tuple[Life, ...]]:
    """The name and the begin of a weight's whole gradient, and what lives before it.

    The two gradients of a tied weight are held until both are there: their sum is a third tensor (autograd's
    `InputBuffer`).
    """
    kind, index, _ = chunk.begins[key]
    name, begin = key[0], Moment(kind, index)
    tied = chunk.tied.get(chunk.program.gradients.get(key, key))
    if tied is None:
        return name, begin, ()
    summed, over = tied
    size = chunk.gradient_size(key)
    return f"{name}.sum", summed, (Life(name, chunk.layer(key), size, Category.TEMPORARIES, begin, (over,)),)


def _added(chunk: Chunk, key: Key, over: tuple[Moment, ...]) -> Iterator[Life]:
    """A gradient that the first backward makes and the others add to, until it is `over`."""
    name, begin, parts = _tied(chunk, key)
    layer, size = chunk.layer(key), chunk.gradient_size(key)
    yield from parts
    first, later = (dataclasses.replace(begin, which=which) for which in (TaskSelector.FIRST, TaskSelector.LATER))
    yield Life(name, layer, size, Category.GRADIENTS, first, over)
    end = later if later.prepared else dataclasses.replace(later, index=_returned(chunk, key, later) + 1)
    yield Life(name, layer, size, Category.TEMPORARIES, later, (end,))


def _returned(chunk: Chunk, key: Key, later: Moment) -> int:
    """The item after which autograd's call has returned that makes a gradient; for a tied weight that of the end which
    makes the sum.
    """
    made = chunk.begins[key][1]
    return chunk.returned(key) if later.index == made else later.index


def _accumulated(chunk: Chunk, key: Key, at: int) -> Iterator[Life]:
    """A gradient that is reduced, at item `at`, only for the last micro-batch: as the backward makes it, uncut.

    Sums over micro-batches have the format of the reduction, if that is wider (FSDP2's `unsharded_accumulated_grad`).
    They are made where the unit's backward ends. In the same format, each gradient is added as soon as it is made.
    """
    source, task = chunk.accumulated[key], chunk.weights_task
    name, layer, size = source[0], chunk.layer(source), chunk.program.sizes[source[0]]
    over, wider = Moment(task, at + 1, TaskSelector.LAST), chunk.width("reduce") > chunk.width("grad")
    summed = size // chunk.width("grad") * chunk.width("reduce") if wider else size
    if source != key:
        # Where the unit is reduced, this rank's part is copied out of the sum, which is freed before the buffer is made
        # (`unsharded_accumulated_grad_data`).
        cut = Moment(task, at, TaskSelector.LAST, prepared=True)
        part = summed // size * chunk.program.sizes[key[0]]
        yield Life(key[0], layer, part, Category.TEMPORARIES, cut, (over,))
        over = cut
    if wider and chunk.split:
        yield from _passed(chunk, source, at, over)
    elif wider:
        whole_name, made, parts = _tied(chunk, source)
        yield from parts
        end = chunk.summed_at(at, chunk.unit_of(source))
        yield Life(whole_name, layer, size, Category.TEMPORARIES, made, (Moment(task, end),))
        begin = Moment(task, end, TaskSelector.FIRST, prepared=True)
        yield Life(f"{name}.sum", layer, summed, Category.GRADIENTS, begin, (over,))
    else:
        yield from _added(chunk, source, (over,))


def _passed(chunk: Chunk, source: Key, at: int, over: Moment) -> Iterator[Life]:
    """A gradient of a split backward, whose second halves add up what they make, in its own format.

    The first half of a later micro-batch adds that to a sum of the reduction's format, where the unit's hooks run
    (`FSDPParamGroup.post_backward`). Without one such the second halves' own sum is reduced.
    """
    whole_name, made, parts = _tied(chunk, source)
    layer, size = chunk.layer(source), chunk.program.sizes[source[0]]
    task, inputs = chunk.weights_task, chunk.inputs_task
    summed = size // chunk.width("grad") * chunk.width("reduce")
    if made.kind is not task:
        # PyTorch makes a weight's gradient in the second half, even where one kernel here makes both gradients.
        made = Moment(task, 0)
    hooks = chunk.over(inputs, chunk.unit_of(source))
    yield from parts
    added = Moment(task, at, TaskSelector.LAST_PASSED, prepared=True)
    ends = (
        Moment(inputs, hooks, TaskSelector.PENDING),
        added,
        dataclasses.replace(over, which=TaskSelector.LAST_PENDING),
    )
    yield Life(whole_name, layer, size, Category.TEMPORARIES, dataclasses.replace(made, which=TaskSelector.CLEAR), ends)
    more = dataclasses.replace(made, which=TaskSelector.PENDING)
    end = more if more.prepared else dataclasses.replace(more, index=_returned(chunk, source, more) + 1)
    yield Life(whole_name, layer, size, Category.TEMPORARIES, more, (end,))
    begin, reduced = (
        Moment(inputs, hooks, TaskSelector.PASSING),
        dataclasses.replace(over, which=TaskSelector.LAST_PASSED),
    )
    yield Life(f"{source[0]}.sum", layer, summed, Category.GRADIENTS, begin, (reduced,))


def _reduced(chunk: Chunk) -> Iterator[Life]:
    """What the step makes: reduced gradients, until the optimizer has read all of them, and matrices that it makes of
    one, until it has read these."""
    step = [*chunk.program.once_a_step()]
    yield from _factored(chunk, step)
    last = {key: Moment(kind, index + 1) for kind, index, item in step for key in item.reads}
    made = set[Key]()
    for kind, index, item in step:
        if item.bucket is not None and item.bucket.held:
            yield brief(f"{item.op.name}.flat", None, item.bucket.held, Category.COMMUNICATION, kind, index)
        if item.temporary and item.op.kind == Orthogonalisation.kind:
            layer = chunk.program.layers.get(item.position)
            yield brief(f"{item.op.name}.temporary", layer, item.temporary, Category.TEMPORARIES, kind, index)
        alone = item.op.kind in (Momentum.kind, FromHost.kind) or not made.isdisjoint(item.reads)
        for key in item.writes:
            if chunk.program.tensors[key[0]].role == "gradient":
                size = chunk.returned_size(item) or chunk.program.sizes[key[0]]
                if alone and chunk.program.shares:
                    size = chunk.program.updated(key[0], (item.op.name.rpartition(".")[0], item.position))
                begin = Moment(kind, index)
                end = last[key] if alone else chunk.step_end
                made |= {key} if alone else set()
                yield Life(key[0], chunk.layer(key), size, Category.TEMPORARIES, begin, (end,))


def _factored(chunk: Chunk, step: Sequence[tuple[TaskKind, int, Item]]) -> Iterator[Life]:
    """What `torch.optim.Adafactor` holds while it updates each weight: its function's variables.

    Those of the weight before live until they are assigned again: the means of rows and of columns, the estimate of the
    variance, and the squares of a vector's gradient.
    """
    held: dict[str, int] = {}
    for kind, index, item in step if chunk.plan.options.optimizer == "adafactor" else ():
        states = {
            chunk.program.tensors[name].facts.word: chunk.program.sizes[name]
            for name, _ in item.reads
            if chunk.program.tensors[name].role == "optimizer_state" and name in chunk.program.sizes
        }
        vector = Adafactor.OF_VECTOR in states
        if not vector and Adafactor.OF_MATRIX[0] not in states:
            continue
        (size,) = (
            chunk.program.sizes[name] for name, _ in item.reads if chunk.program.tensors[name].role == "gradient"
        )
        made = [("squares", size)] if vector else [(word, states[word]) for word in Adafactor.OF_MATRIX]
        most = 0
        for word, each in (*made, ("estimate", size)):
            most = max(most, sum(held.values()) + each)
            held[word] = each
        yield brief(f"{item.op.name}.temporary", chunk.layer(item.writes[0]), most, Category.TEMPORARIES, kind, index)


def _differentiated(chunk: Chunk, place: int) -> int:
    """The forward item that makes the gradient of a part's logits. place: of the part's mean."""
    items = chunk.program.items[chunk.program.forward]
    _, spread = chunk.reads[items[place].reads[0]]
    return chunk.reads[items[spread].writes[0]][1]


def _loss(chunk: Chunk) -> Iterator[Life]:
    """The loss, the token count that it is averaged over, and the gradient that starts a backward."""
    if chunk.last_loss is None:
        return
    (name, index), forward = chunk.last_loss, chunk.program.forward
    for mean, place in means_of(chunk.program):
        if in_parts(chunk.program, place):
            begin, end = Moment(forward, place), Moment(forward, _differentiated(chunk, place) + 1)
            yield Life(f"{mean}.tokens", None, SCALAR, Category.TEMPORARIES, begin, (end,))
        elif chunk.program.backwards:
            begin, end = Moment(forward, place), Moment(chunk.inputs_task, 1)
            yield Life(f"{mean}.tokens", None, SCALAR, Category.ACTIVATIONS, begin, (end,))
        else:
            yield brief(f"{mean}.tokens", None, SCALAR, Category.TEMPORARIES, forward, place)
    if chunk.program.backwards:
        yield brief(f"{name}.gradient", None, SCALAR, Category.TEMPORARIES, chunk.inputs_task, 0)
    begin, later = Moment(forward, index + 1), Moment(forward, index + 1, TaskSelector.LATER)
    if chunk.plan.pp == 1:
        yield Life(name, None, SCALAR, Category.ACTIVATIONS, begin, (later,))
        return
    # A pipeline collects the losses of a step and passes on their mean.
    over = (chunk.step_end,) * chunk.plan.microbatches
    yield Life(name, None, SCALAR, Category.ACTIVATIONS, begin, over)
    turn = chunk.backward_over(TaskSelector.LAST) if chunk.program.backwards else chunk.step_end
    yield Life(f"{name}.mean", None, SCALAR, Category.ACTIVATIONS, turn, ())
