"""Graphs, instances, profiles and searches, from a store to a dump file and back, on any engine."""

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from stagedb.errors import UsageError
from stagedb.files import check_unicode, open_regular, path_text, shown
from stagedb.store.connection import Store
from stagedb.store.dump_contents import (
    DERIVED,
    EDGE_KINDS,
    NODE_KINDS,
    WRITTEN,
    Contents,
    DumpedThing,
    DumpError,
    EdgeRows,
    MarkRows,
    NodeRows,
    Proof,
    Record,
    ThingContent,
    check_dump,
    read_records,
)
from stagedb.store.events import Input, current_user, new_event
from stagedb.store.leases import Kind, Lease, building, read_whole
from stagedb.store.migrations import VERSION
from stagedb.store.naming import LONGEST_NAME, LONGEST_NOTE, Name, is_word
from stagedb.store.saved_queries import parse_saved
from stagedb.store.schema import NAMED, OWNERS
from stagedb.store.schema_forms import OWNED
from stagedb.store.typed_properties import plan_properties

# What users wrote about content: names, tags, notes and saved queries, from one store into another.
#
# A name or a query that the other store has stays as it is there, whoever it belongs to: a load moves nothing.

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
    return _write_marks(store, "names", new)


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
    return _write_marks(store, "tags", new)


def _notes(store: Store, rows: Sequence[Row], origin: str, notice: Callable[[str], None]) -> int:
    there = {row["id"] for row in store.read("team/all_notes")}
    new = defaultdict[str, list[Row]](list)
    for row in rows:
        if row["id"] not in there:
            plain = {name: row[name] for name in ("id", "thing", "text", "time")}
            event = new_event("noted", row["kind"], row["thing"], origin)
            new[row["kind"]].append({**plain, "author": row["user"], "origin": origin, "event": event})
    return _write_marks(store, "notes", new)


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


def _write_marks(store: Store, what: str, rows: Mapping[str, Sequence[Row]]) -> int:
    for kind, some in rows.items():
        store.write_rows(f"team/keep_{what}_{cast('Kind', kind).lower()}", some, user=current_user())
    return sum(map(len, rows.values()))


_KEPT = {"Name": _names, "Tag": _tags, "Note": _notes, "SavedQuery": _queries}

Notice = Callable[[str], None]
"""Called with a line for each graph, instance, profile and search."""

_LONGEST = 100
"""Characters of a file's name that the store keeps."""

_OWN = {row.name for row in OWNED}
"""Properties that each store gives itself."""


def records_of(store: Store, wanted: Iterable[tuple[Kind, str]], notice: Notice) -> Iterator[Record]:
    """The records of things, in their order. Each is read whole; one of them is in memory at a time.

    wanted: kind and id of each thing. notice: called with a line for each thing.
    """
    for kind, id in wanted:
        yield DumpedThing(kind, id)
        yield from read_whole(store, kind, id, partial(_read, store, kind, id))
        notice(f"read {kind.lower()} {id}")


def read_section(
    store: Store, kind: Kind, id: str, proof: Proof, above: Sequence[ThingContent]
) -> tuple[ThingContent | None, str | None]:
    """Read a thing of a store as a section of a dump, and find what is wrong with it.

    kind, id: of the thing. proof: finds content that does not match. above: what the thing is made from. Returns the
    content and the problem; either is None if there is none. Raises UsageError if the store does not have the thing.
    """
    contents = Contents(proof, above)
    contents.begin(kind, id)
    records = read_whole(store, kind, id, partial(_read, store, kind, id))
    try:
        for record in records:
            contents.add(record)
        return contents.finish()[-1], None
    except DumpError as error:
        return None, str(error)


def _read(store: Store, kind: Kind, id: str) -> list[Record]:
    found: list[Record] = []
    for node in NODE_KINDS:
        if node.owner == kind:
            if node.label in DERIVED and _has_layout(found):
                continue
            rows = store.read(f"dump/nodes_{node.label.lower()}", id=id)
            found.append(NodeRows(node.label, sorted((_node(node.label, row) for row in rows), key=_id)))
    for each in EDGE_KINDS:
        if each.owner == kind:
            rows = store.read(f"dump/edges_{each.stem}", id=id)
            ends = [(row["source"], row["target"], row["values"]) for row in rows]
            ends.sort(key=lambda end: (end[0], end[1], sorted(end[2].items())))
            found.append(EdgeRows(each.edge.type, each.edge.source, each.edge.target, ends))
    return found


def _node(label: str, row: Mapping[str, Any]) -> tuple[Sequence[str], str | None, Mapping[str, Any]]:
    also = [name for name in row["also"] if name != label]
    values = {name: value for name, value in row["values"].items() if name != "claim"}
    values |= {name: 0 for name in WRITTEN if name in values}
    if label == "Instance":
        values = {**plan_properties({}), **values}  # defaults of words that were added since the instance was made
    # A complete thing has the form of the store's schema: migrations have changed what older versions wrote.
    return also, row["parent"], {**values, "schema": VERSION} if label in OWNERS else values


def _has_layout(found: Sequence[Record]) -> bool:
    """Whether ranks and groups follow from what the instance itself keeps. Then no dump has their nodes."""
    own = found[0]
    return isinstance(own, NodeRows) and own.rows[0][2].get("class_table") is not None


def _id(row: tuple[Sequence[str], str | None, Mapping[str, Any]]) -> str:
    return str(row[2]["id"])


def load_dump(store: Store, path: Path, proof: Proof, notice: Notice = lambda line: None) -> int:
    """Check all of a dump, then write what the store lacks of it. Returns how many things were written.

    Each thing becomes visible when it is complete. A load that was stopped is run again: it goes on after the last
    complete one. Raises DumpError, and writes nothing, for a file that is not sound.
    """
    with _opened(path) as file:
        return load_file(store, path_text(path), file, proof, notice)


def load_file(store: Store, name: str, file: BinaryIO, proof: Proof, notice: Notice) -> int:
    """`load_dump` of an open file: nobody replaces between check and load what was checked.

    name: for errors, and for what the store keeps about where it comes from.
    """
    contents = check_dump(name, file, proof, check_mark)
    source = Input("dump", _digest(file)[:20], _short(name))
    sections = _sections(read_records(name, file))
    load = partial(_load, store, source, notice)
    written = sum(load(cast("Kind", begin.kind), begin.id, records) for begin, records in sections)
    if kept := keep_marks(store, contents.marks, origin_of(f"{_short(name)} {source.id[:12]}"), notice):
        notice(f"{kept:,} names, tags, notes and queries were new")
    return written


def _digest(file: BinaryIO) -> str:
    """The checksum of a file as it is, which `sha256sum FILE` prints, too."""
    found = hashlib.sha256()
    file.seek(0)
    while part := file.read(1 << 20):
        found.update(part)
    return found.hexdigest()


def _short(name: str) -> str:
    """The printable file's name without its directory, or the address of a store, with its end if it is long."""
    return (name if "://" in name else Path(name).name)[-_LONGEST:]


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        raise UsageError(f"cannot read the dump {path_text(path)}: {error.strerror}") from None


def _sections(records: Iterable[Record]) -> Iterator[tuple[DumpedThing, Iterator[Record]]]:
    """Each beginning with the records that follow it. What the caller leaves of them is passed over."""
    rest = iter(records)
    begin = next(rest, None)
    while isinstance(begin, DumpedThing):
        following: list[DumpedThing] = []
        part = _until_begin(rest, following)
        yield begin, part
        for _ in part:
            pass
        begin = following[0] if following else None


def _until_begin(records: Iterator[Record], following: list[DumpedThing]) -> Iterator[Record]:
    for record in records:
        if isinstance(record, DumpedThing):
            following.append(record)
            return
        yield record


_JOINED: Mapping[Kind, tuple[str, str]] = {
    "Search": ("search/join_instances", "search"),
    "Instance": ("search/join_candidates", "instance"),
}
"""Statements, with the name of their parameter, that join a thing to what a dump of it does not have."""


def _load(store: Store, source: Input, notice: Notice, kind: Kind, id: str, records: Iterator[Record]) -> bool:
    own = next(records, None)
    if not isinstance(own, NodeRows) or own.label != kind:
        raise DumpError(f"{kind} {id} does not begin with its node. Make the dump again")
    properties = {name: value for name, value in own.rows[0][2].items() if name not in (*_OWN, "id")}
    with building(store, kind, id, properties, (source,)) as lease:
        if lease is None:
            notice(f"{kind.lower()} {id} is there already")
            return False
        _write(store, lease, records)
    if kind in _JOINED:
        store.write(_JOINED[kind][0], **{_JOINED[kind][1]: id})
    notice(f"loaded {kind.lower()} {id}")
    return True


def _write(store: Store, lease: Lease, records: Iterable[Record]) -> None:
    for record in records:
        if isinstance(record, NodeRows):
            for name, rows in _made(record).items():
                store.write_rows(f"dump/{name}", rows)
        elif isinstance(record, EdgeRows):
            stem = f"{record.type}_{record.source}_{record.target}".lower()
            rows = [{"source": source, "target": target, "values": values} for source, target, values in record.rows]
            store.write_rows(f"dump/join_{stem}", rows)
        lease.renew()


def _made(record: NodeRows) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Rows of each statement: nodes with another second label have another one."""
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for also, parent, values in record.rows:
        name = "_".join(("make", record.label, *also)).lower()
        found[name].append({"id": values["id"], "parent": parent, "values": values})
    return found


# Whether two connections lead to one store.


def check_different(source: Store, target: Store) -> None:
    """Raise UsageError if two connections lead to the same store, by whichever addresses.

    A copy of a database has all that its original has. So the target gets a new text if they look alike, and it is
    looked for in the source. A source that only reads is enough.
    """
    if _created(source) != _created(target):
        return
    probe = secrets.token_hex(16)
    target.write("schema/write_probe", probe=probe)
    if any(row["probe"] == probe for row in source.read("schema/probe")):
        raise UsageError(
            f"{source.uri} and {target.uri} are the same store, so that there is nothing to send: name another one"
        )


def _created(store: Store) -> int | None:
    rows = store.read("schema/probe")
    return rows[0]["created"] if rows else None
