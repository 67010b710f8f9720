"""Ranks that were read of the files of an import, kept until their run is in the store.

An import that is interrupted leaves them, and the next one of the same files reads only the others. A rank is found by
the digest of its file and by the version of what reads it. What is damaged, or of another version, is read again.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from types import GenericAlias
from typing import Any, BinaryIO, get_type_hints

import msgspec
import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.files import open_regular, whole_file
from stagedb.runs.measured_run import FORMAT
from stagedb.runs.memory_record import AllocatedMemory, MemoryMoment
from stagedb.runs.rank_trace import DeviceOps, RankTrace

LONGEST_KEPT = 7 * 24 * 3600
"""Seconds after which ranks of an import that nobody resumed are removed."""

_ENDING = ".rank"
_COLUMNS = tuple(each.name for each in fields(DeviceOps))
_CHECKED = 32
"""Bytes of the digest at the end of a file."""


class _Memory(msgspec.Struct):
    """An `AllocatedMemory` with lists as columns: they have few entries."""

    place: str
    absolute: bool
    events: int
    time: list[int]
    allocated: list[int]
    reserved: int | None
    step: int | None
    moments: tuple[MemoryMoment, ...]


_SAME = tuple(each.name for each in fields(RankTrace) if each.name not in ("ops", "memory"))
_TYPES = get_type_hints(RankTrace)
_Kept: Any = msgspec.defstruct(
    "_Kept",
    [("count", int), ("types", list[str]), ("memory", list[_Memory]), *((name, _TYPES[name]) for name in _SAME)],
)
"""A `RankTrace` without the columns of its ops, which follow. count: of ops. types: of the columns."""

_HEADS = msgspec.msgpack.Decoder(GenericAlias(list, (_Kept,)))


@dataclass(frozen=True)
class KeptRanks:
    """Ranks that are kept in a directory, which is the user's alone."""

    directory: Path

    def keep(self, digest: str, ranks: Sequence[RankTrace]) -> None:
        """Keep the ranks of a file. digest: of the file. Without room for them they are read again."""
        with suppress(StagedbError, OSError, UnicodeEncodeError, OverflowError):
            # Parents that are made have the permissions of the user's other files, which an embedded store may refuse.
            for each in (self.directory.parent, self.directory):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            with whole_file(self._path(digest), "") as file:
                _write(file, ranks)

    def ranks(self, digest: str) -> list[RankTrace] | None:
        """The ranks of a file that were kept; None if none are, or not whole. digest: of the file's bytes."""
        try:
            with open_regular(self._path(digest)) as file:
                return _read(file)
        except (OSError, UsageError, ValueError, msgspec.MsgspecError):
            return None

    def remove(self, digests: Iterable[str]) -> None:
        """Remove the ranks of files, and those that nobody asked for in `LONGEST_KEPT`.

        digests: of the files' bytes.
        """
        with suppress(OSError):
            for digest in digests:
                self._path(digest).unlink(missing_ok=True)
            for path in self.directory.glob(f"*{_ENDING}"):
                if path.stat().st_mtime < time.time() - LONGEST_KEPT:
                    path.unlink(missing_ok=True)
            self.directory.rmdir()

    def _path(self, digest: str) -> Path:
        text = f"{digest} {FORMAT} {version('stagedb')}"
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()}{_ENDING}"


def _write(file: BinaryIO, ranks: Sequence[RankTrace]) -> None:
    check = hashlib.sha256()
    heads = msgspec.msgpack.encode([_head(each) for each in ranks])
    parts: list[bytes | memoryview] = [len(heads).to_bytes(8, "little"), heads]
    parts += (np.ascontiguousarray(getattr(each.ops, name)).data.cast("B") for each in ranks for name in _COLUMNS)
    for part in parts:
        check.update(part)
        file.write(part)
    file.write(check.digest())


def _head(trace: RankTrace) -> Any:
    memory = [
        _Memory(**{**_values(each), "time": each.time.tolist(), "allocated": each.allocated.tolist()})
        for each in trace.memory
    ]
    types = [getattr(trace.ops, name).dtype.str for name in _COLUMNS]
    same = {name: getattr(trace, name) for name in _SAME}
    return _Kept(count=len(trace.ops), types=types, memory=memory, **{**same, "events": dict(trace.events)})


def _values(memory: AllocatedMemory) -> dict[str, Any]:
    return {each.name: getattr(memory, each.name) for each in fields(memory)}


def _read(file: BinaryIO) -> list[RankTrace] | None:
    """The ranks of a file; None if it is not whole."""
    if not _is_whole(file):
        return None

    def part(size: int) -> bytearray:
        return bytearray(file.read(size))

    heads: list[Any] = _HEADS.decode(part(int.from_bytes(part(8), "little")))
    found = []
    for head in heads:
        columns = {}
        for name, kind in zip(_COLUMNS, head.types, strict=True):
            columns[name] = np.frombuffer(part(head.count * np.dtype(kind).itemsize), np.dtype(kind))
        memory = tuple(_memory(each) for each in head.memory)
        same = {name: getattr(head, name) for name in _SAME}
        found.append(RankTrace(ops=DeviceOps(**columns), memory=memory, **same))
    return found


def _is_whole(file: BinaryIO) -> bool:
    """Whether a file ends in the digest of what is before it."""
    check, left = hashlib.sha256(), os.fstat(file.fileno()).st_size - _CHECKED
    while left > 0 and (part := file.read(min(left, 1 << 20))):
        check.update(part)
        left -= len(part)
    whole = file.read() == check.digest()
    file.seek(0)
    return whole


def _memory(kept: _Memory) -> AllocatedMemory:
    values = {name: getattr(kept, name) for name in _Memory.__struct_fields__}
    arrays = {name: np.array(values[name], np.int64) for name in ("time", "allocated")}
    return AllocatedMemory(**{**values, **arrays})
