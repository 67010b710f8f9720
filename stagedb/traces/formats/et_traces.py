"""Chakra's binary traces, one a rank: the input of simulators."""

import re
from functools import partial
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.traces.formats.trace_format import FoundTraces, RankFiles, TraceFormat

_TRACE = re.compile(r"(?P<prefix>.+)\.(?P<rank>0|[1-9][0-9]*)\.et")


def find(directory: Path) -> FoundTraces | None:
    """The traces of a directory. UsageError where they have several names."""
    from stagedb.traces.trace_reading import read_trace

    files_of: dict[str, dict[int, Path]] = {}
    for path in directory.iterdir():
        match = _TRACE.fullmatch(path.name)
        if match:
            files_of.setdefault(match["prefix"], {})[int(match["rank"])] = path
    if not files_of:
        return None
    if len(files_of) > 1:
        raise UsageError(f"{directory} holds traces of several names: {', '.join(sorted(files_of))}")
    ((prefix, files),) = files_of.items()
    return FoundTraces(prefix, {rank: partial(read_trace, path) for rank, path in files.items()})


ET = TraceFormat(
    name="et",
    help="Chakra's binary traces",
    what="one a rank: {name}.<rank>.et",
    files=RankFiles("et"),
    takes=frozenset({"compress", "format", "replay", "resume", "simulator"}),
    find=find,
)
