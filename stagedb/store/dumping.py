"""Graphs, instances, profiles and searches, from a store to a dump file and back, on any engine."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from stagedb.errors import UsageError
from stagedb.files import open_regular, path_text
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
    NodeRows,
    Proof,
    Record,
    ThingContent,
)
from stagedb.store.dump_files import check_dump, read_records
from stagedb.store.dumped_marks import check_mark, keep_marks, origin_of
from stagedb.store.events import Input
from stagedb.store.leases import Kind, Lease, building
from stagedb.store.schema import OWNERS
from stagedb.store.schema_forms import OWNED
from stagedb.store.schema_version import VERSION
from stagedb.store.typed_properties import plan_properties
from stagedb.store.whole_reads import read_whole

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
