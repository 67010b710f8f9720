"""One thing of a store: a graph, instance, profile, search or run, found by its id, the start of the id, or a name.

A look-up is one statement (`lookup/…`), which gives the few things that the word may mean. It lists nothing else,
so that it takes as long with thousands of things in the store. Only an error for an unknown word lists all names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from stagedb.api import catalog
from stagedb.api.catalog import SHORT_ID, UserMarks, near
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, RunInfo, SearchInfo, Thing
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError
from stagedb.mentions import Word, call
from stagedb.store import RemovedError, Store, Unfinished, current_user
from stagedb.store.naming import spaces

Info = TypeVar("Info", GraphInfo, InstanceInfo, ProfileInfo, SearchInfo, RunInfo, Unfinished)
Made = TypeVar("Made", InstanceInfo, ProfileInfo, RunInfo)
Rows = Sequence[Mapping[str, Any]]

START = 4
"""Characters of an id that name a thing, at least; `listing_statements` has the same number."""


def find_graph(store: Store, word: str) -> GraphInfo | None:
    """The graph with this id or start of an id. word: the id or its start. None if there is none."""
    return by_id(_graphs(store, word), word, "graph")


def graphs_of_model(store: Store, model: str) -> list[GraphInfo]:
    """The graphs of the model with this name, the newest first."""
    return [graph for graph in _graphs(store, model) if graph.name == model]


def _graphs(store: Store, word: str) -> list[GraphInfo]:
    rows = store.read_sound("lookup/graph", word=word)
    return catalog.graph_infos(rows, _marks(store, rows))


def find_instance(store: Store, word: str) -> InstanceInfo | None:
    """The instance with this id, start of an id, or name (`named`). word: any of these. None if there is none."""
    return _meant(store, _instances(store, _instance_rows(store, word)), word, "instance")


def find_with_graph(store: Store, word: str) -> tuple[InstanceInfo, GraphInfo] | None:
    """The instance with this id, start of an id, or name, together with its graph, in one look-up.

    word: any of these. Raises DamagedError for a graph that cannot be read.
    """
    rows = _instance_rows(store, word)
    found = _meant(store, _instances(store, rows), word, "instance")
    if found is None:
        return None
    graphs = _graphs_of(store, [row for row in rows if row["id"] == found.id])
    if not graphs:
        raise DamagedError(f"the graph {shown(found.graph)} of instance {shown(found.id)} is damaged: build it again")
    return found, graphs[0]


def the_instance(store: Store, word: str | None) -> InstanceInfo:
    """The instance with an id or name, or the newest of the caller.

    word: id, start of an id, or name; None: the newest. Raises UsageError if there is none.
    """
    if word is None:
        return newest_instance(store)
    found = find_instance(store, word)
    if found is None:
        raise unknown_instance(store, word)
    return found


def newest_instance(store: Store) -> InstanceInfo:
    """The newest instance of the caller, else of all. Raises UsageError if there is none."""
    known = catalog.instances(store)
    if not known:
        raise UsageError(f"the store has no instance yet: make one with {call('instantiate', 'MODEL')}")
    return known[0]


def unknown_instance(store: Store, word: str) -> UsageError:
    """The error for a word that names no instance, with similar names."""
    other = _of_other_kind(store, word)
    if other is not None:
        return other
    names = _called(catalog.instances(store))
    return UsageError(f"no instance {shown(word)} in the store{near(word, names)}; {call('ls')} lists them")


def _of_other_kind(store: Store, word: str) -> UsageError | None:
    """The error for a word that should name an instance, and names a profile or a graph."""
    profile = find_profile(store, word)
    if profile is not None:
        return UsageError(
            f"{shown(word)} is a profile, of instance {profile.instance[:SHORT_ID]} ({profile.instance_name}): give "
            f"that id where an instance is wanted, such as {call('memory', profile.instance[:SHORT_ID])}, or "
            f"{call('export', profile.instance[:SHORT_ID])} for its traces"
        )
    search = find_search(store, word)
    if search is not None:
        return UsageError(
            f"{shown(word)} is a search, of plans of {search.model}: {call('report', search.id[:SHORT_ID])} and "
            f"{call('show', search.id[:SHORT_ID])} are about it, and an instance is wanted here"
        )
    run = find_run(store, word)
    if run is not None:
        return UsageError(
            f"{shown(word)} is a run that was recorded: {call('show', run.id[:SHORT_ID])}, and queries, "
            f"{call('report')}, {call('timeline')} and {call('export')} with {Word('run', run.id[:SHORT_ID])} are "
            "about it, and an instance is wanted here"
        )
    graph = find_graph(store, word)
    if graph is not None:
        return UsageError(
            f"{shown(word)} is a graph, of the model {graph.name}: make an instance of it with "
            f"{call('instantiate', graph.id[:SHORT_ID])}, or name one that {call('ls')} lists"
        )
    return None


def instances_of(store: Store, graph: str) -> list[InstanceInfo]:
    """All complete instances of the graph with this id: the caller's own, then all others; the newest first."""
    return _instances(store, store.read_sound("lookup/instances_of", graph=graph, user=current_user()))


def find_profile(store: Store, word: str, instance: str | None = None) -> ProfileInfo | None:
    """The profile with an id, start of an id, or name (`named`); None if there is none.

    word: any of these. instance: the id of the instance that it must be of; None: any.
    """
    known = _profiles(store, store.read_sound("lookup/profile", word=word, user=current_user()))
    return _meant(store, [each for each in known if instance in (None, each.instance)], word, "profile")


def profiles_of(store: Store, instance: str) -> list[ProfileInfo]:
    """All complete profiles of the instance with this id: the caller's own, then all others; the newest first."""
    return _profiles(store, store.read_sound("lookup/profiles_of", instance=instance, user=current_user()))


def the_profile(store: Store, word: str | None, instance: InstanceInfo | None = None) -> ProfileInfo:
    """The profile with an id or name, or the newest; only profiles of `instance`, if it is given.

    word: id, start of an id, or name; None: the newest. Raises UsageError if there is none.
    """
    of = None if instance is None else instance.id
    found = None if word is None else find_profile(store, word, of)
    if found is not None:
        return found
    known = catalog.profiles(store) if of is None else profiles_of(store, of)
    whose = "" if instance is None else f" of instance {instance.id[:SHORT_ID]} ({instance.name})"
    if word is not None:
        names = _called(known)
        raise UsageError(
            f"no profile {shown(word)}{whose} in the store{near(word, names)}; {call('ls', 'profiles')} lists them"
        )
    if not known:
        way = str(call("profile") if instance is None else call("profile", instance.id[:SHORT_ID]))
        runs = catalog.runs(store) if instance is None else []
        if runs:
            way += f", or ask about a run that was imported: {Word('run', runs[0].name or runs[0].id[:SHORT_ID])}"
        raise UsageError(f"the store has no profile{whose} yet: make one with {way}")
    return known[0]


def find_search(store: Store, word: str) -> SearchInfo | None:
    """The search with this id or start of an id. word: the id or its start. None if there is none."""
    return by_id(_searches(store, word), word, "search")


def the_search(store: Store, word: str | None) -> SearchInfo:
    """The search with an id, or the newest.

    word: id or start of an id; None: the newest. Raises UsageError if there is none.
    """
    found = None if word is None else find_search(store, word)
    if found is not None:
        return found
    there = catalog.searches(store)
    if word is not None:
        names = [each.id[:SHORT_ID] for each in there]
        raise UsageError(
            f"no search {shown(word)} in the store{near(word, names)}; {call('ls', 'searches')} lists them"
        )
    whole = next((each for each in there if each.shard is None), None)
    if whole is not None:
        return whole
    if there:
        raise UsageError(
            f"the store has only shards of searches: {call('search')} without {Word('shard')} puts them together"
        )
    raise UsageError(f"the store has no search yet: make one with {call('search')}")


def find_run(store: Store, word: str) -> RunInfo | None:
    """The run with this id, start of an id, or name (`named`). word: any of these. None if there is none."""
    return _meant(store, _runs(store, word), word, "run")


def the_run(store: Store, word: str | None) -> RunInfo:
    """The run with an id or name, or the newest.

    word: id, start of an id, or name; None: the newest. Raises UsageError if there is none.
    """
    found = None if word is None else find_run(store, word)
    if found is not None:
        return found
    there = catalog.runs(store)
    if word is not None:
        names = _called(there)
        raise UsageError(f"no run {shown(word)} in the store{near(word, names)}; {call('ls', 'runs')} lists them")
    if not there:
        raise UsageError(f"the store has no run yet: import one with {call('import', 'FILE')}")
    return there[0]


def made_run(store: Store, id: str) -> RunInfo:
    """The run that has just been imported or found.

    id: the run's, whole. Raises RemovedError if another process has removed it since.
    """
    return _there(_runs(store, id), id)


def find(store: Store, word: str) -> Thing:
    """The graph, instance, profile, search or run with an id or name.

    word: id, start of an id, or name. Raises UsageError if there is none.
    """
    return known(store, word) or unknown(store, word)


def known(store: Store, word: str) -> Thing | None:
    """The graph, instance, profile, search or run with an id or name, if there is one.

    word: id, start of an id, or name.
    """
    readers = (find_graph, find_instance, find_profile, find_search, find_run)
    return next((found for read in readers if (found := read(store, word)) is not None), None)


def unknown(store: Store, word: str) -> GraphInfo:
    """Raises UsageError for a word that names nothing, with similar names."""
    names = [name for each in catalog.instances(store) for name in (each.name, each.id[:SHORT_ID])]
    names += [each.name or each.id[:SHORT_ID] for each in catalog.profiles(store)]
    names += [each.name or each.id[:SHORT_ID] for each in catalog.runs(store)]
    raise UsageError(
        f"no graph, instance, profile, search or run {shown(word)} in the store{near(word, names)}; {call('ls')} lists "
        "them"
    )


def made_graph(store: Store, id: str) -> GraphInfo:
    """The graph that has just been made or found, by its id. Raises RemovedError if another process has removed it
    since; so do the next two."""
    return _there(_graphs(store, id), id)


def made_instance(store: Store, id: str) -> InstanceInfo:
    """The instance that has just been made or found.

    id: the instance's, whole. Raises RemovedError if another process has removed it since.
    """
    return _there(_instances(store, _instance_rows(store, id)), id)


def instance_of_id(store: Store, id: str) -> InstanceInfo | None:
    """The instance with exactly this id, if it is there and complete. Names do not count."""
    return next((each for each in _instances(store, _instance_rows(store, id)) if each.id == id), None)


def made_profile(store: Store, id: str) -> ProfileInfo:
    """The profile that has just been made or found.

    id: the profile's, whole. Raises RemovedError if another process has removed it since.
    """
    return _there(_profiles(store, store.read_sound("lookup/profile", word=id, user=current_user())), id)


def _there(known: Sequence[Info], id: str) -> Info:
    found = next((each for each in known if each.id == id), None)
    if found is None:
        raise RemovedError(
            f"{id[:SHORT_ID]} was removed by another process as soon as it was there: run the command again"
        )
    return found


def _called(known: Sequence[InstanceInfo | ProfileInfo | RunInfo]) -> list[str]:
    """All that some things are called, and their short ids."""
    return [name for each in known for name in (each.name, *each.names, each.id[:SHORT_ID]) if name is not None]


def _meant(store: Store, known: Sequence[Made], word: str, what: str) -> Made | None:
    return named(store, known, word, what) or by_id(known, word, what)


def named(store: Store, known: Sequence[Made], word: str, what: str) -> Made | None:
    """The thing that a name means to the caller; None if there is none.

    A name with its space (`bob/base`) means that one. Without a space it is first a name of the caller, then of the
    workspace, then of another user, then the model's name of a thing that nobody named, the newest of these. known: in
    the order of the catalog. word: the name. what: the kind of the things, for errors. Raises UsageError if several
    other users have the name.
    """
    for full in (word, *(f"{space}/{word}" for space in spaces(store))):
        found = next((each for each in known if full in each.names), None)
        if found is not None:
            return found
    others = [(full, each) for each in known for full in each.names if full.partition("/")[2] == word]
    if len({each.id for _, each in others}) > 1:
        texts = ", ".join(sorted(full for full, _ in others)[:6])
        raise UsageError(f"{shown(word)} is the name of more than one {what}: give one of {texts}, or an id")
    if others:
        return others[0][1]
    return next((each for each in known if each.name == word and not each.names), None)


def by_id(known: Sequence[Info], word: str, what: str) -> Info | None:
    """The thing of a list with this id or start of an id.

    what: the kind of the things, for errors. word: the id or its start. Raises UsageError if several ids have this
    start.
    """
    found = [info for info in known if len(word) >= START and info.id.startswith(word)]
    if len(found) > 1 and word != found[0].id:
        ids = ", ".join(info.id for info in found[:5])
        raise UsageError(
            f"{shown(word)} is the start of {len(found)} ids ({ids}): give more characters of the {what}'s id"
        )
    return found[0] if found else None


def _instance_rows(store: Store, word: str) -> Rows:
    return store.read_sound("lookup/instance", word=word, user=current_user())


def _instances(store: Store, rows: Rows) -> list[InstanceInfo]:
    return catalog.instance_infos(rows, _marks(store, rows))


def _profiles(store: Store, rows: Rows) -> list[ProfileInfo]:
    return catalog.profile_infos(rows, _marks(store, rows))


def _searches(store: Store, word: str) -> list[SearchInfo]:
    rows = store.read_sound("lookup/search", word=word)
    return catalog.search_infos(rows, _marks(store, rows))


def _runs(store: Store, word: str) -> list[RunInfo]:
    rows = store.read_sound("lookup/run", word=word, user=current_user())
    return catalog.run_infos(rows, _marks(store, rows))


def _graphs_of(store: Store, rows: Rows) -> list[GraphInfo]:
    """The graphs of rows of `lookup/instance`."""
    parts = ("options", "sizes", "created", "builder", "tags", "notes", "loaded")
    graphs = [
        {
            "id": row["graph"],
            "name": row["model"],
            "recipe": row["recipe"],
            **{each: row[f"graph_{each}"] for each in parts},
        }
        for row in rows
    ]
    return catalog.graph_infos(graphs, _marks(store, graphs))


def _marks(store: Store, rows: Rows) -> UserMarks:
    """The names, tags and notes of the things that some rows describe; the rows have them."""
    user = current_user()
    return UserMarks(
        user=user,
        spaces=spaces(store),
        names={
            **{row["instance"]: sorted(row["instance_names"]) for row in rows if "instance_names" in row},
            **{row["id"]: sorted(row["names"]) for row in rows if "names" in row},
        },
        tags={row["id"]: sorted(row["tags"]) for row in rows},
        notes={row["id"]: sorted(row["notes"]) for row in rows},
        loaded={row["id"]: row["loaded"] for row in rows},
        asked={row["id"]: [row["asked"]] for row in rows if row.get("asked") is not None},
    )
