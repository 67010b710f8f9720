"""Jobs of commands, of this machine and of others: those that run, and the last ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import JobInfo, Stagedb
from stagedb.errors import UsageError
from stagedb.serve import page_frames
from stagedb.serve.page_frames import address, named

PARTS = ("running", "all")
"""What a script asks for again and again: the jobs that run, or the whole list."""

PLURALS = {"search": "searches"}


@dataclass(frozen=True)
class ShownJob:
    """A job in words. percent: what is done; None if that is not known. to: the page of what it works on."""

    job: JobInfo
    amount: str
    percent: float | None
    took: str
    to: str | None


def jobs(request: Request) -> Response:
    """The newest jobs. With `part`, only the piece of a page that changes, for its script."""
    part = named(request.query_params, "part")
    if part not in (None, *PARTS):
        raise UsageError(f"there is no part {part[:20]}: it is one of {', '.join(PARTS)}")
    found = request.app.state.shared.read(lambda db: db.jobs())
    if part is not None:
        return page_frames.page(request, "jobs_part.html", part=part, **words_of(found))
    return page_frames.page(request, "jobs.html", part="all", **words_of(found))


def running_jobs(db: Stagedb) -> list[JobInfo]:
    """The jobs that run, for the first page."""
    return [each for each in db.jobs() if each.state == "running"]


def words_of(found: Sequence[JobInfo]) -> dict[str, Any]:
    """What the templates of jobs need: `running` and `ended` jobs, and `count`, a sentence that a screen reader gets
    when it changes.
    """
    running = [shown_job(each) for each in found if each.state == "running"]
    count = "Nothing runs." if not running else f"{len(running):,} job{'' if len(running) == 1 else 's'} running."
    return {
        "running": running,
        "ended": [shown_job(each) for each in found if each.state != "running"],
        "count": count,
    }


def shown_job(each: JobInfo) -> ShownJob:
    """A job with its texts for a page."""
    amount = each.unit
    if each.done is not None and each.of is not None:
        amount = f"{each.done:,} of {each.of:,} {each.unit}"
    to = None
    if each.about is not None:
        kind, id = each.about
        to = address(PLURALS.get(kind, f"{kind}s"), id)
    percent = None if each.share is None else 100 * each.share
    return ShownJob(each, amount if each.done is not None else "", percent, duration(each.seconds), to)


def duration(seconds: float) -> str:
    """Seconds as `45 s`, `3 min 20 s` or `2 h 5 min`. seconds: 0 or more."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
