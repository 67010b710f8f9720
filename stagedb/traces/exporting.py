"""The traces of a workload: laid out, checked and encoded, and packed into one file where that is asked for."""

import dataclasses

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.columns import Workload
from stagedb.lowering.issue_order import sequence
from stagedb.mentions import Word
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system
from stagedb.traces.bundle import class_facts, groups_of, set_facts
from stagedb.traces.call_sizes import with_fullest
from stagedb.traces.encoding import RankFields, encode, rank_bytes
from stagedb.traces.formats import OneFile
from stagedb.traces.node_durations import NodeTiming, RankPart
from stagedb.traces.packed_file import packed_size
from stagedb.traces.rank_files import explain
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.set_output import (
    Request,
    Summary,
    WriteClock,
)
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import SimulatedJob, Simulator
from stagedb.traces.staging import staged_file
from stagedb.traces.trace_set import MANIFEST, ClassTraces, TraceSet
from stagedb.traces.traffic import traffic_of
from stagedb.traces.workload_checks import check_workload


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
