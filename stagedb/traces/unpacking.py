"""`unpack`: from a packed file to a trace set on disk, without a store."""

from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.traces.packed_file import Packed
from stagedb.traces.rank_sets import parse_ranks
from stagedb.traces.set_output import Counter, Progress, Request, Summary, WriteClock, write_set
from stagedb.traces.trace_set import TraceSet


def unpack_traces(
    path: Path, request: Request, *, only: str | None = None, progress: Progress | None = None
) -> Summary:
    """Write the traces of a packed file to a directory, the same files that `export` writes.

    only: ranks such as `0-7,16`; all ranks in the file if not given. Raises UsageError for requests that are refused
    and StagedbError for failures, a damaged file included; then no file remains under the name.
    """
    clock = WriteClock()
    with Packed(path) as packed, clock.stage("read"):
        request.check(packed.world, only)
        traces = _wanted(packed, only)
    return write_set(traces, request, counter=Counter(progress), clock=clock)


def _wanted(packed: Packed, only: str | None) -> TraceSet:
    if only is None:
        return packed.traces()
    ranks = parse_ranks(only, packed.world)
    traces = packed.traces(packed.classes_of(ranks)).only(ranks)
    if traces.count < len(ranks):
        raise UsageError(f"{packed.path} holds {traces.count} of the {len(ranks)} ranks of {Word('only', shown(only))}")
    return traces
