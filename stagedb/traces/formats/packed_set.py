"""One small file of a whole set, chosen by `--packed`. `unpack` writes the directory from it. See docs/packed.md."""

from pathlib import Path
from typing import TYPE_CHECKING

from stagedb.traces.formats.trace_format import OneFile, TraceFormat

if TYPE_CHECKING:
    from stagedb.traces.trace_set import TraceSet


def _write(path: Path, traces: "TraceSet") -> None:
    # The command line shows its options without numpy.
    from stagedb.traces.packed_file import write_packed

    write_packed(path, traces)


PACKED = TraceFormat(
    name="packed",
    help="one small file",
    what="",
    files=OneFile(_write),
    takes=frozenset(),
    refusal="--packed writes one file of plain traces, in one go",
    way=", or give them to `stagedb unpack`",
)
