"""Memory of recorded ranks: every byte as the file has it, counted again here from its events."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from stagedb.runs import RankTrace, file_digest, read_kineto
from stagedb.runs.memory_events import fullest_of_each
from stagedb.runs.rank_trace import MOST_POINTS
from tests.runs.recordings import BASE, Recording

ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def read(found: Recording, directory: Path) -> RankTrace:
    path = found.write(directory)
    return read_kineto(path, file_digest(path))


def training(begin: int, size: int, number: int | None = None, held: int = 1_000) -> Recording:
    """A step that holds `held` bytes, saves `size` in its forward, and needs as much again in its backward."""
    found = Recording()
    add_step(found, begin, size, number, held)
    return found


def add_step(found: Recording, begin: int, size: int, number: int | None, held: int) -> None:
    if number is not None:
        found.span("user_annotation", f"ProfilerStep#{number}", begin, 100_000)
    # The host allocates inside operators, before their kernels run.
    found.kernel("gemm_forward", begin + 20_000, 5_000, launched=begin + 10_000)
    found.span("cpu_op", "aten::linear", begin + 9_000, 5_000)
    found.span("cpu_op", "aten::empty", begin + 9_100, 100)
    found.allocated(begin + 9_150, size, held + size)
    found.span("cpu_op", ENGINE, begin + 30_000, 5_000, (1, 2))
    found.kernel("gemm_backward", begin + 40_000, 5_000, launched=begin + 31_000, thread=2)
    found.allocated(begin + 30_500, size, held + 2 * size, thread=2)
    found.allocated(begin + 34_000, -size, held + size, thread=2)
    found.span("cpu_op", "aten::_foreach_add_", begin + 50_000, 5_000)
    found.allocated(begin + 51_000, 8, held + size + 8)
    found.allocated(begin + 52_000, -size - 8, held)


def test_moments_are_those_of_the_host_that_allocates(tmp_path: Path) -> None:
    (memory,) = read(training(0, 600), tmp_path).memory
    assert (memory.place, memory.absolute, memory.events, memory.reserved, memory.step) == (
        *("device 0", True, 5, 2 * 2_200),
        None,
    )
    assert [(each.moment, each.bytes, each.time - BASE, each.phase, each.operator) for each in memory.moments] == [
        ("start", 1_000, 9_150, "forward", None),
        ("forward_end", 1_600, 30_000, "forward", None),
        ("backward_end", 1_600, 35_000, "backward", None),
        ("step_end", 1_000, 52_000, "optimizer", None),
        # What only allocates is not the operator that needs it.
        ("forward_peak", 1_600, 9_150, "forward", "aten::linear"),
        ("backward_peak", 2_200, 30_500, "backward", ENGINE),
        ("optimizer_peak", 1_608, 51_000, "optimizer", "aten::_foreach_add_"),
        ("peak", 2_200, 30_500, "backward", ENGINE),
    ]


def test_the_fullest_step_is_the_one_of_the_moments(tmp_path: Path) -> None:
    found = training(0, 600, 3)
    add_step(found, 200_000, 900, 4, 1_000)
    add_step(found, 400_000, 900, 5, 1_000)
    (memory,) = read(found, tmp_path).memory
    assert (memory.step, memory.peak.bytes, memory.peak.time - BASE) == (4, 2_800, 230_500)
    assert [(each.moment, each.bytes, each.time - BASE) for each in memory.moments[:4]] == [
        ("start", 1_000, 200_000),
        ("forward_end", 1_900, 230_000),
        ("backward_end", 1_900, 235_000),
        ("step_end", 1_000, 300_000),
    ]


def test_a_forward_after_a_backward_begins_another_one(tmp_path: Path) -> None:
    """The forward of two micro-batches ends before the second backward; messages between nodes are no forward."""
    found = training(0, 600, 3)
    found.span("cpu_op", "c10d::send", 36_000, 500, (1, 1))
    found.span("cpu_op", ENGINE, 37_000, 1_000, (1, 2))
    found.span("cpu_op", "aten::mm", 60_000, 1_000)
    found.allocated(60_500, 100, 1_100)
    found.span("cpu_op", ENGINE, 70_000, 1_000, (1, 2))
    found.allocated(70_500, -50, 1_050, thread=2)
    (memory,) = read(found, tmp_path).memory
    ends = {each.moment: (each.bytes, each.time - BASE) for each in memory.moments[:4]}
    assert ends == {
        "start": (1_000, 0),
        "forward_end": (1_100, 70_000),
        "backward_end": (1_050, 71_000),
        "step_end": (1_050, 100_000),
    }


def test_devices_and_the_host_are_apart(tmp_path: Path) -> None:
    found = training(0, 600)
    found.allocated(9_200, 64, 64, None)
    found.allocated(9_300, -64, 0, None)
    found.allocated(9_400, 32, 5_032, device=1)
    host, first, second = sorted(read(found, tmp_path).memory, key=lambda each: (each.absolute, each.place))
    assert [(each.place, each.absolute, each.peak.bytes, each.reserved) for each in (host, first, second)] == [
        ("host", False, 64, None),
        ("device 0", True, 2_200, 4_400),
        ("device 1", True, 5_032, 10_064),
    ]


def test_without_totals_bytes_are_those_since_the_begin(tmp_path: Path) -> None:
    found = Recording()
    found.kernel("gemm", 1_000, 500)
    for at, size in ((100, 40), (200, 60), (300, -40), (400, -60)):
        found.allocated(at, size)
    (memory,) = read(found, tmp_path).memory
    assert (memory.absolute, memory.reserved, memory.allocated.tolist()) == (False, None, [40, 100, 60, 0])


@pytest.mark.parametrize("compress", [False, True])
def test_a_trace_without_allocations_has_no_memory(compress: bool, tmp_path: Path) -> None:
    found = Recording()
    found.kernel("gemm", 1_000, 500)
    # Instants of other kinds, and allocations without a device, are none.
    found.events.append({"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": "1", "args": {}})
    found.events.append({"ph": "i", "name": "[memory]", "ts": "1", "args": {"Bytes": 5, "Total Allocated": 5}})
    found.allocated(10, 0, 0)
    kind: dict[str, Any] = {"Device Type": "cuda"}
    found.allocated(11, 5, 5, None, **kind)
    path = found.write(tmp_path, compress)
    assert read_kineto(path, file_digest(path)).memory == ()


def test_allocations_that_failed_are_named(tmp_path: Path) -> None:
    found = training(0, 600)
    whole = read(found, tmp_path)
    for size in (5_000, 7_000):
        found.allocated(60_000, size, 2_200)
        found.events[-1]["name"] = "[OutOfMemory]"
    trace = read(found, tmp_path)
    assert trace.left_out == (
        "device 0 ran out of memory 2 times, for an allocation of at most 7,000 bytes ([OutOfMemory])",
    )
    # They allocated nothing.
    assert trace.memory[0].peak.bytes == whole.memory[0].peak.bytes and trace.memory[0].events == whole.memory[0].events


def test_an_allocation_without_a_time_is_left_out(tmp_path: Path) -> None:
    found = training(0, 600)
    found.allocated(60_000, 7, 9_999)
    found.events[-1]["ts"] = None
    trace = read(found, tmp_path)
    assert trace.left_out == (f"event {len(found.events) - 1}: it has no time, or one that is not possible",)
    assert trace.memory[0].peak.bytes == 2_200


@pytest.mark.parametrize("seed", range(4))
def test_a_long_recording_keeps_its_peak_and_few_points(seed: int, tmp_path: Path) -> None:
    random, found, held = Random(seed), Recording(), 10_000
    found.kernel("gemm", 1_000, 500)
    for number in range(3_000):
        size = random.choice((1, -1)) * random.randint(1, 500)
        size = size if held + size >= 0 else -size
        held += size
        found.allocated(2_000 + number, size, held)
    path = found.write(tmp_path)
    (memory,) = read_kineto(path, file_digest(path)).memory
    events = [each for each in json.loads(path.read_text())["traceEvents"] if each["name"] == "[memory]"]
    levels = [(each["args"]["Total Allocated"], round(Decimal(str(each["ts"])) * 1000)) for each in events]
    most = max(level for level, _ in levels)
    assert memory.peak.bytes == most == memory.allocated.max()
    assert memory.peak.time - BASE == next(ns for level, ns in levels if level == most)
    assert len(memory.time) == len(memory.allocated) <= MOST_POINTS
    assert (np.diff(memory.time) > 0).all()
    assert set(zip(memory.allocated.tolist(), (memory.time - BASE).tolist(), strict=True)) <= set(levels)


def test_parts_of_a_curve_are_represented_by_their_fullest_moment() -> None:
    assert fullest_of_each(np.array([1, 5, 5, 2, 0, 9, 3]), 3).tolist() == [1, 5, 6]
    assert fullest_of_each(np.array([4, 2]), 8).tolist() == [0, 1]


RECORDED = Path(__file__).parents[1] / "matching" / "memory"
"""Runs of real PyTorch on two ranks over gloo: `scripts/record_runs ddp --ranks 2 --shapes --memory`, and fsdp."""


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_bytes_of_a_real_run_are_the_sums_of_its_events(name: str) -> None:
    for path in sorted((RECORDED / name).glob("rank?.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        held, levels = 0, [0]
        for event in sorted((each for each in events if each["name"] == "[memory]"), key=lambda each: each["ts"]):
            held += event["args"]["Bytes"]
            levels.append(held)
        (memory,) = read_kineto(path, file_digest(path)).memory
        found = {each.moment: each.bytes for each in memory.moments}
        assert (memory.place, memory.absolute, memory.events) == ("host", False, len(levels) - 1)
        assert (found["start"], found["peak"], found["step_end"]) == (0, max(levels), levels[-1])
        assert found["peak"] == found["backward_peak"] > found["optimizer_peak"] > found["backward_end"] / 2
