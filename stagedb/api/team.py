"""Working together: names, tags, notes, the log, and where a thing comes from."""

import time
from collections.abc import Sequence
from typing import Any

from stagedb.api import catalog, lookup
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, Rows, RunInfo, SearchInfo, Thing, label_of
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word, call
from stagedb.store import Store
from stagedb.store.leases import Kind
from stagedb.store.naming import add_note, add_tag, remove_tag, set_name, wanted_name

LOG = ("time", "user", "action", "kind", "id", "detail", "version", "command")
ORIGIN = ("time", "user", "version", "command", "input", "digest", "name")
_DAY = 86_400_000
ALL_DAYS = 1e5
"""Days before all of a log."""


def name(store: Store, word: str, text: str) -> InstanceInfo | ProfileInfo | RunInfo:
    """Let a name mean an instance, a profile or a run.

    word: id, start of an id, or name. text: the new name. Raises UsageError for graphs and searches, which have no
    other name than that of their model.
    """
    found, wanted = lookup.find(store, word), wanted_name(store, text)
    if isinstance(found, GraphInfo):
        raise UsageError(
            f"graph {found.id[: catalog.SHORT_ID]} always has the name of its model, {found.name}: name an instance of "
            "it, or tag the graph"
        )
    if isinstance(found, SearchInfo):
        raise UsageError(
            f"search {found.id[: catalog.SHORT_ID]} has no name: tag it ({call('tag', found.id[: catalog.SHORT_ID])}), "
            "or name an instance of its best plan"
        )
    set_name(store, label_of(found), found.id, wanted)
    again = lookup.find(store, found.id)
    return found if isinstance(again, GraphInfo | SearchInfo) else again


def tag(store: Store, word: str, tags: Sequence[str], remove: bool) -> Thing:
    """Tag a thing, or take tags off.

    word: id, start of an id, or name. tags: one or more; else UsageError. remove: take them off.
    """
    if not tags:
        raise UsageError("no tag is given: name at least one word")
    found = lookup.find(store, word)
    for each in tags:
        (remove_tag if remove else add_tag)(store, _kind(found), found.id, each)
    return lookup.find(store, found.id)


def note(store: Store, word: str, text: str) -> Thing:
    """Write a note about a thing. Earlier notes remain. word: id, start of an id, or name. text: of the note."""
    found = lookup.find(store, word)
    add_note(store, _kind(found), found.id, text)
    return lookup.find(store, found.id)


def log(store: Store, word: str | None, user: str | None, days: float, limit: int) -> Rows:
    """The newest events. A word that nothing in the store has is the id of what is removed.

    days: how far back. user: whose events; None: all users'. limit: the most events. UsageError for numbers that are
    not above 0.
    """
    if not 0 < days <= ALL_DAYS or limit < 1:
        raise UsageError(f"{Word('days', days)} and {Word('limit', limit)} are not possible: both are above 0")
    thing = None if word is None else _id_of(store, word)
    since = time.time_ns() // 1_000_000 - round(days * _DAY)
    rows = store.read("team/log", since=since, user=user, thing=thing, limit=limit)
    texts = ((catalog.time_of(row["time"]), *(row[_COLUMNS.get(each, each)] for each in LOG[1:])) for row in rows)
    return Rows(LOG, tuple(texts))


_COLUMNS = {"id": "thing"}
"""Columns of the statement that have other names."""


def origin(store: Store, word: str) -> Rows:
    """Where a thing comes from. Raises UsageError for an unknown word."""
    found = lookup.find(store, word)
    rows: list[dict[str, Any]] = store.read("team/origin", thing=found.id)
    hints = () if rows else (f"an older stagedb made {shown(word)}, and did not write how",)
    texts = tuple((catalog.time_of(row["time"]), *(row[each] for each in ORIGIN[1:])) for row in rows)
    return Rows(ORIGIN, texts, hints=hints)


def _id_of(store: Store, word: str) -> str:
    found = lookup.known(store, word)
    return word if found is None else found.id


def _kind(found: Thing) -> Kind:
    if isinstance(found, SearchInfo):
        return "Search"
    return "Graph" if isinstance(found, GraphInfo) else label_of(found)
