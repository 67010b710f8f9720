"""Profiles: an instance's step, timed on a system and kept in the store."""

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagedb.api import catalog, lookup, system_choice
from stagedb.api.results import InstanceInfo, PeakMemory, Profile, ProfileInfo, Rows
from stagedb.api.wanted_instances import StageClock, Wanted, program_of
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.lowering.columns import Workload
from stagedb.memory import ClassMemory, memory_of
from stagedb.mentions import Word
from stagedb.store import Store, current_user
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.profiles import Progress, exact_text, profile_id, record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.store.naming import set_name, wanted_name
from stagedb.systems import Durations, System
from stagedb.timing import JobProfile, ProfileInputs, Scaling, blocking_axes, profile_job
from stagedb.timing.framework_timing import as_used_by

PARTS = ("kind", "axis", "phase", "stage")
"""Columns by which the critical path is split."""

LANES = ("class", "stage", "rank", "ranks", "busy", "exposed", "bubble", "idle", "communication")


def inputs(
    system: str | Path | System | None,
    durations: str | Path | Durations | None,
    scale: Sequence[str | Scaling],
    blocking: str | Sequence[str],
    framework: str | None = None,
) -> ProfileInputs:
    """Read the system, the durations, the scalings and the axes. Raises UsageError for invalid ones.

    framework: a name of a framework profile: the system as that uses it, and its blocking axes if none are given.
    scale: what-ifs, such as `collective:tp=0.5`.
    """
    found = system_choice.resolve_system(system)
    if framework is not None:
        profile = find_profile(framework)
        found, blocking = as_used_by(found, profile), blocking or profile.hiding.blocking
    return ProfileInputs(
        found,
        durations if durations is None or isinstance(durations, Durations) else system_choice.durations(durations),
        tuple(each if isinstance(each, Scaling) else Scaling.parse(each) for each in scale),
        blocking_axes(blocking, found),
    )


def inputs_or_profile(
    profile: str | None,
    system: str | Path | System | None,
    durations: str | Path | Durations | None,
    scale: Sequence[str | Scaling],
    blocking: str | Sequence[str],
    framework: str | None = None,
) -> ProfileInputs | str:
    """The inputs of a step, or the id of a stored profile that has all of them. The parameters are those of `inputs`.

    profile: the id; UsageError if anything else is given with it.
    """
    if profile is None:
        return inputs(system, durations, scale, blocking, framework)
    given = {
        str(Word("system")): system,
        str(Word("durations")): durations,
        str(Word("scale")): scale,
        str(Word("blocking")): blocking,
    }
    given[str(Word("framework"))] = framework
    for option, value in given.items():
        if value:
            raise UsageError(f"a profile is shown as it was made: leave out {option}, or {Word('profile')}")
    return profile


def framework_words(framework: str | None, model: object, words: Mapping[str, Any]) -> Mapping[str, Any]:
    """The words of a request with those that a framework implies: all for a model, the recipe for an instance."""
    if framework is None:
        return words
    profile = find_profile(framework)
    return profile.plan_words(words) if model is not None else {"recipe": profile.recipe, **words}


def run(
    store: Store,
    instance: InstanceInfo,
    wanted: ProfileInputs,
    name: str | None,
    lap: Callable[[str], None],
    seconds: Mapping[str, float],
    progress: Progress | None = None,
) -> Profile:
    """Profile an instance. lap: called with each stage of work that ends. seconds: the time of each.

    wanted: on which system, with which durations. name: for the profile; None: no name. progress: called while its
    nodes are written.
    """
    job, memory = _timed(store, instance, wanted, lap)
    info = keep(store, job, name, progress, memory[0].bytes)
    lap("write")
    return _result(info, instance, job, memory, seconds)


def run_only(
    store: Store, wanted: Wanted, wanted_inputs: ProfileInputs, name: str | None, clock: StageClock
) -> Profile:
    """Profile an instance without any write: as the store has it, or lowered in memory.

    A connection that only reads will do. Raises UsageError for a name: only what is in the store can have one.
    """
    if name is not None:
        raise UsageError(
            f"{Word('name')} needs a profile in the store: leave out {Word('keep', False)} or {Word('name')}"
        )
    instance, program = program_of(copy.copy(store).only_read(), wanted)
    clock.lap("instance")
    job = _job(program.workload, wanted_inputs, clock.lap)
    memory = _fullest_first(memory_of(program), clock.lap)
    return _result(_unkept(job, instance, memory[0].bytes), instance, job, memory, clock.seconds)


def _job(workload: Workload, wanted: ProfileInputs, lap: Callable[[str], None]) -> JobProfile:
    job = profile_job(workload, wanted.system, wanted.measured, wanted.scalings, wanted.blocking)
    lap("time")
    return job


def _timed(
    store: Store, instance: InstanceInfo, wanted: ProfileInputs, lap: Callable[[str], None]
) -> tuple[JobProfile, tuple[PeakMemory, ...]]:
    """A step, and the memory of each rank class, the fullest first."""
    workload = read_workload(store, instance.id)
    lap("read")
    job = _job(workload, wanted, lap)
    return job, _fullest_first(analyse(store, workload.instance, classes=workload.classes), lap)


def _result(
    info: ProfileInfo,
    instance: InstanceInfo,
    job: JobProfile,
    memory: tuple[PeakMemory, ...],
    seconds: Mapping[str, float],
) -> Profile:
    has = job.system.accelerator
    return Profile(info, instance, _lanes(job), _path(job), job, dict(seconds), memory, has.room, has.reserved)


def _unkept(job: JobProfile, instance: InstanceInfo, memory: int) -> ProfileInfo:
    """The description of a profile that is not in the store."""
    return ProfileInfo(
        id=profile_id(job),
        name=None,
        instance=instance.id,
        instance_name=instance.name,
        system=job.system.name,
        scalings=tuple(map(exact_text, sorted(job.scalings, key=exact_text))),
        blocking=job.blocking,
        ranks=job.merit.world,
        step=job.step,
        unscaled=job.unscaled,
        tokens_per_second=job.merit.tokens_per_second,
        mfu=job.merit.mfu,
        hfu=job.merit.hfu,
        measured_time=job.durations.coverage.share_of_time,
        created=catalog.time_of(time.time_ns() // 1_000_000),
        made_by=current_user(),
        memory=memory,
        room=job.system.accelerator.room,
        kept=False,
    )


def _fullest_first(classes: Sequence[ClassMemory], lap: Callable[[str], None]) -> tuple[PeakMemory, ...]:
    """The memory of each rank class at its peak."""
    found = []
    for each in classes:
        sizes = {str(category): size for category, size in each.usage.at(each.peak).items()}
        found.append(PeakMemory(each.rank_class.number, each.rank_class.stages, sum(sizes.values()), sizes))
    lap("memory")
    return tuple(sorted(found, key=lambda each: (-each.bytes, each.rank_class)))


def keep(
    store: Store,
    job: JobProfile,
    name: str | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> ProfileInfo:
    """Write a step that was timed to the store, unless it is there already. memory: as in `record_profile`.

    name: for the profile; None: no name. progress: called while its nodes are written.
    """
    wanted = None if name is None else wanted_name(store, name)
    called = None if wanted is None else wanted.name
    made, new = record_profile(store, job, called, progress or (lambda done, of: None), memory)
    if wanted is not None:
        set_name(store, "Profile", made, wanted)
    return dataclasses.replace(lookup.made_profile(store, made), new=new)


def _lanes(job: JobProfile) -> Rows:
    rows: list[tuple[Any, ...]] = []
    for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True):
        times = (spent.busy, spent.exposed, spent.bubble, spent.idle, spent.communication)
        rows.append((lane.rank_class, lane.stage, lane.rank, lane.ranks, *times))
    return Rows(LANES, tuple(rows))


def _path(job: JobProfile) -> Rows:
    step = job.step
    rows = [(by, part, ns, ns / step if step else 0.0) for by in PARTS for part, ns in job.times.path.parts(by).items()]
    return Rows(("by", "part", "ns", "share"), tuple(rows))
