"""Profiles: their figures, their reports, and two profiles or instances side by side."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stagedb import api
from stagedb.api import Difference, InstanceInfo, ProfileInfo, Rows, RunInfo, Stagedb, views
from stagedb.errors import UsageError
from stagedb.outputs import file_name
from stagedb.serve import page_frames
from stagedb.serve.memory_page import moment_links
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, cells, named

MOST = 500
"""Rows of a table of differences."""
CHOICES = 200
"""Names that a form suggests."""

REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox allow-scripts"
)
"""A report has its scripts and styles inside. `sandbox` gives it an origin of its own, so that it reaches no page."""


def profile(request: Request) -> Response:
    """A profile: the parts of the report of its step, which come after its head."""

    def read(db: Stagedb) -> tuple[ProfileInfo, Rows]:
        found = _profile(db, request.path_params["word"])
        return found, db.origin(found.id)

    shared, kept = request.app.state.shared, request.app.state.kept
    found, origin = shared.read(read)

    key = ("parts", found.id)

    def parts() -> str:
        link = moment_links(found.instance)
        made: str = kept.get(key, lambda: shared.read(lambda db: views.report_parts(db.store, found.id, link).html))
        return made

    return page_frames.page_in_parts(
        request,
        "profile.html",
        parts,
        ready=kept.has(key),
        info=found,
        short=found.id[:SHORT_ID],
        origin=page_frames.origin(origin),
        report=address("profiles", found.id, "report"),
    )


def report(request: Request) -> Response:
    """The report of a profile, as `stagedb report` writes it."""
    shared, kept = request.app.state.shared, request.app.state.kept
    found = shared.read(lambda db: _profile(db, request.path_params["word"]))
    key = ("report", found.id, found.name, found.instance_name)
    return report_answer(kept.get(key, lambda: shared.read(lambda db: db.report_page(found.id))))


def trace(request: Request) -> Response:
    """The timeline of a profile as a file for Perfetto, as `stagedb timeline` writes it."""
    shared = request.app.state.shared
    found = shared.read(lambda db: _profile(db, request.path_params["word"]))
    content: bytes = shared.read(lambda db: views.perfetto_trace(db.store, found.id))
    name = f'attachment; filename="{file_name(found.name or found.instance_name)}-{found.id[:SHORT_ID]}.pftrace"'
    return Response(content, headers={"content-disposition": name}, media_type="application/octet-stream")


def pair_report(request: Request) -> Response:
    """The report of two profiles."""
    shared, kept = request.app.state.shared, request.app.state.kept
    words = [named(request.query_params, name) or "" for name in ("first", "second")]
    one, other = (shared.read(lambda db, word=word: _profile(db, word)) for word in words)
    key = ("pair", one.id, one.name, one.instance_name, other.id, other.name, other.instance_name)
    return report_answer(kept.get(key, lambda: shared.read(lambda db: db.report_page(one.id, other.id))))


def compare(request: Request) -> Response:
    """Two instances or two profiles side by side; without both words, a form that asks for them."""
    first, second = compared(request)
    shared = request.app.state.shared
    names = shared.read(suggestions)
    form = {"first": first or "", "second": second or "", "names": names}
    if first is None or second is None:
        return page_frames.page(request, "compare.html", found=None, **form)
    found: Difference = shared.read(lambda db: db.diff(first, second))
    pair = isinstance(found.first, ProfileInfo)
    parts = [
        (title, name, len(rows), *_table(rows))
        for title, name, rows in (
            ("Words of the plans", "plan", found.plan),
            ("Time: figures, and the average time of a rank", "time", found.time),
            (WORK_OF_RUNS if isinstance(found.first, RunInfo) else WORK, "work", found.work),
        )
        if rows.rows
    ]
    sides = [_side(each) for each in (found.first, found.second)]
    both = {"first": found.first.id, "second": found.second.id}
    links = {"report": address("compare", "report", **both) if pair and not found.same else None}
    return page_frames.page(
        request, "compare.html", found=found, sides=sides, parts=parts, links=links, most=MOST, **form
    )


def compared(request: Request) -> tuple[str | None, str | None]:
    """The two of an address: `of=A&of=B`, or `first=A&second=B`. Raises UsageError for more than two."""
    words: list[str | None] = [each.strip() for each in request.query_params.getlist("of") if each.strip()]
    if len(words) > 2:
        raise UsageError(f"a comparison takes two, and {len(words)} are ticked: leave two ticked")
    given = words or [named(request.query_params, name) for name in ("first", "second")]
    first, second = [*given, None, None][:2]
    return first, second


WORK = "Work and messages of a step, all ranks together"
WORK_OF_RUNS = "Operators and calls, a rank and step"


def suggestions(db: Stagedb) -> list[tuple[str, str]]:
    """Ids of the newest instances, profiles, searches and runs, each with a description, for forms."""
    found = [(each.id[:SHORT_ID], f"instance {each.name}, {each.ranks:,} ranks") for each in db.instances()]
    found += [
        (each.id[:SHORT_ID], f"profile {each.name or each.instance_name} on {each.system}, {each.ranks:,} ranks")
        for each in db.profiles()
    ]
    found += [(each.id[:SHORT_ID], f"search of {each.model}, {each.size:,} plans") for each in db.searches()]
    found += [(each.id[:SHORT_ID], f"run {each.name or ''}, {each.extent}") for each in db.runs()]
    return [(id, cell(text).text) for id, text in found[:CHOICES]]


def report_answer(text: str) -> Response:
    """A report as an answer, which reaches no page."""
    return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})


def _profile(db: Stagedb, word: str) -> ProfileInfo:
    found = db.show(word)
    if not isinstance(found, ProfileInfo):
        raise HTTPException(404)
    return found


def _side(info: InstanceInfo | ProfileInfo | RunInfo) -> dict[str, Any]:
    kind = api.kind_of(info)
    name, system = (
        (info.name or info.instance_name, f" on {info.system}") if isinstance(info, ProfileInfo) else (info.name, "")
    )
    about = f"{kind} {info.id[:SHORT_ID]}{system}"
    return {"name": cell(name or info.id[:SHORT_ID]).text, "about": about, "to": address(f"{kind}s", info.id)}


def _table(rows: Rows) -> tuple[tuple[str, ...], list[list[Cell]]]:
    found = cells(rows.rows[:MOST])
    if "ratio" in rows.columns:
        at = rows.columns.index("ratio")
        for row, values in zip(found, rows.rows, strict=False):
            row[at] = Cell("" if values[at] is None else f"{values[at]:,.4g}", number=True)
    return rows.columns, found
