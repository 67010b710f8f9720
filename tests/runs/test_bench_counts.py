"""`scripts/bench counts`: a store has of traces what a plain count finds, and what it does not have is named."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts import _bench_counts as bench
from stagedb.store import Store
from tests.runs.nsight_exports import two_processes, write_export
from tests.runs.recordings import Recording, training_step


def recorded(directory: Path) -> Path:
    """A trace with a step, a copy, a fill, and a collective without a record of its own."""
    found = training_step(0)
    for category, name, start, size in (
        ("gpu_memcpy", "Memcpy", 9_000_000, 4_096),
        ("gpu_memset", "fill", 9_100_000, 8),
    ):
        found.span(category, name, start, 50, (0, 9), device=0, stream=9, bytes=size)
    found.span("kernel", "ncclDevKernel_AllGather_RING_LL(x)", 9_200_000, 70, (0, 9), device=0, stream=9)
    return found.write(directory)


def test_a_store_has_what_a_plain_count_finds(
    embedded_store: Store, stagedb_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = write_export(tmp_path / "export.sqlite", two_processes())
    trace = recorded(tmp_path)
    for path, expected in (
        (export, {"kernels": 4, "of NCCL": 2, "copies": 2, "their bytes copied": 8_192, "streams": 4}),
        (
            trace,
            {"of NCCL": 5, "collectives": 5, "their bytes": 4 * 16_777_216, "copies": 2, "their bytes copied": 4_104},
        ),
    ):
        numbers = bench.counted(path)
        assert {name: numbers[name] for name in expected} == expected
        assert bench.row(path, [(bench.EMBEDDED, stagedb_home)])
        assert capsys.readouterr().out.endswith("| equal |\n")


def test_what_is_different_is_named(tmp_path: Path) -> None:
    numbers = bench.counted(recorded(tmp_path))
    assert bench.compared(numbers, Counter(numbers)) == "equal"
    other = Counter(numbers)
    other["kernels"] -= 1
    other[f"{bench.EVENTS}unknown"] = 3
    kernels = numbers["kernels"]
    assert bench.compared(numbers, other) == (
        f"events of unknown: 3 and not 0, kernels: {kernels - 1:,} and not {kernels:,}"
    )
    assert bench.compared(numbers, "Error: why") == "Error: why"
    file = tmp_path / "other.json"
    file.write_text("{}")
    with pytest.raises(SystemExit, match=r"other\.json is neither a trace"):
        bench.counted(file)


def test_messages_count_by_what_their_call_recorded() -> None:
    found = Recording()
    words: dict[str, Any] = {"In msg nelems": 3, "Out msg nelems": 5, "dtype": "Half"}
    found.collective("recv", 100, 10, (0, 1), **words)
    assert bench.counted_events(found.events)["their bytes"] == 10
