"""`validate --steps`: the errors by source, and rows that no plan can express."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from stagedb.lowering import program_of
from stagedb.timing import timed_step
from stagedb.timing.expected_errors import expected_error
from stagedb.validation import NOT_READ, read_steps
from stagedb.validation.step_rows import job_of
from stagedb.validation.step_times import plan_of
from tests.cli.conftest import Run
from tests.validation.test_step_rows import row, written


def test_the_command_reports_by_source_and_goes_on(offline: Run, tmp_path: Path) -> None:
    path = written(tmp_path, row(), row(model="gpt9"), row(source="another", tp="2", dp="1", zero=""))
    found = offline("validate", "--steps", str(path), "-f", "csv")
    assert found.status == 0
    rows = list(csv.DictReader(found.out.splitlines()))
    assert [bool(each["predicted"]) for each in rows] == [True, False, True]
    assert "the library has no such card" in rows[1]["not expressed"]
    assert {each["rows"] for each in rows} == {NOT_READ}
    # Nobody published a step of the first kind: its error is that of the nearest kinds, in words.
    job = job_of(row())
    expected = expected_error(job.system, False)
    assert rows[0]["expected"] == f"{expected.mean:.1%}"
    assert "so that yours may be further off" in str(expected)
    assert f"expected error of dense with torch-fsdp on H100 SXM 80GB: {expected}" in " ".join(found.err.split())
    assert rows[1]["expected"] == ""
    assert float(rows[0]["predicted"]) / 0.05 - 1 == pytest.approx(float(rows[0]["error"].rstrip("%")) / 100, abs=1e-3)
    lines = found.err.strip().splitlines()
    assert lines[-3].startswith("a cluster, not read: 1 rows, mean ")
    assert lines[-2].startswith("another, not read: 1 rows, mean ")
    assert lines[-1].startswith("3 rows, mean ")
    assert lines[-1].endswith(", 1 that no plan can express")


def test_a_row_is_scored_with_the_best_placement_and_has_the_notes_of_a_profile(offline: Run, tmp_path: Path) -> None:
    cells = {"model": "qwen3-235b-a22b", "gpus": "256", "gpu": "GB200", "pp": "8", "virtual_stages": "3", "ep": "32"}
    cells |= {"dp": "32", "zero": "1", "micro_batch_size": "1", "global_batch_size": "2048", "seq_len": "4096"}
    given = row(**cells, framework="megatron-core")
    found = offline("validate", "--steps", str(written(tmp_path, given)), "-f", "csv")
    (only,) = csv.DictReader(found.out.splitlines())
    assert only["remarks"].startswith("placed on 64 of the 72 accelerators of each domain of nvlink")
    assert "straddles two" in only["remarks"] and "warning" not in only["remarks"]
    (read,) = read_steps(tmp_path / "steps.csv")
    job = job_of(read)
    plan = plan_of(job)
    copied = program_of(job.card, plan)
    seconds = []
    for use in (64, 72):
        inner = replace(job.system.dimensions[0], use=use)
        system = replace(job.system, dimensions=(inner, *job.system.dimensions[1:]))
        _, step = timed_step(copied.workload, system, None, job.profile.hides("").blocking)
        seconds.append(step.step / 1e9)
    assert float(only["predicted"]) == pytest.approx(seconds[0], abs=1e-6)
    assert seconds[0] < seconds[1] / 2


def test_a_row_that_an_accelerator_does_not_hold_has_a_warning(offline: Run, tmp_path: Path) -> None:
    path = written(tmp_path, row(micro_batch_size="1", model="llama3-70b", gpus="1", dp="1", zero="", gpu="H100"))
    printed = " ".join(offline("validate", "--steps", str(path)).out.split())
    assert "warning: the fullest rank holds " in printed and "an accelerator 82.8 GB of tensors" in printed


def test_a_bound_makes_larger_errors_and_rows_without_a_time_failures(offline: Run, tmp_path: Path) -> None:
    one = written(tmp_path, row())
    (only,) = csv.DictReader(offline("validate", "--steps", str(one), "-f", "csv").out.splitlines())
    error = abs(float(only["error"].rstrip("%")))
    for bound, status in ((error + 1, 0), (error - 1, 1)):
        found = offline("validate", "--steps", str(one), "--within", f"{bound:.1f}", "-f", "csv")
        assert found.status == status
        assert f"{1 - status} of 1 rows are within " in found.err
    assert "not within: rows 2" in found.err
    without = written(tmp_path, row(), row(model="gpt9"))
    found = offline("validate", "--steps", str(without), "--within", "100000", "-f", "csv")
    assert (found.status, found.err.strip().splitlines()[-1]) == (1, "not within: rows 3")


def test_a_bound_is_of_steps_and_not_negative(offline: Run, tmp_path: Path) -> None:
    path = written(tmp_path, row())
    for arguments, reason in (
        (("--models", str(path), "--within", "5"), "--within is the largest error of a step: it needs --steps FILE"),
        (("--steps", str(path), "--within", "-1"), "--within is -1: it takes the largest error of a row in percent"),
        (("--steps", str(path), "--within", "nan"), "--within is nan: it takes the largest error of a row in percent"),
    ):
        found = offline("validate", *arguments)
        assert found.status == 2
        assert reason in " ".join(found.err.split())
