"""The content of a store as rows: graphs, instances, profiles, searches and runs, filtered and sorted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stagedb.api import catalog, lookup, plan_texts
from stagedb.api.results import InstanceInfo, ProfileInfo, Rows, RunInfo
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.store import Store, current_user, unfinished

KINDS = ("graphs", "instances", "profiles", "searches", "runs", "unfinished")
COLUMNS = (
    *("kind", "id", "name", "ranks", "step", "mfu", "peak", "plan", "system", "timing", "created", "model"),
    *("instance", "made_by", "state", "names", "tags", "mine", "loaded"),
)
SORTS: Mapping[str, tuple[str, bool]] = {
    "created": ("created", True),
    "name": ("name", False),
    "ranks": ("ranks", False),
    "step": ("step", False),
    "mfu": ("mfu", True),
    "memory": ("peak", False),
}
"""What rows can be sorted by: the column, and whether the largest comes first."""

_Row = dict[str, Any]


def listing(
    store: Store,
    kind: str | None,
    model: str | None,
    system: str | None,
    tag: str | None,
    mine: bool,
    sort: str,
    limit: int | None,
) -> Rows:
    """A row for each graph, instance, profile, search and run, finished or not, with the columns of `COLUMNS`; absent
    values are None.

    The arguments are those of `Stagedb.ls`. Raises UsageError for values that are not possible.
    """
    if kind is not None and kind not in KINDS:
        raise UsageError(f"{shown(kind)} is not a kind of thing to list: it is one of {', '.join(KINDS)}")
    if sort not in SORTS:
        raise UsageError(f"{Word('sort', shown(sort))} is not possible: it is one of {', '.join(SORTS)}")
    if limit is not None and limit < 1:
        raise UsageError(f"{Word('limit', limit)} is not possible: it is at least 1")
    if system is not None and kind not in (None, "profiles", "searches"):
        raise UsageError(f"only profiles and searches have a system: list these, or leave {Word('system')} out")
    found: list[_Row] = []
    content = _Content(store)
    for each, read in _READERS.items():
        if kind in (None, _PLURALS.get(each, f"{each}s"), each) and (system is None or each in ("profile", "search")):
            rows = [{"kind": each, **row} for row in read(content)]
            rows = [row for row in rows if model in (None, row.get("model"))]
            rows = [row for row in rows if system is None or system in str(row.get("system")).split(", ")]
            rows = [
                row for row in rows if (tag is None or tag in row.get("tags", ())) and (row.get("mine") or not mine)
            ]
            found += _sorted(rows, sort)[:limit]
    if not found:
        check_names(store, model, system)
    return Rows(COLUMNS, tuple(tuple(row.get(column) for column in COLUMNS) for row in found))


def instances_of_graph(store: Store, graph: str, most: int) -> tuple[Rows, int]:
    """The first rows of a graph's instances, as `listing` has them, and how many instances there are.

    graph: its id. most: how many rows.
    """
    return _first(store, lookup.instances_of(store, graph), most)


def instances_of_model(store: Store, model: str, most: int) -> tuple[Rows, int]:
    """The first rows of a model's instances, as `listing` has them, and how many instances there are.

    model: its name. most: how many rows.
    """
    return _first(store, [each for each in catalog.instances(store) if each.model == model], most)


def _first(store: Store, found: Sequence[InstanceInfo], most: int) -> tuple[Rows, int]:
    peaks = {row["instance"]: (row["classes"], row["peak"]) for row in store.read_sound("catalog/peaks")}
    rows = [{**_of_instance(each, peaks), "id": each.id, **_made(each)} for each in found[:most]]
    return _rows("instance", rows), len(found)


def profiles_of(store: Store, instance: InstanceInfo) -> Rows:
    """The rows of an instance's profiles, as `listing` has them. Nothing else is read."""
    classes = store.read("memory/all_peaks", instance=instance.id)
    of = _of_instance(instance, {instance.id: (len(classes), max((row["peak"] for row in classes), default=0))})
    return _rows("profile", [_of_profile(each, of) for each in lookup.profiles_of(store, instance.id)])


def _rows(kind: str, found: Sequence[_Row]) -> Rows:
    return Rows(COLUMNS, tuple(tuple({"kind": kind, **row}.get(column) for column in COLUMNS) for row in found))


def check_names(store: Store, model: str | None, system: str | None) -> None:
    """Raise UsageError if the store has nothing of a model or on a system, and similar names are known."""
    readers: tuple[tuple[str, str | None, Callable[[Store], list[str]]], ...] = (
        ("model", model, lambda store: [graph.name for graph in catalog.graphs(store)]),
        ("system", system, _systems),
    )
    for name, word, read in readers:
        known = [] if word is None else read(store)
        if word is not None and word not in known:
            names = ", ".join(sorted(set(known))) or "nothing"
            raise UsageError(
                f"{Word(name, shown(word))}: the store has nothing of it{catalog.near(word, known)}; it has {names}"
            )


def _systems(store: Store) -> list[str]:
    """Names of the systems of profiles and searches."""
    return [
        *(profile.system for profile in catalog.profiles(store)),
        *(name for search in catalog.searches(store) for name in search.systems),
    ]


def _sorted(rows: Sequence[_Row], sort: str) -> list[_Row]:
    """The rows in order, those without the figure last. Equal ones stay in their order, the caller's own first."""
    column, largest_first = SORTS[sort]
    if sort == "created":
        return list(rows)
    there = [row for row in rows if row.get(column) is not None]
    return [
        *sorted(there, key=lambda row: _least(row[column]), reverse=largest_first),
        *(row for row in rows if row.get(column) is None),
    ]


def _least(value: Any) -> Any:
    """The number that a value is sorted by: the smallest one, if there are several numbers of ranks."""
    return min(value) if isinstance(value, list) else value


class _Content:
    """All things of a store that a listing needs; each kind is read once."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @cached_property
    def instances(self) -> list[tuple[InstanceInfo, _Row]]:
        """Each instance, with its figures as a row."""
        peaks = {row["instance"]: (row["classes"], row["peak"]) for row in self.store.read_sound("catalog/peaks")}
        return [(each, _of_instance(each, peaks)) for each in catalog.instances(self.store)]


def _graphs(content: _Content) -> list[_Row]:
    return [
        {
            "id": each.id,
            "name": each.name,
            "model": each.name,
            "plan": plan_texts.describe(each.options),
            "created": each.created,
            "made_by": each.made_by,
            "tags": list(each.tags),
            "mine": each.made_by == current_user(),
            "loaded": list(each.loaded),
        }
        for each in catalog.graphs(content.store)
    ]


def _instances(content: _Content) -> list[_Row]:
    return [{**row, "id": each.id, **_made(each)} for each, row in content.instances]


def _profiles(content: _Content) -> list[_Row]:
    known = {each.id: row for each, row in content.instances}
    # The catalog leaves out a damaged instance, so that its profiles have no plan in this list.
    unknown = {"model": None, "peak": None}
    return [_of_profile(each, known.get(each.instance, unknown)) for each in catalog.profiles(content.store)]


def _of_profile(each: ProfileInfo, instance: Mapping[str, Any]) -> _Row:
    """The row of a profile. instance: that of its instance."""
    return {
        **instance,
        "id": each.id,
        "name": each.name,
        "ranks": each.ranks,
        "step": each.step,
        "mfu": each.mfu,
        "peak": instance["peak"] if each.memory is None else each.memory,
        "system": each.system,
        "timing": timing_of(each),
        "instance": each.instance,
        **_made(each),
    }


def _searches(content: _Content) -> list[_Row]:
    """Searches, with the step and the memory of their best plans; `ranks` is a list if they have several numbers."""
    return [
        {
            "id": each.id,
            "name": each.name,
            "model": each.model,
            "ranks": each.ranks[0] if len(each.ranks) == 1 else list(each.ranks),
            "step": each.step,
            "peak": each.peak,
            "plan": each.extent,
            "system": ", ".join(each.systems),
            "created": each.created,
            "made_by": each.made_by,
            "tags": list(each.tags),
            "mine": each.made_by == current_user(),
            "loaded": list(each.loaded),
        }
        for each in catalog.searches(content.store)
    ]


def _runs(content: _Content) -> list[_Row]:
    """Runs, with the time that was recorded as their step, and what was recorded as their plan."""
    return [
        {
            "id": each.id,
            "name": each.name,
            "ranks": each.job_ranks,
            "step": each.step,
            "plan": each.extent,
            "system": ", ".join(each.devices),
            **_made(each),
        }
        for each in catalog.runs(content.store)
    ]


def _unfinished(content: _Content) -> list[_Row]:
    """Rows for things that a process is building or deleting, which have no figures yet."""
    return [
        {
            "id": each.id,
            "name": each.name,
            "created": None if each.created is None else catalog.time_of(each.created),
            "made_by": each.user,
            "state": f"{each.kind.lower()} {each.state}{', by a process that has ended' if each.dead else ''}",
        }
        for each in unfinished(content.store)
    ]


_PLURALS = {"search": "searches", "unfinished": "unfinished"}
"""Names of lists that are no plain plural of what they have."""

_READERS: Mapping[str, Callable[[_Content], list[_Row]]] = {
    "graph": _graphs,
    "instance": _instances,
    "profile": _profiles,
    "search": _searches,
    "run": _runs,
    "unfinished": _unfinished,
}


def _of_instance(each: InstanceInfo, peaks: Mapping[str, tuple[int, int]]) -> _Row:
    classes, peak = peaks.get(each.id, (0, 0))
    return {
        "name": each.name,
        "ranks": each.ranks,
        "model": each.model,
        "plan": plan_texts.describe(each.plan),
        "peak": peak if classes == each.classes else None,
    }


def _made(each: InstanceInfo | ProfileInfo | RunInfo) -> _Row:
    user = current_user()
    named = any(name.partition("/")[0] == user for name in each.names)
    return {
        "created": each.created,
        "made_by": each.made_by,
        "names": list(each.names),
        "tags": list(each.tags),
        "mine": named or user in (each.made_by, each.asked_by),
        "loaded": list(each.loaded),
    }


def timing_of(info: ProfileInfo) -> str | None:
    """What makes a profile differ from a plain one: scalings, blocking axes, measured durations."""
    words = [f"scale {each}" for each in info.scalings]
    words += [f"blocking {','.join(info.blocking)}"] if info.blocking else []
    words += [f"measured {info.measured_time:.0%}"] if info.measured_time else []
    return " ".join(words) or None


# A part of a long listing: the rows that contain a text, page by page.

SEARCHED = ("id", "name", "model", "plan", "system", "timing", "made_by", "state", "names", "tags")
"""Columns of a listing in which a text is searched."""


@dataclass(frozen=True)
class ListedPage:
    """A page of a listing. number: from 1. found: rows on all pages; pages: at least 1."""

    rows: Rows
    number: int
    pages: int
    found: int


def page(listed: Rows, text: str | None, number: int, size: int) -> ListedPage:
    """The rows of a listing (`Stagedb.ls`) that contain every word of a text, in any case: page `number` of them.

    size: rows of a page. Raises UsageError for a page that does not exist.
    """
    words = (text or "").casefold().split()
    rows = [row for row in listed.rows if _contains(dict(zip(listed.columns, row, strict=True)), words)]
    pages = max(1, -(-len(rows) // size))
    if not 1 <= number <= pages:
        raise UsageError(f"there is no page {number}: the pages are 1 to {pages}")
    return ListedPage(Rows(listed.columns, tuple(rows[(number - 1) * size : number * size])), number, pages, len(rows))


def _contains(row: dict[str, Any], words: list[str]) -> bool:
    texts = " ".join(str(row[name]) for name in SEARCHED if row.get(name) is not None).casefold()
    return all(word in texts for word in words)
