"""Pages that a server makes before anybody asks for them, so that its first reader waits no longer than later ones.

A store plans a query when it is first asked, which takes a Neo4j server tenths of a second each.
"""

import asyncio
import sys
from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.types import Message

from stagedb.api import Stagedb, lookup, overview
from stagedb.serve.shared_store import SharedStore

LISTS = ("/", "/list/instances", "/list/profiles", "/cypher", "/lookup?text=stagedb")
OTHERS = ("/find", "/queries", "/log", "/list/graphs", "/list/searches", "/list/runs", "/jobs", "/explore", "/models")
"""Pages that are made last."""
AWAY = 503
"""The status of a page whose store does not answer."""


async def make_first_pages(app: Starlette) -> None:
    """Make the first pages, those of the newest thing of each kind, and all other lists, one after the other.

    It ends where the store is away: the page of a reader names that.
    app: the application, whose state has the connection as `shared`.
    """
    shared: SharedStore = app.state.shared
    for address in LISTS:
        if await _status(app, address) == AWAY:
            return
    for address in (*await run_in_threadpool(lambda: shared.read(_newest)), *OTHERS):
        if await _status(app, address) == AWAY:
            return


def _newest(db: Stagedb) -> Sequence[str]:
    """The addresses of the newest thing of each kind, of the memory of an instance, and of the plans of a model.

    The instance is that of the newest profile, whose pages ask for more than those of one without profiles.
    """
    found = overview.overview(db.store, sys.maxsize)  # the newest thing of a kind may be older than all of another
    newest: dict[str, str] = {}
    for each in found.newest:
        newest.setdefault(each.kind, each.id)
    profile = lookup.find_profile(db.store, newest["profiles"]) if "profiles" in newest else None
    if profile is not None:
        newest["instances"] = profile.instance
    addresses = [f"/{kind}/{id_}" for kind, id_ in newest.items()]
    if "instances" in newest:
        addresses.append(f"/instances/{newest['instances']}/memory")
        addresses.append("/explore?" + urlencode({"node": f"Instance/{newest['instances']}"}))
    addresses += ["/find?" + urlencode({"model": each.model, "system": each.system}) for each in found.best[:1]]
    return addresses


async def _status(app: Starlette, address: str) -> int:
    """The status of a page that is made. What it shows goes nowhere: no rule of access applies to it."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": None,
        "app": app,
    }
    status = 500

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    await app.router(scope, receive, send)
    return status
