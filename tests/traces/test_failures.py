"""Complete or absent: what is left of an export that was killed, starved or refused."""

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import OPTIONS, shown_in
from stagedb.store import Store
from stagedb.traces import Request, rank_files, validate_traces
from stagedb.traces.exporting import smaller, trace_set
from stagedb.traces.output_places import unfinished
from stagedb.traces.packed_file import write_packed
from stagedb.traces.rank_files import explain, writers
from stagedb.traces.set_output import LEAST_NODE, check_counts
from tests.faults.injected import at
from tests.ir.tiny import card
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of

ROOT = Path(__file__).parents[2]


def run(out: Path, *words: str, fault: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **at(fault)}
    command = [sys.executable, "-m", "tests.traces.exporter", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def left(out: Path) -> list[str]:
    """What is next to the directory."""
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
def test_an_interrupt_keeps_what_is_written_and_names_the_way_to_go_on(tmp_path: Path, processes: str) -> None:
    out = tmp_path / "traces"
    command = [sys.executable, "-m", "tests.traces.exporter", str(out), "--processes", processes]
    environment = {**os.environ, **at("export.write:pause")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as exporting:
        _, status = os.waitpid(exporting.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert len(left(out)) == 1
        exporting.send_signal(signal.SIGINT)
        exporting.send_signal(signal.SIGCONT)
        _, printed = exporting.communicate(timeout=300)
        assert exporting.returncode != 0
        assert "--resume" in printed
    assert not out.exists()
    (kept,) = left(out)
    assert kept in printed
    inodes = {path.name: path.stat().st_ino for path in (tmp_path / kept).glob("*.et")}
    assert len(inodes) == 8
    export_workload(workload(), out, resume=True)
    assert {path.name: path.stat().st_ino for path in out.glob("*.et")} == inodes
    assert validate_traces(out).faults == ()
    assert left(out) == []


def test_an_interrupt_of_the_keyboard_is_for_the_exporting_process_only() -> None:
    """It goes to all processes of a group, and these would each print where it found them."""
    with writers(2, lambda count: None):
        made = [process for process in psutil.Process().children() if rank_files.__name__ in process.cmdline()]
        assert len(made) == 2
        assert os.getpgrp() not in {os.getpgid(process.pid) for process in made}


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("stage", ["encode", "file", "write", "bundle", "rename"])
def test_a_killed_export_is_resumed_to_the_same_bytes(tmp_path: Path, stage: str, processes: str) -> None:
    out, plain = tmp_path / "traces", tmp_path / "plain"
    export_workload(workload(), plain)
    killed = run(out, "--processes", processes, fault=f"export.{stage}:kill")
    # With several processes, the killed one is a writer, and the export reports it.
    assert killed.returncode == (1 if (stage, processes) == ("file", "2") else -signal.SIGKILL), killed.stderr
    assert not out.exists()
    export_workload(workload(), out, resume=True, processes=int(processes))
    assert files_of(out) == files_of(plain)
    assert left(out) == ["plain"]


def test_resuming_mends_what_is_not_as_it_should_be(tmp_path: Path) -> None:
    out, plain = tmp_path / "traces", tmp_path / "plain"
    export_workload(workload(), plain)
    assert run(out, fault="export.bundle:kill").returncode == -signal.SIGKILL
    (half,) = [tmp_path / name for name in left(out) if name != "plain"]
    whole = (half / "tiny.2.et").read_bytes()
    (half / "tiny.2.et").write_bytes(whole[:-7])
    (half / "tiny.3.et").write_bytes(bytes(len(whole)))
    (half / "tiny.4.et").unlink()
    (half / "tiny.99.et").write_bytes(b"of another export")
    (half / ".classes").write_bytes(b"half")
    kept = (half / "tiny.5.et").stat().st_ino
    export_workload(workload(), out, resume=True)
    assert files_of(out) == files_of(plain)
    assert (out / "tiny.5.et").stat().st_ino == kept


def test_what_a_living_process_writes_is_not_taken(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    command = [sys.executable, "-m", "tests.traces.exporter", str(out)]
    environment = {**os.environ, **at("export.bundle:pause")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as exporting:
        os.waitpid(exporting.pid, os.WUNTRACED)
        export_workload(workload(), out, resume=True)
        assert validate_traces(out).faults == ()
        assert len(left(out)) == 1
        exporting.send_signal(signal.SIGCONT)
        printed, _ = exporting.communicate(timeout=300)
        assert exporting.returncode == 2
        assert "exists" in printed
    assert left(out) == []


def test_what_another_machine_left_is_taken_once_it_is_quiet(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    theirs = tmp_path / ".traces~elsewhere~12~1700000000~00000000.partial"
    theirs.mkdir()
    export_workload(workload(), out, resume=True)
    assert theirs.exists()
    shutil.rmtree(out)
    os.utime(theirs, (1700000000, 1700000000))
    export_workload(workload(), out, resume=True)
    assert not theirs.exists()


def test_resuming_what_is_whole_reports_it_and_another_export_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    done = export_workload(workload(), out)
    assert not done.there
    inodes = {path.name: path.stat().st_ino for path in (out, *out.iterdir())}
    again = export_workload(workload(), out, resume=True)
    assert (again.files, again.bytes, again.there, again.mended) == (done.files, done.bytes, True, ())
    assert {path.name: path.stat().st_ino for path in (out, *out.iterdir())} == inodes
    assert (done.replayed, again.replayed) == (True, False)
    assert export_workload(workload(), out, resume=True, replay=True).replayed
    with pytest.raises(UsageError, match="is another export"):
        export_workload(workload(microbatches=5), out, resume=True)
    assert {path.name: path.stat().st_ino for path in (out, *out.iterdir())} == inodes


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("form", [{}, {"compress": True}, {"format": "json"}])
def test_resuming_a_finished_set_mends_it(tmp_path: Path, form: dict[str, Any], processes: int) -> None:
    out, plain = tmp_path / "traces", tmp_path / "plain"
    kind = form.get("format", "et")
    for directory in (out, plain):
        export_workload(workload(), directory, **form)
    script = ["run.sh"] if form == {} else []  # the simulator reads plain traces only
    wrong = [f"tiny.2.{kind}", f"tiny.5.{kind}", "tiny.json", "memory.json", *script]
    (out / wrong[0]).write_bytes((out / wrong[0]).read_bytes()[:-7])
    (out / wrong[1]).unlink()
    (out / "tiny.json").write_text("{}\n")
    for name in script:
        (out / name).unlink()
    (out / "memory.json").write_text("")
    kept = (out / f"tiny.4.{kind}").stat().st_ino
    done = export_workload(workload(), out, resume=True, processes=processes, **form)
    assert (done.there, sorted(done.mended)) == (True, sorted(wrong))
    assert files_of(out) == files_of(plain)
    assert all(os.access(out / name, os.X_OK) for name in script)
    assert (out / f"tiny.4.{kind}").stat().st_ino == kept
    assert left(out) == ["plain"]
    assert export_workload(workload(), out, resume=True, **form).mended == ()


def test_mending_keeps_what_people_edited_and_added(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    export_workload(workload(), out)
    (out / "network.yml").write_text("mine")
    (out / "simulation.log").write_text("mine")
    (out / "tiny.3.et").unlink()
    assert export_workload(workload(), out, resume=True).mended == ("tiny.3.et",)
    assert (out / "network.yml").read_text() == (out / "simulation.log").read_text() == "mine"


@pytest.mark.parametrize("stage", ["write", "rename"])
@pytest.mark.parametrize("words", [(), ("--processes", "2")])
def test_of_two_that_resume_at_once_the_second_finds_the_set_complete(
    tmp_path: Path, stage: str, words: tuple[str, ...]
) -> None:
    out = tmp_path / "traces"
    command = [sys.executable, "-m", "tests.traces.exporter", str(out), "--resume", *words]
    environment = {**os.environ, **at(f"export.{stage}:pause")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as exporting:
        os.waitpid(exporting.pid, os.WUNTRACED)
        try:
            assert not export_workload(workload(), out, resume=True).there
        finally:
            exporting.send_signal(signal.SIGCONT)
        printed, _ = exporting.communicate(timeout=300)
        assert (exporting.returncode, printed) == (0, "complete already\n")
    assert validate_traces(out).faults == ()
    assert left(out) == []


def test_the_second_that_resumes_another_export_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    command = [sys.executable, "-m", "tests.traces.exporter", str(out), "--resume"]
    environment = {**os.environ, **at("export.rename:pause")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as exporting:
        os.waitpid(exporting.pid, os.WUNTRACED)
        try:
            export_workload(workload(microbatches=5), out)
        finally:
            exporting.send_signal(signal.SIGCONT)
        printed, _ = exporting.communicate(timeout=300)
        assert exporting.returncode == 2
        assert "is another export" in printed


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_limit_on_file_sizes_is_named(tmp_path: Path, processes: str) -> None:
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


def test_too_little_space_is_refused_before_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 25_000, 25_000))
    with pytest.raises(UsageError, match=r"take [0-9,]+ bytes and .* has 25,000 free.*--only 0(?!-)"):
        export_workload(workload(), tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []


def test_what_would_fit_is_named_and_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = workload(microbatches=6)
    traces = trace_set(made)
    fits = shown_in(OPTIONS, " ".join(smaller(made, traces, 10**9)))
    blocks = int(re.search(r"block \(([0-9,]+) bytes", fits)[1].replace(",", ""))  # type: ignore[index]
    packed = int(re.search(r"at most ([0-9,]+) bytes", fits)[1].replace(",", ""))  # type: ignore[index]
    assert export_workload(made, tmp_path / "blocks", granularity="block").bytes == blocks < traces.bytes
    write_packed(tmp_path / "packed", traces)
    assert (tmp_path / "packed").stat().st_size <= packed
    assert smaller(made, traces, min(blocks, packed) - 1) == []


def test_what_is_written_already_is_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "traces"
    assert run(out, fault="export.bundle:kill").returncode == -signal.SIGKILL
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 30_000, 30_000))
    with pytest.raises(UsageError, match="free"):
        export_workload(workload(), tmp_path / "other")
    export_workload(workload(), out, resume=True)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "tiny.3.et")
    assert "no space left while writing" in explain(error, tmp_path)
    assert str(tmp_path / "tiny.3.et") in explain(error, tmp_path)


@pytest.mark.parametrize("inside", ["", "/tiny.3.et"])
def test_a_failure_has_the_name_that_was_asked_for(tmp_path: Path, inside: str) -> None:
    out = tmp_path / "set.packed"
    hidden = unfinished(out, "a-host.example", 17, 1700000000, "0a1b2c3d")
    message = f"cannot write {out}{inside}: Permission denied; nothing was kept"
    for name, directory in ((f"{hidden}{inside}", out), (f"{hidden}{inside}", hidden), (inside[1:] or None, hidden)):
        assert explain(OSError(errno.EACCES, "Permission denied", name), directory) == message


def test_a_set_that_exists_is_kept_without_force(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    export_workload(workload(), out)
    (out / "mine").write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        export_workload(workload(), out)
    assert (out / "mine").exists()
    (out / "mine").unlink()
    export_workload(workload(), out, force=True)
    assert validate_traces(out).faults == ()
    assert left(out) == []


def set_with(out: Path, **added: object) -> Path:
    export_workload(workload(), out)
    for name, content in added.items():
        (out / f"{name}.txt").write_text(str(content))
    return out


@pytest.mark.parametrize("processes", [1, 2])
def test_force_removes_only_the_files_of_the_set(tmp_path: Path, processes: int) -> None:
    out = set_with(tmp_path / "traces", notes="precious")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match=r"other files in it \(notes.txt; move them first\).*--out"):
        export_workload(workload(), out, force=True, processes=processes)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert left(out) == []


def test_the_refusal_names_the_first_files_and_counts_the_rest(tmp_path: Path) -> None:
    out = set_with(tmp_path / "traces", **{f"notes{at}": at for at in range(9)})
    (out / "folder").mkdir()
    (out / "tiny.9999.et").mkdir()
    with pytest.raises(UsageError, match=r"\(folder, notes0.txt, notes1.txt, notes2.txt and 7 more; move them first\)"):
        export_workload(workload(), out, force=True)


def test_a_file_that_comes_while_it_is_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = set_with(tmp_path / "traces")
    monkeypatch.setattr(
        "stagedb.traces.set_output._validate", lambda *_: (out / "notes.txt").write_text("precious") and None
    )
    with pytest.raises(UsageError, match=r"notes\.txt"):
        export_workload(workload(), out, force=True, replay=True)
    assert (out / "notes.txt").read_text() == "precious"
    assert left(out) == []


@pytest.mark.parametrize("file", ["manifest.json", "checksums.sfv"])
def test_a_set_with_one_damaged_description_is_replaced(tmp_path: Path, file: str) -> None:
    out = set_with(tmp_path / "traces")
    (out / file).write_bytes(b"damaged")
    export_workload(workload(), out, force=True)
    assert validate_traces(out).faults == ()


@pytest.mark.parametrize(
    "manifest",
    [
        {"what": "Chakra execution traces", "versions": {"stagedb": "1"}},
        {"what": "Chakra execution traces", "versions": {"stagedb": "1"}, "name": "a", "world": 1, "files": {}},
        {
            "what": "Chakra execution traces",
            "versions": ["stagedb"],
            "name": "a",
            "world": 1,
            "classes": [],
            "files": {"../up": ""},
        },
    ],
)
def test_a_manifest_that_only_looks_like_one_makes_no_set(tmp_path: Path, manifest: dict[str, object]) -> None:
    out = tmp_path / "traces"
    out.mkdir()
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="is not a trace set of stagedb"):
        export_workload(workload(), out, force=True)
    assert [path.name for path in out.iterdir()] == ["manifest.json"]


def test_an_empty_directory_is_replaced_with_force(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    out.mkdir()
    with pytest.raises(UsageError, match="--force"):
        export_workload(workload(), out)
    export_workload(workload(), out, force=True)
    assert validate_traces(out).faults == ()


def test_a_file_in_the_way_is_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "traces"
    out.write_text("precious")
    with pytest.raises(UsageError, match="no directory"):
        export_workload(workload(), out, force=True)
    assert out.read_text() == "precious"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagedbError, match="--out"):
        export_workload(workload(), tmp_path / "file" / "traces")


def test_a_pipe_in_a_set_is_a_fault_and_never_waited_for(tmp_path: Path) -> None:
    out = tmp_path / "set"
    export_workload(workload(), out)
    trace = next(out.glob("*.et"))
    trace.unlink()
    os.mkfifo(trace)
    report = validate_traces(out)
    assert [each.message for each in report.faults] == [
        f"{trace.name} cannot be read: it is a pipe, and only a file is read"
    ]
    (out / "manifest.json").unlink()
    os.mkfifo(out / "manifest.json")
    assert len(validate_traces(out).faults) == 2
    export_workload(workload(), out, resume=True)
    assert validate_traces(out).faults == ()


def test_a_large_set_without_room_is_refused_by_its_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(tmp_path / "traces")
    check_counts(request, 1000, 100_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    check_counts(request, 1000, 10_000)
    with pytest.raises(UsageError, match=r"1,000 ranks take at least 6,400,000 bytes and .* 5,000,000 free.*--packed"):
        check_counts(request, 1000, 100_000)
    with pytest.raises(UsageError, match="take at least 8,192,000 bytes"):
        check_counts(dataclasses.replace(request, compress=True), 2000, 100_000)


def test_no_node_is_smaller_than_the_count_assumes(tmp_path: Path) -> None:
    export_workload(workload(), tmp_path / "traces")
    for granularity in ("op", "block"):
        traces = trace_set(workload(), granularity=granularity)
        assert all(each.encoded.size >= LEAST_NODE * each.nodes for each in traces.classes)


def test_an_export_without_room_encodes_nothing(
    tmp_path: Path, embedded_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Stagedb(embedded_store)
    made = db.instantiate(card("llama", layers=1), dp=1024)
    monkeypatch.setattr(
        "stagedb.store.contents.exports.read_workload", lambda *given: pytest.fail("the ranks were read")
    )
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(UsageError, match=r"the traces of 1,024 ranks take at least .* 1,000,000 free"):
        db.export(made.id, out=tmp_path / "traces")
    assert list(tmp_path.iterdir()) == []
