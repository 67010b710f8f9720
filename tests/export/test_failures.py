"""Complete or absent: what is left of an export that was killed, starved or refused."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.export import validate_traces
from stagedb.export.exporting import export_workload
from stagedb.export.writing import explain
from tests.export.synthetic import workload

ROOT = Path(__file__).parents[2]


def run(out: Path, *words: str, fault: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "STAGEDB_FAULT": fault, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.export.exporter", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def left(out: Path) -> list[str]:
    """What stands beside the directory's name."""
    return sorted(path.name for path in out.parent.iterdir() if path != out)


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("stage", ["encode", "write", "bundle", "replay", "rename"])
def test_a_kill_leaves_no_half_set(tmp_path: Path, stage: str, processes: str) -> None:
    out = tmp_path / "traces"
    killed = run(out, "--processes", processes, fault=f"export.{stage}:kill")
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    export_workload(workload(), out)
    assert validate_traces(out).faults == ()
    assert left(out) == []


@pytest.mark.parametrize("stage", ["write", "rename"])
def test_a_kill_while_replacing_leaves_the_old_set(tmp_path: Path, stage: str) -> None:
    out = tmp_path / "traces"
    export_workload(workload(), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run(out, "--force", fault=f"export.{stage}:kill").returncode == -signal.SIGKILL
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, processes: str) -> None:
    out = tmp_path / "traces"
    command = [sys.executable, "-m", "tests.export.exporter", str(out), "--processes", processes]
    environment = {**os.environ, "STAGEDB_FAULT": "export.write:pause", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as exporting:
        _, status = os.waitpid(exporting.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert len(left(out)) == 1
        exporting.send_signal(signal.SIGINT)
        exporting.send_signal(signal.SIGCONT)
        exporting.communicate(timeout=30)
        assert exporting.returncode != 0
    assert not out.exists()
    assert left(out) == []


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_limit_on_file_sizes_is_told(tmp_path: Path, processes: str) -> None:
    out = tmp_path / "traces"
    refused = run(out, "--processes", processes, "--file-size", "4000")
    assert refused.returncode == 1
    assert "ulimit -f" in refused.stdout
    assert not out.exists()
    assert left(out) == []


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 12345, 12345))
    with pytest.raises(UsageError, match=r"take [0-9,]+ bytes and .* has 12,345 free"):
        export_workload(workload(), tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "tiny.3.et")
    assert "no space left while writing" in explain(error, tmp_path)
    assert "tiny.3.et" in explain(error, tmp_path)


def test_a_directory_that_exists_is_kept_without_force(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    out.mkdir()
    (out / "mine").write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        export_workload(workload(), out)
    assert [path.name for path in out.iterdir()] == ["mine"]
    export_workload(workload(), out, force=True)
    assert not (out / "mine").exists()
    assert validate_traces(out).faults == ()
    assert left(out) == []


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    out.write_text("precious")
    with pytest.raises(UsageError, match="no directory"):
        export_workload(workload(), out, force=True)
    assert out.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagedbError, match="--out"):
        export_workload(workload(), tmp_path / "file" / "traces")
