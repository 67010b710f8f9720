"""Lifetimes of tensors of bucketed collectives: gathered parameters, parts of gradients, the buffers of both."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stagedb.collectives import scatters
from stagedb.ir.symbolic_graph import SymOp
from stagedb.memory.chunk_tensors import Chunk, Unit
from stagedb.memory.class_program import BucketStorage, Item
from stagedb.memory.lifetimes import Category, Life, Moment, TaskSelector, between, brief
from stagedb.workflows import RECOMPUTE, TaskKind


def collected(chunk: Chunk) -> Iterator[Life]:
    """The lives of bucketed collectives: gathered parameters, scattered gradients, and the buffers of both."""
    for index, until in _buffers_end(chunk).items():
        item = chunk.program.items[chunk.program.forward][index]
        if item.bucket is not None:
            yield from _gathered(chunk, index, item.op, item.bucket, until)
    for kind, index, item in chunk.running:
        if item.bucket is None or not kind.differentiates:
            continue
        if item.bucket.gathers:
            yield from _gathered_again(chunk, index, item.op, item.bucket)
        elif scatters(item.op.kind) and chunk.sharded:
            yield from _scattered(chunk, index, item.op, item.bucket)


def _gathered(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage, until: Moment) -> Iterator[Life]:
    """A unit gathered before its forward. It is freed after it if no backward reads it, or if it is gathered again.

    until: when its buffer is freed.
    """
    unit, size, which = chunk.unit(bucket), bucket.bytes_out, TaskSelector(op.when)
    layer, name, forward = chunk.layer_of(unit), op.name, chunk.program.forward
    if chunk.gathered_first and which in (TaskSelector.FIRST, TaskSelector.CLOSED):
        yield from _gathered_first(chunk, index, op, bucket)
        if which is TaskSelector.FIRST:
            return
        which = TaskSelector.CLOSED_LATER
    begin, over = Moment(forward, index, which), Moment(forward, index + 1, which)
    made = begin
    if chunk.plan.options.expert_unit and unit is not None:
        made, begin, over = _copied(chunk, forward, unit, index, which)
    if chunk.cut_columns(bucket):
        yield Life(f"{name}.columns", layer, size, Category.COMMUNICATION, begin, (over,))
    yield Life(f"{name}.buffer", layer, size, Category.COMMUNICATION, made, (replace(until, which=which),))
    if unit in chunk.regathered or not chunk.program.backwards:
        ends: tuple[Moment, ...] = (Moment(forward, chunk.over(forward, unit), which),)
    elif which is TaskSelector.EVERY and chunk.one_at_a_time:
        ends = chunk.given_back(bucket)
    else:
        # A unit is gathered again for each micro-batch; all micro-batches in flight share one copy.
        begin = replace(begin, which=TaskSelector.FIRST)
        ends = chunk.given_back(bucket, TaskSelector.LAST)
    yield Life(name, layer, size, Category.GATHERED, begin, ends)


def _gathered_first(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage) -> Iterator[Life]:
    """A unit that a runtime gathers before the stage's first task, with those of all its chunks (`UNSHARD`).

    Each is in its gather's buffer until the chunk's first forward. All are copied out there, one by one: with the
    copies of all one buffer is held, and the largest counts.
    """
    layer, name, forward, first = chunk.layer_of(chunk.unit(bucket)), op.name, chunk.program.forward, TaskSelector.FIRST
    items = chunk.program.items[forward]
    sizes = [0 if each.bucket is None or not each.bucket.gathers else each.bucket.bytes_out for each in items]
    begin = Moment(forward, 0, first, chunk=0, prepared=True)
    copied = Moment(forward, 0, first, prepared=index == sizes.index(max(sizes)))
    yield Life(f"{name}.buffer", layer, bucket.bytes_out, Category.COMMUNICATION, begin, (copied,))
    unit = chunk.unit(bucket)
    closes = unit in chunk.regathered or not chunk.program.backwards
    over = (Moment(forward, chunk.over(forward, unit), first),)
    ends = over if closes else chunk.given_back(bucket, TaskSelector.LAST)
    yield Life(name, layer, bucket.bytes_out, Category.GATHERED, Moment(forward, 0, first, prepared=True), ends)


def _reduced(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage) -> Iterator[Life]:
    """The result of a reduce-scatter, its copy in the format of parameters, and the unit's last whole gradient.

    These are there when the other whole gradients are freed: only what is more than those counts. The last one is held
    until the results are dealt out (a loop in `foreach_reduce` names it). If replicas reduce the result again, it is
    held until the backward ends (`FSDPParamGroup._all_reduce_state`): by that alone where another tensor has the sums.
    """
    which = TaskSelector(op.when)
    if which is TaskSelector.LAST and chunk.split:
        # The sum of gradients is in the format of the reduction only if another first half of a backward came before.
        yield from _dealt(chunk, index, op, bucket, TaskSelector.LAST_PASSED)
        yield from _dealt(chunk, index, op, bucket, TaskSelector.LAST_PENDING)
    else:
        yield from _dealt(chunk, index, op, bucket, which)


def _dealt(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage, which: TaskSelector) -> Iterator[Life]:
    """The buffers of `_reduced`, for the tasks that `which` selects."""
    reduced, param = chunk.width("reduce"), chunk.width("param")
    layer, task = chunk.layer_of(chunk.unit(bucket)), chunk.weights_task
    gradients = [chunk.gradient_bytes(member, which) for member in bucket.members]
    copied = 0 if reduced == param else bucket.bytes_out // reduced * param
    more = bucket.bytes_out + copied + gradients[-1] - sum(gradients)
    if more > 0:
        yield brief(f"{op.name}.copied", layer, more, Category.TEMPORARIES, task, index, which)
    if chunk.plan.hsdp == 1:
        return
    yield brief(f"{op.name}.last", layer, gradients[-1], Category.TEMPORARIES, task, index + 1, which)
    if which is TaskSelector.EVERY and not copied:
        which = TaskSelector.LATER
    if copied or which is TaskSelector.LATER:
        begin, end = Moment(task, index + 1, which), Moment(task, len(chunk.program.items[task]), which)
        yield Life(f"{op.name}.reduced", layer, bucket.bytes_out, Category.TEMPORARIES, begin, (end,))


def _widened(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage) -> Iterator[Life]:
    """What the first micro-batch holds while it copies a unit's gradients to sums of a wider format, one by one.

    Each is freed when it is copied (`to_accumulated_grad_if_needed`). The sums are there from then on: what all sums,
    and the gradients that are still narrow, have more than that counts.
    """
    if op.when == "every" or chunk.width("reduce") <= chunk.width("grad"):
        return
    unit, widths = chunk.unit(bucket), (chunk.width("grad"), chunk.width("reduce"))
    narrow = [chunk.summed_bytes(member) for member in bucket.members]
    more = 0
    for place in range(len(narrow)):
        more = max(more, sum(narrow[place:]) - sum(narrow[place + 1 :]) // widths[0] * widths[1])
    layer, task, first = chunk.layer_of(unit), chunk.weights_task, TaskSelector.FIRST
    at = chunk.summed_at(index, unit)
    if chunk.plan.microbatches == 1 and at == index:
        # The whole gradients of a single micro-batch are cut after this moment, and the cut copies have lifetimes of
        # their own.
        more = max(more - sum(chunk.cut_bytes(member) for member in bucket.members), 0)
    if chunk.split:
        task, at, first = chunk.inputs_task, chunk.over(chunk.inputs_task, unit), TaskSelector.PASSING
    yield between(f"{op.name}.narrow", layer, more, Category.TEMPORARIES, task, at, first)


def _let_go(chunk: Chunk, index: int) -> int:
    """Where a forward frees the buffer of the gather at an index: at once, or when the next one has been copied out."""
    items = chunk.program.items[chunk.program.forward]
    if not chunk.held.holds_gathers:
        return index + 1
    after = (i for i in range(index + 1, len(items)) if _gathers(items[i]))
    return next(after, chunk.modelled - 1) + 1


def _scatters(item: Item) -> bool:
    return item.bucket is not None and scatters(item.op.kind)


def _gathers(item: Item) -> bool:
    return item.bucket is not None and item.bucket.gathers


def _gathered_again(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage) -> Iterator[Life]:
    """A unit gathered ahead of its backward: it is in the collective's buffer until the backward begins.

    If it is gathered only where it is closed, it stays gathered until the end of the next forward, or of the step's
    backwards.
    """
    unit, size, which = chunk.unit(bucket), bucket.bytes_out, TaskSelector(op.when)
    layer, name = chunk.layer_of(unit), op.name
    task = chunk.inputs_task
    ends = chunk.given_back(bucket)
    if which is TaskSelector.CLOSED:
        forward = chunk.program.forward
        ends = (
            Moment(forward, chunk.over(forward, unit), TaskSelector.OPENED),
            *chunk.given_back(bucket, TaskSelector.LAST),
        )
    if unit is None:
        raise ValueError(f"{name} gathers weights outside layers, which stay gathered")
    made, begin, copied = _copied(chunk, task, unit, index, which)
    if _smaller(chunk, unit, op, bucket):
        # The gathers of a unit are copied out one by one: with the copies of all, the largest buffer counts.
        copied = Moment(task, begin.index, which, prepared=not begin.prepared)
    elif chunk.cut_columns(bucket):
        yield Life(f"{name}.columns", layer, size, Category.COMMUNICATION, begin, (copied,))
    over = copied
    if unit.experts:
        # A forward that runs again keeps the buffer of a gather after it was copied out, to the end of its unit.
        again = (i for i, item in enumerate(chunk.program.items[task]) if item.op.phase == RECOMPUTE and unit.has(item))
        over = max((Moment(task, i + 1, which) for i in again), default=over, key=lambda each: each.index)
    yield Life(f"{name}.buffer", layer, size, Category.COMMUNICATION, made, (over,))
    yield Life(name, layer, size, Category.GATHERED, begin, ends)
    if chunk.plan.options.reshard_to is not None:
        yield from _parted(chunk, unit, op, bucket, copied)


def _copied(
    chunk: Chunk, task: TaskKind, unit: Unit, index: int, which: TaskSelector = TaskSelector.EVERY
) -> tuple[Moment, Moment, Moment]:
    """When a unit gathered ahead has its buffer, and when it begins to be, and is, copied out of it.

    It is copied before the next unit's gather, which is issued first, allocates a buffer of its own; without such a
    gather right before the unit's first operator.
    """
    begun = next(i for i, each in enumerate(chunk.program.items[task]) if unit.has(each))
    copied = _next_gather(chunk, task, unit, index, begun)
    alone = copied == begun
    return (
        Moment(task, index + 1, which, prepared=True),
        Moment(task, copied, which, prepared=alone),
        Moment(task, begun if alone else copied + 1, which, prepared=alone),
    )


def _buffers_end(chunk: Chunk) -> Mapping[int, Moment]:
    """By the index of each gather of a forward, when its buffer is freed.

    With units of experts that is when the unit that begins next has been copied out, although gathered long before.
    """
    forward, copied = chunk.program.forward, dict[int, Moment]()
    for index, item in enumerate(chunk.program.items[forward]):
        if item.bucket is not None and item.bucket.gathers:
            unit = chunk.unit(item.bucket) if chunk.plan.options.expert_unit else None
            after_gather = Moment(forward, index + 1)
            copied[index] = after_gather if unit is None else _copied(chunk, forward, unit, index)[2]
    if not chunk.plan.options.expert_unit:
        return {index: Moment(forward, _let_go(chunk, index)) for index in copied}
    order = sorted(copied, key=lambda index: copied[index].place(begins=False))
    ends = [*(copied[index] for index in order[1:]), Moment(forward, chunk.modelled)]
    return dict(zip(order, ends, strict=False))


def _next_gather(chunk: Chunk, task: TaskKind, unit: Unit, index: int, begun: int) -> int:
    """The first of the gathers of other units right before a unit's first operator, behind an index; else that."""
    items = chunk.program.items[task]
    first = begun
    while first - 1 > index and _gathers(items[first - 1]):
        first -= 1
    others = (i for i in range(first, begun) if _of_other(chunk, items[i], unit))
    return next(others, begun)


def _of_other(chunk: Chunk, item: Item, unit: Unit | None) -> bool:
    return item.bucket is not None and chunk.unit(item.bucket) != unit


def _smaller(chunk: Chunk, unit: Unit | None, op: SymOp, bucket: BucketStorage) -> bool:
    """Whether a unit has a gather in the same tasks whose copy needs more than that of this one."""

    def needed(op: SymOp, bucket: BucketStorage) -> tuple[int, str]:
        return bucket.bytes_out * (1 + chunk.cut_columns(bucket)), op.name

    return any(
        item.bucket is not None
        and item.bucket.gathers
        and item.op.when == op.when
        and chunk.unit(item.bucket) == unit
        and needed(item.op, item.bucket) > needed(op, bucket)
        for item in chunk.program.items[chunk.inputs_task]
    )


def _parted(chunk: Chunk, unit: Unit | None, op: SymOp, bucket: BucketStorage, copied: Moment) -> Iterator[Life]:
    """The larger part of a unit's parameters that a rank keeps until its backward has gathered and copied them.

    The end of the unit's forward copies one parameter after the other and frees each
    (`FSDPParam.to_sharded_post_forward`): what is there of both counts.
    """
    layer, forward = chunk.layer_of(unit), chunk.program.forward
    over = chunk.over(forward, unit)
    parts = bucket.bytes_out // bucket.bytes_in
    yield Life(f"{op.name}.part", layer, bucket.bytes_in, Category.GATHERED, Moment(forward, over), (copied,))
    widths = (chunk.width("param"), chunk.width("act"))
    sizes = [
        chunk.program.parts[member.weight] // widths[0] * widths[1] * chunk.plan.shards for member in bucket.members
    ]
    held = max(sum(sizes[at:]) + sum(sizes[: at + 1]) // parts for at in range(len(sizes)))
    yield between(f"{op.name}.parting", layer, held, Category.GATHERED, forward, over)


def _scattered(chunk: Chunk, index: int, op: SymOp, bucket: BucketStorage) -> Iterator[Life]:
    """Lifetimes of a reduce-scatter of gradients: its input buffer, held until the next unit's, and the parts that this
    rank keeps."""
    layer, name, which = chunk.layer_of(chunk.unit(bucket)), op.name, TaskSelector(op.when)
    task, items = chunk.weights_task, chunk.program.items[chunk.weights_task]
    unit = chunk.unit(bucket)
    later = (i for i, each in enumerate(items) if i > index and _scatters(each) and _of_other(chunk, each, unit))
    after = next(later, len(items))
    last = Moment(task, after, which, prepared=after < len(items))
    if chunk.cut_columns(bucket):
        # A copy by columns replaces each gradient. The last gradient stays: the variable of a loop in `foreach_reduce`
        # refers to it.
        last_gradient = chunk.gradient_bytes(bucket.members[-1], which)
        yield brief(f"{name}.columns", layer, last_gradient, Category.TEMPORARIES, task, index, which)
    yield Life(f"{name}.buffer", layer, bucket.bytes_in, Category.COMMUNICATION, Moment(task, index, which), (last,))
    if chunk.held.gradient_buffer:
        return  # the result is added to a gradient buffer that exists all the time

    yield from _reduced(chunk, index, op, bucket)
    yield from _widened(chunk, index, op, bucket)
    first = TaskSelector.FIRST if which is TaskSelector.EVERY else which
    for member in bucket.members:
        part, place = chunk.program.parts[member.weight], chunk.program.layers[member.position]
        label = f"{member.weight}.gradient"
        begin = Moment(task, index + 1, first, prepared=True)
        yield Life(label, place, part, Category.GRADIENTS, begin, (chunk.step_end,))
