"""One small file of a whole set, chosen by `packed`. `unpack` writes the directory from it. See docs/packed.md."""

from pathlib import Path
from typing import TYPE_CHECKING

from stagedb.mentions import Word, call
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
    refusal=f"{Word('packed', True)} writes one file of plain traces, in one go",
    way=f", or give them to {call('unpack')}",
)
