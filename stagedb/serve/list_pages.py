"""What is there: models of the library, and the content of the store, filtered and sorted."""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stagedb import api
from stagedb.api import Rows, Stagedb, catalog, search_views
from stagedb.api.listing import KINDS, SORTS, ListedPage, instances_of_model, page
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, named
from stagedb.store import unfinished

SIZE = 50
"""Rows of a page."""

HEADS: Mapping[str, str] = {
    "name": "name",
    "id": "id",
    "model": "model",
    "ranks": "ranks",
    "plan": "plan",
    "system": "system",
    "step": "step",
    "mfu": "MFU",
    "peak": "memory",
    "made_by": "by",
    "tags": "tags",
    "created": "created (UTC)",
    "state": "state",
    "best": "best plan",
    "plans": "plans",
    "timed": "timed",
}
"""Columns of a listing, and their headers."""

SORTED_BY = {"created": "created", "name": "name", "ranks": "ranks", "step": "step", "mfu": "mfu", "peak": "memory"}
"""Columns that sort a listing, and the word of the address for each."""

STATES = ("running", "stopped", "being removed")
"""States of searches that are not complete, and have no page."""

_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "graphs": ("name", "id", "plan", "tags", "made_by", "created"),
    "instances": ("name", "id", "model", "ranks", "plan", "peak", "tags", "made_by", "created"),
    "profiles": ("name", "id", "model", "ranks", "plan", "system", "step", "mfu", "peak", "tags", "made_by", "created"),
    "searches": (
        *("name", "id", "state", "ranks", "system", "step", "peak", "best", "plans", "timed", "tags", "made_by"),
        "created",
    ),
    "runs": ("name", "id", "ranks", "plan", "system", "step", "tags", "made_by", "created"),
    "unfinished": ("name", "id", "state", "made_by", "created"),
}


def listing(request: Request) -> Response:
    """One kind of thing, filtered, sorted, and in pages."""
    kind = request.path_params["kind"]
    if kind not in KINDS:
        raise HTTPException(404)
    words = request.query_params
    model, system, tag, text = (named(words, name) for name in ("model", "system", "tag", "text"))
    sort, order = named(words, "sort") or "created", named(words, "order")
    if order not in (None, "asc", "desc"):
        raise UsageError("order in the address is asc or desc")
    number = number_of(words, "page", 1)

    def read(db: Stagedb) -> tuple[Rows, Rows]:
        every = db.ls(kind, sort=sort)
        # A filter that nothing matches is an error that names what there is, unless there is nothing at all.
        chosen = db.ls(kind, model=model, system=system, tag=tag, sort=sort) if model or system or tag else every
        return every, chosen

    every, chosen = request.app.state.shared.read(read)
    found = page(_in_order(chosen, sort, order), text, number, SIZE)
    shown_rows = found.rows
    if kind == "searches":
        first = number == 1 and not (model or system or tag or text)
        shown_rows = request.app.state.shared.read(lambda db: with_searches(db, found.rows, running=first))
    columns, rows = table(kind, shown_rows)
    asked = {"model": model, "system": system, "tag": tag, "text": text}
    return page_frames.page(
        request,
        "listing.html",
        kind=kind,
        kinds=[each for each in KINDS if each != "unfinished" or each == kind],
        columns=columns,
        rows=rows,
        heads=HEADS,
        found=found,
        asked={**asked, "sort": sort, "order": order},
        models=_values(every, "model"),
        tags=sorted({each for row in every for each in row["tags"] or ()}),
        systems=_values(every, "system") if kind == "searches" else [],
        sorts=[each for each in SORTS if each not in ("step", "mfu")],
        links=_links(kind, columns, found, asked, sort, order),
    )


def models(request: Request) -> Response:
    """The library of models, with links to what the store has of each."""
    text = named(request.query_params, "text") or ""
    rows = [row for row in api.models() if text.casefold() in f"{row['name']} {row['family']}".casefold()]
    columns = list(rows[0]) if rows else []
    lines = [
        [cell(value, address("models", row["name"]) if name == "name" else None) for name, value in row.items()]
        for row in rows
    ]
    return page_frames.page(request, "models.html", columns=columns, rows=lines, text=text)


def model(request: Request) -> Response:
    """The page of a model: its card, and the graphs, instances and profiles of it in the store."""
    name = request.path_params["name"]
    if name not in {row["name"] for row in api.models()}:
        # A word that is no name of the library would be the path of a file on the server's machine.
        raise UsageError(f"the library has no model {shown(name)}: the page of models lists all of them")
    card = api.model(name)

    shared = request.app.state.shared
    there, count = shared.read(lambda db: instances_of_model(db.store, name, SIZE))
    columns, rows = table("instances", there)
    facts = [(word, cell(value).text) for word, value in card.items() if value not in (None, "", (), [])]
    return page_frames.page(
        request, "model.html", name=name, facts=facts, columns=columns, rows=rows, heads=HEADS, count=count
    )


def with_searches(db: Stagedb, listed: Rows, *, running: bool = False) -> Rows:
    """Searches of a list with what only their list shows: the state, the best plan in words, how many plans.

    running: with those before them that are not complete.
    """
    infos = {each.id: each for each in db.searches()}
    best = search_views.best_plans(db.store, [row["id"] for row in listed])
    rows: list[dict[str, Any]] = _running(db) if running else []
    for row in listed:
        info = infos.get(row["id"])
        if info is not None:
            ranks = ", ".join(f"{each:,}" for each in info.ranks)
            state = "finished" if info.covered else "unfinished"
            row |= {"state": state, "ranks": ranks, "plans": info.size, "timed": info.timed}
        rows.append({**row, "best": best.get(row["id"])})
    columns = (*listed.columns, "best", "plans", "timed")
    return Rows(columns, tuple(tuple(row.get(name) for name in columns) for row in rows))


def _running(db: Stagedb) -> list[dict[str, Any]]:
    """Searches that run or were stopped, as rows."""
    found = []
    for each in unfinished(db.store):
        if each.kind == "Search":
            running, stopped, removed = STATES
            state = removed if each.state == "deleting" else stopped if each.dead else running
            created = None if each.created is None else catalog.time_of(each.created)
            found.append({"id": each.id, "name": each.name, "state": state, "created": created, "made_by": each.user})
    return found


def table(kind: str, listed: Rows) -> tuple[list[str], list[list[Cell]]]:
    """The columns of a kind that have a value in some row, and the rows as cells."""
    rows = list(listed)
    columns = [name for name in _BY_KIND[kind] if name == "name" or any(row[name] not in (None, []) for row in rows)]
    return columns, [[_cell(kind, name, row) for name in columns] for row in rows]


def _cell(kind: str, name: str, row: Mapping[str, Any]) -> Cell:
    value = row[name]
    to = None if kind == "unfinished" or row["state"] in STATES else address(kind, row["id"])
    if name == "name":
        return cell(row["name"] or row["id"][:SHORT_ID], to)
    if value is None:
        return cell(None)
    if name == "id":
        return cell(value[:SHORT_ID], to)
    if name == "plan":
        return cell(" ".join(filter(None, (value, row["timing"]))))
    if name == "step":
        return Cell(span(value, 4), number=True)
    if name == "mfu":
        return Cell(f"{value:.1%}", number=True)
    if name == "peak":
        return Cell(page_frames.gigabytes(value), number=True)
    if name == "created":
        return Cell(page_frames.minute(value))
    if name == "tags":
        return cell(", ".join(value))
    return cell(value)


def number_of(words: Mapping[str, str], name: str, default: int) -> int:
    """A whole number from 1 to a million in the address.

    default: for an address without the number. words: the parameters of the address. name: of the parameter. UsageError
    for another text.
    """
    text = named(words, name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:8]) <= 1_000_000:
        raise UsageError(f"{name} in the address is a number from 1 to 1,000,000")
    return int(text[:8])


def _values(rows: Rows, column: str) -> list[str]:
    return sorted({str(row[column]) for row in rows if row[column] is not None})


def _in_order(rows: Rows, sort: str, order: str | None) -> Rows:
    """The rows of a sorted list, the other way round if that is asked for. Those without the figure stay last."""
    column, falls = SORTS[sort]
    if order is None or (order == "desc") == falls:
        return rows
    at = rows.columns.index(column)
    there = [row for row in rows.rows if row[at] is not None]
    return Rows(rows.columns, (*reversed(there), *(row for row in rows.rows if row[at] is None)))


def _links(
    kind: str,
    columns: Sequence[str],
    found: ListedPage,
    asked: Mapping[str, str | None],
    sort: str,
    order: str | None,
) -> dict[str, Any]:
    """Addresses of the same list in another order, and of the pages before and after this one."""
    falls = SORTS[sort][1] if order is None else order == "desc"
    sorts = {}
    for name in columns:
        if name in SORTED_BY and name not in ("step", "mfu"):
            other = ("asc" if falls else "desc") if SORTED_BY[name] == sort else None
            sorts[name] = address("list", kind, **{**asked, "sort": SORTED_BY[name], "order": other})
    turn = {
        word: address("list", kind, **{**asked, "sort": sort, "order": order, "page": at})
        for word, at in (("before", found.number - 1), ("after", found.number + 1))
        if 1 <= at <= found.pages
    }
    mine = next(name for name in SORTED_BY if SORTED_BY[name] == sort)
    return {"sorts": sorts, "sorted": mine, "order": "descending" if falls else "ascending", **turn}
