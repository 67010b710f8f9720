"""What writers do to a thing: name it, tag it, give it a star, write a note, remove it. Each answers with a redirect.

The gate of the server has checked who asks. A write has a connection of its own: that of pages refuses them.
"""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stagedb import api
from stagedb.api import GraphInfo, InstanceInfo, Rows, Stagedb
from stagedb.api.plan_lists import STAR
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.serve import page_frames
from stagedb.serve.access import local_path
from stagedb.serve.list_pages import HEADS, table
from stagedb.serve.page_frames import SHORT_ID, address

MOST = 20
"""Things that go with another one and are shown before it is removed."""


def name(request: Request) -> Response:
    """Let a name mean an instance, a profile or a run, and lead back to its page."""
    return _written(request, lambda db, id: db.name(id, _word(request, "name")))


def tag(request: Request) -> Response:
    """Add tags, or take one off: `tags` has several with spaces or commas between them, `untag` has one."""
    words = request.state.words
    if words.get("untag"):
        return _written(request, lambda db, id: db.tag(id, words["untag"], remove=True))
    return _written(request, lambda db, id: db.tag(id, *_word(request, "tags").replace(",", " ").split()))


def star(request: Request) -> Response:
    """Give a star, or take it: `star` or `unstar` has the id, as the button that was pressed."""
    words = request.state.words
    gives = bool(words.get("star"))
    return _written(request, lambda db, id: db.tag(id, STAR, remove=not gives), "star" if gives else "unstar")


def note(request: Request) -> Response:
    """Write a note about a thing, and lead back to its page."""
    return _written(request, lambda db, id: db.note(id, _word(request, "note")))


def remove(request: Request) -> Response:
    """Remove a thing with all that is made from it; the second step, after `removal`. The log has what happened."""
    id, force = _word(request, "id"), bool(request.state.words.get("force"))
    request.app.state.writing.write(lambda db: db.rm(_exact(db, id), force=force))
    return RedirectResponse(address("log", word=id), 303)


def removal(request: Request) -> Response:
    """What would be removed, and the form that does it; the first step."""
    word = request.path_params["word"]

    def read(db: Stagedb) -> tuple[Any, str, Rows]:
        found = db.show(word)
        kind = "profiles" if isinstance(found, InstanceInfo) else "instances"
        everything = db.ls(kind) if isinstance(found, GraphInfo | InstanceInfo) else Rows((), ())
        if isinstance(found, GraphInfo):
            mine = {each.id for each in db.instances() if each.graph == found.id}
            rows = [row for row in everything.rows if row[everything.columns.index("id")] in mine]
        else:
            rows = [row for row in everything.rows if row[everything.columns.index("instance")] == found.id]
        return found, kind, Rows(everything.columns, tuple(rows))

    found, kind, parts = request.app.state.shared.read(read)
    columns, rows = table(kind, Rows(parts.columns, parts.rows[:MOST])) if len(parts) else ([], [])
    what = api.kind_of(found)
    return page_frames.page(
        request,
        "remove.html",
        what=what,
        id=found.id,
        name=getattr(found, "name", None) or found.id[:SHORT_ID],
        short=found.id[:SHORT_ID],
        made_by=found.made_by,
        parts=kind,
        count=len(parts),
        columns=columns,
        rows=rows,
        heads=HEADS,
        back=address("searches" if what == "search" else f"{what}s", found.id),
    )


def _written(request: Request, write: Callable[[Stagedb, str], Any], field: str = "id") -> Response:
    """Write, and go back to the page that asked."""
    id = _word(request, field)
    request.app.state.writing.write(lambda db: write(db, _exact(db, id)))
    return RedirectResponse(local_path(request.state.words.get("to", "/")), 303)


def _exact(db: Stagedb, id: str) -> str:
    """The id of a form, if it is the whole id of a thing. A name can be like the id of something else."""
    if db.show(id).id != id:
        raise UsageError(f"{shown(id)} is not the whole id of a thing: go to the page of the thing, and write there")
    return id


def _word(request: Request, name: str) -> str:
    """A field of the form. Raises UsageError if it is missing or empty."""
    text: str = request.state.words.get(name, "").strip()
    if not text:
        raise UsageError(f"the form has no {name}: fill it in")
    return text
