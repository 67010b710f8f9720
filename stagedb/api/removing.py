"""Removal: a name, a graph, an instance, a profile, a search, a run, and what nobody needs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.api import catalog, lookup
from stagedb.api.catalog import SHORT_ID
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, RunInfo, SearchInfo, Thing, label_of
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.store import Kind, NeededError, Store, Unfinished, current_user, delete, sweep, unfinished, user_of
from stagedb.store.naming import Name, remove_name, spaces


@dataclass(frozen=True)
class Unnamed:
    """A name that was removed from an instance, a profile or a run, which stays.

    kind, id: what had the name. holders: who needs it, and why.
    """

    kind: str
    id: str
    name: str
    holders: tuple[str, ...]


@dataclass(frozen=True)
class Unused:
    """A thing that nobody named or tagged.

    name: the one that it has without a user's name, such as the model's. made_by: the user. created: UTC.
    """

    kind: Kind
    id: str
    name: str | None
    made_by: str | None
    created: str


_ATTEMPTS = 5
"""How often a graph is removed with its instances, while other processes make new ones."""

Removed = Thing | Unfinished | Unnamed


def remove(store: Store, word: str, force: bool) -> list[Removed]:
    """Remove a name, and the instance (with its profiles) or profile that it means, unless somebody needs that.

    word: a name, or the id (or its start) of a graph, an instance, a profile, a search or a run. With a name, what
    other names mean or other users made stays, and only the name goes. With an id, such a thing is refused, unless
    `force` is set; so is a graph that instances need. Unfinished things can be removed too. Raises UsageError for what
    is refused, and StagedbError for what a living process builds or deletes.
    """
    invisible = unfinished(store)
    hidden = next((each for each in invisible if each.name == word), None)
    hidden = hidden or lookup.by_id(invisible, word, "graph, instance, profile, search or run")
    found = lookup.known(store, word)
    if found is None and hidden is not None:
        delete(store, hidden.kind, hidden.id, hidden.name)
        return [hidden]
    found = found or lookup.unknown(store, word)
    if isinstance(found, GraphInfo):
        return _remove_graph(store, found, force)
    if isinstance(found, SearchInfo):
        return _remove_search(store, found, force)
    name = _name_of(store, found, word)
    if name is not None and not force:
        if name.space not in spaces(store):
            raise UsageError(
                f"{name} is a name of {name.space}: add {Word('force', True)} to remove it with what it means"
            )
        others = [*(each for each in found.names if each != str(name)), *_of_others(store, found, names=False)]
        if others:
            remove_name(store, label_of(found), found.id, name)
            return [Unnamed(label_of(found), found.id, str(name), tuple(others))]
    others = [] if force else _of_others(store, found)
    if others:
        raise UsageError(
            f"{shown(word)} is not yours alone ({'; '.join(others)}): add {Word('force', True)} to remove it for all "
            "of them"
        )
    delete(store, label_of(found), found.id, found.name)
    return [found]


def _remove_search(store: Store, search: SearchInfo, force: bool) -> list[Removed]:
    if search.made_by not in (None, current_user()) and not force:
        raise UsageError(
            f"search {search.id[:SHORT_ID]} is not yours (made by {search.made_by}): add {Word('force', True)} to "
            "remove it for all"
        )
    shards = [each for each in catalog.searches(store) if each.whole == search.id]
    for each in (*shards, search):
        delete(store, "Search", each.id, each.name)
    return [*shards, search]


def _name_of(store: Store, found: InstanceInfo | ProfileInfo | RunInfo, word: str) -> Name | None:
    """The name by which a word found a thing; None if it was an id, or what it is called without a name."""
    for full in (word, *(f"{space}/{word}" for space in spaces(store)), *found.names):
        space, _, name = full.partition("/")
        if full in found.names and (full == word or name == word):
            return Name(space, name)
    return None


def _of_others(store: Store, found: InstanceInfo | ProfileInfo | RunInfo, names: bool = True) -> list[str]:
    """Why a thing is not the caller's alone: names of others, who made it, profiles of others."""
    user = current_user()
    reasons = [each for each in found.names if names and each.partition("/")[0] != user]
    reasons += [f"made by {found.made_by}"] if found.made_by not in (None, user) else []
    if isinstance(found, InstanceInfo):
        reasons += [
            f"profile {each.id[:SHORT_ID]} of {each.made_by or 'somebody'}"
            for each in lookup.profiles_of(store, found.id)
            if (each.made_by not in (None, user) or any(name.partition("/")[0] != user for name in each.names))
        ]
    return reasons


def _remove_graph(store: Store, graph: GraphInfo, force: bool, attempts: int = _ATTEMPTS) -> list[Removed]:
    users = lookup.instances_of(store, graph.id)
    foreign = sorted({each.made_by for each in users if each.made_by not in (None, current_user())})
    if users and not force:
        whose = f", some made by {', '.join(map(str, foreign))}" if foreign else ""
        raise UsageError(
            f"{len(users)} instances need graph {graph.id[:SHORT_ID]} ({graph.name}){whose}: remove them first, or "
            f"add {Word('force', True)} to remove them too"
        )
    for instance in users:
        delete(store, "Instance", instance.id, instance.name)
    try:
        delete(store, "Graph", graph.id, graph.name)
    except NeededError:
        # Another process has just completed an instance of the graph: try again, but not for ever.
        if attempts == 1 or not lookup.instances_of(store, graph.id):
            raise
        return [*users, *_remove_graph(store, graph, force, attempts - 1)]
    return [*users, graph]


def unused(store: Store, older_than: float) -> list[Unused]:
    """The things that nobody named or tagged, and that nobody made or asked for in the last `older_than` seconds.

    An instance counts as used while a profile of it is, and a graph while an instance is.
    """
    before = time.time_ns() // 1_000_000 - round(older_than * 1000)
    found: list[Unused] = []
    gone: set[str] = set()
    kinds: Mapping[Kind, str] = {
        "Search": "unnamed_searches",
        "Run": "unnamed_runs",
        "Profile": "unnamed_profiles",
        "Instance": "unnamed_instances",
        "Graph": "unnamed_graphs",
    }
    for kind, statement in kinds.items():
        for row in store.read(f"team/{statement}", before=before):
            if set(row["parts"]) <= gone:
                gone.add(row["id"])
                created = catalog.time_of(row["created"])
                found.append(Unused(kind, row["id"], row["name"], user_of(row["builder"]), created))
    return found


def collect(store: Store, *, dead: bool, unnamed_older_than: float | None, dry_run: bool) -> list[Unfinished | Unused]:
    """Remove what ended processes left, and what nobody names. Returns what was removed.

    dead: what ended processes left. unnamed_older_than: seconds since somebody made, asked for, named or tagged it.
    dry_run: remove nothing, and return what would be removed. Raises UsageError without a scope.
    """
    if not dead and unnamed_older_than is None:
        raise UsageError(
            f"store gc removes nothing without a scope: {Word('dead')} (what ended processes left), or "
            f"{Word('unnamed_older_than', 'AGE')} such as 30d (what nobody named or tagged)"
        )
    if unnamed_older_than is not None and unnamed_older_than < 0:
        raise UsageError(f"{Word('unnamed_older_than')} must not be negative")
    left: list[Unfinished | Unused] = []
    if dead:
        left += [each for each in unfinished(store) if each.dead] if dry_run else sweep(store, searches=True)
    if unnamed_older_than is not None:
        for each in unused(store, unnamed_older_than):
            if dry_run or delete(store, each.kind, each.id, each.name, unnamed=True):
                left.append(each)
    return left
