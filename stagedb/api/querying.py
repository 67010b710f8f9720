"""Questions: free Cypher, and the named queries: `cypher/analyze/SUBJECT/NAME.cypher`."""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

from stagedb.api import catalog, lookup
from stagedb.api.answer_hints import hints_about_run, hints_of
from stagedb.api.results import QueryInfo, Rows, RunInfo, SearchInfo, kind_of
from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import Word, call
from stagedb.store import Statement, Store, Table, load, read_whole
from stagedb.store.naming import spaces, wanted_name
from stagedb.store.rank_nodes import unwatched
from stagedb.store.saved_queries import SavedQuery, forget_query, of_run, save_query, saved_queries
from stagedb.store.statements import written_names
from stagedb.store.unknown_names import unknown_names

FOLDER = "analyze/"
CHOSEN = {name: re.compile(rf"\$(`?){name}\1(?!\w)") for name in ("instance", "profile", "run")}
"""Parameters with an id of something in the store, and the pattern by which a text uses them."""
PLAN = re.compile(r"^\s*(EXPLAIN|PROFILE)\b", re.IGNORECASE)
"""The word with which a text asks for its plan."""
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
            takes=statement.params,
            gives=statement.columns,
            text=statement.text,
        )
        for statement in map(load, _named())
    ]


def saved(store: Store) -> list[QueryInfo]:
    """The queries that users saved in the store, by name."""
    return [
        QueryInfo(
            name=str(each.name),
            subject="saved",
            description=_with_origin(each),
            parameters=tuple(field.name for field in each.statement.params),
            columns=tuple(field.name for field in each.statement.columns),
        )
        for each in saved_queries(store)
    ]


def _with_origin(query: SavedQuery) -> str:
    """The description of a query. If the query came with a dump, it has who loaded it."""
    asks = query.statement.description
    return asks if query.origin is None else f"{asks} ({query.origin})"


def save(store: Store, name: str, text: str) -> QueryInfo:
    """Save a query under a name of the caller or of the workspace.

    text: Cypher that only reads, with the header of named queries. UsageError if it cannot be a named query.
    """
    wanted = wanted_name(store, name.replace("-", "_"))
    if wanted.name in {each.rsplit("/", 1)[-1] for each in _named()}:
        raise UsageError(f"{shown(wanted.name)} is a named query of stagedb: choose another name")
    save_query(store, wanted, text)
    return next(each for each in saved(store) if each.name == str(wanted))


def forget(store: Store, name: str) -> None:
    """Delete a saved query of the caller or of the workspace.

    name: with or without its space. UsageError if there is none.
    """
    forget_query(store, wanted_name(store, name.replace("-", "_")))


def _saved(store: Store, word: str) -> Statement | None:
    """The saved query of a word: with its space, else the caller's, the workspace's, the only one of this name."""
    known = saved_queries(store)
    path = word.replace("-", "_")
    for full in (path, *(f"{space}/{path}" for space in spaces(store))):
        found = next((each for each in known if str(each.name) == full), None)
        if found is not None:
            return found.statement
    others = [each for each in known if each.name.name == path]
    if len(others) > 1:
        texts = ", ".join(str(each.name) for each in others)
        raise UsageError(f"{shown(word)} is the name of several saved queries: give one of {texts}")
    return others[0].statement if others else None


def is_named(word: str) -> bool:
    """Whether a word is the name of a query that comes with stagedb."""
    path = word.removeprefix(FOLDER).replace("-", "_")
    return any(path in (name.rsplit("/", 1)[-1], name.removeprefix(FOLDER)) for name in _named())


def find(word: str) -> Statement:
    """The named query of a word: `hotspots`, `communication/hotspots` or `analyze/communication/hotspots`.

    A `-` means `_`. Raises UsageError with the nearest names if there is none.
    """
    path = word.removeprefix(FOLDER).replace("-", "_")
    known = {name.rsplit("/", 1)[-1]: name for name in _named()}
    for last, name in known.items():
        if path in (last, name.removeprefix(FOLDER)):
            return load(name)
    hint = did_you_mean(path.rsplit("/", 1)[-1], known, ": {}", most=3, cutoff=0.4, between=", ")
    raise UsageError(
        f"no query is named {shown(word)}{hint}; {call('queries')} lists them, and a Cypher text works too"
    )


def short(statement: Statement) -> str:
    """The name of a named query, without its subject."""
    return statement.name.rsplit("/", 1)[-1]


def about_runs() -> list[str]:
    """Names of the named queries that can be asked about a run."""
    return [short(each) for each in map(load, _named()) if of_run(each) is not None or _of_runs(each)]


def _named() -> list[str]:
    """Statements of the named queries. A file is internal if its name starts with `_`."""
    return [name for name in written_names() if name.startswith(FOLDER) and not name.rsplit("/", 1)[-1].startswith("_")]


def run(
    store: Store,
    query: str,
    params: Mapping[str, Any],
    instance: str | None,
    profile: str | None,
    run: str | None,
    timeout: float,
    most: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    graph: bool = False,
    plan: Literal["explain", "profile"] | None = None,
) -> Rows:
    """The answer to a Cypher text, or to a named query.

    If `instance`, `profile` or `run` is None, a query that uses it gets the newest. With a profile and no instance,
    `$instance` is the instance of the profile. With an instance, the profile is one of its profiles. A named query
    about a profile's time is asked about a run instead, if one is given. The parameter `other` of a named query may
    also be a name or the start of an id.

    The other parameters are those of `Stagedb.query`.
    """
    text, statement = _text(store, query)
    run = _take("run", {"run"}, params := dict(params), run)
    if run is not None and not CHOSEN["run"].search(text):
        return _about_run(store, query, statement, run, params, (instance, profile), timeout, most, plan)
    asked = {name for name, pattern in CHOSEN.items() if pattern.search(text)}
    named = statement is not None and statement.name.startswith(FOLDER)
    search = _searched(store, statement, params) if named else None
    instance = _take("instance", asked, params, instance)
    profile = _take("profile", asked, params, profile)
    _check_parameters(statement, asked, params, instance, profile)
    chosen, newest = _chosen(store, asked, statement if named else None, instance, profile, run)
    if search is not None:
        chosen, newest = {**chosen, "search": search[0].id}, {**newest, **search[1]}
    given = {**params, **chosen}
    if statement is not None and "other" in given:
        compares = {field.name for field in statement.params}
        find = lookup.the_profile if "profile" in compares else lookup.the_instance
        given["other"] = find(store, str(given["other"])).id
    # The named queries of stagedb need no nodes of ranks and groups: they compute them.
    limits: dict[str, Any] = {"timeout": timeout, "most": most, "ranks": not named, "progress": progress or unwatched}
    answer = _answer(store, chosen, lambda: store.query(_asking(text, plan), given, graph=graph, **limits))
    rows = tuple(tuple(row) for row in answer.rows)
    hints = unknown_names(text) if statement is None else []
    hints += hints_of(store, text, statement, answer, given)
    fields = () if statement is None else statement.columns
    return Rows(
        tuple(answer.columns),
        rows,
        newest=newest,
        hints=tuple(hints),
        cut=answer.cut,
        keep=() if statement is None else statement.keep,
        units={field.name: field.unit for field in fields if field.unit is not None},
        graph=answer.graph,
        plan=answer.plan,
    )


def _about_run(
    store: Store,
    query: str,
    statement: Statement | None,
    run: str,
    params: dict[str, Any],
    others: tuple[str | None, str | None],
    timeout: float,
    most: int | None,
    plan: Literal["explain", "profile"] | None,
) -> Rows:
    """The answer of a named query about profiles, for a run. others: words for an instance and a profile."""
    if any(each is not None for each in others):
        raise UsageError(f"{Word('run')} is about a run alone: leave {Word('instance')} and {Word('profile')} out")
    if statement is None:
        raise UsageError(f"the query has no $run for {Word('run')}: use $run in the query, or leave the option out")
    asked = of_run(statement) if statement.name.startswith(FOLDER) else None
    if asked is None:
        able = ", ".join(about_runs())
        raise UsageError(f"{shown(query)} needs what a recording does not have; about a run: {able}")
    _check(asked, params.keys() | {"profile"})
    given = {**params, "profile": _recorded(store, asked, run).id}
    if "other" in given:
        given["other"] = _recorded(store, asked, str(given["other"])).id
    text = _asking(asked.text, plan)
    answer = read_whole(
        store, "Run", given["profile"], lambda: store.query(text, given, timeout=timeout, most=most, ranks=False)
    )
    kept = [field.name for field in asked.columns]
    places = [answer.columns.index(name) for name in kept]
    rows = tuple(tuple(row[place] for place in places) for row in answer.rows)
    units = {field.name: field.unit for field in asked.columns if field.unit is not None}
    keep = tuple(name for name in asked.keep if name in kept)
    hints = tuple(hints_about_run(kept, rows))
    return Rows(tuple(kept), rows, hints=hints, cut=answer.cut, keep=keep, units=units, plan=answer.plan)


def _recorded(store: Store, statement: Statement | None, word: str | None) -> RunInfo:
    """The run that a query is about. Raises UsageError for one without times where a named query has some."""
    found = lookup.the_run(store, word)
    if found.times is None and statement is not None and _needs_times(statement):
        from stagedb.runs.measured_run import without_times

        raise without_times(found.name or found.id[:12])
    return found


def _needs_times(statement: Statement) -> bool:
    """Whether each row of an answer has a time."""
    return any(field.unit == "ns" and not field.type.endswith("?") for field in statement.columns)


def _of_runs(statement: Statement) -> bool:
    """Whether a named query is about runs alone."""
    return "run" in {field.name for field in statement.params}


def _answer(store: Store, chosen: Mapping[str, str], ask: Callable[[], Table]) -> Table:
    """An answer about what was chosen, as a whole: a statement sees what others delete meanwhile."""
    if "search" in chosen:
        return read_whole(store, "Search", chosen["search"], ask)
    if "run" in chosen:
        return read_whole(store, "Run", chosen["run"], ask)
    if "profile" in chosen:
        return read_whole(store, "Profile", chosen["profile"], ask)
    return read_whole(store, "Instance", chosen["instance"], ask) if chosen else ask()


def _chosen(
    store: Store,
    asked: Set[str],
    statement: Statement | None,
    instance: str | None,
    profile: str | None,
    run: str | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """The values of `$instance`, `$profile` and `$run`, and the descriptions of those chosen as the newest."""
    if "run" in asked:
        recorded = _recorded(store, statement, run)
        return {"run": recorded.id}, {} if run is not None else {"run": catalog.described(recorded)}
    of = lookup.the_instance(store, instance) if instance is not None else None
    if "profile" in asked:
        found = lookup.the_profile(store, profile, of)
        given = {"profile": found.id, **({"instance": found.instance} if "instance" in asked else {})}
        return given, {} if profile is not None else {"profile": catalog.described(found)}
    if "instance" in asked:
        newest = of or lookup.the_instance(store, None)
        return {"instance": newest.id}, {} if of is not None else {"instance": catalog.described(newest)}
    return {} if of is None else {"instance": of.id}, {}


def _searched(
    store: Store, statement: Statement | None, params: dict[str, Any]
) -> tuple[SearchInfo, dict[str, str]] | None:
    """The search that a named query asks about; None for a query about no search.

    params: values of the query's parameters: `search` is an id or name, and becomes an id; without one it is the newest
    search. The second result describes the newest search, so that a reader knows which one it is.
    """
    if statement is None or "search" not in {field.name for field in statement.params}:
        return None
    word = params.pop("search", None)
    found = lookup.the_search(store, None if word is None else str(word))
    params["search"] = found.id
    return found, {} if word is not None else {"search": str(found).removeprefix("search ")}


def set_by(store: Store, query: str, word: str) -> str:
    """The parameter that a word sets which is given with a query, without a name.

    It is the instance, profile or run that the query is about, else the query's only parameter. A query about a profile
    may be asked about its instance or a run, so that the kind of what the word names counts. UsageError for a query
    that has no such parameter or several, and for an unknown word.
    """
    text, statement = _text(store, query)
    asked = [name for name, pattern in CHOSEN.items() if pattern.search(text)]
    takes = [field.name for field in statement.params] if statement is not None else asked
    wanted = asked or takes
    if len(wanted) != 1:
        each = " and ".join(str(Word(name) if name in CHOSEN else Word("param", f"{name}=VALUE")) for name in wanted)
        raise UsageError(
            f"{shown(word)} may name several things, and the query takes each by its name: {each}"
            if wanted
            else f"the query has no parameter that {shown(word)} could set: leave it out"
        )
    if wanted == ["profile"]:
        kind = kind_of(lookup.find(store, word))
        return kind if kind in CHOSEN else "profile"
    return wanted[0]


def _take(name: str, asked: Set[str], params: dict[str, Any], option: str | None) -> str | None:
    """The word for a text's `$instance` or `$profile`, from the option or the parameter. The parameter is removed."""
    if name not in asked or name not in params:
        return option
    if option is not None:
        raise UsageError(f"{Word(name)} and the parameter {name} both set ${name}: leave one out")
    return str(params.pop(name))


def _asking(text: str, plan: str | None) -> str:
    """The text, with the word that asks for its plan in place of one that it has."""
    return text if plan is None else f"{plan.upper()} {PLAN.sub('', text)}"


def _text(store: Store, query: str) -> tuple[str, Statement | None]:
    """The Cypher of a query: one word is a name, everything else a text. Names of stagedb come before saved ones."""
    word = query.strip()
    if not WORD.match(word):
        return query, None
    statement = (None if is_named(word) else _saved(store, word)) or find(word)
    return statement.text, statement


def _check_parameters(
    statement: Statement | None, asked: Set[str], params: Mapping[str, Any], instance: str | None, profile: str | None
) -> None:
    """Raise UsageError if a query does not have the parameters that are given."""
    if statement is None:
        if profile is not None and "profile" not in asked:
            raise UsageError(
                f"the query has no $profile for {Word('profile')}: use $profile in the query, or leave the option out"
            )
        return
    # An option without a parameter is a mistake. Only --instance may have none, as it also restricts `$profile`.
    given = {name for name, word in (("instance", instance), ("profile", profile)) if word is not None}
    _check(statement, asked | params.keys() | (given - ({"instance"} if "profile" in asked else set())))


def _check(statement: Statement, params: Set[str]) -> None:
    takes = {field.name for field in statement.params}
    wrong = sorted(takes ^ params)
    if wrong:
        what = "is missing" if wrong[0] in takes else "is not one of its parameters"
        raise UsageError(
            f"{shown(wrong[0])} {what}: {short(statement)} takes {', '.join(sorted(takes)) or 'none'} "
            f"({Word('param', 'KEY=VALUE')}, {Word('instance')}, {Word('profile')})"
        )
