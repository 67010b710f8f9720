"""Traces: an instance of a store as one Chakra execution trace a rank, and the checks that a trace set runs.

`export` reads rank classes from the store as columns, encodes each class once and writes every rank as that buffer
with its own communicators and peers patched in. `validate_traces` holds any trace set, of stagedb or another tool,
against the rules that simulators rely on; `read_trace` reads one file back.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagedb.export.exporting import Summary, check_request, export
    from stagedb.export.reading import TraceColumns, TraceError, read_trace
    from stagedb.export.validation import Report, validate_traces

__all__ = [
    "Report",
    "Summary",
    "TraceColumns",
    "TraceError",
    "check_request",
    "export",
    "read_trace",
    "validate_traces",
]

_MODULES = {
    "exporting": ("Summary", "check_request", "export"),
    "reading": ("TraceColumns", "TraceError", "read_trace"),
    "validation": ("Report", "validate_traces"),
}


def __getattr__(name: str) -> Any:
    """Load on first use: the processes that write traces need little of this, and start six times as fast."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
