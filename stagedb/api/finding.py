"""Finding: the profiled instances of a model under a plan, the most tokens a second an accelerator first."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.api import catalog, listing, plan_texts
from stagedb.api.results import Rows
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import json_mapping
from stagedb.mentions import Word
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.store import Store, user_of
from stagedb.store.naming import spaces

COLUMNS = (
    *("instance", "name", "model", "plan", "ranks", "profile", "system", "step", "tokens_per_second"),
    "tokens_per_accelerator",
    "mfu",
    *("memory", "room", "fits", "measured_time", "made_by", "created"),
)
HINTED = 3
"""Profiles that a hint names."""


def find(store: Store, model: str | None, system: str | None, words: Mapping[str, Any], fits: bool, limit: int) -> Rows:
    """Profiles with their instances, as rows with the columns of `COLUMNS`. The arguments are those of `Stagedb.find`.

    Raises UsageError for a model or a system that the store has nothing of.
    """
    if limit < 1:
        raise UsageError(f"{Word('limit', limit)} is not possible: it is at least 1")
    wanted = properties(words)
    asked: dict[str, Any] = {"words": wanted, "fits": fits, "limit": limit}
    if model is not None:
        rows = store.read("team/find_of_model", model=model, system=system, **asked)
    elif system is not None:
        rows = store.read("team/find_on_system", system=system, **asked)
    else:
        rows = store.read("team/find_under_plan", **asked)
    if not rows:
        listing.check_names(store, model, system)
    unknown = [row for row in rows if row["memory"] is None]
    if fits:
        unknown = store.read("team/unknown_memory", model=model, system=system, words=wanted)
    names, own = catalog.names_by_id(store) if rows else {}, spaces(store)
    found = [_row(row, catalog.called(names.get(row["instance"], ()), row["instance_name"], own)) for row in rows]
    return Rows(COLUMNS, tuple(tuple(row[name] for name in COLUMNS) for row in found), hints=_hints(unknown, fits))


def properties(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan as properties of `Instance` nodes. Raises UsageError for a word that names a file."""
    found = {}
    for word, value in words.items():
        if PLAN_WORDS[word].about.file and isinstance(value, str) and Path(value).suffix:
            raise UsageError(f"{Word(word)} {shown(value)} is a file, and stored plans have its content: leave it out")
        if isinstance(value, tuple) and any(isinstance(each, Fraction) for each in value):
            raise UsageError(
                f"{Word(word)} has shares, and stored plans have the whole numbers of choices that follow from them: "
                "give those, or leave it out"
            )
        found["world" if word == "ranks" else word] = list(value) if isinstance(value, tuple) else value
    return found


def _row(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    memory, room = row["memory"], row["room"]
    return {
        **row,
        "name": name,
        "profile": row["id"],
        "plan": plan_texts.describe(json_mapping(row["plan"], "plan")),
        "fits": None if memory is None else room is None or memory <= room,
        "made_by": user_of(row["builder"]),
        "created": catalog.time_of(row["created"]),
    }


def _hints(unknown: list[dict[str, Any]], fits: bool) -> tuple[str, ...]:
    if not unknown:
        return ()
    size = catalog.SHORT_ID
    ways = [f"stagedb profile {row['instance'][:size]} --system {row['system']}" for row in unknown[:HINTED]]
    more = f" and {len(unknown) - HINTED} more" if len(unknown) > HINTED else ""
    which = "1 profile" if len(unknown) == 1 else f"{len(unknown)} profiles"
    left = " and left out" if fits else ""
    return (
        f"the memory of {which} is unknown{left}, as an older stagedb made them. The command that made it adds it: "
        f"{'; '.join(f'`{way}`' for way in ways)}{more}",
    )
