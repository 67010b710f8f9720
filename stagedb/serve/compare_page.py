"""Two to eight instances or profiles next to each other, two runs, or a run next to its instance."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import (
    Difference,
    InstanceInfo,
    PlanComparison,
    ProfileInfo,
    Rows,
    RunInfo,
    Stagedb,
    catalog,
    comparing,
    matching,
    plan_comparison,
    views,
)
from stagedb.api.comparing import SeenAgainstPlan
from stagedb.api.plan_comparison import MOST
from stagedb.api.results import Thing
from stagedb.errors import UsageError
from stagedb.files.texts import bytes_text, spans_of
from stagedb.mentions import call
from stagedb.reports.seen_step import signed_bytes
from stagedb.reports.step_difference import labels, scaled_to_first, signed_time, time_text
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames, step_pages
from stagedb.serve.compared_bars import figure_rows, memory_bars, term_bars, term_rows
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, cells, gigabytes, named

ROWS = 500
"""Rows of a table of differences."""
PARTS = 16
"""Kinds of operators and communication that a page has."""
CHOICES = 200
"""Things that the form offers, the newest first."""

Compared = InstanceInfo | ProfileInfo | RunInfo

PICTURE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"
"""A picture has its styles inside, and neither scripts nor anything else."""


def compare(request: Request) -> Response:
    """The page that compares what the address names; with fewer than two names, a form that asks for them."""
    words = compared(request)
    shared, kept = request.app.state.shared, request.app.state.kept
    things: list[Thing] = shared.read(lambda db: [db.show(word) for word in words])
    for each in things:
        if not isinstance(each, Compared):
            raise UsageError(
                f"{each.id[:SHORT_ID]} is a {api.kind_of(each)}: compare instances, profiles or runs "
                f"({call('ls')} lists them)"
            )
    form = {
        "chosen": [_chosen(words, at, each) for at, each in enumerate(things)],
        "words": words,
        "most": MOST,
        "offered": shared.read(lambda db: _offered(db, things)) if len(words) < MOST else [],
        "hint": _hint(things),
    }
    if len(things) < 2:
        return page_frames.page(request, "compare.html", kind="form", **form)
    runs = [each for each in things if isinstance(each, RunInfo)]
    if len(things) == 2 and len(runs) == 2:
        found: Difference = shared.read(lambda db: db.diff(runs[0].id, runs[1].id))
        return page_frames.page(request, "compare.html", kind="runs", **form, **_runs(found))
    if len(things) == 2 and runs:
        (other,) = (word for word, each in zip(words, things, strict=True) if each is not runs[0])
        seen: SeenAgainstPlan = shared.read(lambda db: _seen(db, runs[0], other))
        return page_frames.page(request, "compare.html", kind="seen", **form, **_seen_words(seen))

    def read(db: Stagedb) -> PlanComparison:
        def held(each: InstanceInfo) -> Mapping[str, int]:
            made: Mapping[str, int] = kept.get(("held", each.id), lambda: plan_comparison.fullest(db.store, each))
            return made

        return plan_comparison.compare(db.store, words, held)

    plans: PlanComparison = shared.read(read)
    return page_frames.page(request, "compare.html", kind="plans", **form, **_plans(plans))


def compared(request: Request) -> list[str]:
    """The words of an address: `of=A&of=B`, or `first=A&second=B`. Raises UsageError for more than eight."""
    words = [each.strip() for each in request.query_params.getlist("of") if each.strip()]
    words = words or [word for name in ("first", "second") if (word := named(request.query_params, name))]
    if len(words) > MOST:
        raise UsageError(f"a comparison takes 2 to {MOST}, and {len(words)} are chosen: leave at most {MOST} ticked")
    return words


def pair_report(request: Request) -> Response:
    """The report of two profiles."""
    shared, kept = request.app.state.shared, request.app.state.kept
    found = _profiles(request)
    if len(found) != 2:
        raise UsageError(f"a report of two profiles takes two, and {len(found)} are named")
    one, other = found
    key = ("pair", one.id, one.name, one.instance_name, other.id, other.name, other.instance_name)
    return step_pages.report_answer(kept.get(key, lambda: shared.read(lambda db: db.report_page(one.id, other.id))))


def picture(request: Request) -> Response:
    """The pipelines of profiles on one scale, as a picture."""
    shared, kept = request.app.state.shared, request.app.state.kept
    found = _profiles(request)
    if not found:
        raise UsageError("a picture of pipelines takes profiles: name them with of=")
    names = labels([each.name or each.instance_name for each in found])
    sides = tuple(zip(found, names, strict=True))
    key = ("pipelines", *((each.id, name) for each, name in sides))
    drawn: str = kept.get(key, lambda: shared.read(lambda db: views.pipelines(db.store, sides)))
    return Response(drawn, media_type="image/svg+xml", headers={"content-security-policy": PICTURE_POLICY})


def _profiles(request: Request) -> list[ProfileInfo]:
    shared = request.app.state.shared
    return [shared.read(lambda db, word=word: step_pages.profile_of(db, word)) for word in compared(request)]


def to_instance(db: Stagedb, run: RunInfo) -> tuple[str, bool]:
    """The address that compares a run with the instance that it was matched with, or asks for one; which it is."""
    instance = matching.instance_of_run(db.store, run.id)
    return address("compare", of=[run.id] if instance is None else [run.id, instance]), instance is not None


def _chosen(words: Sequence[str], at: int, info: Thing) -> dict[str, Any]:
    """One of what is compared: its name, its page, and the address without it."""
    kind = api.kind_of(info)
    name = info.name or (info.instance_name if isinstance(info, ProfileInfo) else None)
    without = [word for place, word in enumerate(words) if place != at]
    return {
        "name": cell(name or info.id[:SHORT_ID]).text,
        "about": f"{kind} {info.id[:SHORT_ID]}{f' on {info.system}' if isinstance(info, ProfileInfo) else ''}",
        "to": address("searches" if kind == "search" else f"{kind}s", info.id),
        "without": address("compare", of=without),
    }


def _hint(things: Sequence[Thing]) -> str:
    """The next step for somebody who fills in the form, as a text."""
    if not things:
        return "The first of 2 to 8 instances or profiles, or a run"
    kind = api.kind_of(things[0])
    return (
        "Add the instance that it ran, a profile of that, or another run." if kind == "run" else f"Add another {kind}."
    )


def _offered(db: Stagedb, things: Sequence[Thing]) -> list[tuple[str, str]]:
    """The things that can be compared with those that are chosen, as ids with descriptions."""
    kinds, found = {api.kind_of(each) for each in things}, list[tuple[str, str]]()
    if kinds <= {"instance", "run"}:
        found += [
            (each.id, f"instance {each.name}, {each.ranks:,} ranks") for each in catalog.instances(db.store, CHOICES)
        ]
    if kinds <= {"profile", "run"}:
        found += [
            (each.id, f"profile {each.name or each.instance_name}, {each.ranks:,} {each.system}, {span(each.step, 4)}")
            for each in catalog.profiles(db.store, CHOICES)
        ]
    if kinds <= {"run"} or len(things) == 1:
        found += [(each.id, f"run {each.name or ''}, {each.extent}") for each in db.runs()[:CHOICES]]
    taken = {each.id for each in things}
    return [(id[:SHORT_ID], f"{cell(text).text} ({id[:SHORT_ID]})") for id, text in found if id not in taken]


def _plans(found: PlanComparison) -> dict[str, Any]:
    """What the page shows of plans."""
    terms = found.compared_terms
    steps = (
        [each.step * scale for each, scale in zip(found.sums, scaled_to_first(found.sums), strict=True)]
        if terms
        else []
    )
    return {
        "found": found,
        "figures": figure_rows(found),
        "plan": cells(found.plan.rows),
        "terms": term_bars(found.names, terms, steps),
        "term_rows": term_rows(terms),
        "memory": memory_bars(found),
        "memory_rows": [
            [row[0].replace("_", " "), *(gigabytes(each) if each else "0" for each in row[1:])]
            for row in found.memory.rows
        ],
        "parts": [
            [cell(each.text), *(Cell(time_text(ns), number=True) for ns in (each.spread, *each.values))]
            for each in found.compared_parts[:PARTS]
        ],
        "more_parts": max(len(found.compared_parts) - PARTS, 0),
        "work": cells(found.work.rows[:ROWS]),
        "scaled": len({each.tokens for each in found.sums}) > 1,
        **_reports(found),
    }


def _reports(found: PlanComparison) -> dict[str, Any]:
    """The picture of the pipelines, and the report of both, or one of the fastest and each of the others."""
    if not found.profiles:
        return {"picture": None, "reports": []}
    best = max(range(len(found.sums)), key=lambda at: found.sums[at].rate)
    pairs = [at for at in range(len(found.profiles)) if at != best] if len(found.profiles) > 2 else [1 - best]
    return {
        "picture": address("compare", "pipelines.svg", of=[each.id for each in found.profiles]),
        "reports": [
            (
                f"the report of {found.names[best]} and {found.names[at]}",
                address("compare", "report", of=[found.profiles[each].id for each in sorted((best, at))]),
            )
            for at in pairs
        ],
    }


def _seen(db: Stagedb, run: RunInfo, other: str) -> SeenAgainstPlan:
    return comparing.seen_against_plan(db.store, run, comparing.side_of(db.store, other))


def _seen_words(seen: SeenAgainstPlan) -> dict[str, Any]:
    """What the page shows of a run and what was expected."""
    findings = seen.match.findings
    columns = [name for name in findings.columns if name in ("finding", "seen", "module", "ranks", "planned", "reason")]
    rows = [[row[name] for name in columns] for row in findings]
    return {
        "seen": seen,
        "profile": None if seen.profile is None else address("profiles", seen.profile.id),
        "terms": term_bars(("expected", "seen"), seen.terms, [each.step for each in seen.sums]),
        "term_rows": term_rows(seen.terms),
        "findings": cells(rows[:ROWS]),
        "finding_columns": columns,
        "calls": [[what, *times] for what, _, *times in _table(seen.calls)[1]],
        "memory": _memory(seen.memory),
    }


def _memory(rows: Rows) -> list[list[Cell]]:
    """Ranks, place, moment, bytes expected and seen, their difference, and what ran."""
    return [
        [
            *(cell(spans_of(row["fullest"])), cell(row["place"]), cell(row["moment"].replace("_", " "))),
            *(Cell(bytes_text(row[side], 4), number=True) for side in ("expected", "seen")),
            Cell(signed_bytes(row["difference"]), number=True),
            cell(row["seen_in"] or ""),
        ]
        for row in rows
    ][:ROWS]


def _runs(found: Difference) -> dict[str, Any]:
    """What the page shows of two runs."""
    titles = (("Where the time of a rank goes", found.time), ("Operators and calls, a rank and step", found.work))
    tables = [(title, *_table(rows)) for title, rows in titles if rows.rows]
    return {"verdict": found.verdict, "remark": found.remark, "tables": tables}


def _table(rows: Rows) -> tuple[list[str], list[list[Cell]]]:
    """Rows with times as people read them, and ratios in four digits."""
    times = [name for name, unit in rows.units.items() if unit == "ns"]
    found = cells(rows.rows[:ROWS])
    for at, name in enumerate(rows.columns):
        for line, values in zip(found, rows.rows, strict=False):
            ns = name in times or (name in ("first", "second") and str(values[1]).startswith("ns"))
            if ns and isinstance(values[at], int | float):
                line[at] = Cell(signed_time(values[at]) if name == "change" else time_text(values[at]), number=True)
            elif name == "ratio":
                line[at] = Cell("" if values[at] is None else f"{values[at]:,.4g}", number=True)
    return [name.replace("_", " ") for name in rows.columns], found
