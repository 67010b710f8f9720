"""Questions: the named queries as forms, and their answers."""

from collections.abc import Mapping
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import QueryInfo, Rows, Stagedb, querying
from stagedb.api.query_forms import value_of
from stagedb.errors import UsageError
from stagedb.serve import page_frames
from stagedb.serve.answers import Question, answered
from stagedb.serve.page_frames import address, named
from stagedb.serve.step_pages import suggestions

CHOSEN = ("instance", "profile", "search", "run")
"""Parameters with an id of something in the store. Without a value it is the newest."""


def queries(request: Request) -> Response:
    """The named queries by subject. An instance, a profile or a search of the address is that of their forms."""
    known: list[QueryInfo] = request.app.state.shared.read(lambda db: db.queries())
    given = _chosen(request)
    able = querying.about_runs() if "run" in given else []
    subjects: dict[str, list[tuple[QueryInfo, str]]] = {}
    for info in known:
        words = {name: value for name, value in given.items() if name in info.parameters}
        if info.name in able:
            words["run"] = given["run"]
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
    taken = {field.name: named(words, field.name) for field in info.takes}
    # What the query does not take is asked about all the same: it may be a run instead of a profile, or is refused.
    others = {name: value for name, value in _chosen(request).items() if name not in taken}
    texts = {**taken, **others}
    needed = [field for field in info.takes if field.name not in CHOSEN]
    asked = bool(named(words, "ask") or any(texts.values()) or not info.takes)
    form = {
        "info": info,
        "texts": texts,
        "others": others,
        "names": shared.read(suggestions),
        "optional": CHOSEN,
        "to_cypher": address("cypher", query=info.text, edit=1, **_for_cypher(taken)),
        "models": sorted({each.name for each in shared.read(lambda db: db.graphs())}),
    }
    if not asked or any(texts[field.name] is None for field in needed):
        return page_frames.page(request, "query.html", answer=None, **form)
    params = {field.name: value_of(field, texts[field.name] or "") for field in needed}
    chosen = {name: texts.get(name) for name in CHOSEN}
    if chosen["search"] is not None:
        params["search"] = chosen["search"]
    given = {"ask": 1, **texts}

    def ask(db: Stagedb, most: int, plan: Literal["explain", "profile"] | None = None) -> Rows:
        return db.query(
            info.name,
            params,
            instance=chosen["instance"],
            profile=chosen["profile"],
            run=chosen["run"],
            timeout=request.app.state.limits.timeout,
            most=most,
            plan=plan,
        )

    question = Question(ask, info.name, ("queries", info.name), given, info.text)
    return answered(request, "query.html", question, form)


def _chosen(request: Request) -> dict[str, str]:
    """The ids and names of an address."""
    return {name: value for name in CHOSEN if (value := named(request.query_params, name))}


def _for_cypher(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Values of a form as the page Cypher has them."""
    return {name if name in querying.CHOSEN else f"${name}": text for name, text in texts.items()}
