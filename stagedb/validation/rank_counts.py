"""What one rank of a program computes and sends, and in which order: from its trace, and from the columns."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from stagedb.lowering import Program
from stagedb.plans import Mesh, Plan
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Posting, Task, posted, whole
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoded_class import rank_files
from stagedb.traces.exporting import trace_set
from stagedb.traces.trace_reading import TraceColumns, parse_trace
from stagedb.validation.counts import CountedMessage, Counts
from stagedb.validation.op_order import Apart, Event, Posted, traced, work
from stagedb.validation.records import FLOP_KINDS
from stagedb.workload.instance_columns import COMPUTE, ClassColumns, Ints
from stagedb.workload.issue_order import sequence


def class_of(program: Program, rank: int) -> ClassColumns:
    """The columns of the class of a rank."""
    number = int(program.workload.ranks.number[rank])
    return next(each for each in program.workload.classes if each.number == number)


def trace_of(program: Program, rank: int) -> TraceColumns:
    """The trace of a rank, as an export writes it."""
    (made,) = trace_set(program.workload, only=str(rank)).classes
    ((_, data),) = rank_files(made.encoded, made.ranks)
    return parse_trace(Path(f"rank {rank}"), data.tobytes())


def runs(columns: ClassColumns) -> Ints:
    """How often each op of a class runs in a step."""
    nodes = sequence(columns)
    found = np.zeros(len(columns.ops), np.int64)
    for layout, count in Counter(nodes.layout.tolist()).items():
        np.add.at(found, nodes.layouts[layout].ops, count)
    return found


def column_counts(columns: ClassColumns) -> Counts:
    """The counts of a rank of a class: its ops, times the tasks that run them."""
    flops: Counter[tuple[str, str]] = Counter()
    messages: Counter[CountedMessage] = Counter()
    ops = columns.ops
    for op, count in enumerate(runs(columns).tolist()):
        if ops.type[op] == COMPUTE:
            flops[ops.phase[op], ops.kind[op]] += int(ops.flops[op]) * count
        elif count:
            sizes = int(ops.operand[op]), int(ops.result[op])
            messages[CountedMessage(ops.phase[op], ops.kind[op], ops.axis[op], ops.dtype[op], *sizes)] += count
    return Counts({key: total for key, total in flops.items() if total}, messages)


def trace_counts(trace: TraceColumns) -> Counts:
    """The counts of one rank's trace. The result of a message counts as large as its operand."""
    flops: Counter[tuple[str, str]] = Counter()
    messages: Counter[CountedMessage] = Counter()
    columns = trace.attributes
    for index, kind in enumerate(trace.types):
        phase, word = columns["phase"][index], columns["kind"][index]
        if kind == pb.COMP_NODE:
            if word in FLOP_KINDS:
                flops[phase, word] += columns["num_ops"][index]
            continue
        size = columns["comm_size"][index]
        messages[CountedMessage(phase, word, columns["axis"][index], columns["dtype"][index], size, size)] += 1
    return Counts(dict(flops), messages)


def events_of(program: Program, rank: int, trace: TraceColumns) -> list[Event]:
    """The order in which a rank computes and sends, from its trace. Only the program has the dimensions of a matmul."""
    ops = class_of(program, rank).ops
    dims = {
        name: work(kind, dims)
        for name, kind, dims in zip(ops.name, ops.kind, ops.dims, strict=True)
        if kind in FLOP_KINDS
    }
    return traced(trace, dims, _posted(program, rank))


def _posted(program: Program, rank: int) -> Posted | None:
    """What the framework's runtime posts for a rank, and when. None if each message is with its task."""
    plan = program.plan
    if not plan.posts_ahead:
        return None
    columns = class_of(program, rank)
    stage = Mesh.of(plan).coordinates(rank)["pp"]
    nodes = sequence(columns)
    firsts = np.unique(nodes.task, return_index=True)[1]
    ops = zip(columns.ops.chunk.tolist(), columns.ops.name, columns.origins.position.tolist(), strict=True)
    places = {(chunk, name): position for chunk, name, position in ops}
    return Posted(nodes.base[firsts].tolist(), _postings(plan, stage), _apart(plan), places)


def _apart(plan: Plan) -> Callable[[str], Apart | None]:
    """By the name of an op, how the runtime posts it apart from tasks: gathers and reductions of FSDP's units."""
    words: Mapping[str, Apart] = {"bucket.parameters": PostedGathers, "bucket.gradients": PostedReductions}

    def apart(name: str) -> Apart | None:
        prefix = ".".join(name.split(".")[:2])
        return words.get(prefix) if plan.options.zero >= 2 and "regather" not in name else None

    return apart


def _postings(plan: Plan, stage: int) -> tuple[Posting, ...]:
    """The tasks of a stage and its messages where they are posted. What is posted follows from the schedule's tasks."""
    found = posted(plan.orders(), plan.virtual_stages, plan.placement)[stage]
    run = set(plan.tasks()[stage])

    def as_run(task: Task) -> Task:
        return task if task in run else whole(task)

    def kept(each: Posting) -> Iterator[Posting]:
        if isinstance(each, PostedReceive):
            yield PostedReceive(as_run(each.task))
        elif not isinstance(each, Task):
            yield each
        elif each in run or not each.kind.sends:
            yield as_run(each)

    return tuple(one for each in found for one in kept(each))
