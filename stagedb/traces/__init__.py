"""Traces: an instance of a store as one Chakra execution trace a rank, and the checks of a trace set.

`export` reads rank classes from the store as columns and encodes each class once. It writes every rank as that buffer
with its own communicators and peers patched in, or packs both into one file, from which `unpack_traces` writes the same
traces. `validate_traces` checks any trace set, of stagedb or another tool, against the rules that simulators rely on.
`read_trace` reads one file back.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.traces.set_output import Request, Summary, unpack_traces
    from stagedb.traces.set_validation import Report, validate_traces
    from stagedb.traces.trace_reading import TraceColumns, TraceError, read_trace

__all__ = [
    "Report",
    "Request",
    "Summary",
    "TraceColumns",
    "TraceError",
    "read_trace",
    "unpack_traces",
    "validate_traces",
]

_MODULES = {
    "set_output": (
        "Request",
        "Summary",
        "unpack_traces",
    ),
    "trace_reading": (
        "TraceColumns",
        "TraceError",
        "read_trace",
    ),
    "set_validation": (
        "Report",
        "validate_traces",
    ),
}

# The processes that write traces need little of this, and start six times as fast without it.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
