"""The first page: which store this is, what is new, its best plans, anything by a text; and the jobs of commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import JobInfo, QueryInfo, Stagedb, overview
from stagedb.api.overview import BestPlan, Brief, FoundThings, Overview
from stagedb.errors import UsageError
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, gigabytes, named
from stagedb.serve.team_pages import LONGEST, plan_words

# Jobs of commands, of this machine and of others: those that run, and the last ones.

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
        return page_frames.page(request, "jobs_part.html", part=part, **words_of_jobs(found))
    return page_frames.page(request, "jobs.html", part="all", **words_of_jobs(found))


def running_jobs(db: Stagedb) -> list[JobInfo]:
    """The jobs that run, for the first page."""
    return [each for each in db.jobs() if each.state == "running"]


def words_of_jobs(found: Sequence[JobInfo]) -> dict[str, Any]:
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


NEWEST = 12
"""Things that the first page shows as new."""
FOUND = 10
"""Things of a kind that the page of a text shows."""
PAIRS = 40
"""Pairs of a model and a system whose best plans are shown."""

BEST = (
    *("model", "system", "profile", "tokens/s an accelerator", "MFU", "step", "memory", "ranks", "plan", "by"),
    "all profiles",
)
NEW = ("what", "name", "tokens/s an accelerator", "step", "about", "by", "created (UTC)")

SINGULAR = {"instances": "instance", "profiles": "profile", "searches": "search", "runs": "run", "graphs": "graph"}


def home(request: Request) -> Response:
    """The store, its newest content, and its best plans."""

    def read(db: Stagedb) -> tuple[Mapping[str, str], Overview, Sequence[JobInfo]]:
        engine = "embedded engine" if db.store.engine == "embedded" else f"server, database {db.store.database}"
        store = {"uri": db.store.uri, "engine": engine, "product": db.store.product()}
        return store, overview.overview(db.store, NEWEST), running_jobs(db)

    store, found, running = request.app.state.shared.read(read)
    return page_frames.page(
        request,
        "home.html",
        store=store,
        counts=[
            (kind if count != 1 else SINGULAR[kind], count, address("list", kind))
            for kind, count in found.counts.items()
        ],
        best_heads=BEST,
        best=[_best(each) for each in found.best[:PAIRS]],
        more=len(found.best) - PAIRS,
        new_heads=NEW,
        newest=[_row(each) for each in found.newest],
        empty=not any(found.counts.values()),
        part="running",
        **words_of_jobs(running),
    )


def lookup(request: Request) -> Response:
    """Anything whose name, id, tag or plan has the words of a text, by kind."""
    text = (named(request.query_params, "text") or "")[:LONGEST]
    plain, plan = words_of(text)
    wanted = plan_words({"plan": plan})
    parts: list[tuple[str, int, Sequence[str], list[list[Cell]], str]] = []
    if text:

        def read(db: Stagedb) -> tuple[list[FoundThings], list[QueryInfo]]:
            return overview.find_anywhere(db.store, plain, wanted, FOUND), [] if wanted else db.queries()

        found, queries = request.app.state.shared.read(read)
        for each in found:
            to = address("list", each.kind, text=plain or None, plan=plan or None)
            parts.append((each.kind, each.count, NEW[1:], [_row(thing)[1:] for thing in each.things], to))
        if not wanted:
            parts += _others(plain, queries)
    return page_frames.page(request, "lookup.html", text=text, parts=parts)


def words_of(text: str) -> tuple[str, str]:
    """A search text in two parts: the words to look for, and the words of a plan in it, such as `tp=8`."""
    plain, plan = list[str](), list[str]()
    for part in text.split():
        name, equals, value = part.partition("=")
        is_plan = bool(equals and value) and name.replace("-", "_") in PLAN_WORDS
        (plan if is_plan else plain).append(part)
    return " ".join(plain), " ".join(plan)


def _others(text: str, queries: Sequence[QueryInfo]) -> list[tuple[str, int, Sequence[str], list[list[Cell]], str]]:
    """Models of the library and named queries that have the words of a text."""
    words = text.casefold().split()

    def has(*texts: str) -> bool:
        return all(word in " ".join(texts).casefold() for word in words)

    models = [each for each in api.models() if has(each["name"], each["family"])]
    asked = [each for each in queries if has(each.name, each.description)]
    found = [
        (
            "models",
            len(models),
            ("name", "family"),
            [[cell(each["name"], address("models", each["name"])), cell(each["family"])] for each in models[:FOUND]],
            address("models", text=text),
        ),
        (
            "queries",
            len(asked),
            ("name", "about"),
            [[cell(each.name, address("queries", each.name)), cell(each.description)] for each in asked[:FOUND]],
            address("queries"),
        ),
    ]
    return [each for each in found if each[1]]


def _best(each: BestPlan) -> list[Cell]:
    """The best plan of a model on a system; the number leads to all of its profiles."""
    every = address("list", "profiles", model=each.model, system=each.system, sort="tokens")
    plan, model = each.plan, cell(each.model, address("list", "profiles", model=each.model, sort="tokens"))
    if plan is None:
        nothing: list[Any] = ["none fits", *[""] * 7]
        return [model, cell(each.system), *map(cell, nothing), cell(each.profiles, every)]
    figures = [
        Cell(f"{plan.tokens:,.1f}", number=True),
        Cell("" if plan.mfu is None else f"{plan.mfu:.1%}", number=True),
        Cell("" if plan.step is None else span(plan.step, 4), number=True),
        Cell("unknown" if plan.memory is None else gigabytes(plan.memory), number=True),
        cell(plan.ranks),
    ]
    return [
        model,
        cell(each.system),
        cell(plan.name or plan.id[:SHORT_ID], address("profiles", plan.id)),
        *figures,
        cell(plan.described(("ranks", "seq_len"))),
        cell(plan.made_by),
        cell(each.profiles, every),
    ]


def _row(each: Brief) -> list[Cell]:
    return [
        cell(SINGULAR[each.kind]),
        cell(each.name or each.id[:SHORT_ID], address(each.kind, each.id)),
        Cell("" if each.tokens is None else f"{each.tokens:,.1f}", number=True),
        Cell("" if each.step is None else span(each.step, 4), number=True),
        cell(each.about),
        cell(each.made_by),
        Cell(page_frames.minute(each.created)),
    ]
