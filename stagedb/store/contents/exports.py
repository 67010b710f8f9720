"""`export`: from an instance of a store to a trace set on disk, as a directory of traces or as one packed file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stagedb.files.stored_values import json_mapping
from stagedb.lazy_names import deferred
from stagedb.lowering.columns import Workload
from stagedb.lowering.engine_pairs import CacheSide, engine_pair
from stagedb.lowering.issue_order import sequence
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.lowering.windows import window
from stagedb.plans import Plan
from stagedb.store import Store, read_graph, read_whole
from stagedb.store.contents.stored_programs import find, read_class, read_facts, read_workload
from stagedb.systems.system import System
from stagedb.traces.exporting import pack, smaller, trace_set
from stagedb.traces.formats import OneFile
from stagedb.traces.node_durations import NodeTiming, pair_timing, window_timing
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.set_output import (
    BLOCK,
    MOST_NODE,
    SHARED_FILES,
    Counter,
    Progress,
    Request,
    Summary,
    WriteClock,
    check_counts,
    free_space,
    write_set,
    writers_for,
)
from stagedb.traces.simulators import simulator_named

if TYPE_CHECKING:
    from stagedb.store.contents import profiles
else:
    # It imports what computes memory and costs; most exports have no durations.
    (profiles,) = deferred("stagedb.store.contents.profiles")

Timed = tuple[str, str | None]
"""An instance, and its profile with the durations of its nodes."""


def export(
    store: Store,
    instance: str,
    request: Request,
    *,
    only: str | None = None,
    system: System | None = None,
    profile: str | None = None,
    following: Sequence[Timed] = (),
    receiving: Sequence[Timed] = (),
    progress: Progress | None = None,
) -> Summary:
    """Write the traces of an instance, with communicator groups, simulator inputs and manifest, as requested.

    only: ranks such as `0-7,16`; all if not given. system: the system that the simulator inputs describe; if not given,
    that of the profile, or the default preset. profile: id of a profile of the instance, whose durations the nodes get.
    following: the instances, each with its profile, that run after it on the same ranks, as one window. receiving: the
    same of ranks that are numbered behind these, which go on with the caches that the last of these leaves. progress:
    called with the ranks that are written, and all. Raises UsageError for requests that are refused and StagedbError
    for failures; then no file remains under the name.
    """
    clock, counter = WriteClock(), Counter(progress)
    row = find(store, instance)
    world = int(row["world"]) + (int(find(store, receiving[0][0])["world"]) if receiving else 0)
    request.check(world, only)
    files = world if only is None else len(parse_ranks(only, world))
    if (
        not following
        and not receiving
        and only is None
        and world >= SHARED_FILES
        and not request.resume
        and request.rank_files is not None
    ):
        read_whole(store, "Instance", instance, lambda: _check_counts(store, instance, request, world))
    with writers_for(0 if request.rank_files is None else files, 0, request.processes, counter) as pool:
        with clock.stage("read"):
            workload, timing = _read(store, [(instance, profile), *following], receiving)
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


def _read(store: Store, steps: Sequence[Timed], receiving: Sequence[Timed]) -> tuple[Workload, NodeTiming | None]:
    """The columns of an instance, of a window of several, or of two engines, and their durations if they have
    profiles."""
    first, timed, before = _window(store, steps)
    if not receiving:
        return first, timed
    second, later, after = _window(store, receiving)
    pair = engine_pair(_side(store, before[-1]), _side(store, after[0]), (first, second))
    timing = None if timed is None or later is None else pair_timing((timed, later), pair)
    return pair.workload, timing


def _window(store: Store, steps: Sequence[Timed]) -> tuple[Workload, NodeTiming | None, Sequence[Workload]]:
    """Steps one after another as one workload, with their durations; and each of them."""
    read = [read_workload(store, instance) for instance, _ in steps]
    joined = window(read)
    timings = [
        profiles.read_timing(store, profile, workload)
        for workload, (_, profile) in zip(read, steps, strict=True)
        if profile is not None
    ]
    return joined, window_timing(timings, read, joined) if timings else None, read


def _side(store: Store, workload: Workload) -> CacheSide:
    return CacheSide(workload.name, Plan.from_mapping(workload.plan), read_graph(store, workload.graph), workload)


def _check_counts(store: Store, instance: str, request: Request, world: int) -> None:
    """Refuse a set that cannot fit on the disk. Its classes are read only if there is a doubt."""
    rows = store.read("workload/classes", instance=instance)
    tasks = {row["class"]: int(row["tasks"]) for row in store.read("analyze/model/classes", instance=instance)}
    most = sum(int(row["ranks"]) * int(row["ops"]) * tasks.get(row["number"], 1) for row in rows) * MOST_NODE
    if max(most, world * BLOCK) <= free_space(request.out)[1]:
        return
    nodes, plan = 0, json_mapping(find(store, instance)["plan"], "plan")
    facts = read_facts(store, instance)
    for row in rows:
        columns = joined_tasks(read_class(store, facts, row), plan)
        nodes += int(row["ranks"]) * int(sequence(columns, request.granularity).nodes)
    check_counts(request, world, nodes)
