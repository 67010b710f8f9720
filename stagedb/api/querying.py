"""Questions: free Cypher, and the named queries: `cypher/analyze/SUBJECT/NAME.cypher`."""

import difflib
import re
from collections.abc import Mapping, Set
from typing import Any

from stagedb.api import catalog
from stagedb.api.results import QueryInfo, Rows
from stagedb.errors import UsageError
from stagedb.store import Statement, Store, load, names, unknown_words

FOLDER = "analyze/"
CHOSEN = {name: re.compile(rf"\$(`?){name}\1(?!\w)") for name in ("instance", "profile")}
"""Parameters that stand for something the store holds, and how a text asks for them."""
MEMORY = re.compile(r":Memory(Level|Tensor)?\b")
"""Labels of what `memory` computes."""
WORD = re.compile(r"^[A-Za-z][\w/-]*$")


def queries() -> list[QueryInfo]:
    """The named queries, by subject and name."""
    return [
        QueryInfo(
            name=short(statement),
            subject=statement.name.split("/")[-2],
            description=statement.description,
            parameters=tuple(field.name for field in statement.params),
            columns=tuple(field.name for field in statement.columns),
        )
        for statement in map(load, _named())
    ]


def find(word: str) -> Statement:
    """The named query that a word means: `hotspots`, `communication/hotspots` or `analyze/communication/hotspots`.

    A `-` means `_`. Raises UsageError with the nearest names where there is none.
    """
    path = word.removeprefix(FOLDER).replace("-", "_")
    known = {name.rsplit("/", 1)[-1]: name for name in _named()}
    for last, name in known.items():
        if path in (last, name.removeprefix(FOLDER)):
            return load(name)
    near = difflib.get_close_matches(path.rsplit("/", 1)[-1], known, n=3, cutoff=0.4)
    hint = f": did you mean {', '.join(near)}?" if near else ""
    raise UsageError(f"no query is named {word!r}{hint}; `stagedb queries` lists them, and a Cypher text works too")


def short(statement: Statement) -> str:
    """The name of a named query, without its subject."""
    return statement.name.rsplit("/", 1)[-1]


def _named() -> list[str]:
    """Statements of the named queries. A file whose name starts with `_` is internal."""
    return [name for name in names() if name.startswith(FOLDER) and not name.rsplit("/", 1)[-1].startswith("_")]


def run(
    store: Store, query: str, params: Mapping[str, Any], instance: str | None, profile: str | None, timeout: float
) -> Rows:
    """The answer to a text, or to a named query. `instance`, `profile` None: the newest, where the query asks for one.

    With a profile and no instance, `$instance` is the profile's; with an instance, the profile is one of its. A named
    query's `other`, which it compares with, may be a name or the start of an id, too.
    """
    text, statement = _text(query)
    asked = {name for name, pattern in CHOSEN.items() if pattern.search(text)}
    params = dict(params)
    instance = _said("instance", asked, params, instance)
    profile = _said("profile", asked, params, profile)
    _check_said(statement, asked, params, instance, profile)
    chosen, newest = _chosen(store, asked, instance, profile)
    given = {**params, **chosen}
    if statement is not None and "other" in given:
        compares = {field.name for field in statement.params}
        find = catalog.the_profile if "profile" in compares else catalog.the_instance
        given["other"] = find(store, str(given["other"])).id
    answer = store.query(text, given, timeout=timeout)
    rows = tuple(tuple(row) for row in answer.rows)
    hints = unknown_words(text) if statement is None else []
    if not rows and MEMORY.search(text) and "instance" in given:
        hints += _without_memory(store, str(given["instance"]))
    if statement is not None and "wire_bytes" in answer.columns:
        hints += _without_wires(store, str(given["profile"]))
    return Rows(tuple(answer.columns), rows, newest=newest, hints=tuple(hints))


def _chosen(
    store: Store, asked: Set[str], instance: str | None, profile: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """What `$instance` and `$profile` stand for, and how those are called that nobody named."""
    of = catalog.the_instance(store, instance) if instance is not None else None
    if "profile" in asked:
        found = catalog.the_profile(store, profile, of)
        scaled = f", scaled: {', '.join(found.scalings)}" if found.scalings else ""
        told = f"{found.id[: catalog.SHORT_ID]} of {found.instance_name} on {found.system}{scaled}"
        given = {"profile": found.id, **({"instance": found.instance} if "instance" in asked else {})}
        return given, {} if profile is not None else {"profile": told}
    if "instance" in asked:
        newest = of or catalog.the_instance(store, None)
        told = f"{newest.id[: catalog.SHORT_ID]} {newest.name}"
        return {"instance": newest.id}, {} if of is not None else {"instance": told}
    return {} if of is None else {"instance": of.id}, {}


def _said(name: str, asked: Set[str], params: dict[str, Any], option: str | None) -> str | None:
    """How a text's `$instance` or `$profile` is called, said as an option or as a parameter, which is taken out."""
    if name not in asked or name not in params:
        return option
    if option is not None:
        raise UsageError(f"--{name} and the parameter {name} both say what ${name} stands for: leave one out")
    return str(params.pop(name))


def _without_memory(store: Store, instance: str) -> list[str]:
    if store.read("memory/all_peaks", instance=instance):
        return []
    short = instance[: catalog.SHORT_ID]
    return [f"nobody has computed the memory of instance {short} yet: `stagedb memory {short}` does"]


def _without_wires(store: Store, profile: str) -> list[str]:
    there = store.read("profile/figures", profile=profile)
    if not there or there[0]["dimensions"] is not None:
        return []
    return ["an older stagedb made this profile, and did not tell what goes into the network: profile it again"]


def _text(query: str) -> tuple[str, Statement | None]:
    """The Cypher of a query: one word is a name, everything else a text."""
    word = query.strip()
    if not WORD.match(word):
        return query, None
    statement = find(word)
    return statement.text, statement


def _check_said(
    statement: Statement | None, asked: Set[str], params: Mapping[str, Any], instance: str | None, profile: str | None
) -> None:
    """Raise UsageError where a query's parameters are not those that were said."""
    if statement is None:
        if profile is not None and "profile" not in asked:
            raise UsageError(
                "the query has no $profile, which --profile would say: write it there, or leave the option out"
            )
        return
    # Said in vain is said by mistake, but an instance chooses a profile too.
    said = {name for name, word in (("instance", instance), ("profile", profile)) if word is not None}
    _check(statement, asked | params.keys() | (said - ({"instance"} if "profile" in asked else set())))


def _check(statement: Statement, params: Set[str]) -> None:
    takes = {field.name for field in statement.params}
    wrong = sorted(takes ^ params)
    if wrong:
        what = "is missing" if wrong[0] in takes else "is not one of its parameters"
        raise UsageError(
            f"{wrong[0]!r} {what}: {short(statement)} takes {', '.join(sorted(takes)) or 'none'} "
            "(--param KEY=VALUE, --instance, --profile)"
        )
