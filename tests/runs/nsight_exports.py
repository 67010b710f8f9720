"""Exports of Nsight Systems, made up: a database with the tables that are read."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

EPOCH = 1_770_000_000_000_000_000
PROCESSES = (281_476_838_981_632, 281_476_855_758_848)
"""Global numbers of two processes; a thread adds its own number."""

Row = tuple[Any, ...]

TABLES = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_KERNEL": 'start, "end", deviceId, streamId, correlationId, globalPid, demangledName, '
    "shortName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": 'start, "end", deviceId, streamId, correlationId, globalPid, bytes',
    "CUPTI_ACTIVITY_KIND_RUNTIME": 'start, "end", globalTid, correlationId, nameId',
    "NVTX_EVENTS": 'start, "end", eventType, text, textId, globalTid, domainId',
    "TARGET_INFO_GPU": "id, name",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
}


def two_processes(late: int = 0) -> dict[str, list[Row]]:
    """Rows of two processes that each run a matmul, an all-reduce and a copy. late: ns by which the second one is."""
    strings = [
        (1, "ampere_sgemm_128x64_nn"),
        (2, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"),
        (3, "cudaLaunchKernel"),
    ]
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    rows["StringIds"] = [*strings, (4, "layer 3")]
    rows["TARGET_INFO_GPU"] = [(0, "GPU A"), (1, "GPU B")]
    rows["TARGET_INFO_SESSION_START_TIME"] = [(EPOCH,)]
    for place, process in enumerate(PROCESSES):
        thread, at = process + 77, late * place
        rows["CUPTI_ACTIVITY_KIND_KERNEL"] += [
            (1_000 + at, 11_000 + at, place, 7, 1 + 10 * place, process, 1, 1),
            (12_000 + at, 40_000, place, 20, 2 + 10 * place, process, 2, 2),
        ]
        rows["CUPTI_ACTIVITY_KIND_MEMCPY"] += [(41_000, 42_000, place, 7, 3 + 10 * place, process, 4_096)]
        rows["CUPTI_ACTIVITY_KIND_RUNTIME"] += [
            (start + at, start + at + 50, thread, number + 10 * place, 3)
            for number, start in ((1, 900), (2, 1_100), (3, 1_300))
        ]
        rows["NVTX_EVENTS"] += [
            (800, 5_000 + at, 59, None, 4, thread, 0),
            (890, 990 + at, 59, "aten::linear, op_id = 314290", None, thread, 0),
            (895, 985 + at, 59, "aten::addmm, seq = 3, op_id = 5", None, thread, 0),
            (800, None, 75, "a domain", None, thread, 0),
        ]
    return rows


def write_export(path: Path, rows: dict[str, list[Row]]) -> Path:
    """A database with these tables; a table without an entry is absent."""
    with closing(sqlite3.connect(path)) as database, database:
        for name, found in rows.items():
            database.execute(f"CREATE TABLE {name} ({TABLES[name]})")
            marks = ", ".join("?" * len(TABLES[name].split(",")))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", found)  # noqa: S608
    return path
