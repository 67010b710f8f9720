"""Graphs and instances: options, plans, rank classes, memory."""

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stagedb import api
from stagedb.api import GraphInfo, InstanceInfo, Rows, Stagedb, listing
from stagedb.api.plan_texts import describe
from stagedb.serve import page_frames
from stagedb.serve.list_pages import HEADS, SIZE, table
from stagedb.serve.page_frames import SHORT_ID, cell, cells


def show(request: Request) -> Response:
    """The page of a graph, an instance, a profile, a search or a run, by id, start of an id, or name."""
    found = request.app.state.shared.read(lambda db: db.show(request.path_params["word"]))
    kind = api.kind_of(found)
    return RedirectResponse(page_frames.address("searches" if kind == "search" else f"{kind}s", found.id), 303)


def graph(request: Request) -> Response:
    """A graph: its options, the model's sizes, and its instances."""
    word = request.path_params["word"]

    def read(db: Stagedb) -> tuple[GraphInfo, tuple[Rows, int], Rows]:
        found = db.show(word)
        if not isinstance(found, GraphInfo):
            raise HTTPException(404)
        return found, listing.instances_of_graph(db.store, found.id, SIZE), db.origin(found.id)

    found, (instances, count), origin = request.app.state.shared.read(read)
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
        count=count,
    )


def instance(request: Request) -> Response:
    """An instance: its plan, its rank classes, and its profiles."""

    def read(db: Stagedb) -> tuple[InstanceInfo, Rows, Rows, Rows]:
        found = the_instance(db, request)
        return found, db.classes(found.id), listing.profiles_of(db.store, found), db.origin(found.id)

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


def the_instance(db: Stagedb, request: Request) -> InstanceInfo:
    """The instance that a path names."""
    found = db.show(request.path_params["word"])
    if not isinstance(found, InstanceInfo):
        raise HTTPException(404)
    return found


def _facts(words: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, cell(value).text) for name, value in words.items() if value not in (None, "", [], ())]
