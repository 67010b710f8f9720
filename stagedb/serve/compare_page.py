"""Two instances or profiles side by side, or a run next to its instance."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import Difference, InstanceInfo, ProfileInfo, Rows, RunInfo
from stagedb.errors import UsageError
from stagedb.serve import page_frames, step_pages
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, cells, named

MOST = 500
"""Rows of a table of differences."""


def pair_report(request: Request) -> Response:
    """The report of two profiles."""
    shared, kept = request.app.state.shared, request.app.state.kept
    words = [named(request.query_params, name) or "" for name in ("first", "second")]
    one, other = (shared.read(lambda db, word=word: step_pages.profile_of(db, word)) for word in words)
    key = ("pair", one.id, one.name, one.instance_name, other.id, other.name, other.instance_name)
    return step_pages.report_answer(kept.get(key, lambda: shared.read(lambda db: db.report_page(one.id, other.id))))


def compare(request: Request) -> Response:
    """Two instances or two profiles side by side; without both words, a form that asks for them."""
    first, second = compared(request)
    shared = request.app.state.shared
    names = shared.read(step_pages.suggestions)
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
