"""Files of profilers, by what is in them: the reader of each format."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.files import open_regular, path_text
from stagedb.runs.kept_ranks import KeptRanks
from stagedb.runs.kineto import read_kineto
from stagedb.runs.nsight import MAGIC, read_nsight
from stagedb.runs.rank_trace import RankTrace
from stagedb.shared_work import shared

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
    for digest, ranks in _read(left, sizes, lambda done: how.progress(before + done)):
        found[digest] = ranks
        if kept is not None:
            kept.keep(digest, ranks)
    return [*chain.from_iterable(found[digest] for digest in profiles)]


def _read(
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
