"""Errors that no code expects: one line, a file with details, and no secret in it."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stagedb.cli.unexpected_errors import report


def failing(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:  # noqa: BLE001
        return raised


def test_an_error_becomes_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arguments = ["stagedb", "ls", "--store", "bolt://neo4j:hunter2@host:7687"]
    assert report(failing(KeyError("a\nb\x1b[31m")), arguments) == 70
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith("Error: stagedb itself failed: KeyError: ")
    assert printed[:-1].isprintable()
    (path,) = tmp_path.iterdir()
    assert str(path) in printed
    text = path.read_text(encoding="utf-8")
    assert "hunter2" not in text
    assert "Traceback" in text
    assert "bolt://***@host:7687" in text
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "the memory of this machine is full"),
        (OSError(errno.ENOSPC, "No space left on device", "/disk/x"), r"the disk is full \(/disk/x\): free some space"),
    ],
)
def test_a_full_machine_is_named(capsys: pytest.CaptureFixture[str], error: Exception, words: str) -> None:
    assert report(failing(error), ["stagedb"]) == 1
    assert re.search(words, capsys.readouterr().err)


def test_an_interrupt_during_imports_is_one_line() -> None:
    code = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "stagedb.cli.application":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from stagedb.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")
