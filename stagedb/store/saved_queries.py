"""Queries that users save in a store for their team: Cypher with the header of the named queries.

What a store has is data: it is parsed, checked and bounded each time it is read.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.mentions import call
from stagedb.store import free_queries
from stagedb.store.connection import Store
from stagedb.store.events import current_user, new_event
from stagedb.store.naming import Name
from stagedb.store.row_checks import warn_of
from stagedb.store.statements import Statement, load, parse

LONGEST_TEXT = 20_000
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class SavedQuery:
    """A query with its name and the user who saved it last. time: when, in ms since 1970.

    origin: who loaded it, from which file, if it came with a dump, which claims the user and the time.
    """

    name: Name
    statement: Statement
    text: str
    user: str
    time: int
    origin: str | None = None


def parse_saved(name: Name, text: str) -> Statement:
    """The statement of a text with a header. Raises UsageError if it cannot be a saved query."""
    check_unicode(text, "the query")
    if not _NAME.fullmatch(name.name):
        raise UsageError(
            f"{shown(name.name)} is not the name of a query: it has lower-case letters, digits and _, and begins with "
            "a letter"
        )
    if len(text) > LONGEST_TEXT:
        raise UsageError(f"query {name} has {len(text)} characters; at most {LONGEST_TEXT} can be saved")
    try:
        statement = parse(f"saved/{name}", text)
    except StagedbError as error:
        raise UsageError(
            f"{error.message.replace(f'cypher/saved/{name}.cypher', f'query {name}')}; docs/queries.md shows a header"
        ) from None
    if statement.mode != "reads":
        raise UsageError(f"query {name} {statement.mode}: only queries that read can be saved")
    free_queries.check(statement.text)
    used = set(re.findall(r"\$`?([A-Za-z_]\w*)", statement.text))
    declared = {field.name for field in statement.params}
    if wrong := sorted(used ^ declared):
        how = "declares" if wrong[0] in declared else "uses"
        other = "uses" if wrong[0] in declared else "declares"
        raise UsageError(f"query {name} {how} the parameter {wrong[0]} and never {other} it: change its header")
    return statement


def save_query(store: Store, name: Name, text: str) -> SavedQuery:
    """Save a query, or replace the caller's or the team's one of this name.

    text: Cypher with the header of named queries.
    """
    statement, user, now = parse_saved(name, text), current_user(), time.time_ns() // 1_000_000
    properties = {"space": name.space, "name": name.name, "text": text, "user": user, "time": now}
    event = new_event("saved", "query", str(name))
    store.write("team/save_query", id=str(name), properties=properties, user=user, event=event)
    return SavedQuery(name, statement, text, user, now)


def forget_query(store: Store, name: Name) -> None:
    """Delete a saved query. Raises UsageError if there is none."""
    event = new_event("forgot", "query", str(name))
    if not store.write("team/forget_query", id=str(name), user=current_user(), event=event):
        raise UsageError(f"the store has no saved query {name}: {call('queries')} lists them")


def saved_queries(store: Store) -> list[SavedQuery]:
    """The saved queries of all users, by name. One that cannot be used is left out with a warning."""
    return [*_sound(store)]


def _sound(store: Store) -> Iterator[SavedQuery]:
    for row in store.read_sound("team/saved_queries"):
        name = Name(row["space"], row["name"])
        try:
            statement = parse_saved(name, row["text"])
        except UsageError as error:
            warn_of(f"saved query left out: {error}")
        else:
            yield SavedQuery(name, statement, row["text"], row["user"], row["time"], row["origin"])


# Questions about the time of a profile, asked about a run that was recorded: the same Cypher, with a run's labels.
#
# The relationships and columns of a run are those of a profile (`run_labels`), so that only the labels differ. A
# question that needs what a recording does not have, such as the instance or the bytes into each network, has no such
# form. One about what a recording has otherwise has a statement of its own (`OTHERWISE`).

LABELS: Mapping[str, str] = {
    "Profile": "Run",
    "LaneTime": "RunLane",
    "OpTime": "RunOp",
    "TaskTime": "RunTask",
    "Leg": "RunLeg",
}
"""Labels of profiles, each with that of runs that has its place."""

_LABEL = re.compile(r"(?<=[(\w]):([A-Z]\w*)\b")
_RELATIONSHIP = re.compile(r"\[[^\]]*\]")
_OF_PROFILES = re.compile(r"\.(?:peak|bandwidth|dimensions|dimension_bandwidths|flops|wires)\b")
"""Properties that only a profile can have: they come from the model and the system."""


OTHERWISE: Mapping[str, str] = {
    "analyze/critical_path/critical_breakdown": "run/critical_breakdown",
    "analyze/time/longest_operators": "run/longest_operators",
}
"""Named queries whose form for a run is another statement: the critical path of a recording has gaps, and each call
of an operator takes another time."""

NOT_RECORDED = ("dimension", "wire_bytes")
"""Columns of profiles that a recording does not have."""


def of_run(statement: Statement) -> Statement | None:
    """A named query for a run, whose id is its parameter `profile`; None if the query needs what no run has.

    The answer may have the columns `NOT_RECORDED` too, which the statement does not declare: leave them out.
    """
    if statement.name in OTHERWISE:
        return load(OTHERWISE[statement.name])
    if "profile" not in {field.name for field in statement.params} or _OF_PROFILES.search(statement.text):
        return None
    found = {match[1] for match in _LABEL.finditer(_RELATIONSHIP.sub("[]", statement.text))}
    if "Profile" not in found or found - LABELS.keys():
        return None
    text = _LABEL.sub(lambda match: f":{LABELS.get(match[1], match[1])}", statement.text)
    columns = tuple(field for field in statement.columns if field.name not in NOT_RECORDED)
    return replace(statement, text=text, columns=columns)
