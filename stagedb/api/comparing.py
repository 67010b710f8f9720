"""Two instances, or two profiles, compared: words of their plans, figures, work and time that differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stagedb.api import catalog, querying
from stagedb.api.results import Difference, InstanceInfo, ProfileInfo, Rows
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.plans.aspects import LATER
from stagedb.store import Store

COLUMNS = ("what", "unit", "first", "second", "ratio")

WORK = (("calls", "calls"), ("flops", "FLOPs"), ("bytes", "bytes"))
TIME = (("time", "ns a rank"), ("exposed", "ns exposed a rank"), ("critical", "ns on the critical path"))
"""Columns of the named queries that are compared, with their units."""


@dataclass(frozen=True)
class _Side:
    instance: InstanceInfo
    profile: ProfileInfo | None


def compare(store: Store, first: str, second: str) -> Difference:
    """The differences between two instances, or two profiles and their instances, by id or name.

    Raises UsageError for an unknown word, and if one is an instance and the other a profile.
    """
    one, other = (_side(store, word) for word in (first, second))
    if (one.profile is None) != (other.profile is None):
        words = (first, second) if one.profile is None else (second, first)
        raise UsageError(
            f"{shown(words[0])} is an instance and {shown(words[1])} a profile: compare two instances, or two profiles "
            f"(`stagedb profile {words[0]}` makes one)"
        )
    plan = tuple(_plan(one.instance, other.instance))
    work = () if one.instance.id == other.instance.id else tuple(_work(store, one.instance, other.instance))
    time: tuple[tuple[Any, ...], ...] = ()
    if one.profile is not None and other.profile is not None:
        time = (*_figures(one.profile, other.profile), *_time(store, one.profile, other.profile))
    return Difference(
        one.profile or one.instance,
        other.profile or other.instance,
        Rows(("word", "first", "second"), plan),
        Rows(COLUMNS, work),
        Rows(COLUMNS, time),
    )


def _side(store: Store, word: str) -> _Side:
    found = catalog.find(store, word)
    if isinstance(found, InstanceInfo):
        return _Side(found, None)
    if isinstance(found, ProfileInfo):
        return _Side(catalog.the_instance(store, found.instance), found)
    raise UsageError(f"{shown(word)} is a graph: compare two instances or two profiles (`stagedb ls` lists them)")


def _plan(one: InstanceInfo, other: InstanceInfo) -> Iterator[tuple[Any, ...]]:
    if one.model != other.model:
        yield "model", one.model, other.model
    first, second = ({**LATER, **each.plan} for each in (one, other))
    for word in sorted({*first, *second}):
        ours, theirs = first.get(word), second.get(word)
        if ours != theirs:
            yield word, ours, theirs
    if one.ranks != other.ranks:
        yield "ranks", one.ranks, other.ranks


def _work(store: Store, one: InstanceInfo, other: InstanceInfo) -> Iterator[tuple[Any, ...]]:
    rows = store.read(querying.find("diff_work").name, instance=one.id, other=other.id)
    for row in rows:
        yield from _rows(row, WORK)


def _figures(one: ProfileInfo, other: ProfileInfo) -> Iterator[tuple[Any, ...]]:
    for what, unit in (("step", "ns"), ("tokens_per_second", "tokens/s"), ("mfu", "ratio"), ("hfu", "ratio")):
        ours, theirs = getattr(one, what), getattr(other, what)
        if ours != theirs:
            yield what, unit, ours, theirs, theirs / ours if ours and theirs is not None else None


def _time(store: Store, one: ProfileInfo, other: ProfileInfo) -> Iterator[tuple[Any, ...]]:
    for row in store.read(querying.find("diff_time").name, profile=one.id, other=other.id):
        yield from _rows(row, TIME)


def _rows(row: dict[str, Any], compared: tuple[tuple[str, str], ...]) -> Iterator[tuple[Any, ...]]:
    what = " ".join(part for part in (row["axis"], row["kind"], row["phase"]) if part)
    for name, unit in compared:
        ours, theirs = row[name], row[f"other_{name}"]
        if ours != theirs:
            yield what, unit, ours, theirs, theirs / ours if ours else None
