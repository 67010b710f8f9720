"""Searches: a picture of all candidates, the best plans, both fronts, why the others lose; and their reports."""

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, Searched, SearchInfo, Stagedb, search_views
from stagedb.reports.candidates_chart import Link, candidates_chart
from stagedb.reports.search_page import (
    MOST,
    SearchTable,
    asked_facts,
    best_table,
    losses_table,
    memory_table,
    terms_section,
)
from stagedb.reports.search_page import ranks_table as best_of_ranks
from stagedb.reports.search_view import SearchView
from stagedb.serve import page_frames
from stagedb.serve.page_frames import FORMATS, SHORT_ID, Cell, address, cell, file_of, format_of, named
from stagedb.serve.step_pages import report_answer

Table = tuple[list[str], list[list[Cell]]]
"""Columns and rows."""


def search(request: Request) -> Response:
    """A search: what it asked, what it found, and whether something better may be left."""
    shared = request.app.state.shared
    info = _search(request)
    searched = _searched(request, info)
    format_ = format_of(request)
    if format_ is not None:
        rows, most = searched.candidates, request.app.state.limits.rows
        some = Rows(rows.columns, rows.rows[:most])
        return file_of(some, format_, f"search-{info.id[:SHORT_ID]}", cut=len(rows) > most)
    view: SearchView = shared.read(lambda db: search_views.view_of(db.store, searched))
    origin: Rows = shared.read(lambda db: db.origin(info.id))
    asked = {name: named(request.query_params, name) for name in ("color", "show")}
    best = best_table(view)
    first = next(iter(best.places), None)
    return page_frames.page(
        request,
        "search.html",
        info=info,
        short=info.id[:SHORT_ID],
        title=view.title,
        verdict=view.verdict,
        origin=page_frames.origin(origin),
        picture=candidates_chart(view, **asked, links=links_of(view), form=True),
        best=None if first is None else view.plans[first],
        command=None if first is None else view.commands.get(first),
        commands=[(view.plans[place], view.commands.get(place)) for place in best.places[1:]],
        plans=_with_made(view, best),
        ids=[f"plan-{place}" for place in best.places],
        more=max(0, len(view.winners) - MOST),
        # `terms_section` returns HTML in which every text is escaped.
        terms=terms_section(view),
        memory=shown(memory_table(view)),
        ranks=shown(best_of_ranks(view)),
        losses=shown(losses_table(view)),
        facts=[(name, cell(value).text) for name, value in asked_facts(view).items()],
        report=address("searches", info.id, "report"),
        files={each: address("searches", info.id, format=each) for each in FORMATS},
    )


def report(request: Request) -> Response:
    """The report of a search, as `stagedb report` writes it."""
    info = _search(request)
    searched = _searched(request, info)
    return report_answer(request.app.state.shared.read(lambda db: search_views.report_of(db.store, searched)))


def _search(request: Request) -> SearchInfo:
    found = request.app.state.shared.read(lambda db: db.show(request.path_params["word"]))
    if not isinstance(found, SearchInfo):
        raise HTTPException(404)
    return found


def _searched(request: Request, info: SearchInfo) -> Searched:
    """A search with its candidates. The server keeps those that were read last."""
    shared, kept = request.app.state.shared, request.app.state.kept_searches

    def read(db: Stagedb) -> Searched:
        return db.searched(info.id)

    # A search that goes on has another number of timed plans, or another time.
    key = (info.id, info.covered, info.timed, info.seconds)
    found: Searched = kept.get(key, lambda: shared.read(read))
    return found


def shown(table: SearchTable) -> Table:
    """A table of a search as a table of a page."""
    rows = [
        [
            Cell(cell(each if isinstance(each, str) else each[0]).text, number=column.numeric)
            for column, each in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    return [column.name for column in table.columns], rows


def links_of(view: SearchView) -> dict[int, list[Link]]:
    """Where plans lead that became instances: to these and to their newest profiles."""
    found: dict[int, list[Link]] = {}
    for place, several in view.made.items():
        for each in several:
            mine = found.setdefault(place, [])
            mine.append(Link(f"instance {each.name}", address("instances", each.instance)))
            mine += [Link(f"profile {id[:SHORT_ID]}", address("profiles", id)) for id in each.profiles[:1]]
    return found


def _with_made(view: SearchView, table: SearchTable) -> Table:
    """The best plans with links to what they became, if any became something."""
    columns, rows = shown(table)
    if not any(view.made.get(place) for place in table.places):
        return columns, rows
    linked = [[*row, *_made(view, place)] for row, place in zip(rows, table.places, strict=True)]
    return [*columns, "instance", "profile"], linked


def _made(view: SearchView, place: int) -> Sequence[Cell]:
    """Links to the instance of a plan and to its newest profile."""
    for each in view.made.get(place, ()):
        profile = next(iter(each.profiles), None)
        linked = cell(None) if profile is None else cell(profile[:SHORT_ID], address("profiles", profile))
        return cell(each.name, address("instances", each.instance)), linked
    return cell(None), cell(None)
