"""Records checked: the plan of each configuration is made, and its rank is counted.

FLOPs and messages come from the trace, the result sizes of messages from the columns of the class. Both must agree.
`check_records` goes through build, instantiate and export of a store, `check_record` lowers the plan in memory.
"""

import fnmatch
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stagedb.api import InstanceInfo, Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.lowering import Program
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.plans.sharding_checks import other_reductions
from stagedb.store.contents.stored_programs import class_of_rank, read_program
from stagedb.traces.trace_reading import TraceColumns, read_trace
from stagedb.validation.op_order import CountDifference, CountedMessage, Counts, compare, compare_order
from stagedb.validation.published_memory import compare_memory, memory_notes
from stagedb.validation.rank_counts import column_counts, counted_as, events_of, lowered, trace_counts, trace_of
from stagedb.validation.records import FLOP_KINDS, Record, Unsupported, card_of, plan_words


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
    """Check records one after another through a store. All that is made in it for this is removed again.

    progress: called with the records that are done, and all.
    """
    known = {graph.id for graph in db.graphs()}
    made: set[str] = set()
    try:
        for done, record in enumerate(records):
            progress(done, len(records))
            yield _check(record, partial(_stored, db, record.rank, made))
        progress(len(records), len(records))
    finally:
        for graph in made - known:
            db.rm(graph)


def check_record(record: Record) -> Checked:
    """Check one record without a store."""
    return _check(record, partial(_lowered, record.rank))


@dataclass(frozen=True)
class _Made:
    """What a record's plan makes of its rank: the program, the rank's trace, and its counts from the source."""

    program: Program
    trace: TraceColumns
    counts: Counts


def _lowered(rank: int, card: Card, words: Mapping[str, Any]) -> _Made:
    program = lowered(card, words)
    return _Made(program, trace_of(program, rank), column_counts(program.workload.class_of(rank)))


def _stored(db: Stagedb, rank: int, made: set[str], card: Card, words: Mapping[str, Any]) -> _Made:
    """What a record's plan makes of its rank in a store: the stored program, the exported trace, and what queries
    count.

    made: gets the id of the graph.
    """
    instance = db.instantiate(card, **words)
    made.add(instance.graph)
    try:
        with tempfile.TemporaryDirectory(prefix="stagedb-check-") as scratch:
            exported = db.export(instance.id, out=Path(scratch) / "traces", only=str(rank))
            trace = read_trace(next(exported.path.glob(f"*.{rank}.et")))
        return _Made(read_program(db.store, instance.id), trace, store_counts(db, instance, rank))
    finally:
        if instance.new:
            db.rm(instance.id)


def _check(record: Record, make: Callable[[Card, Mapping[str, Any]], _Made]) -> Checked:
    try:
        words, card = _described(record)
        if other := other_reductions(Plan.from_mapping(words)):
            raise Unsupported(other)
        made = make(card, words)
    except UsageError as reason:
        return Checked(record.name, unsupported=str(reason))
    traced = trace_counts(made.trace)
    if traced != _as_traced(made.counts):
        raise StagedbError(
            f"the trace of rank {record.rank} of instance {made.program.workload.instance} differs from the counts of "
            f"its class: {list(compare(_as_traced(made.counts), traced))}"
        )
    differences = (*compare(record.counts, _as_recorded(made.counts)), *compare_memory(record, made.program))
    exact = None
    if record.events is not None:
        order = compare_order(record.events, events_of(made.program, record.rank, made.trace))
        differences, exact = (*differences, *order.differences), order.exact
    return Checked(record.name, differences, exact=exact, notes=tuple(memory_notes(record)))


def _described(record: Record) -> tuple[dict[str, Any], Card]:
    """The plan's words and the card of a record. Raises Unsupported where its configuration does not make them."""
    try:
        return plan_words(record.config), card_of(record.config)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise Unsupported(f"a configuration that lacks or misuses a field: {shown(str(error))}") from None


def _as_recorded(counts: Counts) -> Counts:
    """A record has the FLOPs of matmuls and attentions. Those of scans are compared with the models' own code
    (`stagedb.validation.model_check`)."""
    return Counts({key: flops for key, flops in counts.flops.items() if key[1] in FLOP_KINDS}, counts.messages)


def _as_traced(counts: Counts) -> Counts:
    """A trace has only one size of a message: the operand's."""
    messages: Counter[CountedMessage] = Counter()
    for message, count in counts.messages.items():
        messages[message._replace(bytes_out=message.bytes_in)] += count
    return Counts(counts.flops, messages)


def store_counts(db: Stagedb, instance: InstanceInfo, rank: int) -> Counts:
    """The counts of one rank in the store: its class's operators, times the tasks that run them."""
    number = class_of_rank(db.store, instance.id, rank)
    rows = db.store.read("reference/counts", instance=instance.id, **{"class": number})
    flops: Counter[tuple[str, str]] = Counter()
    messages: Counter[CountedMessage] = Counter()
    for row in rows:
        if row["type"] == "compute":
            flops[row["phase"], counted_as(row["kind"])] += row["flops"]
        else:
            sizes = row["bytes_in"], row["bytes_out"]
            messages[CountedMessage(row["phase"], row["kind"], row["axis"], row["dtype"], *sizes)] += row["count"]
    return Counts(dict(flops), messages)
