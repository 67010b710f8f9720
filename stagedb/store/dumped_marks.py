"""What users wrote about content: names, tags, notes and saved queries, from one store into another.

A name or a query that the other store has stays as it is there, whoever it belongs to: a load moves nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from stagedb.errors import UsageError
from stagedb.files import check_unicode, shown
from stagedb.store.connection import Store
from stagedb.store.dump_contents import MarkRows
from stagedb.store.events import new_event
from stagedb.store.leases import Kind
from stagedb.store.makers import current_user
from stagedb.store.naming import LONGEST_NAME, LONGEST_NOTE, Name, is_word
from stagedb.store.saved_queries import parse_saved
from stagedb.store.schema import NAMED

Row = Mapping[str, Any]
Thing = tuple[str, str]
"""The kind and the id of a graph, an instance or a profile."""

_OF_THING = {"kind": str, "thing": str}
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "Name": {**_OF_THING, "space": str, "name": str, "user": str, "time": int},
    "Tag": {**_OF_THING, "tag": str, "user": str | None, "time": int | None},
    "Note": {**_OF_THING, "id": str, "text": str, "user": str, "time": int},
    "SavedQuery": {"space": str, "name": str, "text": str, "user": str, "time": int},
}
"""What each row of a label has."""

_STATEMENTS = {"Name": "all_names", "Tag": "all_tags", "Note": "all_notes", "SavedQuery": "saved_queries"}


def check_mark(label: str, row: Row, things: Collection[Thing]) -> None:
    """Raise UsageError unless a row of a dump can be written as a name, tag, note or saved query.

    label: of the row's node. things: the content of the dump that the row may be about.
    """
    form = _FORMS.get(label)
    if form is None:
        raise UsageError(f"{shown(label)} is none of {', '.join(_FORMS)}")
    if set(row) != set(form):
        raise UsageError(f"a {label} has {shown(sorted(row))} and must have {', '.join(form)}")
    for name, type_ in form.items():
        value = row[name]
        if not isinstance(value, type_) or isinstance(value, bool):
            raise UsageError(f"{name} of a {label} is {shown(value)}, which is of another type")
        if isinstance(value, str):
            check_unicode(value, f"{name} of a {label}")
        elif value is not None and not 0 <= value < 1 << 62:
            raise UsageError(f"{name} of a {label} is {value}")
    if "thing" in form and (row["kind"], row["thing"]) not in things:
        raise UsageError(f"a {label} is of {shown(row['kind'])} {shown(row['thing'])}, which is not there")
    for name in ("user", "space", "tag", "id"):
        if row.get(name) is not None and (not is_word(row[name]) or (name in ("user", "space") and "/" in row[name])):
            raise UsageError(f"{name} of a {label} is {shown(row[name])}, which is not possible")
    _check_text(label, row)


def _check_text(label: str, row: Row) -> None:
    match label:
        case "Name":
            text = row["name"]
            if row["kind"] not in NAMED or not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
                raise UsageError(f"{shown(text)} is no name of {row['kind']} {shown(row['thing'])}")
        case "Note":
            if not 0 < len(row["text"].strip()) <= LONGEST_NOTE:
                raise UsageError(f"a note has {len(row['text'])} characters, of 1 to {LONGEST_NOTE}")
        case "SavedQuery":
            parse_saved(Name(row["space"], row["name"]), row["text"])


def marks_of(
    store: Store, things: Collection[Thing], queries: bool, notice: Callable[[str], None]
) -> Iterator[MarkRows]:
    """The names, tags and notes of things; with `queries`, all saved queries too. What cannot be loaded is left out.

    notice: called with a line for each mark that is left out.
    """
    wanted = set(things)
    for label, statement in _STATEMENTS.items():
        if label == "SavedQuery" and not queries:
            continue
        rows = []
        for found in store.read_sound(f"team/{statement}"):
            row = {name: found[name] for name in _FORMS[label]}
            if "thing" in row and (row["kind"], row["thing"]) not in wanted:
                continue
            try:
                check_mark(label, row, wanted)
            except UsageError as error:
                notice(f"left out: {error!s}")
            else:
                rows.append(row)
        if rows:
            yield MarkRows(label, rows)


def origin_of(source: str) -> str:
    """What marks have that did not begin here: who loaded them, from which file, with its digest, or which store.

    source: the file or the store.
    """
    return f"loaded by {current_user()} from {source}"


def keep_marks(store: Store, marks: Iterable[MarkRows], origin: str, notice: Callable[[str], None]) -> int:
    """Write marks that the store lacks, of things that it has. Returns their number; nothing is written without one.

    origin: what each of them has from then on (`origin_of`), as its author and its time are those that the dump claims.
    notice: called with a line for each name and each query that means something else here, and stays so.
    """
    return sum(_KEPT[each.label](store, each.rows, origin, notice) for each in marks)


def _names(store: Store, rows: Sequence[Row], origin: str, notice: Callable[[str], None]) -> int:
    there = {_name_id(row): row["thing"] for row in store.read("team/all_names")}
    new = defaultdict[str, list[Row]](list)
    for row in rows:
        key, full = _name_id(row), f"{row['space']}/{row['name']}"
        if there.get(key, row["thing"]) != row["thing"]:
            notice(f"{full} means {row['kind'].lower()} {there[key]} here, and goes on to: {row['thing']} has no name")
        elif key not in there:
            plain = {name: row[name] for name in ("space", "name", "user", "time")}
            properties = {**plain, "kind": row["kind"].lower(), "origin": origin}
            event = new_event("named", row["kind"], row["thing"], f"{full}, {origin}")
            new[row["kind"]].append({"name": key, "thing": row["thing"], "properties": properties, "event": event})
    return _write(store, "names", new)


def _name_id(row: Row) -> str:
    return f"{row['kind'].lower()}:{row['space']}/{row['name']}"


def _tags(store: Store, rows: Sequence[Row], origin: str, notice: Callable[[str], None]) -> int:
    there = {(row["kind"], row["thing"], row["tag"]) for row in store.read("team/all_tags")}
    new = defaultdict[str, list[Row]](list)
    for row in rows:
        if (row["kind"], row["thing"], row["tag"]) not in there:
            values = {name: row[name] for name in ("user", "time") if row[name] is not None}
            values["origin"] = origin
            event = new_event("tagged", row["kind"], row["thing"], f"{row['tag']}, {origin}")
            new[row["kind"]].append({"tag": row["tag"], "thing": row["thing"], "values": values, "event": event})
    return _write(store, "tags", new)


def _notes(store: Store, rows: Sequence[Row], origin: str, notice: Callable[[str], None]) -> int:
    there = {row["id"] for row in store.read("team/all_notes")}
    new = defaultdict[str, list[Row]](list)
    for row in rows:
        if row["id"] not in there:
            plain = {name: row[name] for name in ("id", "thing", "text", "time")}
            event = new_event("noted", row["kind"], row["thing"], origin)
            new[row["kind"]].append({**plain, "author": row["user"], "origin": origin, "event": event})
    return _write(store, "notes", new)


def _queries(store: Store, rows: Sequence[Row], origin: str, notice: Callable[[str], None]) -> int:
    there = {row["id"]: row["text"] for row in store.read_sound("team/saved_queries")}
    new = []
    for row in rows:
        id = f"{row['space']}/{row['name']}"
        if there.get(id, row["text"]) != row["text"]:
            notice(f"query {id} has another text here, and keeps it")
        elif id not in there:
            new.append(
                {"id": id, "properties": {**row, "origin": origin}, "event": new_event("saved", "query", id, origin)}
            )
    if new:
        store.write_rows("team/keep_queries", new, user=current_user())
    return len(new)


def _write(store: Store, what: str, rows: Mapping[str, Sequence[Row]]) -> int:
    for kind, some in rows.items():
        store.write_rows(f"team/keep_{what}_{cast('Kind', kind).lower()}", some, user=current_user())
    return sum(map(len, rows.values()))


_KEPT = {"Name": _names, "Tag": _tags, "Note": _notes, "SavedQuery": _queries}
