"""The verbs on trace sets: `export` from a store; `unpack` and `validate`, which need none."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stagedb.api import catalog
from stagedb.api.python_words import for_python
from stagedb.api.results import Exported, InstanceInfo, ProfileInfo, Unpacked
from stagedb.api.system_choice import resolve_system
from stagedb.api.wanted_instances import StageClock, Wanted, find_timed, find_wanted
from stagedb.errors import UsageError
from stagedb.files import file_name
from stagedb.lowering.engine_pairs import ServedStep, check_chunks, check_steps, pair_degrees
from stagedb.lowering.windows import LONGEST, check_window
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.plans import Mesh, Plan
from stagedb.store import Store
from stagedb.store.contents.exports import export as export_traces
from stagedb.systems.system import System
from stagedb.traces import Report, Request, Summary, unpack_traces, validate_traces
from stagedb.traces.rank_sets import shard_ranks
from stagedb.traces.simulators import SimulatedJob

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

WriteProgress = Callable[[int, int, int], None]
"""Called with how many ranks are written, of how many, and how many bytes that is."""


@for_python
def validate(directory: Path | str, *, replay: bool = True, progress: Progress | None = None) -> Report:
    """Check a trace set, of stagedb or another tool, against every rule that simulators rely on. Needs no store.

    replay: also run it as a simulator would, which finds what hangs. directory: of the set. Raises UsageError where
    there are no traces.
    """
    return validate_traces(Path(directory), replayed=replay, progress=progress or _ignore)


def _ignore(done: int, of: int) -> None:
    """Progress that nobody watches."""


@for_python
def unpack(
    file: Path | str,
    *,
    out: Path | str | None = None,
    only: str | None = None,
    force: bool = False,
    resume: bool = False,
    format: str = "et",
    compress: bool = False,
    replay: bool | None = None,
    simulator: str | None = None,
    progress: WriteProgress | None = None,
) -> Unpacked:
    """Write the traces of a packed file: the same directory, byte for byte, that `export` writes. Needs no store.

    out: the directory; the file's name without its ending if not given. The rest as of `Stagedb.export`.
    """
    path = Path(file)
    if out is None:
        out = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}.traces")
    request = Request(Path(out), force, format, compress, replay, resume=resume, simulator=simulator)
    done = unpack_traces(path, request, only=only, progress=progress)
    return Unpacked(path=done.directory, **figures_of(done))


def figures_of(done: Summary) -> dict[str, Any]:
    """What `Unpacked` has of a summary under the same names."""
    names = ("world", "files", "nodes", "bytes", "replayed", "seconds", "there", "mended", "differences")
    return {name: getattr(done, name) for name in names}


@dataclass(frozen=True)
class ExportRequest:
    """What `Stagedb.export` is asked for, but for the instance. form: how it is written, without its place.

    timed: profile the instance on the system, and write the durations. then: instances that run after it on the same
    ranks, as one window. steps: of the last of them, each with a token more in the cache. send_to: an instance on other
    ranks, which goes on with the caches that the last of `then` leaves; then `steps` are its own.
    """

    out: Path | str | None
    only: str | None
    shard: str | None
    system: str | Path | System | None
    profile: str | None
    timed: bool
    form: Request
    then: tuple[str, ...] = ()
    steps: int = 1
    send_to: str | None = None

    def ranks(self, world: int) -> str | None:
        """The ranks to write, as text; None for all.

        world: the number of ranks. UsageError if both `only` and `shard` are set.
        """
        if self.shard is None:
            return self.only
        if self.only is not None:
            raise UsageError(f"{Word('only')} and {Word('shard')} both choose the ranks to write: leave one out")
        return shard_ranks(self.shard, world)

    def request(self, model: str, world: int) -> Request:
        """The request for the traces package.

        Without a place of its own, it follows from the model's name and the ranks. world: ranks of the job.
        """
        part = "" if self.shard is None else f".{self.shard.replace('/', 'of')}"
        name = f"{file_name(model)}-{world}{part}{'.packed' if self.form.packed else ''}"
        return replace(self.form, out=Path(name if self.out is None else self.out))


def export(
    store: Store,
    target: str | None,
    model: str | Card | None,
    words: Mapping[str, Any],
    request: ExportRequest,
    progress: WriteProgress | None,
) -> Exported:
    """See `Stagedb.export`. All that can be refused is refused before anything is made."""
    clock = StageClock()
    if request.profile is None:
        timed, wanted = None, find_wanted(store, target, model, words)
    else:
        timed, wanted = find_timed(store, request.profile, target, model, words)
        _check_profile(timed, request)
    other = None if request.send_to is None else find_wanted(store, request.send_to, None, {})
    meshes = [tuple(size for _, size in Mesh.of(each.plan).axes) for each in (wanted, other) if each is not None]
    degrees = meshes[0] if other is None else pair_degrees(*meshes)
    world = math.prod(degrees)
    only = request.ranks(world)
    form = request.request(wanted.model, world)
    form.check(world, only)
    inputs = None
    if timed is None:
        # A system that the job does not fit is refused before anything is made. A profile has fitted its system.
        inputs = resolve_system(request.system)
        form.check_job(SimulatedJob(wanted.model, world, degrees, inputs))
    clock.lap("look up")
    after, received = _following(store, wanted, other, request)
    instance = wanted.make(store, clock, asks=request.shard is None)
    following = [each.make(store, clock, asks=False) for each in (*after, *received)]
    profiles: list[str | None] = [None for _ in following]
    if request.timed and inputs is not None:
        timed, *others = (_timed(store, each, inputs) for each in (instance, *following))
        profiles = [each.id for each in others]
        clock.lap("profile")
        inputs = None  # from here on, the inputs are those of the profile
    steps = [(each.id, profile) for each, profile in zip(following, profiles, strict=True)]
    done = export_traces(
        store,
        instance.id,
        form,
        only=only,
        system=inputs,
        profile=None if timed is None else timed.id,
        following=steps[: len(after)],
        receiving=steps[len(after) :],
        progress=progress,
    )
    figures = {**figures_of(done), "seconds": {**clock.seconds, **done.seconds}}
    return Exported(
        path=form.out,
        instance=instance,
        packed=done.packed,
        profile=timed,
        following=tuple(following[: len(after)]),
        receiving=tuple(following[len(after) :]),
        **figures,
    )


def _check_profile(profile: ProfileInfo, request: ExportRequest) -> None:
    """Raise UsageError for a request that has the durations or the system of a profile, and others too."""
    if request.timed:
        raise UsageError(
            f"the traces of a profile have its durations: leave out {Word('durations_in_traces', True)}, or "
            f"{Word('profile')}"
        )
    if request.system is not None:
        raise UsageError(
            f"profile {profile.id[: catalog.SHORT_ID]} is on the system {profile.system}, which the simulator inputs "
            f"describe: leave out {Word('system')}, or profile on the other system and export that profile"
        )


def _timed(store: Store, instance: InstanceInfo, system: System) -> ProfileInfo:
    """The profile of an instance on a system, which the store has afterwards."""
    # Most exports start sooner without these modules.
    from stagedb.api import profiling
    from stagedb.store.contents.stored_programs import read_workload
    from stagedb.timing import profile_job

    return profiling.keep(store, profile_job(read_workload(store, instance.id), system))


def _later(plan: Plan, steps: int) -> dict[str, object]:
    """The words of a decode's plan after so many steps."""
    batch = plan.request_batch
    if batch is None:
        return {"cache_len": plan.cache_len + steps}
    return {"requests": list(batch.later(steps).texts), "cache_len": None}


def _following(
    store: Store, wanted: Wanted, other: Wanted | None, request: ExportRequest
) -> tuple[list[Wanted], list[Wanted]]:
    """The instances that run after the first one on its ranks, and those on the ranks that it sends caches to.

    Writes nothing. Raises UsageError for several instances with the durations of one profile, for several steps of what
    is no decode, and for steps that cannot follow each other.
    """
    if not 1 <= request.steps <= LONGEST:
        raise UsageError(f"{Word('steps')} is {request.steps:,}: a window has 1 to {LONGEST:,}")
    after = [find_wanted(store, each, None, {}) for each in request.then]
    received = [] if other is None else [other]
    if (after or received or request.steps > 1) and request.profile is not None:
        raise UsageError(
            f"a profile has the durations of one step: {Word('durations_in_traces', True)} profiles each step of a "
            "window"
        )
    last = [wanted, *after, *received][-1]
    for step in range(1, request.steps):
        plan = last.plan
        if not plan.workflow.next_token:
            raise UsageError(
                f"{Word('steps', request.steps)} adds a token to each request in every step, which is for "
                f"{Word('workflow', 'decode')} with {Word('cache_len')}, and {last.model} is a {plan.workflow.name}: "
                f"name the instances that follow with {Word('then')}"
            )
        longer = last.source.new_plan({**plan.to_dict(), **_later(plan, step)})
        (received or after).append(Wanted(last.source, longer, None))
    if received:
        check_chunks([(each.model, each.plan) for each in (wanted, *after)])
        before = [wanted, *after][-1]
        check_steps(*(ServedStep(each.label, each.plan) for each in (before, received[0])))
    for window in ([wanted, *after], received):
        if len(window) > 1:
            check_window([(each.model, each.plan.to_dict()) for each in window])
    return after, received
