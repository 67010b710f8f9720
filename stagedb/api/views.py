"""Views of a step of an instance on a system."""

import re
from collections.abc import Mapping
from pathlib import Path

from stagedb.api.results import InstanceInfo, ProfileInfo, Viewed
from stagedb.errors import StagedbError, UsageError
from stagedb.inputs import shown
from stagedb.memory import analyse
from stagedb.outputs import write_whole
from stagedb.reports import StepView, check, render, trace
from stagedb.store import Store
from stagedb.timing import ProfileInputs, profile_job
from stagedb.workload.store_reading import read_workload

HEADS: Mapping[str, bytes] = {".pftrace": b"\n", ".html": b"<!doctype html>"}
"""The first bytes of files of each kind."""


def job_of(store: Store, instance: InstanceInfo, inputs: ProfileInputs, profile: ProfileInfo | None = None) -> StepView:
    """Run a step of an instance, and compute its memory. Writes nothing.

    profile: the profile with the first run; StagedbError if the step takes another time now.
    """
    job = profile_job(
        read_workload(store, instance.id), inputs.system, inputs.measured, inputs.scalings, blocking=inputs.blocking
    )
    if profile is not None and profile.step != job.step:
        raise StagedbError(
            f"profile {profile.id} has a step of {profile.step} ns, and takes {job.step} ns now: another version "
            "of stagedb made it; remove it with `stagedb rm` and profile again"
        )
    memory = analyse(store, instance.id)
    return StepView(job.times, job.durations, inputs.system, job.merit, memory, job.scalings, job.blocking)


def check_place(path: Path, kind: str, force: bool) -> None:
    """Raise UsageError if a file of a kind of `HEADS` cannot be written. force: replace another one of its kind."""
    check(path, HEADS[kind], force)


def write_timeline(
    job: StepView, instance: InstanceInfo, path: Path, granularity: str | None, stages: list[int] | None
) -> Viewed:
    """Save a step as a Perfetto trace."""
    made = trace(job, granularity, stages)
    write_whole(path, made.content, "--out")
    return Viewed(path, len(made.content), job.times.step, instance, made.slices, made.flows, made.left_out)


def write_report(job: StepView, instance: InstanceInfo, path: Path) -> Viewed:
    """Save a report of a step as a page."""
    made = render(job).encode()
    write_whole(path, made, "--out")
    return Viewed(path, len(made), job.times.step, instance)


def stages_of(only: str | None) -> list[int] | None:
    """The stages in a text such as `0,4-7`; None for None. Raises UsageError for another text."""
    if only is None:
        return None
    found: set[int] = set()
    for part in only.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"--only {shown(only)}: {shown(part)} is neither a stage nor a range such as 0-3")
        found.update(range(first, last + 1))
    return sorted(found)
