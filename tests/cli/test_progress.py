"""Long work shows that it goes on, on a terminal: what comes before the first report, and lines above the bar."""

import io
import sys
import time

import pytest

from stagedb.cli import progress as module
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def in_terminal(monkeypatch: pytest.MonkeyPatch, patience: float = 0.05) -> Terminal:
    """Errors of this test go to a terminal. patience: seconds until a bar appears."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(module, "PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    return found


def waited(terminal: Terminal, text: str) -> bool:
    """Whether a text is shown within some seconds."""
    deadline = time.monotonic() + 300
    while text not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.02)
    return text in terminal.getvalue()


def test_what_comes_before_the_first_report_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    with progress(Common(), "writing", "rows", before="making the instance") as report:
        assert report is not None
        assert waited(terminal, "making the instance")
        report(1, 4)
        assert waited(terminal, "writing")
        assert waited(terminal, "1/4")


def test_work_of_two_parts_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    with progress(Common(), "reading", "bytes", before="opening") as report:
        assert report is not None
        report(3, 6)
        assert waited(terminal, "3/6") and waited(terminal, "bytes")
        report.now("writing", "nodes")
        report(1, 4)
        assert waited(terminal, "1/4") and waited(terminal, "nodes") and waited(terminal, "writing")


def test_lines_are_printed_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch)
    with progress(Common(), "trying", "plans", before="timing") as report:
        assert report is not None
        report.line("tp 4: 1.000 ms")
        assert "tp 4: 1.000 ms" in terminal.getvalue()


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_terminal(monkeypatch, 60.0)
    with progress(Common(), "writing", "rows", before="making the instance") as report:
        assert report is not None
        report(1, 4)
    assert terminal.getvalue() == ""


def test_another_program_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress(Common(), "writing", "rows") as report:
        assert report is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress(Common(quiet=True), "writing", "rows") as report:
        assert report is None
