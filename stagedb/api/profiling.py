"""Profiles: an instance's step, timed on a system and kept in the store."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagedb.api import catalog, system_choice
from stagedb.api.results import InstanceInfo, PeakMemory, Profile, ProfileInfo, Rows
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import find_profile
from stagedb.memory import analyse
from stagedb.store import Store
from stagedb.store.naming import set_name, wanted_name
from stagedb.systems import Durations, System
from stagedb.timing import JobProfile, ProfileInputs, Scaling, blocking_axes, profile_job, record_profile
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.profile_recording import Progress
from stagedb.workload.instance_columns import Workload
from stagedb.workload.store_reading import read_workload

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
    """The same, or the id of a profile, which has all of them. UsageError if both are given."""
    if profile is None:
        return inputs(system, durations, scale, blocking, framework)
    given = {"--system": system, "--durations": durations, "--scale": scale, "--blocking": blocking}
    given["--framework"] = framework
    for option, value in given.items():
        if value:
            raise UsageError(f"a profile is shown as it was made: leave out {option}, or --profile")
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
    """Profile an instance. lap: called with each stage of work that ends. seconds: the time of each."""
    workload = read_workload(store, instance.id)
    lap("read")
    job = profile_job(workload, wanted.system, wanted.measured, wanted.scalings, wanted.blocking)
    lap("time")
    memory = tuple(sorted(_peaks(store, workload), key=lambda each: (-each.bytes, each.rank_class)))
    lap("memory")
    info = keep(store, job, name, progress, memory[0].bytes)
    lap("write")
    room = wanted.system.accelerator.room
    return Profile(info, instance, _lanes(job), _path(job), job, dict(seconds), memory, room)


def _peaks(store: Store, workload: Workload) -> Iterator[PeakMemory]:
    """The memory of each rank class at its peak."""
    for each in analyse(store, workload.instance, classes=workload.classes):
        sizes = {str(category): size for category, size in each.usage.at(each.peak).items()}
        yield PeakMemory(each.rank_class.number, each.rank_class.stages, sum(sizes.values()), sizes)


def keep(
    store: Store,
    job: JobProfile,
    name: str | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
) -> ProfileInfo:
    """Write a step that was timed to the store, unless it is there already. memory: as in `record_profile`."""
    wanted = None if name is None else wanted_name(name)
    called = None if wanted is None else wanted.name
    made, new = record_profile(store, job, called, progress or (lambda done, of: None), memory)
    if wanted is not None:
        set_name(store, "Profile", made, wanted)
    return dataclasses.replace(catalog.made(catalog.profiles(store), made), new=new)


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
