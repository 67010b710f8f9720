"""`export`: from an instance of a store to a trace set on disk, as a directory of traces or as one packed file."""

import dataclasses

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.fault_injection import fault_point
from stagedb.mentions import Word
from stagedb.store import Store, json_mapping, read_whole
from stagedb.systems.system import System
from stagedb.systems.system_files import DEFAULT, load_system
from stagedb.traces.bundle import class_facts, groups_of, set_facts
from stagedb.traces.call_sizes import with_fullest
from stagedb.traces.disk_room import BLOCK, MOST_NODE, check_counts, free_space
from stagedb.traces.encoding import RankFields, encode, rank_bytes
from stagedb.traces.formats import OneFile
from stagedb.traces.node_durations import NodeTiming, RankPart, read_timing
from stagedb.traces.packed_file import packed_size
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.rank_files import explain
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.set_output import (
    SHARED_FILES,
    Counter,
    Progress,
    Request,
    Summary,
    WriteClock,
    write_set,
    writers_for,
)
from stagedb.traces.simulators import DEFAULT as DEFAULT_SIMULATOR
from stagedb.traces.simulators import SimulatedJob, Simulator, simulator_named
from stagedb.traces.staging import staged_file
from stagedb.traces.trace_set import MANIFEST, ClassTraces, TraceSet
from stagedb.traces.traffic import traffic_of
from stagedb.traces.workload_checks import check_workload
from stagedb.workload.instance_columns import Workload
from stagedb.workload.issue_order import sequence
from stagedb.workload.overlapped_pairs import joined_tasks
from stagedb.workload.store_reading import find, read_class, read_workload


def export(
    store: Store,
    instance: str,
    request: Request,
    *,
    only: str | None = None,
    system: System | None = None,
    profile: str | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Write the traces of an instance, with communicator groups, simulator inputs and manifest, as requested.

    only: ranks such as `0-7,16`; all if not given. system: the system that the simulator inputs describe; if not given,
    that of the profile, or the default preset. profile: id of a profile of the instance, whose durations the nodes get.
    Raises UsageError for requests that are refused and StagedbError for failures; then no file remains under the name.
    """
    clock, counter = WriteClock(), Counter(progress)
    row = find(store, instance)
    world = int(row["world"])
    request.check(world, only)
    files = world if only is None else len(parse_ranks(only, world))
    if only is None and world >= SHARED_FILES and not request.resume and request.rank_files is not None:
        read_whole(store, "Instance", instance, lambda: _check_counts(store, instance, request, world))
    with writers_for(0 if request.rank_files is None else files, 0, request.processes, counter) as pool:
        with clock.stage("read"):
            workload = read_workload(store, instance)
            timing = None if profile is None else read_timing(store, profile, workload)
        with clock.stage("encode"):
            traces = trace_set(workload, only, request.granularity, system, timing, simulator_named(request.simulator))
        if isinstance(request.written.files, OneFile):
            return pack(traces, request, request.written.files, clock)
        return write_set(
            traces,
            request,
            pool=pool,
            counter=counter,
            clock=clock,
            smaller=lambda free: smaller(workload, traces, free, timing),
        )


def _check_counts(store: Store, instance: str, request: Request, world: int) -> None:
    """Refuse a set that cannot fit on the disk. Its classes are read only if there is a doubt."""
    rows = store.read("workload/classes", instance=instance)
    tasks = {row["class"]: int(row["tasks"]) for row in store.read("analyze/model/classes", instance=instance)}
    most = sum(int(row["ranks"]) * int(row["ops"]) * tasks.get(row["number"], 1) for row in rows) * MOST_NODE
    if max(most, world * BLOCK) <= free_space(request.out)[1]:
        return
    nodes, plan = 0, json_mapping(find(store, instance)["plan"], "plan")
    for row in rows:
        columns = joined_tasks(read_class(store, row), plan)
        nodes += int(row["ranks"]) * int(sequence(columns, request.granularity).nodes)
    check_counts(request, world, nodes)


def pack(traces: TraceSet, request: Request, file: OneFile, clock: WriteClock) -> Summary:
    """Write a set as one file. Raises StagedbError if it cannot be written; then no file is left."""
    try:
        with staged_file(request.out, force=request.force) as partial:
            with clock.stage("pack"):
                file.write(partial, traces)
            size = partial.stat().st_size
            fault_point("export.rename")
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
    must be able to run the job.
    """
    workload = dataclasses.replace(workload, classes=with_fullest(workload.classes))
    world = len(workload.ranks)
    system = system or (load_system(DEFAULT) if timing is None else timing.system)
    ranks: Ints = np.arange(world) if only is None else parse_ranks(only, world)
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
            wanted = np.intersect1d(ranks, part.ranks)
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
    """Forms of a set that fit into this many bytes, with their sizes."""
    fits = []
    if traces.facts["granularity"] == "op":
        blocks = trace_set(workload, granularity="block", timing=timing).only(traces.ranks).bytes
        fits += [f"{Word('granularity', 'block')} ({blocks:,} bytes)"] if blocks <= free else []
    packed = packed_size(traces)
    return fits + ([f"{Word('packed', True)} (at most {packed:,} bytes)"] if packed <= free else [])
