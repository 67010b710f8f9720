"""Graphs and instances: options, plans, rank classes, memory."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stagedb import api
from stagedb.api import GraphInfo, InstanceInfo, Memory, Rows, Stagedb
from stagedb.api.plan_texts import describe
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.outputs import reserve_text
from stagedb.serve import page_frames
from stagedb.serve.list_pages import HEADS, table
from stagedb.serve.page_frames import SHORT_ID, cell, cells, gigabytes, named

MOMENT = "peak"
TENSORS = 12
"""The largest tensors of a class that its memory shows."""


def show(request: Request) -> Response:
    """The page of a graph, an instance, a profile, a search or a run, by id, start of an id, or name."""
    found = request.app.state.shared.read(lambda db: db.show(request.path_params["word"]))
    kind = api.kind_of(found)
    return RedirectResponse(page_frames.address("searches" if kind == "search" else f"{kind}s", found.id), 303)


def graph(request: Request) -> Response:
    """A graph: its options, the model's sizes, and its instances."""
    word = request.path_params["word"]

    def read(db: Stagedb) -> tuple[GraphInfo, Rows, Rows]:
        found = db.show(word)
        if not isinstance(found, GraphInfo):
            raise HTTPException(404)
        mine = {each.id for each in db.instances() if each.graph == found.id}
        return found, _only(db.ls("instances"), "id", mine), db.origin(found.id)

    found, instances, origin = request.app.state.shared.read(read)
    columns, rows = table("instances", instances)
    return page_frames.page(
        request,
        "graph.html",
        info=found,
        short=found.id[:SHORT_ID],
        about=describe(found.options),
        origin=page_frames.origin(origin),
        facts=_facts({**found.options, **found.sizes}),
        columns=columns,
        rows=rows,
        heads=HEADS,
    )


def instance(request: Request) -> Response:
    """An instance: its plan, its rank classes, and its profiles."""

    def read(db: Stagedb) -> tuple[InstanceInfo, Rows, Rows, Rows]:
        found = _instance(db, request)
        profiles = _only(db.ls("profiles"), "instance", {found.id})
        return found, db.classes(found.id), profiles, db.origin(found.id)

    found, classes, profiles, origin = request.app.state.shared.read(read)
    columns, rows = table("profiles", profiles)
    return page_frames.page(
        request,
        "instance.html",
        info=found,
        short=found.id[:SHORT_ID],
        about=describe(found.plan),
        origin=page_frames.origin(origin),
        facts=_facts(found.plan),
        class_columns=classes.columns,
        classes=cells(classes.rows),
        columns=columns,
        rows=rows,
        heads=HEADS,
    )


def memory(request: Request) -> Response:
    """The memory of a rank of each class of an instance. What the store does not have is computed, and not stored."""
    system = named(request.query_params, "system")
    if system is not None and system not in {row["name"] for row in api.systems()}:
        # Other words that name a system are files of the server's machine.
        raise UsageError(f"there is no system {shown(system)}: the list on this page has all of them")
    shared, kept = request.app.state.shared, request.app.state.kept
    found = shared.read(lambda db: _instance(db, request))
    result: Memory = kept.get(
        ("memory", found.id, system, found.name),
        lambda: shared.read(lambda db: db.memory(found.id, system=system, keep=False)),
    )
    levels = [row for row in result.levels if row["moment"] == MOMENT]
    categories = sorted({row["category"] for row in levels})
    whole = max([row["peak"] for row in result.peaks] + ([result.room] if result.room else []), default=1)
    bars = [
        {
            "label": f"class {row['class']}",
            "peak": gigabytes(row["peak"]),
            "parts": _parts(levels, row["class"], categories, whole),
        }
        for row in result.peaks
    ]
    others = [name for name in result.peaks.columns if name != "peak"]
    return page_frames.page(
        request,
        "memory.html",
        info=found,
        short=found.id[:SHORT_ID],
        bars=bars,
        categories=categories,
        room=None if result.room is None else (gigabytes(result.room), 100 * result.room / whole),
        reserve="" if result.room is None else reserve_text(result.room, result.reserve),
        fits=result.fits,
        columns=["peak", *others],
        rows=[[cell(gigabytes(row["peak"])), *(cell(row[name]) for name in others)] for row in result.peaks],
        tensors=_largest(result),
        systems=[row["name"] for row in api.systems()],
        system=system,
    )


def _instance(db: Stagedb, request: Request) -> InstanceInfo:
    found = db.show(request.path_params["word"])
    if not isinstance(found, InstanceInfo):
        raise HTTPException(404)
    return found


def _parts(levels: list[dict[str, Any]], number: int, categories: list[str], whole: int) -> list[dict[str, Any]]:
    """The bar of a class: where each category begins and how long it is, in percent of the whole."""
    parts, start = [], 0.0
    for place, category in enumerate(categories):
        size = sum(row["bytes"] for row in levels if row["class"] == number and row["category"] == category)
        width = 100 * size / whole
        if size:
            parts.append({"style": place % 10, "x": start, "width": width, "title": f"{category}: {gigabytes(size)}"})
        start += width
    return parts


def _largest(result: Memory) -> list[tuple[int, list[list[page_frames.Cell]]]]:
    found: dict[int, list[list[page_frames.Cell]]] = {}
    for row in result.tensors:
        mine = found.setdefault(row["class"], [])
        if len(mine) < TENSORS:
            size = page_frames.Cell(gigabytes(row["bytes"]), number=True)
            mine.append([*(cell(row[name]) for name in ("name", "layer", "category", "count")), size])
    return list(found.items())


def _only(rows: Rows, column: str, values: set[str]) -> Rows:
    at = rows.columns.index(column)
    return Rows(rows.columns, tuple(row for row in rows.rows if row[at] in values))


def _facts(words: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, cell(value).text) for name, value in words.items() if value not in (None, "", [], ())]
