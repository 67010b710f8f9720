"""The definition of a format of trace sets."""

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stagedb.errors import UsageError
from stagedb.mentions import Word

if TYPE_CHECKING:
    from stagedb.traces.trace_reading import TraceColumns
    from stagedb.traces.trace_set import TraceSet

Option = Literal["compress", "format", "replay", "resume", "simulator"]
"""Options of `export` that a format takes or refuses."""


@dataclass(frozen=True)
class RankFiles:
    """One file a rank, `NAME.RANK.ENDING`.

    ending: of the names. convert: makes the file's bytes from those of an `.et` trace; None: they remain unchanged.
    compress: gzip is the last step.
    """

    ending: str
    convert: Callable[[bytes], bytes] | None = None
    compress: bool = False

    @property
    def plain(self) -> bool:
        """Whether the bytes of a trace are written unchanged."""
        return self.convert is None and not self.compress

    def coded(self, data: bytes) -> bytes:
        """The bytes of the file of a trace with these bytes. data: the bytes of a trace in Chakra's format."""
        if self.convert is not None:
            data = self.convert(data)
        return gzip.compress(data, mtime=0) if self.compress else data

    def file(self, prefix: str, rank: int) -> str:
        """The name of a rank's file.

        prefix: the begin of all names of the set.
        """
        return f"{prefix}.{rank}.{self.ending}"


@dataclass(frozen=True)
class ClassFiles:
    """Files of rank classes in a directory, written by one process.

    write: puts a set into a directory, and reports how many more ranks are written. size: the most bytes that the files
    take. place: where a reader looks for a rank, by the set's name and the rank.
    """

    write: Callable[["TraceSet", Path, Callable[[int], None]], None]
    size: Callable[["TraceSet"], int]
    place: Callable[[str, int], str]


@dataclass(frozen=True)
class OneFile:
    """One file of a whole set, in place of a directory. write: makes the file."""

    write: Callable[[Path, "TraceSet"], None]


@dataclass(frozen=True)
class FoundTraces:
    """The traces of a directory: the set's name, and by rank a function that reads its trace.

    Such a function raises TraceError for a file that is damaged.
    """

    prefix: str
    read: Mapping[int, Callable[[], "TraceColumns"]]


@dataclass(frozen=True)
class TraceFormat:
    """A form in which a trace set is written.

    name: its word in `format`. help: a description for the option's help. what: the manifest's description of the
    set's files, with `{name}` for the set's name. takes: the words that it accepts; the others are refused with
    `refusal` (the reason) and `way` (what to do instead). simulated: whether a simulator's inputs are written next to
    the traces. find: returns the traces of a directory, None if it has no trace of this format; a format whose field is
    None cannot be read back.
    """

    name: str
    help: str
    what: str
    files: RankFiles | ClassFiles | OneFile
    takes: frozenset[Option]
    refusal: str = ""
    way: str = ""
    simulated: bool = True
    find: Callable[[Path], FoundTraces | None] | None = None

    def check(self, given: Mapping[Option, bool]) -> None:
        """Raise UsageError for given words that this format does not accept."""
        refused = [_mention(word) for word, is_given in given.items() if is_given and word not in self.takes]
        if refused:
            raise UsageError(f"{self.refusal}: leave out {' and '.join(refused)}{self.way}")

    def rank_files(self, compress: bool) -> RankFiles | None:
        """The files of ranks, compressed if asked; None for a format that has no such files. compress: with gzip."""
        return replace(self.files, compress=compress) if isinstance(self.files, RankFiles) else None

    def place(self, prefix: str, rank: int) -> str:
        """Where a rank's trace is, for messages.

        prefix: the begin of all names of the set.
        """
        if isinstance(self.files, RankFiles):
            return self.files.file(prefix, rank)
        return self.files.place(prefix, rank) if isinstance(self.files, ClassFiles) else prefix


def _mention(word: Option) -> str:
    return str(Word(word, None if word in ("format", "simulator") else True))
