"""Files of profilers, by what is in them: the reader of each format."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
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


def read_traces(profiles: Mapping[str, Path], progress: Callable[[int], None] = lambda done: None) -> list[RankTrace]:
    """The ranks of several trace files, in the order of the files; large ones are read on several cores.

    profiles: files by the digest of what each is read from. progress: called with the bytes that were read of all.
    Raises what `read_trace` raises, and StagedbError if a process that reads a file is ended.
    """
    digests, paths = [*profiles], [*profiles.values()]
    sizes = [path.stat().st_size for path in paths]
    processes = min(usable_cores(), len(paths), MOST_PROCESSES) if sum(sizes) >= LARGE else 1
    if processes == 1:
        traces = []
        for at, (digest, path) in enumerate(profiles.items()):
            before = sum(sizes[:at])
            traces += read_trace(path, digest, partial(_report, progress, before))
        return traces
    found: dict[int, list[RankTrace]] = {}
    for at, ranks in shared(
        # A copy of this process makes none of its own.
        lambda at: read_trace(paths[at], digests[at], processes=1),
        [*map(path_text, paths)],
        processes,
    ):
        found[at] = ranks
        progress(sum(sizes[place] for place in found))
    return [*chain.from_iterable(found[at] for at in range(len(paths)))]


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
