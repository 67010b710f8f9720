"""What one rank of a program computes and sends, and in which order: from its trace, and from the columns."""

from collections import Counter
from pathlib import Path

import numpy as np

from stagedb.lowering import Program
from stagedb.lowering.columns import COMPUTE, ClassColumns, Ints
from stagedb.lowering.issue_order import issued, sequence
from stagedb.plans import Mesh
from stagedb.systems.cost_model import ORTHOGONALISATION
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.encoding import rank_files
from stagedb.traces.exporting import trace_set
from stagedb.traces.trace_reading import TraceColumns, parse_trace
from stagedb.validation.counts import CountedMessage, Counts
from stagedb.validation.op_order import Event, traced, works
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
