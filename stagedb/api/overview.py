"""What a team asks first: what is new, the best plan of each model and system, and anything by a text."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.api import listing, plan_lists
from stagedb.api.plan_lists import ListedPlan, PlanFilter
from stagedb.api.results import Rows
from stagedb.store import Store

OTHERS = ("searches", "runs", "graphs")
"""Kinds of things that have no plan of their own."""


@dataclass(frozen=True)
class BestPlan:
    """The profiles of a model on a system, and that with the most tokens a second an accelerator of those that fit.

    plan: None if none fits. Profiles whose memory is unknown count as if they fit.
    """

    model: str
    system: str
    plan: ListedPlan | None
    profiles: int


@dataclass(frozen=True)
class Brief:
    """A thing of a store in short.

    kind: in the plural. name: None without one. about: what it is, in a few words. step: ns of a profile, a search or a
    run, or of an instance's newest profile. tokens: a second and accelerator. made_by: the user. created: UTC.
    """

    kind: str
    id: str
    name: str | None
    about: str
    step: int | None
    tokens: float | None
    made_by: str | None
    created: str


@dataclass(frozen=True)
class Overview:
    """The numbers of things by kind, the newest of them, and the best plans."""

    counts: Mapping[str, int]
    newest: Sequence[Brief]
    best: Sequence[BestPlan]


@dataclass(frozen=True)
class FoundThings:
    """Things of one kind that a text finds: the first ones, and how many there are."""

    kind: str
    things: Sequence[Brief]
    count: int


def overview(store: Store, newest: int) -> Overview:
    """What a store has at a glance. newest: how many of the newest things."""
    plans = dict(zip(("instances", "profiles"), plan_lists.both(store, {}), strict=True))
    others = {kind: list(_listed(store, kind)) for kind in OTHERS}
    things = [_plan(kind, each) for kind, rows in plans.items() for each in rows]
    things += [_other(kind, row) for kind in ("searches", "runs") for row in others[kind]]
    counts = {kind: len(rows) for kind, rows in (plans | others).items()}
    return Overview(
        counts,
        sorted(things, key=lambda each: (each.created, each.id), reverse=True)[:newest],
        best_plans(plans["profiles"]),
    )


def best_plans(profiles: Iterable[ListedPlan]) -> list[BestPlan]:
    """For each model and system, the best of these profiles without scaled durations; by model and system."""
    groups: dict[tuple[str, str], list[ListedPlan]] = defaultdict(list)
    for each in profiles:
        if not each.scaled and each.tokens is not None and each.system is not None:
            groups[each.model, each.system].append(each)
    found = []
    for (model, system), rows in sorted(groups.items()):
        fitting = [each for each in rows if each.fits is not False]
        best = max(fitting, key=lambda each: (each.tokens or 0.0, each.id), default=None)
        found.append(BestPlan(model, system, best, len(rows)))
    return found


def find_anywhere(store: Store, text: str, words: Mapping[str, Any], most: int) -> list[FoundThings]:
    """Things whose name, id, tags, user, model, system or plan contain every word of a text, by kind.

    words: of a plan, which only instances and profiles have; with some, other kinds are left out. most: how many of a
    kind. Kinds of which there are none are left out.
    """
    instances, profiles = (
        plan_lists.chosen(rows, PlanFilter(text=text or None)) for rows in plan_lists.both(store, words)
    )
    found = [
        FoundThings(kind, [_plan(kind, each) for each in rows[:most]], len(rows))
        for kind, rows in (("instances", instances), ("profiles", profiles))
    ]
    for kind in () if words else OTHERS:
        page = listing.page(_listed(store, kind), text, 1, most)
        found.append(FoundThings(kind, [_other(kind, row) for row in page.rows], page.found))
    return [each for each in found if each.count]


def _listed(store: Store, kind: str) -> Rows:
    return listing.listing(store, kind, None, None, None, False, "created", None)


def _plan(kind: str, each: ListedPlan) -> Brief:
    degrees = " ".join(f"{word} {each.words[word]}" for word in plan_lists.DEGREES if each.words[word] != 1)
    place = f" on {each.system}" if kind == "profiles" else ""
    about = f"{each.model}{place}, {each.ranks:,} ranks{f', {degrees}' if degrees else ''}"
    return Brief(kind, each.id, each.name, about, each.step, each.tokens, each.made_by, each.created)


def _other(kind: str, row: Mapping[str, Any]) -> Brief:
    about = ", ".join(str(row[name]) for name in ("model", "system", "plan") if row[name] and row[name] != row["name"])
    name = row["name"] or (row["model"] if kind == "searches" else None)
    return Brief(kind, row["id"], name, about, row["step"], None, row["made_by"], row["created"])
