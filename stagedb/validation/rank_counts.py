"""What one rank of a program computes and sends, and in which order: from its trace, and from the columns."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.api import Stagedb
from stagedb.api.model_names import card_source
from stagedb.api.wanted_instances import graph_of
from stagedb.lowering import IndexedGraph, Program, lower
from stagedb.lowering.columns import COMPUTE, ClassColumns, Ints
from stagedb.lowering.issue_order import issued, sequence
from stagedb.models import Card
from stagedb.plans import Mesh, typed_words
from stagedb.store.contents.stored_programs import read_program
from stagedb.systems.cost_model import ORTHOGONALISATION
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoded_class import rank_files
from stagedb.traces.exporting import trace_set
from stagedb.traces.trace_reading import TraceColumns, parse_trace
from stagedb.validation.op_order import CountedMessage, Counts, Event, traced, works
from stagedb.validation.records import FLOP_KINDS

WITH_FLOPS = (*FLOP_KINDS, "scan", "convolution")
"""Kinds of operators that have FLOPs. Traces have at least one operation of every other one, as simulators need."""


def trace_of(program: Program, rank: int) -> TraceColumns:
    """The trace of a rank, as an export writes it."""
    (made,) = trace_set(program.workload, only=str(rank)).classes
    ((_, data),) = rank_files(made.encoded, made.ranks)
    return parse_trace(Path(f"rank {rank}"), data.tobytes())


def counted_as(kind: str) -> str:
    """The kind whose FLOPs an operator's are: those of an orthogonalisation are matmuls'."""
    return "matmul" if kind == ORTHOGONALISATION else kind


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
            flops[ops.phase[op], counted_as(ops.kind[op])] += int(ops.flops[op]) * count
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
            if counted_as(word) in WITH_FLOPS:
                flops[phase, counted_as(word)] += columns["num_ops"][index]
            continue
        size = columns["comm_size"][index]
        messages[CountedMessage(phase, word, columns["axis"][index], columns["dtype"][index], size, size)] += 1
    return Counts(dict(flops), messages)


def events_of(program: Program, rank: int, trace: TraceColumns) -> list[Event]:
    """The order in which a rank computes and sends, from its trace. Only the program has the dimensions of a matmul."""
    ops = program.workload.class_of(rank).ops
    dims = {
        name: works(kind, dims)
        for name, kind, dims in zip(ops.name, ops.kind, ops.dims, strict=True)
        if counted_as(kind) in FLOP_KINDS
    }
    stage = Mesh.of(program.plan).coordinates(rank)["pp"]
    return traced(trace, dims, issued(program.plan, program.workload.class_of(rank), stage).node.tolist())


# The programs of what is checked: lowered in memory, or copied in a store and read from it, which gives the same.

ProgramOf = Callable[[Card, Mapping[str, Any]], Program]
"""The program of a model under a plan of these words. UsageError where the plan does not suit it."""


def lowered(card: Card, words: Mapping[str, Any]) -> Program:
    """The program of a model under a plan, without a store. words: of the plan."""
    typed = typed_words(words)
    source = card_source(card, typed)
    plan = source.new_plan(typed)
    return lower(IndexedGraph.of(graph_of(source, plan.options, None)), plan)


@contextmanager
def stored(db: Stagedb) -> Iterator[ProgramOf]:
    """A function that makes a model's program under a plan through a store, from which all is removed at the end."""
    known = {graph.id for graph in db.graphs()}
    made: set[str] = set()

    def program(card: Card, words: Mapping[str, Any]) -> Program:
        instance = db.instantiate(card, **words)
        made.add(instance.graph)
        try:
            return read_program(db.store, instance.id)
        finally:
            if instance.new:
                db.rm(instance.id)

    try:
        yield program
    finally:
        for graph in made - known:
            db.rm(graph)
