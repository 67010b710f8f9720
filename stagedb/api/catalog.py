"""Lists of the graphs, instances, profiles, searches and runs of a store. `lookup` finds one of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, RunInfo, SearchInfo
from stagedb.files import nearest, question, shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.store import Store, Unfinished, current_user, reading, user_of, warn_of
from stagedb.store.naming import spaces

Info = TypeVar("Info", GraphInfo, InstanceInfo, ProfileInfo, SearchInfo, RunInfo, Unfinished)
Made = TypeVar("Made", InstanceInfo, ProfileInfo, RunInfo)

NOTE_START = 40
"""Characters of a note that name it; `listing_statements` has the same number."""

SHORT_ID = 12
"""Characters of an id that people see. The start of an id is enough everywhere."""


@dataclass(frozen=True)
class UserMarks:
    """What users wrote about things of a store, by the id of the thing.

    names: as `space/name`. tags, notes: texts. asked: when the caller asked for the thing last, ms since 1970. loaded:
    texts on marks that came with a dump. user: the caller. spaces: the spaces in which the caller has names.
    """

    names: Mapping[str, Sequence[str]]
    tags: Mapping[str, Sequence[str]]
    notes: Mapping[str, Sequence[str]]
    asked: Mapping[str, Sequence[int]]
    loaded: Mapping[str, Sequence[str]]
    user: str
    spaces: Sequence[str]


def user_marks(store: Store) -> UserMarks:
    """What users wrote: lists of their own, as a pattern for each row of a catalog is slow with thousands of rows."""
    user = current_user()
    rows = {kind: store.read_sound(f"catalog/{kind}s") for kind in ("name", "tag", "note")}
    loaded: dict[str, list[str]] = {}
    for kind, found in rows.items():
        for row in found:
            if row["origin"] is not None:
                text = row[kind] if kind != "note" else row[kind][:NOTE_START]
                loaded.setdefault(row["id"], []).append(f"{kind} {text} {row['origin']}")
    return UserMarks(
        user=user,
        spaces=spaces(store),
        names=_by_id(rows["name"], "name"),
        tags=_by_id(rows["tag"], "tag"),
        notes=_by_id(rows["note"], "note"),
        loaded=loaded,
        asked=_by_id(store.read_sound("catalog/asked", user=user), "time"),
    )


def names_by_id(store: Store) -> dict[str, list[str]]:
    """The names of instances and profiles, as space/name, by id."""
    return _by_id(store.read_sound("catalog/names"), "name")


def described_newest(store: Store, most: int) -> list[tuple[str, str]]:
    """Ids of the newest instances, profiles, searches and runs, each with a description. most: how many of a kind."""
    own = spaces(store)
    found = [
        (row["id"], f"instance {called(row['names'], row['name'], own)}, {row['ranks']:,} ranks")
        for row in store.read_sound("catalog/newest_instances", most=most)
    ]
    for row in store.read_sound("catalog/newest_profiles", most=most):
        of = row["name"] or called(row["instance_names"], row["instance_name"], own)
        name = called(row["names"], of, own)
        found.append((row["id"], f"profile {name} on {row['system']}, {row['ranks']:,} ranks"))
    found += [(each.id, f"search of {each.model}, {each.size:,} plans") for each in searches(store)[:most]]
    found += [(each.id, f"run {each.name or ''}, {each.extent}") for each in runs(store)[:most]]
    return found


def _by_id(rows: Iterable[Mapping[str, Any]], column: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row[column])
    return found


def graphs(store: Store) -> list[GraphInfo]:
    """All complete graphs, the newest first."""
    marks = user_marks(store)
    return graph_infos(store.read_sound("catalog/graphs"), marks)


def instances(store: Store, most: int | None = None) -> list[InstanceInfo]:
    """All complete instances: the caller's own, then all others; the newest first; at most `most`."""
    marks = user_marks(store)
    return instance_infos(store.read_sound("catalog/instances"), marks, most)


def profiles(store: Store, most: int | None = None) -> list[ProfileInfo]:
    """All complete profiles: the caller's own, then all others; the newest first; at most `most`."""
    marks = user_marks(store)
    return profile_infos(store.read_sound("catalog/profiles"), marks, most)


def searches(store: Store) -> list[SearchInfo]:
    """All complete searches, the newest first."""
    marks = user_marks(store)
    return search_infos(store.read_sound("catalog/searches"), marks)


def runs(store: Store) -> list[RunInfo]:
    """All complete runs: the caller's own, then all others; the newest first."""
    marks = user_marks(store)
    return run_infos(store.read_sound("catalog/runs"), marks)


def graph_infos(rows: Iterable[Mapping[str, Any]], marks: UserMarks) -> list[GraphInfo]:
    """The graphs of rows of `catalog/graphs` or of a look-up. A damaged one is left out with a warning."""
    return [*_infos("graph", lambda row: _graph(row, marks), rows)]


def instance_infos(rows: Iterable[Mapping[str, Any]], marks: UserMarks, most: int | None = None) -> list[InstanceInfo]:
    """The instances of rows of `catalog/instances` or of a look-up: the caller's own, then all others.

    Within both, the order of the rows stays. marks: names, tags and notes. most: how many at most; None: all. A damaged
    one is left out with a warning.
    """
    own_first = sorted(rows, key=lambda row: own_first_key(row, marks))
    return [*islice(_infos("instance", lambda row: _instance(row, marks), own_first), most)]


def profile_infos(rows: Iterable[Mapping[str, Any]], marks: UserMarks, most: int | None = None) -> list[ProfileInfo]:
    """The profiles of rows of `catalog/profiles` or of a look-up. A damaged one is left out with a warning.

    most: how many are returned; None: all. The caller's own come first, by the newest request.
    """
    own_first = sorted(rows, key=lambda row: own_first_key(row, marks))
    return [*islice(_infos("profile", lambda row: _profile(row, marks), own_first), most)]


def search_infos(rows: Iterable[Mapping[str, Any]], marks: UserMarks) -> list[SearchInfo]:
    """The searches of rows of `catalog/searches` or of a look-up, in their order."""
    return [*_infos("search", lambda row: _search(row, marks), rows)]


def run_infos(rows: Iterable[Mapping[str, Any]], marks: UserMarks) -> list[RunInfo]:
    """The runs of rows of `catalog/runs` or of a look-up: the caller's own, then all others."""
    own_first = sorted(rows, key=lambda row: own_first_key(row, marks))
    return [*_infos("run", lambda row: _run(row, marks), own_first)]


def own_first_key(row: Mapping[str, Any], marks: UserMarks) -> tuple[bool, int]:
    """The key that sorts what somebody made or asked for: the caller's own first, by the newest request.

    row: with its id, its makers and its time.
    """
    made = marks.user in (user_of(row["builder"]), user_of(row["claim"]))
    times = [*marks.asked.get(row["id"], ()), *([row["created"]] if made else [])]
    return not times, -max(times or [row["created"]])


def described(info: InstanceInfo | ProfileInfo | RunInfo) -> str:
    """The short id of an instance, a profile or a run, its name or what it has, and who else made it.

    info: what the text is about.
    """
    if isinstance(info, ProfileInfo):
        scaled = f", scaled: {', '.join(info.scalings)}" if info.scalings else ""
        text = f"{info.id[:SHORT_ID]} of {info.instance_name} on {info.system}{scaled}"
    elif isinstance(info, RunInfo):
        text = f"{info.id[:SHORT_ID]} {info.name or info.extent}"
    else:
        text = f"{info.id[:SHORT_ID]} {info.called}"
    foreign = info.made_by is not None and current_user() not in (info.made_by, info.asked_by)
    return f"{text}, made by {info.made_by}" if foreign else text


def near(word: str, names: Iterable[str]) -> str:
    """`: did you mean …?`, if some name is similar to the word. word: an unknown name. names: the known ones."""
    known = sorted(set(names))
    lowered = {name.lower(): name for name in known}
    found = [lowered[name] for name in nearest(word.lower(), lowered, 4, 0.5)]
    found += [name for name in known if name not in found and word and name.lower().startswith(word.lower())]
    return question(found[:6], ": {}", ", ")


def _infos(what: str, read: Callable[[Mapping[str, Any]], Info], rows: Iterable[Mapping[str, Any]]) -> Iterator[Info]:
    """The things that rows of a catalog describe. A row with damaged content is left out with a warning.

    what: the kind of the things, for warnings. read: makes a thing of a row.
    """
    for row in rows:
        try:
            with reading(f"{what} {shown(row['id'])}"):
                found = read(row)
        except DamagedError as damage:
            warn_of(f"left out: {damage}")
        else:
            yield found


def _graph(row: Mapping[str, Any], marks: UserMarks) -> GraphInfo:
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
        loaded=tuple(sorted(marks.loaded.get(row["id"], ()))),
    )


def _search(row: Mapping[str, Any], marks: UserMarks) -> SearchInfo:
    asked = json_mapping(row["request"], "request")
    plain = ("id", "model", "size", "timed", "covered", "step", "peak", "left", "seconds")
    return SearchInfo(
        **{name: row[name] for name in plain},
        systems=tuple(asked["systems"]),
        ranks=tuple(asked["ranks"]),
        by=asked["by"],
        allow=tuple(asked["allow"]),
        top=asked["top"],
        room=asked["room"],
        condition=asked["where"],
        framework=asked["framework"],
        words=asked["words"],
        whole=row["whole"],
        shard=None if row["shard"] is None else f"{row['shard']}/{row['shards']}",
        shards=row["shards"],
        finished=None if row["finished"] is None else tuple(row["finished"]),
        created=time_of(row["created"]),
        made_by=user_of(row["builder"]),
        tags=tuple(marks.tags.get(row["id"], ())),
        notes=tuple(marks.notes.get(row["id"], ())),
        loaded=tuple(sorted(marks.loaded.get(row["id"], ()))),
    )


def _instance(row: Mapping[str, Any], marks: UserMarks) -> InstanceInfo:
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


def _profile(row: Mapping[str, Any], marks: UserMarks) -> ProfileInfo:
    names = marks.names.get(row["id"], ())
    plain = {name: value for name, value in row.items() if name not in _NOT_FIELDS}
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


def _run(row: Mapping[str, Any], marks: UserMarks) -> RunInfo:
    names = marks.names.get(row["id"], ())
    plain = {name: value for name, value in row.items() if name not in _NOT_FIELDS}
    return RunInfo(
        **{
            **plain,
            "name": called(names, row["name"], marks.spaces) if names else row["name"],
            "devices": tuple(row["devices"]),
            "left_out": tuple(row["left_out"]),
            "created": time_of(row["created"]),
            **_team(row, marks),
        }
    )


_NOT_FIELDS = ("builder", "claim", "asked", "instance_names")
"""Columns of the lists and look-ups of profiles and runs that are not fields."""


def _team(row: Mapping[str, Any], marks: UserMarks) -> dict[str, Any]:
    """Whose an instance or a profile is, and what users wrote about it."""
    return {
        "made_by": user_of(row["builder"]),
        "asked_by": marks.user if row["id"] in marks.asked else user_of(row["claim"]),
        "names": tuple(marks.names.get(row["id"], ())),
        "tags": tuple(marks.tags.get(row["id"], ())),
        "notes": tuple(marks.notes.get(row["id"], ())),
        "loaded": tuple(sorted(marks.loaded.get(row["id"], ()))),
    }


def called(names: Sequence[str], otherwise: str, own_spaces: Sequence[str]) -> str:
    """What the caller calls a thing with these names: by the own name without its space, else by the team's.

    own_spaces: the caller's, as `spaces` has them. otherwise: the result without a name.
    """
    user, *team = own_spaces
    for space in (user, *team):
        own = sorted(each for each in names if each.partition("/")[0] == space)
        if own:
            return own[0].partition("/")[2] if space == user else own[0]
    return min(names, default=otherwise)


def time_of(milliseconds: int) -> str:
    """A time in UTC, such as `2026-01-31T12:00:00Z`. milliseconds: since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
