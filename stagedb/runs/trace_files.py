"""Files of profilers, by what is in them: the reader of each format."""

from collections.abc import Callable
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.kineto import read_kineto
from stagedb.runs.nsight import MAGIC, read_nsight
from stagedb.runs.rank_trace import RankTrace

ENDINGS = (".json", ".json.gz", ".sqlite", ".et", ".et.gz")
"""How the names of trace files end; only those of a directory are read."""


def read_trace(path: Path, digest: str, progress: Callable[[int], None] = lambda done: None) -> list[RankTrace]:
    """The ranks of a trace file, by the format of its content.

    digest: of the file. progress: called with the bytes that were read. Raises TraceFileError for a file of no known
    format or a damaged one, and UsageError for one that cannot be read.
    """
    try:
        with open_regular(path) as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"cannot read the trace {path_text(path)}: {error.strerror or error}") from None
    if begin == MAGIC:
        return read_nsight(path, digest, progress)
    return [read_kineto(path, digest, progress)]
