"""Dump files: graphs, instances, profiles, searches and runs outside a store, as gzipped lines of JSON.

    {"format": "stagedb dump", "version": 2, "schema": 10}
    {"begin": "Instance", "id": …}                 what follows belongs to it, until the next one begins
    {"nodes": "Op", "rows": [[[other labels], id of the node that it belongs to, {properties}], …]}
    {"edges": ["DEP", "Op", "Op"], "rows": [[source, target, {properties}], …]}
    {"marks": "Name", "rows": [{…}, …]}            names, tags, notes, saved queries; after all else
    {"end": {"nodes": {"Op": 12}, "edges": {"DEP": 12}}, "sha256": "…"}     numbers; checksum of all lines before

An instance follows its graph, and a profile its instance. Labels, properties and relationships are those of the schema.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from stagedb.errors import UsageError
from stagedb.files import parse_json, shown
from stagedb.mentions import call
from stagedb.store.dump_contents import (
    CheckMark,
    Contents,
    DumpedThing,
    DumpError,
    EdgeRows,
    MarkRows,
    NodeRows,
    Proof,
    Record,
)
from stagedb.store.schema_version import OLDEST_READABLE, VERSION

FORMAT = "stagedb dump"
FORMAT_VERSION = 2
READABLE = {"version": (FORMAT_VERSION, FORMAT_VERSION), "schema": (OLDEST_READABLE, VERSION)}
"""The oldest and the newest that is read."""

ROWS = 2_000
"""Rows of one line at most."""

LONGEST_LINE = 64 << 20
"""Bytes of one line at most."""

LARGEST = 64 << 30
"""Bytes of all lines together at most: a small file can unpack into a very large one."""


def write_records(file: BinaryIO, records: Iterable[Record]) -> Counter[str]:
    """Write a dump. Returns the numbers of nodes by label and of relationships by type. Holds one record at a time.

    file: open for writing. records: in the order of a dump.
    """
    digest, nodes, edges = hashlib.sha256(), Counter[str](), Counter[str]()
    # Without the time and the name of the file, equal content gives equal bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:

        def put(content: Mapping[str, Any]) -> None:
            line = json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            digest.update(line)
            packed.write(line)

        put({"format": FORMAT, "version": FORMAT_VERSION, "schema": VERSION})
        for record in records:
            match record:
                case DumpedThing(kind, id):
                    put({"begin": kind, "id": id})
                case NodeRows(label, rows):
                    nodes[label] += len(rows)
                    for some in _parts(rows):
                        put({"nodes": label, "rows": some})
                case MarkRows(label, rows):
                    for some in _parts(rows):
                        put({"marks": label, "rows": some})
                case EdgeRows(type, source, target, rows):
                    edges[type] += len(rows)
                    for some in _parts(rows):
                        put({"edges": [type, source, target], "rows": some})
        put({"end": {"nodes": dict(+nodes), "edges": dict(+edges)}, "sha256": digest.hexdigest()})
    return nodes + edges


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))


def check_dump(
    name: str, file: BinaryIO, proof: Proof, check_mark: CheckMark | None = None, *, largest: int = LARGEST
) -> Contents:
    """Read a whole dump from the beginning of its file and check all of it. Returns its numbers and its marks.

    name: of the file, for errors. proof: finds content that does not match. Memory is bounded by one graph, one
    instance of it and one profile of that. largest: bytes that a dump may have when it is unpacked. Raises DumpError,
    which names the line, for a file that is damaged, too large, of another version, or that has what stagedb does not
    write.
    """
    contents = Contents(proof, check_mark=check_mark)
    for number, record in _records(name, file, largest):
        with contents.at(f"{name}, line {number}"):
            contents.add(record)
    with contents.at(f"{name}, at its end"):
        contents.finish()
    return contents


def read_records(name: str, file: BinaryIO) -> Iterator[Record]:
    """The records of a dump, one at a time. `check_dump` must have accepted the file, which nobody else may replace in
    between because it remains open.

    name: of the file, for errors.
    """
    return (record for _, record in _records(name, file, LARGEST))


def _records(name: str, file: BinaryIO, largest: int) -> Iterator[tuple[int, Record]]:
    digest, nodes, edges, ended = hashlib.sha256(), Counter[str](), Counter[str](), False
    for number, line in _lines(name, file, largest):
        where = f"{name}, line {number}"
        if ended:
            raise DumpError(f"{where}: something follows the end of the dump. {_WAY_OUT}")
        content = _mapping(line, where)
        if number == 1:
            _check_header(content, where)
        elif set(content) == {"end", "sha256"}:
            if content["sha256"] != digest.hexdigest():
                raise DumpError(f"{where}: the checksum does not match the content. {_WAY_OUT}")
            if content["end"] != {"nodes": dict(nodes), "edges": dict(edges)}:
                raise DumpError(f"{where}: the numbers of nodes and relationships do not match. {_WAY_OUT}")
            ended = True
        else:
            record = _record(content, where)
            if isinstance(record, NodeRows):
                nodes[record.label] += len(record.rows)
            elif isinstance(record, EdgeRows):
                edges[record.type] += len(record.rows)
            yield number, record
        digest.update(line)
    if not ended:
        raise DumpError(f"{name} ends too early: a part of it is missing. {_WAY_OUT}")


_WAY_OUT = "Nothing was written; make the dump again, or copy it again"


def _lines(name: str, file: BinaryIO, largest: int) -> Iterator[tuple[int, bytes]]:
    number = size = 0
    try:
        file.seek(0)
        with gzip.GzipFile(fileobj=file, mode="rb") as packed:
            while line := packed.readline(LONGEST_LINE + 1):
                number, size = number + 1, size + len(line)
                if len(line) > LONGEST_LINE or size > largest:
                    raise DumpError(f"{name}, line {number}: the dump is larger than stagedb reads. {_WAY_OUT}")
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DumpError(f"{name} is no dump, or damaged after line {number} ({error}). {_WAY_OUT}") from None
    except OSError as error:
        raise UsageError(f"cannot read the dump {name}: {error.strerror}") from None


def _mapping(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = parse_json(line.decode("utf-8"), where)
    except (UsageError, UnicodeDecodeError) as error:
        raise DumpError(f"{where}: {shown(str(error))}. {_WAY_OUT}") from None
    if not isinstance(content, dict):
        raise DumpError(f"{where}: {shown(content)} is no mapping. {_WAY_OUT}")
    return content


def _check_header(content: Mapping[str, Any], where: str) -> None:
    if set(content) != {"format", "version", "schema"} or content["format"] != FORMAT:
        raise DumpError(f"{where}: this is no dump of a stagedb store: {call('store dump')} makes one")
    for name, (oldest, newest) in READABLE.items():
        found = content[name]
        if type(found) is not int or found < 1:
            raise DumpError(f"{where}: the {name} {shown(found)} is not possible. {_WAY_OUT}")
        if not oldest <= found <= newest:
            way = (
                "upgrade stagedb"
                if found > newest
                else f"make its instances again from their models and plans ({call('instantiate')})"
            )
            reads = str(newest) if oldest == newest else f"{oldest} to {newest}"
            raise DumpError(f"{where}: the dump has {name} {found}, and this stagedb reads {reads}: {way}")


def _record(content: Mapping[str, Any], where: str) -> Record:
    match content:
        case {"begin": str(kind), "id": str(id), **rest} if not rest:
            return DumpedThing(kind, id)
        case {"nodes": str(label), "rows": list(rows), **rest} if not rest and _fit(rows, (list, str | None, dict)):
            return NodeRows(label, rows)
        case {"edges": [str(type_), str(source), str(target)], "rows": list(rows), **rest} if not rest and _fit(
            rows, (str, str, dict)
        ):
            return EdgeRows(type_, source, target, rows)
        case {"marks": str(label), "rows": list(rows), **rest} if not rest and len(rows) <= ROWS:
            if all(type(row) is dict for row in rows):
                return MarkRows(label, rows)
    raise DumpError(f"{where}: {shown(content)} is nothing that a dump has. {_WAY_OUT}")


def _fit(rows: Sequence[Any], types: tuple[Any, ...]) -> bool:
    return len(rows) <= ROWS and all(
        type(row) is list and len(row) == len(types) and all(map(isinstance, row, types)) for row in rows
    )
