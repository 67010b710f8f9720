"""Exports of Nsight Systems: a rank for each process, with its kernels, launches, operators and annotations."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stagedb.runs import TraceFileError, file_digest, measured_run, read_trace, run_rows
from stagedb.runs.rank_trace import NONE, RankTrace
from tests.runs.nsight_exports import EPOCH, PROCESSES, TABLES, two_processes, write_export


def read(path: Path) -> list[RankTrace]:
    return read_trace(path, file_digest(path))


def test_each_process_is_a_rank_on_one_clock(tmp_path: Path) -> None:
    traces = read(write_export(tmp_path / "a.sqlite", two_processes(late=5_000)))
    assert [(trace.rank, trace.tool, trace.devices) for trace in traces] == [
        (None, "nsight", ("GPU A",)),
        (None, "nsight", ("GPU B",)),
    ]
    first = traces[0]
    assert first.ops.start.tolist() == [EPOCH + ns for ns in (1_000, 12_000, 41_000)]
    assert first.ops.launched.tolist() == [EPOCH + ns for ns in (900, 1_100, 1_300)]
    assert first.ops.bytes.tolist() == [NONE, NONE, 4_096]
    assert [first.names[place] if place != NONE else None for place in first.ops.launcher.tolist()] == [
        "aten::addmm",
        None,
        None,
    ]
    assert [first.annotations[place].name for place in first.ops.annotation.tolist()] == ["layer 3"] * 3
    run = measured_run(traces)
    assert [run.clocks[rank].offset for rank in (0, 1)] == [0, 0]
    assert [lane.ranks for lane in run.lanes] == [(0, 1)]
    rows = run_rows(run, {})
    (call,) = (values for _, values in rows.nodes["RunCollective"])
    assert (call["kind"], call["last"], call["waited"], call["by_order"]) == ("all_reduce", 1, 5_000, True)
    ops = [values for _, values in rows.nodes["RunOp"]]
    assert [(each["kind"], each["type"]) for each in ops] == [
        ("matmul", "compute"),
        ("all_reduce", "collective"),
        ("copy", "copy"),
    ]
    assert ops[0]["layer"] == 3 and rows.own["tool"] == "nsight"


def test_ranges_of_collectives_are_no_operators(tmp_path: Path) -> None:
    """A kernel of messages is what the range inside the operator names, and NCCL's own range is around neither."""
    rows = two_processes()
    rows["StringIds"][1] = (2, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)")
    for process in PROCESSES:
        for text in (
            "AllToAll4D, seq = 4, op_id = 8",
            "record_param_comms, op_id = 9",
            "nccl:all_to_all",
            "ncclGroupEnd",
        ):
            rows["NVTX_EVENTS"].append((1_050, 1_250, 59, text, None, process + 77, 0))
    run = measured_run(read(write_export(tmp_path / "a.sqlite", rows)))
    found = run_rows(run, {})
    (call,) = (values for _, values in found.nodes["RunCollective"])
    op = next(values for _, values in found.nodes["RunOp"] if values["type"] == "collective")
    assert (call["kind"], op["kind"]) == ("all_to_all", "all_to_all")
    assert (op["launcher"], op["block"]) == ("record_param_comms", "AllToAll4D")


@pytest.mark.parametrize("absent", [name for name in TABLES if name != "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_only_the_table_of_kernels_is_needed(absent: str, tmp_path: Path) -> None:
    rows = two_processes()
    del rows[absent]
    traces = read(write_export(tmp_path / "a.sqlite", rows))
    assert len(traces) == 2 and len(traces[0].ops) == (2 if absent == "CUPTI_ACTIVITY_KIND_MEMCPY" else 3)
    assert traces[0].names[traces[0].ops.name[0]] == (
        "unknown kernel" if absent == "StringIds" else "ampere_sgemm_128x64_nn"
    )


def test_rows_without_a_possible_time_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = two_processes()
    kernel = rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]
    rows["CUPTI_ACTIVITY_KIND_KERNEL"] += [(None, *kernel[1:]), (50, 20, *kernel[2:]), ("x", *kernel[1:])]
    rows["CUPTI_ACTIVITY_KIND_RUNTIME"] += [(1, 2, 5 << 24, 99, 3)]
    (first, _) = read(write_export(tmp_path / "a.sqlite", rows))
    assert len(first.ops) == 3
    assert first.left_out == (
        "1 rows: a call has no possible time or is of a process without kernels",
        "3 rows: an op has no possible time or no device",
    )


def test_what_is_no_export_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE x (y)")
    with pytest.raises(TraceFileError, match=r"other\.sqlite has no table CUPTI_ACTIVITY_KIND_KERNEL"):
        read(path)
    whole = write_export(tmp_path / "a.sqlite", two_processes()).read_bytes()
    for end in (20, 100, 1_000, len(whole) // 2, len(whole) - 1_000):
        (tmp_path / "cut.sqlite").write_bytes(whole[:end])
        with pytest.raises(TraceFileError, match=r"cut\.sqlite"):
            read(tmp_path / "cut.sqlite")
    empty = two_processes()
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"):
        empty[name] = []
    with pytest.raises(TraceFileError, match="no kernel that took time"):
        read(write_export(tmp_path / "empty.sqlite", empty))
