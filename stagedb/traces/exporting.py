"""The traces of a workload: laid out, checked and encoded, and packed into one file where that is asked for."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from stagedb.collectives import exchanges
from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import (
    CACHES,
    COLLECTIVE,
    RING_AXES,
    SEND,
    ClassColumns,
    Ints,
    Workload,
    issued_on,
    with_largest,
)
from stagedb.lowering.issue_order import sequence
from stagedb.mentions import Word
from stagedb.plans.mesh import TOKEN_AXES
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system
from stagedb.traces.bundle import class_facts, groups_of, set_facts
from stagedb.traces.encoding import RankFields, encode, rank_bytes
from stagedb.traces.formats import OneFile
from stagedb.traces.node_durations import NodeTiming, RankPart
from stagedb.traces.output_places import staged_file
from stagedb.traces.packed_file import packed_size
from stagedb.traces.rank_files import explain
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.set_output import Request, Summary, WriteClock
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import MESSAGE, SimulatedJob, Simulator, Traffic
from stagedb.traces.trace_set import MANIFEST, ClassTraces, TraceSet
from stagedb.traces.workload_checks import check_workload

# What the ranks of an instance communicate in a step, in so few rows that a manifest can hold them.

_Key = tuple[str, str, int, int]
"""Kind, axis, direction of a message (of one with caches the place of the other end), bytes."""


def traffic_of(workload: Workload) -> tuple[Traffic, ...]:
    """Each size of each kind of collective and message, where the class that runs it most often runs it.

    The row names the group, or the two ends, of the first rank of that class.
    """
    most: dict[_Key, tuple[int, int]] = {}
    for columns in workload.classes:
        rank = int(np.flatnonzero(workload.ranks.number == columns.number)[0])
        for key, count in _counts(columns).items():
            if count > most.get(key, (0, 0))[0]:
                most[key] = count, rank
    world = len(workload.ranks)
    groups = {axis: workload.groups.of_axis(axis, world) for axis in sorted(set(workload.groups.axis))}
    sent = []
    for (kind, axis, towards, size), (count, rank) in sorted(most.items()):
        if kind != MESSAGE:
            sent.append(Traffic(kind, size, count, group=str(int(groups[axis][rank]))))
            continue
        names = ("ring_previous", "ring_next") if axis in RING_AXES else ("previous", "next")
        ends = workload.ranks.others[:, towards] if axis == CACHES else getattr(workload.ranks, names[towards > 0])
        target = int(ends[rank])
        sent.append(Traffic(MESSAGE, size, count, ends=(rank, target)))
    return tuple(sent)


def _counts(columns: ClassColumns) -> dict[_Key, int]:
    """How often a rank of the class runs each."""
    # Most of what an export needs starts sooner without this module.
    from stagedb.timing.op_durations import runs_of

    ops, counts = columns.ops, dict[_Key, int]()
    runs, towards = runs_of(columns), np.where(ops.handed, ops.peer, ops.towards)
    for op in np.flatnonzero((ops.type == COLLECTIVE) | (ops.type == SEND)).tolist():
        sends = int(ops.type[op]) == SEND
        key = (MESSAGE if sends else ops.kind[op], ops.axis[op], int(towards[op]) * sends, int(ops.size[op]))
        counts[key] = counts.get(key, 0) + runs[op]
    return {key: count for key, count in counts.items() if count}


# All-to-alls of uneven parts, as a simulator takes them: one size for a call, on all ranks of its group.


def with_fullest(classes: Sequence[ClassColumns]) -> tuple[ClassColumns, ...]:
    """The classes with the most that any member of a call sends or receives, as a profile times it.

    On the way to unequal experts the fullest rank receives more than any rank sends.
    """
    calls = {columns.number: _exchanges(columns) for columns in classes}
    return with_largest(classes, calls, lambda ops: np.maximum(ops.size, ops.result))


def _exchanges(columns: ClassColumns) -> Ints:
    """The all-to-alls on the axis of experts, in issue order."""
    rows = issued_on(columns.ops, TOKEN_AXES)
    exchange_rows: Ints = rows[np.array([exchanges(columns.ops.kind[row]) for row in rows.tolist()], bool)]
    return exchange_rows


def pack(traces: TraceSet, request: Request, file: OneFile, clock: WriteClock) -> Summary:
    """Write a set as one file. Raises StagedbError if it cannot be written; then no file is left."""
    try:
        with staged_file(request.out, force=request.force) as partial:
            with clock.stage("pack"):
                file.write(partial, traces)
            size = partial.stat().st_size
    except OSError as error:
        raise StagedbError(explain(error, request.out)) from error
    return Summary(request.out, traces.world, traces.count, traces.nodes, traces.bytes, False, clock.seconds, size)


def trace_set(
    workload: Workload,
    only: str | None = None,
    granularity: str = "op",
    system: System | None = None,
    timing: NodeTiming | None = None,
    simulator: Simulator = DEFAULT_SIMULATOR,
) -> TraceSet:
    """Lay out and check every class of an instance, and encode the classes of the requested ranks.

    timing: how long the nodes take; if no system is given, the system is that of the timing. simulator: the target that
    must be able to run the job. only: the ranks, such as `0-63,128`; None: all. granularity: `op`, or `block` for one
    node between two communications.
    """
    workload = dataclasses.replace(workload, classes=with_fullest(workload.classes))
    world = len(workload.ranks)
    system = system or (load_system(DEFAULT) if timing is None else timing.system)
    asked = np.full(world, only is None)
    asked[() if only is None else parse_ranks(only, world)] = True
    nodes = {columns.number: sequence(columns, granularity) for columns in workload.classes}
    check_workload(workload, nodes)
    fields = RankFields.of(workload)
    metadata: dict[str, str | int] = {"model": workload.model, "instance": workload.instance, "world": world}
    if timing is not None:
        metadata["profile"] = timing.profile
    classes = []
    for columns in workload.classes:
        number = columns.number
        for part in _parts(workload, number, timing):
            wanted = part.ranks[asked[part.ranks]]
            if len(wanted):
                encoded = encode(columns, nodes[number], fields, {**metadata, "class": number}, part.ns)
                facts = class_facts(columns, nodes[number], encoded, part.ranks, part.lanes)
                classes.append(ClassTraces(facts, encoded, rank_bytes(workload, fields, wanted)))
    name = workload.model.replace("/", "_")
    groups, traffic = groups_of(workload), traffic_of(workload)
    job = SimulatedJob(name, world, workload.degrees, system, timing is not None, groups, traffic)
    if f"{name}.json" in (MANIFEST, *simulator.inputs(job)):
        raise UsageError(f"traces of a model called {name} would have two files {name}.json: give it another name")
    profile = None if timing is None else timing.facts
    return TraceSet(set_facts(name, workload, granularity, job, profile), groups, job, tuple(classes))


def _parts(workload: Workload, number: int, timing: NodeTiming | None) -> tuple[RankPart, ...]:
    if timing is None:
        return (RankPart((), np.flatnonzero(workload.ranks.number == number)),)
    return timing.parts[number]


def smaller(workload: Workload, traces: TraceSet, free: int, timing: NodeTiming | None = None) -> list[str]:
    """Forms of a set that fit into `free` bytes, with their sizes, as words of a message."""
    fits = []
    if traces.facts["granularity"] == "op":
        blocks = trace_set(workload, granularity="block", timing=timing).only(traces.ranks).bytes
        fits += [f"{Word('granularity', 'block')} ({blocks:,} bytes)"] if blocks <= free else []
    packed = packed_size(traces)
    return fits + ([f"{Word('packed', True)} (at most {packed:,} bytes)"] if packed <= free else [])
