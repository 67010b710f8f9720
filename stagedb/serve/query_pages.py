"""Questions: the named queries as forms, free Cypher, and answers as tables and downloads."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import QueryInfo, Rows, Stagedb
from stagedb.api.query_forms import value_of
from stagedb.errors import StagedbError, UsageError
from stagedb.serve import page_frames
from stagedb.serve.downloads import FORMATS, file_of, format_of
from stagedb.serve.list_pages import number_of
from stagedb.serve.page_form import linked
from stagedb.serve.page_frames import address, cells, named
from stagedb.serve.step_pages import suggestions

SHOWN = 500
"""Rows of an answer on a page. Downloads have more."""
LONGEST = 20_000
"""Characters of a query: an address has it, and browsers and proxies have bounds."""
CHOSEN = ("instance", "profile", "search", "run")
"""Parameters with an id of something in the store. Without a value it is the newest."""

EXAMPLE = """MATCH (i:Instance {state: 'ready'})-[:OF]->(g:Graph)
RETURN i.name AS name, g.name AS model, i.world AS ranks, i.tp AS tp, i.pp AS pp
ORDER BY ranks DESC LIMIT 20"""


def queries(request: Request) -> Response:
    """The named queries by subject. An instance, a profile or a search of the address is that of their forms."""
    known: list[QueryInfo] = request.app.state.shared.read(lambda db: db.queries())
    given = {name: value for name in CHOSEN if (value := named(request.query_params, name))}
    subjects: dict[str, list[tuple[QueryInfo, str]]] = {}
    for info in known:
        words = {name: value for name, value in given.items() if name in info.parameters}
        if given and not words and info.parameters:
            continue
        subjects.setdefault(info.subject, []).append((info, address("queries", info.name, **words)))
    return page_frames.page(request, "queries.html", subjects=list(subjects.items()), given=given)


def named_query(request: Request) -> Response:
    """A named query: its form, and its answer if the form was sent."""
    shared, name = request.app.state.shared, request.path_params["name"]
    known: list[QueryInfo] = shared.read(lambda db: db.queries())
    info = next((each for each in known if each.name == name), None)
    if info is None:
        raise UsageError(f"no query is named {name[:80]}: the page of queries lists all of them")
    words = request.query_params
    texts = {field.name: named(words, field.name) for field in info.takes}
    needed = [field for field in info.takes if field.name not in CHOSEN]
    asked = bool(named(words, "ask") or any(texts.values()) or not info.takes)
    form = {
        "info": info,
        "texts": texts,
        "names": shared.read(suggestions),
        "optional": CHOSEN,
        "models": sorted({each.name for each in shared.read(lambda db: db.graphs())}),
    }
    if not asked or any(texts[field.name] is None for field in needed):
        return page_frames.page(request, "query.html", answer=None, **form)
    params = {field.name: value_of(field, texts[field.name] or "") for field in needed}
    chosen = {name: texts.get(name) for name in CHOSEN}
    if chosen["search"] is not None:
        params["search"] = chosen["search"]
    given = {"ask": 1, **texts}

    def ask(db: Stagedb, most: int) -> Rows:
        return db.query(
            info.name,
            params,
            instance=chosen["instance"],
            profile=chosen["profile"],
            run=chosen["run"],
            timeout=request.app.state.limits.timeout,
            most=most,
        )

    return _answered(request, "query.html", ask, info.name, ("queries", info.name), given, form)


def cypher(request: Request) -> Response:
    """Free Cypher that only reads, with the guard and the time-out of `stagedb query`."""
    words = request.query_params
    text = words.get("query", "").replace("\r\n", "\n").strip()
    chosen = {name: named(words, name) for name in CHOSEN if name != "search"}
    form: dict[str, Any] = {"text": text, "example": EXAMPLE, "chosen": chosen}
    form["names"] = request.app.state.shared.read(suggestions)
    if not text:
        return page_frames.page(request, "cypher.html", answer=None, error=None, **form)
    if len(text) > LONGEST:
        raise UsageError(f"the query has {len(text):,} characters: a page takes {LONGEST:,}")

    def ask(db: Stagedb, most: int) -> Rows:
        return db.query(
            text,
            instance=chosen["instance"],
            profile=chosen["profile"],
            run=chosen["run"],
            timeout=request.app.state.limits.timeout,
            most=most,
        )

    try:
        return _answered(request, "cypher.html", ask, "query", ("cypher",), {"query": text, **chosen}, form)
    except StagedbError as error:
        status = 400 if isinstance(error, UsageError) else 500
        return page_frames.page(request, "cypher.html", status, answer=None, error=linked(error.message), **form)


def _answered(
    request: Request,
    template: str,
    ask: Any,
    name: str,
    path: tuple[str, ...],
    given: Mapping[str, Any],
    form: Mapping[str, Any],
) -> Response:
    """A page with an answer, or the answer as a file."""
    shared, limits = request.app.state.shared, request.app.state.limits
    format_ = format_of(request)
    if format_ is not None:
        rows: Rows = shared.read(lambda db: ask(db, limits.rows))
        return file_of(rows, format_, name, cut=rows.cut)
    number = number_of(request.query_params, "page", 1)
    if number * SHOWN > limits.rows + SHOWN:
        raise UsageError(f"there is no page {number}: an answer has at most {limits.rows:,} rows here")
    found: Rows = shared.read(lambda db: ask(db, min(number * SHOWN, limits.rows)))
    shown = found.rows[(number - 1) * SHOWN :]
    turns = {"before": number - 1 if number > 1 else None, "after": number + 1 if found.cut else None}
    answer = {
        "columns": found.columns,
        "rows": cells(shown),
        "first": (number - 1) * SHOWN + 1,
        "count": len(shown),
        "cut": found.cut,
        "hints": found.hints,
        "newest": list(found.newest.items()),
        "files": {each: address(*path, **given, format=each) for each in FORMATS},
        "turns": {word: address(*path, **given, page=at) for word, at in turns.items() if at is not None},
    }
    return page_frames.page(request, template, answer=answer, **{"error": None, **form})
