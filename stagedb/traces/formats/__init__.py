"""Formats of trace sets, a file each: the files that they write, the options they accept, and how to read them back.

A new format is a file with a `TraceFormat`, and a line in the imports and in the tuple below.
"""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.traces.formats.et_traces import ET
from stagedb.traces.formats.json_traces import JSON
from stagedb.traces.formats.packed_set import PACKED
from stagedb.traces.formats.parquet_tables import PARQUET
from stagedb.traces.formats.trace_format import ClassFiles, FoundTraces, OneFile, Option, RankFiles, TraceFormat

FORMATS: Mapping[str, TraceFormat] = {
    each.name: each
    for each in (
        ET,
        JSON,
        PARQUET,
    )
}
"""Formats of directories, by the name that `format` uses."""

DEFAULT = ET
"""The format of a request that names none."""

__all__ = [
    "DEFAULT",
    "FORMATS",
    "PACKED",
    "ClassFiles",
    "FoundTraces",
    "OneFile",
    "Option",
    "RankFiles",
    "TraceFormat",
    "format_named",
]


def format_named(name: str) -> TraceFormat:
    """The format of this name. UsageError where there is none."""
    if name not in FORMATS:
        *most, last = FORMATS
        raise UsageError(f"unknown format {shown(name)}: {Word('format')} is {', '.join(most)} or {last}")
    return FORMATS[name]
