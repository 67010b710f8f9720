"""Records checked: each configuration runs through build, instantiate and export, and its rank is counted.

FLOPs and messages come from the exported trace, the result sizes of messages from the store. Both must agree.
"""

import fnmatch
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stagedb.api import InstanceInfo, Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.inputs import shown
from stagedb.models import Card
from stagedb.plans import Mesh, Plan
from stagedb.plans.sharding_checks import other_reductions
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Posting, Task, posted, whole
from stagedb.store.contents.instance_reading import class_of_rank, read_class
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import TraceColumns, read_trace
from stagedb.validation.counts import CountDifference, CountedMessage, Counts, compare
from stagedb.validation.op_order import Apart, Event, Posted, compare_order, traced, work
from stagedb.validation.published_memory import compare_memory, memory_notes
from stagedb.validation.records import FLOP_KINDS, Record, Unsupported, card_of, plan_words
from stagedb.workload.issue_order import sequence
from stagedb.workload.overlapped_pairs import joined_tasks


@dataclass(frozen=True)
class Checked:
    """One record's outcome. `unsupported`: what no plan can describe yet; then nothing was compared.

    notes: quantities that only a library decides, and that are counted as in the record, or left out.
    exact: matmuls and attentions also have the recorded order, not only the same place between messages; None if the
    record has no order.
    """

    record: str
    differences: tuple[CountDifference, ...] = ()
    unsupported: str | None = None
    exact: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether everything was compared and nothing differs."""
        return self.unsupported is None and all(row.agrees for row in self.differences)


def select(records: Sequence[Record], pattern: str | None) -> list[Record]:
    """The records with a name that fits a shell pattern; all without a pattern."""
    return [record for record in records if pattern is None or fnmatch.fnmatchcase(record.name, pattern)]


def check_records(
    db: Stagedb, records: Sequence[Record], progress: Callable[[int, int], None] = lambda done, of: None
) -> Iterator[Checked]:
    """Check records one after another. All that is made in the store for this is removed again."""
    known = {graph.id for graph in db.graphs()}
    made: set[str] = set()
    try:
        yield from _check(db, records, progress, made)
    finally:
        for graph in made - known:
            db.rm(graph)


def _check(
    db: Stagedb, records: Sequence[Record], progress: Callable[[int, int], None], made: set[str]
) -> Iterator[Checked]:
    for done, record in enumerate(records):
        progress(done, len(records))
        try:
            words, card = _described(record)
            if other := other_reductions(Plan.from_mapping(words)):
                raise Unsupported(other)
            instance = db.instantiate(card, **words)  # type: ignore[arg-type]  # words of a file, checked as a plan
        except UsageError as reason:
            yield Checked(record.name, unsupported=str(reason))
            continue
        made.add(instance.graph)
        try:
            ours, events = counts_of(db, instance.id, record.rank, Plan.from_mapping(words))
            held = tuple(compare_memory(record, db, instance))
        finally:
            if instance.new:
                db.rm(instance.id)
        differences, exact = (*compare(record.counts, ours), *held), None
        if record.events is not None:
            order = compare_order(record.events, events)
            differences, exact = (*differences, *order.differences), order.exact
        yield Checked(record.name, differences, exact=exact, notes=tuple(memory_notes(record)))
    progress(len(records), len(records))


def _described(record: Record) -> tuple[dict[str, object], Card]:
    """The plan's words and the card of a record. Raises Unsupported where its configuration does not make them."""
    try:
        return plan_words(record.config), card_of(record.config)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise Unsupported(f"a configuration that lacks or misuses a field: {shown(str(error))}") from None


def counts_of(db: Stagedb, instance: str, rank: int, plan: Plan | None = None) -> tuple[Counts, list[Event]]:
    """What a rank of an instance computes and sends, and in which order, from its exported trace.

    The counts of the store must be the same. Only the store has the dimensions of a matmul. plan: that of the instance,
    if receives are wanted in the order in which its framework posts them.
    """
    with tempfile.TemporaryDirectory(prefix="stagedb-check-") as scratch:
        exported = db.export(instance, out=Path(scratch) / "traces", only=str(rank))
        read = read_trace(next(exported.path.glob(f"*.{rank}.et")))
    trace = trace_counts(read)
    number = class_of_rank(db.store, instance, rank)
    found = db.store.read("reference/work", instance=instance, **{"class": number})
    dims = {row["name"]: work(row["kind"], row["dims"]) for row in found}
    events = traced(read, dims, _posted(db, instance, rank, plan))
    stored = store_counts(db, exported.instance, rank)
    if trace != _as_traced(stored):
        raise StagedbError(
            f"the trace of rank {rank} of instance {instance} differs from the store: "
            f"{list(compare(_as_traced(stored), trace))}"
        )
    return stored, events


def _posted(db: Stagedb, instance: str, rank: int, plan: Plan | None) -> Posted | None:
    """What the framework's runtime posts for a rank, and when. None if each message is with its task."""
    if plan is None or not plan.posts_ahead:
        return None
    number = class_of_rank(db.store, instance, rank)
    classes = db.store.read("workload/classes", instance=instance)
    columns = next(read_class(db.store, each) for each in classes if each["number"] == number)
    stage = Mesh.of(plan).coordinates(rank)["pp"]
    nodes = sequence(joined_tasks(columns, plan.to_dict()))
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


def _as_traced(counts: Counts) -> Counts:
    """A trace has only one size of a message: the operand's."""
    messages: Counter[CountedMessage] = Counter()
    for message, count in counts.messages.items():
        messages[message._replace(bytes_out=message.bytes_in)] += count
    return Counts(counts.flops, messages)


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


def store_counts(db: Stagedb, instance: InstanceInfo, rank: int) -> Counts:
    """The counts of one rank in the store: its class's operators, times the tasks that run them."""
    number = class_of_rank(db.store, instance.id, rank)
    rows = db.store.read("reference/counts", instance=instance.id, **{"class": number})
    flops: dict[tuple[str, str], int] = {}
    messages: Counter[CountedMessage] = Counter()
    for row in rows:
        if row["type"] == "compute":
            flops[row["phase"], row["kind"]] = row["flops"]
        else:
            sizes = row["bytes_in"], row["bytes_out"]
            messages[CountedMessage(row["phase"], row["kind"], row["axis"], row["dtype"], *sizes)] += row["count"]
    return Counts(flops, messages)
