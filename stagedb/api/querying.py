"""Questions: free Cypher, and the named queries under `cypher/analyze/`."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from stagedb.api import catalog
from stagedb.api.results import QueryInfo, Rows
from stagedb.errors import UsageError
from stagedb.store import Statement, Store, load, names

FOLDER = "analyze/"
INSTANCE = re.compile(r"\$(`?)instance\1(?!\w)")
WORD = re.compile(r"^[A-Za-z][\w/-]*$")


def queries() -> list[QueryInfo]:
    """The named queries, sorted. Those whose last part starts with `_` are internal."""
    return [
        QueryInfo(
            name=name.removeprefix(FOLDER),
            description=statement.description,
            parameters=tuple(field.name for field in statement.params),
            columns=tuple(field.name for field in statement.columns),
        )
        for name in names()
        if name.startswith(FOLDER) and not name.rsplit("/", 1)[-1].startswith("_")
        for statement in (load(name),)
    ]


def run(store: Store, query: str, params: Mapping[str, Any], instance: str | None, timeout: float) -> Rows:
    """The answer to a text, or to a named query. `instance` None: the newest, where the query asks for one."""
    text, statement = _text(query)
    given = dict(params)
    if "instance" not in given and (instance is not None or INSTANCE.search(text)):
        given["instance"] = catalog.the_instance(store, instance).id
    if statement is not None:
        _check(statement, given)
    answer = store.query(text, given, timeout=timeout)
    return Rows(tuple(answer.columns), tuple(tuple(row) for row in answer.rows))


def _text(query: str) -> tuple[str, Statement | None]:
    """The Cypher of a query: one word is a name, everything else a text."""
    word = query.strip()
    if not WORD.match(word):
        return query, None
    known = [info.name for info in queries()]
    name = word.removeprefix(FOLDER).replace("-", "_")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f": did you mean {', '.join(near)}?" if near else ""
        raise UsageError(f"no query is named {word!r}{hint}; `stagedb queries` lists them, and a Cypher text works too")
    statement = load(FOLDER + name)
    return statement.text, statement


def _check(statement: Statement, params: Mapping[str, Any]) -> None:
    takes = {field.name for field in statement.params}
    wrong = sorted(takes ^ params.keys())
    if wrong:
        what = "is missing" if wrong[0] in takes else "is not one of its parameters"
        raise UsageError(
            f"{wrong[0]!r} {what}: {statement.name.removeprefix(FOLDER)} takes {', '.join(sorted(takes)) or 'none'} "
            "(--param KEY=VALUE, --instance)"
        )
