"""Questions: the named queries as forms, free Cypher in an editor, and their answers."""

import functools
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import QueryInfo, Rows, Stagedb, querying
from stagedb.api.query_forms import given_value, value_of
from stagedb.api.querying import CHOSEN
from stagedb.errors import StagedbError, UsageError
from stagedb.reports.page_frame import as_json
from stagedb.serve import page_frames
from stagedb.serve.answers import Question, answered
from stagedb.serve.page_frames import address, named
from stagedb.serve.step_pages import suggestions
from stagedb.store import LABELS, RELATIONSHIPS
from stagedb.store.free_queries import UnclosedError, tokens
from stagedb.store.rank_nodes import names_ranks

CHOSEN_THINGS = ("instance", "profile", "search", "run")
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
    needed = [field for field in info.takes if field.name not in CHOSEN_THINGS]
    asked = bool(named(words, "ask") or any(texts.values()) or not info.takes)
    form = {
        "info": info,
        "texts": texts,
        "others": others,
        "names": shared.read(suggestions),
        "optional": CHOSEN_THINGS,
        "to_cypher": address("cypher", query=info.text, edit=1, **_for_cypher(taken)),
        "models": sorted({each.name for each in shared.read(lambda db: db.graphs())}),
    }
    if not asked or any(texts[field.name] is None for field in needed):
        return page_frames.page(request, "query.html", answer=None, **form)
    params = {field.name: value_of(field, texts[field.name] or "") for field in needed}
    chosen = {name: texts.get(name) for name in CHOSEN_THINGS}
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
    return {name: value for name in CHOSEN_THINGS if (value := named(request.query_params, name))}


def _for_cypher(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Values of a form as the page Cypher has them."""
    return {name if name in querying.CHOSEN else f"${name}": text for name, text in texts.items()}


# What the editor completes: labels, relationship types and properties of the store's schema, with their meanings.


def schema_words(queries: Sequence[QueryInfo]) -> dict[str, Any]:
    """The schema in the form of Neo4j's language support, and meanings by name. queries: whose parameters it knows."""
    parameters = {name: f"id of the {name}, or of the newest one" for name in CHOSEN}
    for info in queries:
        parameters |= {field.name: field.description for field in info.takes if field.name not in parameters}
    return {**_words(), "parameters": parameters, "queries": {info.name: info.description for info in queries}}


@functools.cache
def _words() -> dict[str, Any]:
    labels = {label.name: label.description for label in LABELS}
    for label in LABELS:
        labels |= {name: f"Also labelled {label.name}." for name in label.also if name not in labels}
    types: dict[str, str] = {}
    properties: dict[str, str] = {}
    for edge in RELATIONSHIPS:
        text = f"(:{edge.source})-->(:{edge.target}) {edge.description}"
        types[edge.type] = f"{types[edge.type]}\n{text}" if edge.type in types else text
    for each in chain.from_iterable([*(row.properties for row in LABELS), *(row.properties for row in RELATIONSHIPS)]):
        unit = "" if each.unit is None else f" in {each.unit}"
        properties.setdefault(each.name, f"{each.type}{unit}: {each.description}")
    return {
        "labels": labels,
        "types": types,
        "properties": properties,
        "edges": [[edge.source, edge.type, edge.target] for edge in RELATIONSHIPS],
    }


# Free Cypher: an editor, fields for its parameters, and the answer.

LONGEST = 20_000
"""Characters of a query: an address has it, and browsers and proxies have bounds."""

EXAMPLE = """MATCH (i:Instance {state: 'ready'})-[:OF]->(g:Graph)
RETURN i.name AS name, g.name AS model, i.world AS ranks, i.tp AS tp, i.pp AS pp
ORDER BY ranks DESC LIMIT 20"""


def cypher(request: Request) -> Response:
    """Free Cypher that only reads, with the guard and the time-out of `stagedb query`."""
    text = query_text(request.query_params)
    form = _form(request, text)
    if not text or named(request.query_params, "edit"):
        return page_frames.page(request, "cypher.html", answer=None, error=None, **form)
    try:
        question = free_question(request.query_params, request.app.state.limits.timeout, ("cypher",))
        return answered(request, "cypher.html", question, form)
    except StagedbError as error:
        status, _, message = page_frames.explained(request, error)
        return page_frames.page(request, "cypher.html", status, answer=None, error=message, **form)


def query_text(words: QueryParams) -> str:
    """The Cypher in an address. words: the parameters of the address. Raises UsageError if it is too long."""
    text = words.get("query", "").replace("\r\n", "\n").strip()
    if len(text) > LONGEST:
        raise UsageError(f"the query has {len(text):,} characters: a page takes {LONGEST:,}")
    return text


def free_question(words: QueryParams, timeout: float, path: tuple[str, ...], given_text: str | None = None) -> Question:
    """The query of an address with the values of its parameters. Raises UsageError if one has none.

    given_text: the text, if it is not that of the address. timeout: seconds. words: the parameters of the address.
    path: of the page, for its links.
    """
    text = query_text(words) if given_text is None else given_text
    texts = {name: named(words, f"${name}") for name in parameters_of(text) if name not in CHOSEN}
    missing = [name for name, value in texts.items() if value is None]
    if missing:
        raise UsageError(f"the query's parameters have no values: give them in the fields of {', '.join(missing)}")
    params = {name: given_value(value, f"the parameter {name}") for name, value in texts.items() if value is not None}
    chosen = {name: named(words, name) for name in CHOSEN}

    def ask(db: Stagedb, most: int, plan: Literal["explain", "profile"] | None = None) -> Rows:
        return db.query(
            text,
            params,
            instance=chosen["instance"],
            profile=chosen["profile"],
            run=chosen["run"],
            timeout=timeout,
            most=most,
            graph=True,
            plan=plan,
        )

    given = {"query": text, **{f"${name}": value for name, value in texts.items()}, **chosen}
    return Question(ask, "query", path, given, text)


def parameters_of(text: str) -> list[str]:
    """Names of the parameters of a text, in its order. A text with an end missing has those before it."""
    found: dict[str, None] = {}
    try:
        for token in tokens(text):
            if token.kind == "parameter":
                found[token.text[1:].strip().strip("`")] = None
    except UnclosedError:
        pass  # the check of the query reports this error
    return list(found)


def examples(queries: list[QueryInfo]) -> Mapping[str, list[tuple[str, str, str]]]:
    """Named queries that need nothing but an instance, a profile or a run, which may be the newest: by subject, their
    names, meanings and addresses. Those that name ranks are left out, as pages cannot write the nodes of ranks.
    """
    found: dict[str, list[tuple[str, str, str]]] = {}
    for info in queries:
        if info.text and set(info.parameters) <= CHOSEN.keys() and not names_ranks(info.text):
            row = (info.name, info.description, address("cypher", query=info.text))
            found.setdefault(info.subject, []).append(row)
    return found


def _form(request: Request, text: str) -> dict[str, Any]:
    """What the editor and its fields need."""
    shared, words = request.app.state.shared, request.query_params
    queries: list[QueryInfo] = shared.read(lambda db: db.queries())
    used = parameters_of(text)
    return {
        "text": text,
        "example": EXAMPLE,
        "chosen": {name: named(words, name) or "" for name in CHOSEN if name in used or named(words, name)},
        "values": {name: words.get(f"${name}", "") for name in used if name not in CHOSEN},
        "names": shared.read(suggestions),
        "examples": examples(queries),
        "schema": as_json(schema_words(queries)),
    }
