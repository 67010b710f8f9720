"""Graphs, instances and profiles of a store: found by id, by the start of an id, or by name."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    json_mapping,
    reading,
    user_of,
    warn_of,
)
from stagedb.store.naming import spaces

Info = TypeVar("Info", GraphInfo, InstanceInfo, ProfileInfo, OutdatedInfo | Unfinished)
Made = TypeVar("Made", InstanceInfo, ProfileInfo)

SHORT_ID = 12
"""Characters of an id that people see. The start of an id is enough everywhere."""


@dataclass(frozen=True)
class _Marks:
    """What users wrote about things, each by the id of the thing. asked: when the caller asked for it, in ms.

    user: the caller. spaces: those in which the caller has names.
    """

    names: Mapping[str, Sequence[str]]
    tags: Mapping[str, Sequence[str]]
    notes: Mapping[str, Sequence[str]]
    asked: Mapping[str, Sequence[int]]
    user: str
    spaces: Sequence[str]


def _marks(store: Store) -> _Marks:
    """Read as lists of their own: a pattern for each row of a catalog is slow with thousands of rows."""
    user = current_user()
    return _Marks(
        user=user,
        spaces=spaces(store),
        names=names_by_id(store),
        tags=_by_id(store.read_sound("catalog/tags"), "tag"),
        notes=_by_id(store.read_sound("catalog/notes"), "note"),
        asked=_by_id(store.read_sound("catalog/asked", user=user), "time"),
    )


def names_by_id(store: Store) -> dict[str, list[str]]:
    """The names of instances and profiles, as space/name, by id."""
    return _by_id(store.read_sound("catalog/names"), "name")


def _by_id(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row[column])
    return found


def graphs(store: Store) -> list[GraphInfo]:
    """All complete graphs, the newest first."""
    marks = _marks(store)
    return [*_infos("graph", lambda row: _graph(row, marks), store.read_sound("catalog/graphs"))]


def instances(store: Store) -> list[InstanceInfo]:
    """All complete instances: the caller's own, then all others; the newest first."""
    marks = _marks(store)
    rows = sorted(store.read_sound("catalog/instances"), key=lambda row: _own_first(row, marks))
    return [*_infos("instance", lambda row: _instance(row, marks), rows)]


def profiles(store: Store) -> list[ProfileInfo]:
    """All complete profiles: the caller's own, then all others; the newest first."""
    marks = _marks(store)
    rows = sorted(store.read_sound("catalog/profiles"), key=lambda row: _own_first(row, marks))
    return [*_infos("profile", lambda row: _profile(row, marks), rows)]


def _own_first(row: Mapping[str, Any], marks: _Marks) -> tuple[bool, int]:
    """The order of what somebody made or asked for: the caller's own first, by the newest request."""
    made = marks.user in (user_of(row["builder"]), user_of(row["claim"]))
    times = [*marks.asked.get(row["id"], ()), *([row["created"]] if made else [])]
    return not times, -max(times or [row["created"]])


def made(known: Sequence[Info], id: str) -> Info:
    """What has just been made or found, by its id. Raises RemovedError if another process has removed it since."""
    found = next((each for each in known if each.id == id), None)
    if found is None:
        raise RemovedError(
            f"{id[:SHORT_ID]} was removed by another process as soon as it was there: run the command again"
        )
    return found


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
    return by_id(graphs(store), word, "graph")


def find_instance(store: Store, word: str) -> InstanceInfo | None:
    """The instance with this id, start of an id, or name (`named`)."""
    known = instances(store)
    return named(store, known, word, "instance") or by_id(known, word, "instance")


def the_instance(store: Store, word: str | None) -> InstanceInfo:
    """The instance with an id or name, or the newest of the caller. Raises UsageError if there is none."""
    known = instances(store)
    if word is None:
        if not known:
            raise UsageError("the store has no instance yet: make one with `stagedb instantiate MODEL`")
        return known[0]
    found = find_instance(store, word)
    if found is None:
        _check_kind(store, word)
        names = [name for each in known for name in (each.name, *each.names, each.id[:SHORT_ID])]
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
    """The profile with this id, start of an id, or name (`named`)."""
    known = profiles(store) if known is None else known
    return named(store, known, word, "profile") or by_id(known, word, "profile")


def named(store: Store, known: Sequence[Made], word: str, what: str) -> Made | None:
    """What a name means to the caller: with its space (`bob/base`), else a name of the caller, of the workspace, of
    somebody else; then what is called so without a name, the newest of it. known: in the order of the catalog.

    Raises UsageError if several other users have the name.
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


def the_profile(store: Store, word: str | None, instance: InstanceInfo | None = None) -> ProfileInfo:
    """The profile with an id or name, or the newest; only profiles of `instance`, if it is given.

    Raises UsageError if there is none.
    """
    every = profiles(store)
    known = [each for each in every if instance is None or each.instance == instance.id]
    whose = "" if instance is None else f" of instance {instance.id[:SHORT_ID]} ({instance.name})"
    if word is None:
        if not known:
            named = "" if instance is None else f" {instance.id[:SHORT_ID]}"
            raise UsageError(f"the store has no profile{whose} yet: make one with `stagedb profile{named}`")
        return known[0]
    found = find_profile(store, word, known)
    if found is None:
        names = [name for each in known for name in (each.name, *each.names, each.id[:SHORT_ID]) if name is not None]
        raise UsageError(
            f"no profile {shown(word)}{whose} in the store{near(word, names)}; `stagedb ls profiles` lists them"
        )
    return found


def find(store: Store, word: str) -> GraphInfo | InstanceInfo | ProfileInfo:
    """The graph, instance or profile with an id or name. Raises UsageError if there is none."""
    return known(store, word) or unknown(store, word)


def known(store: Store, word: str) -> GraphInfo | InstanceInfo | ProfileInfo | None:
    """The graph, instance or profile with an id or name, if there is one."""
    return find_graph(store, word) or find_instance(store, word) or find_profile(store, word)


def unknown(store: Store, word: str) -> GraphInfo:
    names = [name for each in instances(store) for name in (each.name, each.id[:SHORT_ID])]
    names += [each.name or each.id[:SHORT_ID] for each in profiles(store)]
    raise UsageError(
        f"no graph, instance or profile {shown(word)} in the store{near(word, names)}; `stagedb ls` lists them"
    )


def outdated(store: Store) -> list[OutdatedInfo]:
    """Instances and profiles that an older schema wrote. Readers do not see them until they are made again."""
    return [OutdatedInfo(**row) for row in store.read("catalog/outdated")]


def near(word: str, names: Iterable[str]) -> str:
    """`: did you mean …?`, if some name is similar to the word."""
    known = sorted(set(names))
    lowered = {name.lower(): name for name in known}
    found = [lowered[name] for name in difflib.get_close_matches(word.lower(), lowered, n=4, cutoff=0.5)]
    found += [name for name in known if name not in found and word and name.lower().startswith(word.lower())]
    return f": did you mean {', '.join(found[:6])}?" if found else ""


def by_id(known: list[Info], word: str, what: str) -> Info | None:
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


def _graph(row: Mapping[str, Any], marks: _Marks) -> GraphInfo:
    return GraphInfo(
        id=row["id"],
        name=row["name"],
        recipe=row["recipe"],
        options=json_mapping(row["options"], "options"),
        sizes=json_mapping(row["sizes"], "sizes"),
        created=time_of(row["created"]),
        made_by=user_of(row["builder"]),
        tags=tuple(marks.tags.get(row["id"], ())),
        notes=tuple(marks.notes.get(row["id"], ())),
    )


def _instance(row: Mapping[str, Any], marks: _Marks) -> InstanceInfo:
    return InstanceInfo(
        id=row["id"],
        name=called(marks.names.get(row["id"], ()), row["name"], marks.spaces),
        graph=row["graph"],
        model=row["model"],
        recipe=row["recipe"],
        plan=json_mapping(row["plan"], "plan"),
        ranks=row["ranks"],
        classes=row["classes"],
        created=time_of(row["created"]),
        **_team(row, marks),
    )


def _profile(row: Mapping[str, Any], marks: _Marks) -> ProfileInfo:
    names = marks.names.get(row["id"], ())
    plain = {name: value for name, value in row.items() if name not in _NOT_OF_PROFILE}
    return ProfileInfo(
        **{
            **plain,
            "name": called(names, row["name"], marks.spaces) if names else row["name"],
            "instance_name": called(marks.names.get(row["instance"], ()), row["instance_name"], marks.spaces),
            "scalings": tuple(row["scalings"]),
            "blocking": tuple(row["blocking"]),
            "created": time_of(row["created"]),
            **_team(row, marks),
        }
    )


_NOT_OF_PROFILE = ("builder", "claim")
"""Columns of `catalog/profiles` that are not fields."""


def _team(row: Mapping[str, Any], marks: _Marks) -> dict[str, Any]:
    """Whose an instance or a profile is, and what users wrote about it."""
    return {
        "made_by": user_of(row["builder"]),
        "asked_by": marks.user if row["id"] in marks.asked else user_of(row["claim"]),
        "names": tuple(marks.names.get(row["id"], ())),
        "tags": tuple(marks.tags.get(row["id"], ())),
        "notes": tuple(marks.notes.get(row["id"], ())),
    }


def called(names: Sequence[str], otherwise: str, own_spaces: Sequence[str]) -> str:
    """What the caller calls a thing with these names: by the own name without its space, else by the team's.

    own_spaces: the caller's, as `spaces` has them.
    """
    user, *team = own_spaces
    for space in (user, *team):
        own = sorted(each for each in names if each.partition("/")[0] == space)
        if own:
            return own[0].partition("/")[2] if space == user else own[0]
    return min(names, default=otherwise)


def time_of(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
