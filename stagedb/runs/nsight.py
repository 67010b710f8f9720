"""Exports of Nsight Systems as SQLite (`nsys export --type sqlite`): a `RankTrace` for each process with a device.

Nsight numbers the nanoseconds from the start of its session. Ranges of NVTX that PyTorch emits are operators
(`aten::mm, op_id = 7`); all others are annotations, and so are those that name a collective. Columns and tables that an
export does not have are not needed, except those of kernels.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from stagedb.files import path_text
from stagedb.runs.event_stream import TraceFileError
from stagedb.runs.joined_ops import RecordedRank
from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.rank_trace import NONE, RankTrace

MAGIC = b"SQLite format 3\0"

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_TABLES = {
    _KERNELS: ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId"),
    "StringIds": ("id", "value"),
    "TARGET_INFO_GPU": ("id", "name"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
}
"""Tables that are read, with their columns; a column that a table lacks is NULL."""

_RANGES = (59, 60)
"""Types of events of NVTX that are ranges: of a stack of a thread, or from a start to an end."""

_PROCESS = ~0xFFFFFF
"""The bits of a global thread that are its process."""

_LONGEST = 1 << 62
_OPERATOR = re.compile(r", (?:op_id|seq) = \d+.*$", re.DOTALL)
_NAMESPACE = re.compile(r"^(?:aten|c10d|autograd|torch|prim|nccl|record_param_comms|\w+Backward\d*)\b")

_OF_NCCL = re.compile(r"^p?nccl[A-Z]\w*$")
"""Ranges of NCCL's own functions: neither the program nor a framework named them."""

Row = tuple[Any, ...]
Progress = Callable[[int], None]


def read_nsight(path: Path, digest: str, progress: Progress = lambda done: None) -> list[RankTrace]:
    """The processes of an export that ran kernels, by device and process.

    digest: of the file. progress: called with the number of bytes that are read, once. Raises TraceFileError for a file
    that is no export, is damaged, or has no kernel.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            found = _traces(_Export(database, path), digest)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # The library's own errors have names of a damaged schema, in any bytes.
        raise TraceFileError(
            f"the trace {path_text(path)} cannot be imported: it is no sound database ({error})"
        ) from None
    progress(path.stat().st_size)
    return found


class _Export:
    """The tables of an export, of which some may be absent."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        # Text of a profiled program is not always UTF-8.
        database.text_factory = lambda text: text.decode(errors="replace")
        self.database, self.path = database, path
        self.events: Counter[str] = Counter()
        pages, size = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        if pages * size > path.stat().st_size:
            raise sqlite3.DatabaseError(f"it has {path.stat().st_size} of its {pages * size} bytes")
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        if _KERNELS not in tables:
            raise TraceFileError(
                f"the trace {path_text(path)} has no table {_KERNELS}, as SQLite exports of Nsight Systems have that "
                "traced CUDA: record with `nsys profile --trace=cuda,nvtx`, and export with `nsys export --type sqlite`"
            )
        self.columns = {
            table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
            for table in _TABLES.keys() & tables
        }

    def rows(self, table: str) -> Iterator[Row]:
        """The rows of a table of `_TABLES`, with NULL for columns that it lacks; none if there is no such table."""
        there = self.columns.get(table)
        if there is None:
            return
        wanted = ", ".join(f'"{name}"' if name in there else "NULL" for name in _TABLES[table])
        # Names are those of this file's table alone.
        for row in self.database.execute(f"SELECT {wanted} FROM {table}"):  # noqa: S608
            self.events[table] += 1
            yield row


def _traces(export: _Export, digest: str) -> list[RankTrace]:
    names = {row[0]: str(row[1]) for row in export.rows("StringIds")}
    ranks: dict[int, RecordedRank] = {}
    devices: dict[int, int] = {}
    left_out: Counter[str] = Counter()
    for row in export.rows(_KERNELS):
        name = names.get(row[6]) or names.get(row[7]) or "unknown kernel"
        _add_op(ranks, devices, left_out, name, row, 0)
    for category, table, name in (
        (1, "CUPTI_ACTIVITY_KIND_MEMCPY", "Memcpy"),
        (2, "CUPTI_ACTIVITY_KIND_MEMSET", "Memset"),
    ):
        for row in export.rows(table):
            _add_op(ranks, devices, left_out, name, row, category)
    _add_hosts(export, ranks, names, left_out)
    gpus = {row[0]: str(row[1]) for row in export.rows("TARGET_INFO_GPU")}
    begins = [row[0] for row in export.rows("TARGET_INFO_SESSION_START_TIME") if _is_time(row[0])]
    reasons = tuple(f"{count} rows: {why}" for why, count in sorted(left_out.items()))
    found = []
    for process in sorted(ranks, key=lambda each: (devices[each], each)):
        gpu = gpus.get(devices[process])
        trace = ranks[process].trace(
            digest,
            tool="nsight",
            devices=() if gpu is None else (gpu,),
            base=min(begins, default=0),
            events=export.events,
            left_out=reasons,
        )
        if trace is not None:
            found.append(trace)
    if not found:
        raise TraceFileError(f"the trace {path_text(export.path)} has no kernel that took time")
    return found


def _add_op(
    ranks: dict[int, RecordedRank],
    devices: dict[int, int],
    left_out: Counter[str],
    name: str,
    row: Sequence[Any],
    category: int,
) -> None:
    """Add a kernel or a copy to the rank of its process. Without processes each device is one."""
    start, end, device, stream, correlation, process = row[:6]
    if not _is_time(start, end) or end < start or not isinstance(device, int):
        left_out["an op has no possible time or no device"] += 1
        return
    process = device if not isinstance(process, int) else process
    size = row[6] if category and _is_time(row[6]) else NONE
    rank = ranks.setdefault(process, RecordedRank())
    devices[process] = min(devices.get(process, device), device)
    number = correlation if _is_time(correlation) else NONE
    rank.add_op(name, (start, end), (device, stream), category, number, size)


def _add_hosts(export: _Export, ranks: dict[int, RecordedRank], names: dict[int, str], left_out: Counter[str]) -> None:
    """Add calls of CUDA, operators and annotations to the ranks of their processes."""
    alone = next(iter(ranks.values())) if len(ranks) == 1 else None

    def of(thread: Any) -> RecordedRank | None:
        return (ranks.get(thread & _PROCESS) if isinstance(thread, int) else None) or alone

    for start, end, thread, correlation, name in export.rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
        rank = of(thread)
        if rank is None or not _is_time(start, end, correlation) or end < start:
            left_out["a call has no possible time or is of a process without kernels"] += 1
            continue
        rank.add_call(names.get(name, "unknown call"), (start, end), thread, correlation)
    for start, end, type_, text, text_id, thread, _ in export.rows("NVTX_EVENTS"):
        rank = of(thread)
        written = text if text is not None else names.get(text_id)
        if type_ not in _RANGES or end is None or written is None:
            continue
        if rank is None or not _is_time(start, end) or end < start:
            left_out["a range has no possible time or is of a process without kernels"] += 1
            continue
        short = _OPERATOR.sub("", str(written))
        # A range such as `nccl:all_to_all` names the collective inside an operator, as it does in Kineto's traces.
        if _NAMESPACE.match(short) and collective_kind(short) is None:
            rank.add_operator(short, (start, end), thread)
        elif not _OF_NCCL.match(short):
            rank.add_annotation(short, (start, end), thread)


def _is_time(*values: Any) -> bool:
    """Whether all values are integers that fit into columns."""
    return all(isinstance(each, int) and 0 <= each < _LONGEST for each in values)
