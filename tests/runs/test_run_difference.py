"""Two runs compared: for a step where steps are numbered, else for as much work."""

import dataclasses
from pathlib import Path

import pytest

from stagedb.api import comparing
from stagedb.api.client import Stagedb
from stagedb.errors import UsageError
from stagedb.runs.run_difference import RunDifference, difference
from stagedb.runs.run_files import RunFiles
from stagedb.store import Store
from tests.matching.recorded import run_of
from tests.runs.recordings import Recording, measured
from tests.runs.stored_rows import stored


def window(tmp_path: Path, name: str, turns: int, took: int, wait: int, launcher: str = "aten::mm") -> Path:
    """A window of a job: turns of a matmul and an activation, with nothing between two turns for some ns."""
    found = Recording()
    at = 1_000
    for _ in range(turns):
        found.kernel("gemm_kernel", at, took, operator=launcher)
        found.kernel("relu_kernel", at + took, 2_000, operator="aten::relu")
        at += took + 2_000 + wait
    folder = tmp_path / name
    folder.mkdir()
    return found.write(folder)


def compared(tmp_path: Path, *windows: tuple[int, int, int]) -> RunDifference:
    one, other = (stored(measured(RunFiles.of([window(tmp_path, str(at), *each)]))) for at, each in enumerate(windows))
    return difference(one, other)


def test_windows_are_compared_for_as_much_work(tmp_path: Path) -> None:
    """20 turns of 10 us against 10 turns of 20 us, of which half is a host that waits."""
    found = compared(tmp_path, (20, 8_000, 0), (10, 8_000, 10_000))
    assert found.scale == 2
    assert 0.85 < found.longer < 1
    assert found.terms[-1][0] == "nothing runs" and ": nothing runs +0.180 ms" in found.verdict("a", "b")
    assert found.operators == []


def test_an_operator_that_takes_longer_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, (10, 8_000, 0), (10, 12_000, 0))
    assert found.scale == 1
    assert found.operators == [("aten::mm", 80_000, 120_000, 40_000, 10, 10)]
    assert found.verdict("a", "b").endswith(": computing or copying +0.040 ms; by operator aten::mm +0.040 ms")
    assert found.longer == pytest.approx(0.4, abs=0.02)


def test_operators_with_long_names_are_apart(tmp_path: Path) -> None:
    """A sentence shortens their names, and rows have the whole ones: a forward is not its backward."""
    forward = "aten::_scaled_dot_product_flash_attention_for_cpu"
    runs = []
    for place, took in enumerate((8_000, 12_000)):
        found = Recording()
        for turn in range(4):
            found.kernel("attention_kernel", 20_000 * turn + 1_000, took, operator=forward)
            found.kernel("attention_kernel", 20_000 * turn + 15_000, took // 4, operator=f"{forward}_backward")
        (tmp_path / str(place)).mkdir()
        runs.append(stored(measured(RunFiles.of([found.write(tmp_path / str(place))]))))
    made = difference(*runs)
    assert [(row[0], row[3], row[4]) for row in made.operators] == [
        (forward, 16_000, 4),
        (f"{forward}_backward", 4_000, 4),
    ]
    assert "by operator aten::_scaled_dot_product_flash_attenti… +0.016 ms" in made.verdict("a", "b")


def test_the_same_window_twice_differs_in_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, (10, 8_000, 0), (10, 8_000, 0))
    assert (found.terms, found.operators, found.longer) == ([], [], 0)
    assert found.verdict("a", "b") == "a and b are equally fast"


def test_diff_of_two_runs_of_a_store(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    for at, took in enumerate((8_000, 12_000)):
        db.import_run(window(tmp_path, str(at), 10, took, 0), name=f"run-{at}")
    found = db.diff("run-0", "run-1", fail_above="5%")
    assert found.failed and "aten::mm" in found.failure
    assert [row[0] for row in found.work.rows] == ["aten::mm"]
    assert found.provenance.commands[0].startswith("stagedb diff ")
    assert db.diff("run-0", "run-0").same and found.remark == ""
    with pytest.raises(UsageError, match=r"no profile yet: make one with .*, or ask about a run .*: run='run-1'"):
        db.query("hotspots")


def test_two_runs_of_other_jobs_or_devices_are_named(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    db.import_run(window(tmp_path, "one", 10, 8_000, 0), name="one")
    (one,) = db.runs()
    other = dataclasses.replace(one, job_ranks=8, devices=("NVIDIA H100",))
    on = f" on {one.devices[0]}" if one.devices else ""
    assert comparing.unlike(one, other) == (
        f"the first run is of a job of 1 rank{on}, and the second of a job of 8 ranks on NVIDIA H100: what differs may "
        "follow from that"
    )
    assert comparing.unlike(one, one) == ""


def test_other_numbers_of_ranks_are_in_the_sentence() -> None:
    one, other = (stored(run_of(name)) for name in ("memory-ddp", "ddp"))
    assert (len(one.timed), len(other.timed)) == (2, 4)
    assert " (on 4 ranks that were recorded, against 2)" in difference(one, other).verdict("a", "b")
