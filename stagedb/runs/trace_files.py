"""Files of profilers: the reader of each format, by what is in them, and the ranks of an import that were read."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import GenericAlias
from typing import Any, BinaryIO, get_type_hints

import msgspec
import numpy as np

from stagedb.cores import usable_cores
from stagedb.errors import StagedbError, UsageError
from stagedb.files import open_regular, path_text, whole_file
from stagedb.runs.kineto import read_kineto
from stagedb.runs.measured_run import FORMAT
from stagedb.runs.nsight import MAGIC, read_nsight
from stagedb.runs.rank_trace import AllocatedMemory, DeviceOps, MemoryMoment, RankTrace
from stagedb.shared_work import shared

# Ranks that were read of the files of an import, kept until their run is in the store.
#
# An import that is interrupted leaves them, and the next one of the same files reads only the others. A rank is found
# by the digest of its file and by the version of what reads it. What is damaged, or of another version, is read again.

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


ENDINGS = (".json", ".json.gz", ".sqlite", ".et", ".et.gz")
"""How the names of trace files end; only those of a directory are read."""

LARGE = 64 << 20
"""Bytes of all files of a run from which on they are read on several cores: those of less take as long as a copy."""

MOST_PROCESSES = 8
"""Each holds a piece of a file and what it has read of it."""


@dataclass(frozen=True)
class TraceReading:
    """How the traces of a run are read. progress: called with the bytes that were read of all files.

    kept: where ranks of several files, or of a large one, are kept until the run is in the store; None: nowhere. notes:
    gets what is not read, as sentences.
    """

    progress: Callable[[int], None] = lambda done: None
    kept: KeptRanks | None = None
    notes: Callable[[str], None] = lambda text: None


def read_traces(profiles: Mapping[str, Path], reading: TraceReading | None = None) -> list[RankTrace]:
    """The ranks of several trace files, in the order of the files; large ones are read on several cores.

    profiles: files by the digest of what each is read from. reading: without it there is no report, and nothing is
    kept. Raises what `read_trace` raises, and StagedbError if a process that reads a file is ended.
    """
    how = TraceReading() if reading is None else reading
    sizes = {digest: path.stat().st_size for digest, path in profiles.items()}
    # A small file alone takes as long to keep as to read.
    kept = how.kept if len(profiles) > 1 or sum(sizes.values()) >= LARGE else None
    found: dict[str, list[RankTrace]] = {}
    if kept is not None:
        known = ((digest, kept.ranks(digest)) for digest in profiles)
        found = {digest: ranks for digest, ranks in known if ranks is not None}
        if found:
            several = f"{len(found):,} of {len(profiles):,} files were read by an import that did not end, and are"
            one = "the file was read by an import that did not end, and is"
            how.notes(f"{several if len(profiles) > 1 else one} not read again")
            how.progress(sum(sizes[digest] for digest in found))
    left = {digest: path for digest, path in profiles.items() if digest not in found}
    before = sum(sizes[digest] for digest in found)
    for digest, ranks in _read_profiles(left, sizes, lambda done: how.progress(before + done)):
        found[digest] = ranks
        if kept is not None:
            kept.keep(digest, ranks)
    return [*chain.from_iterable(found[digest] for digest in profiles)]


def _read_profiles(
    profiles: Mapping[str, Path], sizes: Mapping[str, int], progress: Callable[[int], None]
) -> Iterator[tuple[str, list[RankTrace]]]:
    """The ranks of each file, with its digest, as soon as they are there."""
    digests, paths = [*profiles], [*profiles.values()]
    of = sum(sizes[digest] for digest in digests)
    processes = min(usable_cores(), len(paths), MOST_PROCESSES) if of >= LARGE else 1
    done = 0
    if processes < 2:
        for digest, path in profiles.items():
            yield digest, read_trace(path, digest, partial(_report, progress, done))
            done += sizes[digest]
        return
    # A copy of this process makes none of its own.
    for at, ranks in shared(
        lambda at: read_trace(paths[at], digests[at], processes=1), [*map(path_text, paths)], processes
    ):
        yield digests[at], ranks
        done += sizes[digests[at]]
        progress(done)


def _report(progress: Callable[[int], None], before: int, done: int) -> None:
    progress(before + done)


def read_trace(
    path: Path, digest: str, progress: Callable[[int], None] = lambda done: None, processes: int | None = None
) -> list[RankTrace]:
    """The ranks of a trace file, by the format of its content.

    digest: of the file. progress: called with the bytes that were read. processes: as of `read_kineto`. Raises
    TraceFileError for a file of no known format or a damaged one, and UsageError for one that cannot be read.
    """
    try:
        with open_regular(path) as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"cannot read the trace {path_text(path)}: {error.strerror or error}") from None
    if begin == MAGIC:
        return read_nsight(path, digest, progress)
    return [read_kineto(path, digest, progress, processes)]
