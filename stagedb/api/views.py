"""Views of a step of an instance on a system: timelines, charts, reports. The store keeps the profile of each step."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stagedb.api import lookup, model_names, profiling, sweeping
from stagedb.api.provenance import of_step
from stagedb.api.results import Chart, InstanceInfo, ProfileInfo, Viewed, kind_of
from stagedb.api.wanted_instances import StageClock, Wanted, find_timed, find_wanted
from stagedb.errors import StagedbError, UsageError
from stagedb.files import file_name, shown, write_whole
from stagedb.mentions import Word, call
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.reports import PageParts, StepView, check, draw, render, render_pair, step_parts, sums_of, trace, verdict
from stagedb.reports.memory_sections import MomentLink
from stagedb.reports.pipeline_chart import pipelines_picture
from stagedb.search.trials import BatchPoint, batch_points
from stagedb.store import Store
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.profiles import Progress, read_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.timing import JobProfile, ProfileInputs, profile_job

HEADS: Mapping[str, bytes] = {".pftrace": b"\n", ".html": b"<!doctype html>", ".pdf": b"%PDF-"}
"""The first bytes of files of each kind."""


@dataclass(frozen=True)
class StepRequest:
    """The step that a view shows. target, model, words: an instance, as in `export`; a target alone may be a profile.
    inputs: the system and durations of the step, or the id or name of a profile that has them. chosen: whether the
    caller named any of the inputs.
    """

    target: str | None
    model: str | Card | None
    words: Mapping[str, Any]
    inputs: ProfileInputs | str
    chosen: bool = False


@dataclass(frozen=True)
class FoundStep:
    """A step that can be timed; nothing has been made for it yet.

    wanted: its instance. inputs: system and durations. stored: the profile that the request names, if it names one.
    """

    wanted: Wanted
    inputs: ProfileInputs
    stored: ProfileInfo | None


@dataclass(frozen=True)
class TimedStep:
    """A step that has been run.

    instance: in the store. job: the step with the inputs of its times. view: its data for charts and reports. stored:
    the profile that the request names, if it names one.
    """

    instance: InstanceInfo
    job: JobProfile
    view: StepView
    stored: ProfileInfo | None

    def keep(self, store: Store, progress: Progress | None) -> ProfileInfo:
        """Write the profile of the step to the store, unless it is there, and return it."""
        return self.stored or profiling.keep(store, self.job, progress=progress)


def find_step(store: Store, asked: StepRequest) -> FoundStep:
    """The instance and the inputs of a request. Raises UsageError if there are none. Writes nothing."""
    named = _named_profile(store, asked)
    if named is not None:
        asked = replace(asked, target=None, inputs=named)
    if isinstance(asked.inputs, str):
        stored, wanted = find_timed(store, asked.inputs, asked.target, asked.model, asked.words)
        return FoundStep(wanted, read_profile(store, stored.id).inputs, stored)
    return FoundStep(find_wanted(store, asked.target, asked.model, asked.words), asked.inputs, None)


def _named_profile(store: Store, asked: StepRequest) -> str | None:
    """The id of the profile that the target names, where a request has nothing else: its step is meant."""
    if asked.target is None or asked.chosen or asked.model is not None or asked.words or isinstance(asked.inputs, str):
        return None
    if lookup.find_instance(store, asked.target) is not None:
        return None
    found = lookup.find_profile(store, asked.target)
    return None if found is None else found.id


def run_step(store: Store, found: FoundStep) -> TimedStep:
    """Make the instance if it is missing, and run its step. The profile is not kept yet."""
    instance = found.wanted.make(store, StageClock())
    job = job_of(store, instance, found.inputs, found.stored)
    view = StepView.of(job, analyse(store, instance.id, classes=job.workload.classes))
    return TimedStep(instance, job, view, found.stored)


def job_of(
    store: Store, instance: InstanceInfo, inputs: ProfileInputs, profile: ProfileInfo | None = None
) -> JobProfile:
    """Run a step of an instance. Writes nothing.

    profile: the profile with the first run; StagedbError if the step takes another time now.
    """
    job = profile_job(
        read_workload(store, instance.id), inputs.system, inputs.measured, inputs.scalings, blocking=inputs.blocking
    )
    if profile is not None and profile.step != job.step:
        raise StagedbError(
            f"profile {profile.id} has a step of {profile.step} ns, and takes {job.step} ns now: another version of "
            f"stagedb made it; remove it with {call('rm')} and profile again"
        )
    return job


def save_timeline(
    store: Store,
    asked: StepRequest,
    out: Path | str | None,
    granularity: str | None,
    only: str | None,
    force: bool,
    progress: Progress | None,
) -> Viewed:
    """Write a step as a Perfetto trace. The parameters are those of `Stagedb.timeline`."""
    stages = stages_of(only)
    found = find_step(store, asked)
    path = place_of(_name(found), out, ".pftrace", force)
    step = run_step(store, found)
    made = trace(step.view, granularity, stages)
    kept = step.keep(store, progress)
    write_whole(path, made.content, str(Word("out")))
    return Viewed(
        path, len(made.content), step.job.step, step.instance, made.slices, made.flows, made.left_out, (kept,)
    )


def draw_chart(
    store: Store, asked: StepRequest, width: int, only: str | None, color: bool, progress: Progress | None
) -> Chart:
    """The Gantt chart of a step for a terminal. The parameters are those of `Stagedb.chart`."""
    stages = stages_of(only)
    step = run_step(store, find_step(store, asked))
    text = draw(step.view, width, stages, color)
    return Chart(text, step.instance, step.keep(store, progress))


def save_report(
    store: Store, asked: StepRequest, out: Path | str | None, force: bool, progress: Progress | None
) -> Viewed:
    """Write a report of a step as a page. The parameters are those of `Stagedb.report`."""
    found = find_step(store, asked)
    path = place_of(_name(found), out, ".html", force)
    step = run_step(store, found)
    view = replace(step.view, batches=_batches(store, step, found.inputs))
    made = render(view, of_step(store, step.instance, step.job).facts()).encode()
    kept = step.keep(store, progress)
    write_whole(path, made, str(Word("out")))
    return Viewed(path, len(made), step.job.step, step.instance, profiles=(kept,))


def _batches(store: Store, step: TimedStep, inputs: ProfileInputs) -> tuple[BatchPoint, ...]:
    """A step of serving with other numbers of requests; none of others, and of measured or scaled durations."""
    plan = Plan.from_mapping(step.instance.plan)
    graph = lookup.find_graph(store, step.instance.graph)
    if graph is None or not plan.workflow.caches or inputs.measured is not None or inputs.scalings:
        return ()
    source = model_names.stored_source(graph, {})
    return batch_points(sweeping.trials_of(store, source, inputs), plan)


def report_page(store: Store, first: str, second: str | None) -> str:
    """The page of one profile of the store, or of two, as `save_report` and `save_pair` write it. Writes nothing.

    first, second: id or name of each; None: one profile.
    """
    found = [lookup.the_profile(store, word) for word in (first, second) if word is not None]
    steps = [_stored_step(store, each) for each in found]
    made = [of_step(store, step.instance, step.job).facts() for step in steps]
    if second is None:
        return render(steps[0].view, made[0])
    sides = [(step.view, each.name or each.instance_name) for step, each in zip(steps, found, strict=True)]
    return render_pair(sides[0], sides[1], (made[0], made[1]))


def report_parts(store: Store, profile: str, link: MomentLink | None = None) -> PageParts:
    """The parts of the report of a profile of the store, for a page that has a head of its own. Writes nothing.

    link: of the moments of memory.
    """
    return step_parts(_stored_step(store, lookup.the_profile(store, profile)).view, link)


def perfetto_trace(store: Store, profile: str) -> bytes:
    """The trace of a stored profile with all stages, as `save_timeline` writes it. Writes nothing."""
    return trace(_stored_step(store, lookup.the_profile(store, profile)).view).content


def pipelines(store: Store, profiles: Sequence[tuple[ProfileInfo, str]]) -> str:
    """The pipelines of profiles on one scale, as SVG. profiles: each with its name. Writes nothing."""
    steps = []
    for profile, name in profiles:
        instance = lookup.the_instance(store, profile.instance)
        job = job_of(store, instance, read_profile(store, profile.id).inputs, profile)
        steps.append((StepView.of(job), name))
    return pipelines_picture(steps)


def _stored_step(store: Store, profile: ProfileInfo) -> TimedStep:
    """The step of a profile, run again."""
    instance = lookup.the_instance(store, profile.instance)
    job = job_of(store, instance, read_profile(store, profile.id).inputs, profile)
    view = StepView.of(job, analyse(store, instance.id, classes=job.workload.classes))
    return TimedStep(instance, job, view, profile)


def save_pair(
    store: Store, asked: StepRequest, second: str, out: Path | str | None, force: bool, progress: Progress | None
) -> Viewed:
    """Write a report that compares two steps: of profiles, or of instances on the system of the request.

    second: id or name of the other step. out: the file; None: `./NAME-and-NAME.html`. force: replace an earlier report.
    """
    if asked.model is not None or asked.words or asked.target is None or isinstance(asked.inputs, str):
        raise UsageError(
            "a report of two steps takes two profiles or instances of the store, by id or name: leave out "
            f"{Word('model')}, {Word('profile')} and the options of a plan ({call('profile')} takes them and makes a "
            "profile)"
        )
    found = [find_step(store, _side(store, word, asked.inputs)) for word in (asked.target, second)]
    if asked.chosen and all(each.stored for each in found):
        raise UsageError(
            f"profiles are shown as they were made: leave out {Word('system')}, {Word('durations')}, {Word('scale')} "
            f"and {Word('blocking')}"
        )
    names = [_called(each) for each in found]
    path = place_of("-and-".join(file_name(name) for name in names), out, ".html", force)
    steps = [run_step(store, each) for each in found]
    sides = [(step.view, name) for step, name in zip(steps, names, strict=True)]
    facts = [of_step(store, step.instance, step.job).facts() for step in steps]
    made = render_pair(sides[0], sides[1], (facts[0], facts[1])).encode()
    kept = tuple(step.keep(store, progress) for step in steps)
    write_whole(path, made, str(Word("out")))
    sentence = verdict(*(sums_of(*side) for side in sides))
    return Viewed(path, len(made), steps[0].job.step, steps[0].instance, profiles=kept, verdict=sentence)


def _side(store: Store, word: str, inputs: ProfileInputs) -> StepRequest:
    """The request for a profile or an instance, which has these inputs. Raises UsageError for anything else."""
    found = lookup.find(store, word)
    if isinstance(found, ProfileInfo):
        return StepRequest(None, None, {}, found.id)
    if isinstance(found, InstanceInfo):
        return StepRequest(found.id, None, {}, inputs)
    raise UsageError(
        f"{shown(word)} is a {kind_of(found)}: a report of two steps takes profiles or instances ({call('ls')} lists "
        "them)"
    )


def _called(found: FoundStep) -> str:
    """The name of a profile if it has one, or of its instance."""
    if found.stored is not None:
        return found.stored.name or found.stored.instance_name
    return found.wanted.model if found.wanted.there is None else found.wanted.there.name


def _name(found: FoundStep) -> str:
    return f"{file_name(found.wanted.model)}-{found.wanted.plan.world}"


def place_of(name: str, out: Path | str | None, ending: str, force: bool) -> Path:
    """The path of a view's file. UsageError if it cannot be written there.

    name: of the file, without its ending, if `out` is None. out: the path that the caller gives. ending: such as
    `.html`. force: replace an earlier view of this kind.
    """
    path = Path(f"{name}{ending}" if out is None else out)
    check(path, HEADS[ending], force)
    return path


def stages_of(only: str | None) -> list[int] | None:
    """The stages in a text such as `0,4-7`; None for None. only: the text. Raises UsageError for another text."""
    if only is None:
        return None
    found: set[int] = set()
    for part in only.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{Word('only', shown(only))}: {shown(part)} is neither a stage nor a range such as 0-3")
        found.update(range(first, last + 1))
    return sorted(found)
