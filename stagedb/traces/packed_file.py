"""A packed trace set: encoded classes and the differences between their ranks, in one file. See docs/packed.md.

It is a ZIP archive, so that any tool can list and check it. Its index, `packed.json`, describes the other members,
which are plain columns of little-endian integers. Every value is checked before it is used.
"""

import hashlib
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from stagedb.errors import StagedbError, UsageError
from stagedb.files import open_regular, path_text
from stagedb.lowering.columns import TASK_KINDS
from stagedb.mentions import call
from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.packed_index import groups_of, is_int, job_of, parse_index, wrong_files, wrong_index
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.trace_set import ClassTraces, TraceSet, group_texts, groups_text, key_of

# Checks of the columns of a class in a packed set, before anything is made of them.

WIDEST = 9
"""Bytes of a varint that holds any value of 63 bits."""

_TASK = re.compile(rf"(?:{'|'.join(TASK_KINDS)}) (?:0|[1-9][0-9]{{0,17}}): ([0-9]{{1,18}})-([0-9]{{1,18}})")


def wrong_class(encoded: EncodedClass, ranks: RankBytes, every: Ints, size: int) -> str | None:
    """Why a class would reach outside of its own bytes, or None. `every` are all ranks of the class.

    size: bytes that a plain trace of the class's ranks has.
    """
    if encoded.width.shape != (1,) or not 1 <= encoded.width[0] <= WIDEST:
        return "its ids have no width"
    width = int(encoded.width[0])
    for name in ("data", "slot", "patch"):
        ends = getattr(encoded, f"{name}_starts")
        held = encoded.data if name == "data" else encoded.slots if name == "slot" else encoded.patches
        if len(ends) != len(encoded.data_starts) or len(ends) < 2 or ends[0] != 0 or ends[-1] != len(held):
            return f"its templates do not divide their {name}"
        if (np.diff(ends) < 0).any():
            return f"its templates' {name} goes backwards"
    sizes = np.diff(encoded.data_starts)
    lengths = {len(encoded.slots), len(encoded.slot_refs), len(encoded.slot_offsets)}
    if len(lengths) != 1 or len(encoded.patches) != len(encoded.patch_sources):
        return "columns that belong together have different lengths"
    if encoded.references.ndim != 2 or ranks.values.ndim != 2:
        return "a matrix is none"
    if len(encoded.references) != len(encoded.tasks) or len(ranks.values) != len(ranks.ranks):
        return "rows that belong together are different in number"
    room = np.repeat(sizes, np.diff(encoded.slot_starts)) - width
    if _outside(encoded.slots, room + 1) or _outside(encoded.slot_refs, encoded.references.shape[1]):
        return "an id is outside of its template"
    room = np.repeat(sizes, np.diff(encoded.patch_starts))
    if _outside(encoded.patches, room) or _outside(encoded.patch_sources, ranks.values.shape[1]):
        return "a byte of a rank is outside of its template"
    if _outside(encoded.tasks, len(sizes)):
        return "a task has no template"
    if not len(encoded.tasks) or not len(ranks.ranks):
        return "it has no task, or no rank"
    if not np.isin(ranks.ranks, every).all() or len(np.unique(ranks.ranks)) != len(ranks.ranks):
        return "a rank is not of the class, or there twice"
    if encoded.size != size:
        return f"its files have {encoded.size:,} bytes, not {size:,}"
    return None


def _outside(values: npt.NDArray[np.integer], end: Ints | int) -> bool:
    return bool(((values < 0) | (values >= end)).any())


def wrong_facts(traces: ClassTraces) -> str | None:
    """Where the row of a class differs from its columns, or None. The columns have been checked."""
    encoded, facts = traces.encoded, traces.facts
    if encoded.digest != facts["encoding"]:
        return "the digest of its encoding is not the one in the index"
    counts = [_messages(encoded.data[first:end].tobytes()) for first, end in _pairs(encoded.data_starts)]
    if None in counts:
        return "a template is not made of whole messages"
    # The first template is the file's beginning: one message, which is no node.
    if counts[0] != 1 or encoded.tasks[0] != 0 or (encoded.tasks[1:] == 0).any():
        return "its files do not begin with their metadata"
    nodes: Ints = np.array(counts, np.int64)[encoded.tasks[1:]]
    if nodes.sum() != facts["nodes"]:
        return f"its files have {nodes.sum():,} nodes, not {facts['nodes']:,}"
    ends = np.cumsum(nodes)
    ranges = [match and (int(match[1]), int(match[2])) for match in map(_TASK.fullmatch, facts["tasks"])]
    if ranges != list(zip((ends - nodes + 1).tolist(), ends.tolist(), strict=True)):
        return "its tasks are not those in the index"
    return None


def _pairs(starts: Ints) -> Iterator[tuple[int, int]]:
    return zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)


def _messages(data: bytes) -> int | None:
    """The number of messages in these bytes, each with its length before it; None if the last one is cut off."""
    at = count = 0
    while at < len(data):
        size = shift = 0
        while True:
            if at == len(data) or shift > 28:
                return None
            byte = data[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        at, count = at + size, count + 1
    return count if at == len(data) else None


FORMAT = 5
"""Version of the file's layout: others are refused."""

SEAL = b"SHA-256 of all bytes before: "
"""The archive's comment begins with this. Its end, and that of the file, is the digest in hexadecimal digits."""

_DIGITS = 64
_BLOCK = 1 << 20

INDEX = "packed.json"

WHAT = "a packed set of Chakra execution traces: `stagedb unpack` writes them"
"""The value in the index that identifies the file."""


@dataclass(frozen=True)
class PackedColumn:
    """A column of a class: its type of integers, and their meaning."""

    dtype: str
    what: str


COLUMNS: Mapping[str, PackedColumn] = {
    "width": PackedColumn("<i8", "one number: bytes of the varints in the slots"),
    "data": PackedColumn("|u1", "the templates' bytes"),
    "data_starts": PackedColumn("<i8", "where in `data` each template begins, and where the last ends"),
    "slots": PackedColumn("<i4", "positions of varints, from the template's beginning"),
    "slot_refs": PackedColumn("<i4", "of each slot the column of `references`"),
    "slot_offsets": PackedColumn("<i4", "of each slot what is added"),
    "slot_starts": PackedColumn("<i8", "where in the columns of slots each template's begin, and where the last end"),
    "patches": PackedColumn("<i4", "positions of bytes that differ between ranks, from the template's beginning"),
    "patch_sources": PackedColumn("<i4", "of each patch the column of `values`"),
    "patch_starts": PackedColumn("<i8", "where in the columns of patches each template's begin, and the last end"),
    "tasks": PackedColumn("<i4", "the templates of a file, in order"),
    "references": PackedColumn(
        "<i8", "a row a task: first node ids of the tasks that it refers to, and its message tag"
    ),
    "ranks": PackedColumn("<i8", "the ranks of the class that the file holds"),
    "values": PackedColumn("|u1", "a row a rank: its own bytes"),
}
"""`references` and `values` are matrices, the others lists."""

LARGEST_MEMBER = 1 << 31
"""Bytes. A file whose index gives a member a larger size is refused before it is unpacked."""

_PLACE = "\ufdd0groups\ufdd1"
"""The place of the text of groups in an index: noncharacters of Unicode, which no name has."""

_GROUPS_OF_RANK = 100
"""Bytes that a rank has in the text of all groups, at most: its number, and a part of an id, on each axis."""

_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_packed(path: Path, traces: TraceSet, *, compress: bool = True) -> None:
    """Write a set to a file that does not exist yet. Equal sets give equal bytes.

    compress: the columns. Raises OSError as the system does.
    """
    members: dict[str, dict[str, Any]] = {}
    with path.open("x+b") as file, zipfile.ZipFile(file, "w") as archive:
        for of_class in traces.classes:
            for name, column in _columns(of_class).items():
                data = np.ascontiguousarray(column).astype(COLUMNS[name].dtype, copy=False).tobytes()
                member = _member(of_class.key, name)
                _put(archive, member, (data,), len(data), compress)
                rows = column.shape[1] if column.ndim == 2 else None
                members[member] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "columns": rows}
        index = {
            "format": FORMAT,
            "what": WHAT,
            "set": dict(traces.facts),
            "classes": [dict(of_class.facts) for of_class in traces.classes],
            # The other files next to the traces follow from the set.
            "files": {traces.groups_file: _PLACE},
            "members": members,
        }
        before, after = json.dumps(index).split(json.dumps(_PLACE)[1:-1])
        # The groups of a million ranks are tens of megabytes: they are never in memory as a whole.
        texts = (json.dumps(text)[1:-1] for text in group_texts(traces.groups))
        most = len(before) + len(after) + traces.world * _GROUPS_OF_RANK
        _put(archive, INDEX, chain((before,), texts, (after,)), most, compress)
        archive.comment = SEAL + b"0" * _DIGITS
        archive.close()
        seal(file)


def seal(file: BinaryIO) -> None:
    """Write the checksum to the end of an archive with a comment for it. The other bytes stay as they are.

    file: the archive, open for reading and writing.
    """
    digest = _digest(file)
    file.seek(-_DIGITS, os.SEEK_END)
    file.write(digest)


def _digest(file: BinaryIO) -> bytes:
    """The checksum of all bytes but those of the checksum itself."""
    left, digest = file.seek(0, os.SEEK_END) - _DIGITS, hashlib.sha256()
    file.seek(0)
    while left > 0 and (data := file.read(min(left, _BLOCK))):
        digest.update(data)
        left -= len(data)
    return digest.hexdigest().encode()


def is_packed(path: Path) -> bool:
    """Whether a file is a packed set, of any version, by the text in its index."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(INDEX) as index:
            return b'"what": "a packed set of Chakra ' in index.read(200)
    except (OSError, LookupError, ValueError, EOFError, zlib.error, RuntimeError, zipfile.BadZipFile):
        return False


def packed_size(traces: TraceSet) -> int:
    """The most bytes that a set takes as a packed file, approximately: those of its columns before compression."""
    columns = [column.nbytes for of_class in traces.classes for column in _columns(of_class).values()]
    index = [groups_text(traces.groups), *(json.dumps(dict(of_class.facts)) for of_class in traces.classes)]
    return sum(columns) + sum(map(len, index)) + 1000 * (len(columns) + 1)


def _columns(traces: ClassTraces) -> dict[str, npt.NDArray[np.generic]]:
    return {**traces.encoded.arrays(), "ranks": traces.ranks.ranks, "values": traces.ranks.values}


def _member(key: str, column: str) -> str:
    return f"classes/{key}/{column}"


def _put(archive: zipfile.ZipFile, name: str, parts: Iterable[bytes | str], size: int, compress: bool) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.file_size = size  # decides how its place in the archive is written: the true size follows
    entry.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with archive.open(entry, "w") as member:
        for part in parts:
            member.write(part.encode() if isinstance(part, str) else part)


class Packed:
    """A packed file, open for reading. A context manager.

    own: this process wrote the file, so that its checksum is not computed again. Raises UsageError for another kind of
    file or one of a newer version, and StagedbError for a damaged file.
    """

    def __init__(self, path: Path, *, own: bool = False) -> None:
        self.path = path
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise UsageError(f"cannot read {path_text(path)}: {error.strerror or error}") from error
        try:
            self._archive = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, OSError):
            self._file.close()
            raise UsageError(
                f"{path} is not a packed trace set, or its end is missing: {call('export', packed=True)} writes one"
            ) from None
        try:
            self.index = self._index()
            if not own:
                self._check_seal()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._archive.close()
        self._file.close()

    @property
    def world(self) -> int:
        """Number of ranks of the job."""
        return int(self.index["set"]["world"])

    def classes_of(self, ranks: Ints) -> list[str]:
        """The keys of the classes of some ranks, among the classes in the file."""
        rows = self.index["classes"]
        return [key_of(row) for row in rows if np.isin(ranks, parse_ranks(row["ranks"], self.world)).any()]

    def traces(self, keys: list[str] | None = None) -> TraceSet:
        """All classes, or those of `keys`. StagedbError if a class differs from what the index states about it."""
        if keys is None:
            keys = [key_of(row) for row in self.index["classes"]]
        reason = wrong_files(self.index)
        if reason is not None:
            raise self._damaged(f"{INDEX}: {reason}")
        classes = tuple(self.class_(key) for key in keys)
        for of_class in classes:
            reason = wrong_facts(of_class)
            if reason is not None:
                raise self._damaged(f"class {of_class.key}: {reason}")
        return TraceSet(self.index["set"], groups_of(self.index), job_of(self.index), classes)

    def class_(self, key: str) -> ClassTraces:
        """One class, checked: for any contents of the file, its offsets are inside its own bytes.

        key: of the class in the index.
        """
        facts = next(row for row in self.index["classes"] if key_of(row) == key)
        columns = {name: self._column(key, name) for name in COLUMNS}
        ranks = RankBytes(columns.pop("ranks"), columns.pop("values"))
        encoded = EncodedClass(**columns)
        reason = wrong_class(encoded, ranks, parse_ranks(facts["ranks"], self.world), int(facts["bytes"]))
        if reason is not None:
            raise self._damaged(f"class {key}: {reason}")
        return ClassTraces(facts, encoded, ranks)

    def _index(self) -> dict[str, Any]:
        try:
            index = parse_index(self._read(INDEX))
        except ValueError as error:
            raise self._damaged(f"{INDEX}: {error}") from None
        if not isinstance(index, dict) or not is_int(index.get("format")) or index["format"] < 1:
            raise self._damaged(f"{INDEX} has no name of a format")
        if index["format"] != FORMAT:
            way = "use a newer one" if index["format"] > FORMAT else f"{call('export', packed=True)} writes it again"
            raise UsageError(f"{self.path} is of format {index['format']}, and this stagedb reads {FORMAT}: {way}")
        reason = wrong_index(index, COLUMNS)
        if reason is not None:
            raise self._damaged(f"{INDEX}: {reason}")
        return index

    def _check_seal(self) -> None:
        """The archive has bytes that no checksum of its own covers, such as dates and lengths of members."""
        try:
            digest = _digest(self._file)
            seal = self._file.read(_DIGITS)
        except OSError as error:
            raise StagedbError(f"cannot read {self.path}: {error.strerror or error}") from error
        if self._archive.comment != SEAL + digest or seal != digest:
            raise self._damaged("its bytes differ from their checksum")

    def _column(self, key: str, name: str) -> npt.NDArray[Any]:
        member = _member(key, name)
        data = self._read(member)
        stated = self.index["members"][member]
        if len(data) != stated["bytes"] or hashlib.sha256(data).hexdigest() != stated["sha256"]:
            raise self._damaged(f"{member} is not what was written")
        try:
            column = np.frombuffer(data, COLUMNS[name].dtype)
            if stated["columns"] is not None:
                column = column.reshape(-1, stated["columns"])
        except ValueError as error:
            raise self._damaged(f"{member}: {error}") from None
        return column

    def _read(self, member: str) -> bytes:
        try:
            entry = self._archive.getinfo(member)
            if entry.file_size > LARGEST_MEMBER:
                raise self._damaged(f"{member} states {entry.file_size:,} bytes")
            return self._archive.read(entry)
        except KeyError:
            raise self._damaged(f"it has no {member}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise self._damaged(f"{member}: {error}") from None
        except OSError as error:
            raise StagedbError(f"cannot read {self.path}: {error.strerror or error}") from error

    def _damaged(self, what: str) -> StagedbError:
        return StagedbError(f"{self.path} is damaged: {what}; copy it again from where it came")
