"""Graphs, instances and profiles of a store: found by id, by the start of an id, or by name."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from stagedb.api.results import GraphInfo, InstanceInfo, OutdatedInfo, ProfileInfo
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.store import (
    DamagedError,
    RemovedError,
    Store,
    Unfinished,
    current_user,
    delete,
    json_mapping,
    reading,
    unfinished,
    user_of,
    warn_of,
)

Info = TypeVar("Info", GraphInfo, InstanceInfo, ProfileInfo, OutdatedInfo | Unfinished)
Removed = GraphInfo | InstanceInfo | ProfileInfo | OutdatedInfo | Unfinished

Made = TypeVar("Made", InstanceInfo, ProfileInfo)

SHORT_ID = 12
"""Characters of an id that people see. The start of an id is enough everywhere."""


def graphs(store: Store) -> list[GraphInfo]:
    """All complete graphs, the newest first."""
    return [*_infos("graph", _graph, store.read_sound("catalog/graphs"))]


def instances(store: Store) -> list[InstanceInfo]:
    """All complete instances, the newest first."""
    return [*_infos("instance", _instance, store.read_sound("catalog/instances"))]


def profiles(store: Store) -> list[ProfileInfo]:
    """All complete profiles, the newest first."""
    return [*_infos("profile", _profile, store.read_sound("catalog/profiles"))]


def made(known: Sequence[Info], id: str) -> Info:
    """What has just been made or found, by its id. Raises RemovedError if another process has removed it since."""
    found = next((each for each in known if each.id == id), None)
    if found is None:
        raise RemovedError(
            f"{id[:SHORT_ID]} was removed by another process as soon as it was there: run the command again"
        )
    return found


def newest(known: Sequence[Made]) -> Made:
    """The newest that the caller made or asked for, else the newest of all. known: at least one, the newest first."""
    user = current_user()
    return next((each for each in known if user in (each.made_by, each.asked_by)), known[0])


def described(info: InstanceInfo | ProfileInfo) -> str:
    """The short id of an instance or a profile, its name or its instance and system, and who else made it."""
    if isinstance(info, ProfileInfo):
        scaled = f", scaled: {', '.join(info.scalings)}" if info.scalings else ""
        text = f"{info.id[:SHORT_ID]} of {info.instance_name} on {info.system}{scaled}"
    else:
        text = f"{info.id[:SHORT_ID]} {info.name}"
    foreign = info.made_by is not None and current_user() not in (info.made_by, info.asked_by)
    return f"{text}, made by {info.made_by}" if foreign else text


def find_graph(store: Store, word: str) -> GraphInfo | None:
    """The graph with this id or start of an id."""
    return _by_id(graphs(store), word, "graph")


def find_instance(store: Store, word: str) -> InstanceInfo | None:
    """The instance with this id, start of an id, or name. `newest` of several with the same name."""
    known = instances(store)
    named = [instance for instance in known if instance.name == word]
    return newest(named) if named else _by_id(known, word, "instance")


def the_instance(store: Store, word: str | None) -> InstanceInfo:
    """The instance with an id or name, or `newest`. Raises UsageError if there is none."""
    known = instances(store)
    if word is None:
        if not known:
            raise UsageError("the store has no instance yet: make one with `stagedb instantiate MODEL`")
        return newest(known)
    found = find_instance(store, word)
    if found is None:
        _check_kind(store, word)
        names = [name for instance in known for name in (instance.name, instance.id[:SHORT_ID])]
        raise UsageError(f"no instance {shown(word)} in the store{near(word, names)}; `stagedb ls` lists them")
    return found


def _check_kind(store: Store, word: str) -> None:
    """Raise UsageError if a word that should name an instance names a profile or a graph."""
    profile = find_profile(store, word)
    if profile is not None:
        raise UsageError(
            f"{shown(word)} is a profile, of instance {profile.instance[:SHORT_ID]} ({profile.instance_name}): give "
            "that id where an instance is wanted"
        )
    graph = find_graph(store, word)
    if graph is not None:
        raise UsageError(
            f"{shown(word)} is a graph, of the model {graph.name}: make an instance of it with `stagedb instantiate "
            f"{graph.id[:SHORT_ID]}`, or name one that `stagedb ls` lists"
        )


def find_profile(store: Store, word: str, known: list[ProfileInfo] | None = None) -> ProfileInfo | None:
    """The profile with this id, start of an id, or name. `newest` of several with the same name."""
    known = profiles(store) if known is None else known
    named = [profile for profile in known if profile.name == word]
    return newest(named) if named else _by_id(known, word, "profile")


def the_profile(store: Store, word: str | None, instance: InstanceInfo | None = None) -> ProfileInfo:
    """The profile with an id or name, or `newest`; only profiles of `instance`, if it is given.

    Raises UsageError if there is none.
    """
    every = profiles(store)
    known = [each for each in every if instance is None or each.instance == instance.id]
    whose = "" if instance is None else f" of instance {instance.id[:SHORT_ID]} ({instance.name})"
    if word is None:
        if not known:
            named = "" if instance is None else f" {instance.id[:SHORT_ID]}"
            raise UsageError(f"the store has no profile{whose} yet: make one with `stagedb profile{named}`")
        return newest(known)
    found = find_profile(store, word, known)
    if found is None:
        names = [name for each in known for name in (each.name, each.id[:SHORT_ID]) if name is not None]
        raise UsageError(
            f"no profile {shown(word)}{whose} in the store{near(word, names)}; `stagedb ls profiles` lists them"
        )
    return found


def find(store: Store, word: str) -> GraphInfo | InstanceInfo | ProfileInfo:
    """The graph, instance or profile with an id or name. Raises UsageError if there is none."""
    return find_graph(store, word) or find_instance(store, word) or find_profile(store, word) or _unknown(store, word)


def _unknown(store: Store, word: str) -> GraphInfo:
    names = [name for each in instances(store) for name in (each.name, each.id[:SHORT_ID])]
    names += [each.name or each.id[:SHORT_ID] for each in profiles(store)]
    raise UsageError(
        f"no graph, instance or profile {shown(word)} in the store{near(word, names)}; `stagedb ls` lists them"
    )


def tag(store: Store, word: str, name: str) -> InstanceInfo | ProfileInfo:
    """Rename an instance or a profile. Several may have one name, which then means the newest of them.

    Raises UsageError for a graph, which always has the name of its model, and for a name without letters.
    """
    found, name = find(store, word), name.strip()
    if isinstance(found, GraphInfo):
        raise UsageError(
            f"graph {found.id[:SHORT_ID]} always has the name of its model, {found.name}: rename an instance of it"
        )
    if not name or not name.isprintable():
        raise UsageError(f"{shown(name)} is not a name: a name needs printable characters")
    kind = "profile" if isinstance(found, ProfileInfo) else "instance"
    store.write(f"catalog/tag_{kind}", **{kind: found.id, "name": name})
    return dataclasses.replace(found, name=name)


def outdated(store: Store) -> list[OutdatedInfo]:
    """Instances and profiles that an older schema wrote. Readers do not see them until they are made again."""
    return [OutdatedInfo(**row) for row in store.read("catalog/outdated")]


def remove(store: Store, word: str, force: bool) -> list[Removed]:
    """Delete a graph, an instance with its profiles, or a profile, by id, start of an id, or name.

    Unfinished ones and those of an older schema can be deleted too. Raises UsageError for a graph that instances need,
    unless `force` is set, and StagedbError for what a living process builds or deletes.
    """
    old = outdated(store)
    invisible: list[OutdatedInfo | Unfinished] = [*old, *unfinished(store)]
    named = next((each for each in invisible if each.name == word), None)
    hidden = named or _by_id(invisible, word, "graph, instance or profile")
    found = find_graph(store, word) or find_instance(store, word) or find_profile(store, word)
    if found is None and hidden is not None:
        delete(store, hidden.kind, hidden.id)
        return [hidden]
    found = found or _unknown(store, word)
    if isinstance(found, ProfileInfo):
        delete(store, "Profile", found.id)
        return [found]
    if isinstance(found, InstanceInfo):
        delete(store, "Instance", found.id)
        return [found]
    users: list[Removed] = [instance for instance in instances(store) if instance.graph == found.id]
    users += [each for each in old if each.graph == found.id]
    if users and not force:
        raise UsageError(
            f"{len(users)} instances need graph {found.id[:SHORT_ID]} ({found.name}): "
            "remove them first, or add --force to remove them too"
        )
    for instance in users:
        delete(store, "Instance", instance.id)
    delete(store, "Graph", found.id)
    return [*users, found]


def near(word: str, names: Iterable[str]) -> str:
    """`: did you mean …?`, if some name is similar to the word."""
    known = sorted(set(names))
    lowered = {name.lower(): name for name in known}
    found = [lowered[name] for name in difflib.get_close_matches(word.lower(), lowered, n=4, cutoff=0.5)]
    found += [name for name in known if name not in found and word and name.lower().startswith(word.lower())]
    return f": did you mean {', '.join(found[:6])}?" if found else ""


def _by_id(known: list[Info], word: str, what: str) -> Info | None:
    found = [info for info in known if len(word) >= 4 and info.id.startswith(word)]
    if len(found) > 1 and word != found[0].id:
        ids = ", ".join(info.id for info in found[:5])
        raise UsageError(
            f"{shown(word)} is the start of {len(found)} ids ({ids}): give more characters of the {what}'s id"
        )
    return found[0] if found else None


def _infos(what: str, read: Callable[[Mapping[str, Any]], Info], rows: Iterable[Mapping[str, Any]]) -> Iterator[Info]:
    """What is described by each row. A row with damaged content is left out with a warning."""
    for row in rows:
        try:
            with reading(f"{what} {shown(row['id'])}"):
                found = read(row)
        except DamagedError as damage:
            warn_of(f"left out: {damage}")
        else:
            yield found


def _graph(row: Mapping[str, Any]) -> GraphInfo:
    return GraphInfo(
        id=row["id"],
        name=row["name"],
        recipe=row["recipe"],
        options=json_mapping(row["options"], "options"),
        sizes=json_mapping(row["sizes"], "sizes"),
        created=time_of(row["created"]),
    )


def _instance(row: Mapping[str, Any]) -> InstanceInfo:
    return InstanceInfo(
        id=row["id"],
        name=row["name"],
        graph=row["graph"],
        model=row["model"],
        recipe=row["recipe"],
        plan=json_mapping(row["plan"], "plan"),
        ranks=row["ranks"],
        classes=row["classes"],
        created=time_of(row["created"]),
        made_by=user_of(row["builder"]),
        asked_by=user_of(row["claim"]),
    )


def _profile(row: Mapping[str, Any]) -> ProfileInfo:
    plain = {name: value for name, value in row.items() if name not in ("builder", "claim")}
    lists = {name: tuple(row[name]) for name in ("scalings", "blocking")}
    users = {"made_by": user_of(row["builder"]), "asked_by": user_of(row["claim"])}
    return ProfileInfo(**{**plain, **lists, **users, "created": time_of(row["created"])})


def time_of(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
