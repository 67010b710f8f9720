"""The disk of an export's directory fills while it is written: complete or absent, one error, and the way to go on."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scripts._fault_servers import fill, may_mount, small_disk
from stagedb.errors import UsageError
from stagedb.traces import Request, validate_traces
from stagedb.traces.exporting import trace_set
from stagedb.traces.set_output import unpack_traces
from tests.traces.exporter import started
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of, pack_workload

FORMS = (
    ("--processes", "1"),
    ("--processes", "2"),
    ("--compress",),
    ("--format", "json"),
    ("--format", "parquet"),
)


@pytest.fixture(scope="module")
def mountable(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not may_mount(tmp_path_factory.mktemp("mountable")):
        pytest.skip("this user may not mount a disk")


@pytest.fixture
def disk(tmp_path: Path, mountable: None) -> Iterator[Path]:
    """A disk of 8 MB."""
    with small_disk(tmp_path / "disk", 8 << 20):
        yield tmp_path / "disk"


def filled_midway(exporting: "subprocess.Popen[str]", disk: Path, paused: int) -> str:
    """Wait until so many of its processes are suspended, fill the disk, let them go on. Returns what was printed."""
    end = time.monotonic() + 300
    stopped: list[psutil.Process] = []
    while len(stopped) < paused and time.monotonic() < end:
        time.sleep(0.02)
        every = [me := psutil.Process(exporting.pid), *me.children(recursive=True)]
        stopped = [each for each in every if each.status() == psutil.STATUS_STOPPED]
    assert len(stopped) == paused
    fill(disk, left=0)
    for each in stopped:
        each.resume()
    printed, _ = exporting.communicate(timeout=120)
    return printed


@pytest.mark.parametrize("words", FORMS, ids=" ".join)
def test_a_disk_that_fills_midway_is_named_and_leaves_nothing(
    disk: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    out, plain = disk / "traces", tmp_path / "plain"
    with started(out, *words, fault="export.file:pause") as exporting:
        printed = filled_midway(exporting, disk, 2 if words[-1] == "2" else 1)
    assert exporting.returncode == 1
    (line,) = printed.splitlines()
    assert line.startswith(f"no space left while writing {out}")
    assert "free some there, name a directory on another disk with --out" in line
    assert [path.name for path in disk.iterdir()] == ["filler"]
    (disk / "filler").unlink()
    resumed = () if words[-1] == "parquet" else ("--resume",)
    with started(out, *words, *resumed) as again:
        printed, _ = again.communicate(timeout=120)
    assert (again.returncode, printed) == (0, "")
    if words[-1] != "json":  # which `validate` does not read
        assert validate_traces(out).faults == ()
    with started(plain, *words) as undisturbed:
        undisturbed.communicate(timeout=120)
    assert files_of(out) == files_of(plain)


def test_a_packed_set_that_does_not_fit_leaves_nothing(disk: Path, tmp_path: Path) -> None:
    out = disk / "set.packed"
    fill(disk, left=8192)
    with started(out, "--packed") as exporting:
        printed, _ = exporting.communicate(timeout=120)
    assert exporting.returncode == 1
    (line,) = printed.splitlines()
    assert line.startswith(f"no space left while writing {out}: nothing was kept; free some there")
    assert [path.name for path in disk.iterdir()] == ["filler"]
    (disk / "filler").unlink()
    with started(out, "--packed") as again:
        printed, _ = again.communicate(timeout=120)
    assert (again.returncode, printed) == (0, "")
    pack_workload(workload(), tmp_path / "plain")
    assert (tmp_path / "plain").read_bytes() == out.read_bytes()
    unpack_traces(out, Request(tmp_path / "traces"))
    assert validate_traces(tmp_path / "traces").faults == ()


def test_a_disk_without_room_for_more_files_is_refused_before_any_write(tmp_path: Path, mountable: None) -> None:
    disk = tmp_path / "disk"
    ranks = trace_set(workload()).count
    with small_disk(disk, 8 << 20):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={ranks}", str(disk)], check=True)
        few = os.statvfs(disk).f_favail
        with pytest.raises(UsageError, match=rf"are {ranks} files and the disk of .* takes {few} more .*--packed"):
            export_workload(workload(), disk / "traces")
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(disk)], check=True)
        export_workload(workload(), disk / "traces")
        assert validate_traces(disk / "traces").faults == ()
