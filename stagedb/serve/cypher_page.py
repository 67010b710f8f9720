"""Free Cypher: an editor, fields for its parameters, and the answer."""

from collections.abc import Mapping
from typing import Any, Literal

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import QueryInfo, Rows, Stagedb
from stagedb.api.query_forms import given_value
from stagedb.api.querying import CHOSEN
from stagedb.errors import StagedbError, UsageError
from stagedb.reports.page_frame import as_json
from stagedb.serve import page_frames
from stagedb.serve.answers import Question, answered
from stagedb.serve.cypher_schema import schema_words
from stagedb.serve.page_frames import address, named
from stagedb.serve.step_pages import suggestions
from stagedb.store.free_queries import UnclosedError, tokens
from stagedb.store.rank_nodes import names_ranks

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
