"""A progress bar for work that takes longer than a second, only on a terminal."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagedb.cli.shared_options import Common
from stagedb.files import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0
"""Seconds of work before a bar appears."""


class ReportProgress:
    """A bar that appears once the work has taken a while. Calls report how far the work is."""

    def __init__(self, bar: "Progress", task: "TaskID", what: str, before: str) -> None:
        self._bar, self._task, self._what = bar, task, what
        self._began: float | None = None
        self._lock = threading.Lock()
        self._shown = self._ended = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if before:
            # Work before the first report has no amount: the bar shows its time alone.
            self._timer.start()

    def __call__(self, done: int, of: int, size: int = 0, /) -> None:
        """Report the amount that is done, the whole amount, and the bytes that are done."""
        now = time.monotonic()
        self._began = self._began or now
        passed = now - self._began
        if passed > PATIENCE:
            self._show()
        from rich.filesize import decimal

        speed = f"{decimal(int(size / passed))}/s" if passed > 0 else ""
        self._bar.update(self._task, description=self._what, completed=done, total=of, speed=speed)

    def now(self, what: str, unit: str) -> None:
        """What the work does from now on. what, unit: as those of `progress`."""
        self._what = what
        self._bar.update(self._task, unit=unit)

    def line(self, text: str) -> None:
        """Print a line above the bar. text: the line."""
        self._bar.console.print(printable(text), markup=False, highlight=False)

    def _show(self) -> None:
        with self._lock:
            if not self._shown and not self._ended:
                self._shown = True
                self._bar.start()

    def end(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown:
                self._bar.stop()


@contextmanager
def progress(
    common: Common, what: str, unit: str, *, speed: bool = False, before: str = ""
) -> Iterator[ReportProgress | None]:
    """Yield a function that reports progress, or None if no bar is shown.

    what, unit: the words of the bar, such as `writing` and `ranks`. speed: show bytes a second. before: what is done
    before the first report; it is shown with the time that it takes.
    """
    if common.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}")]
    rate = [TextColumn("{task.fields[speed]}")] if speed else []
    bar = Progress(*columns, *rate, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    report = ReportProgress(bar, bar.add_task(before or what, total=None, speed="", unit=unit), what, before)
    try:
        yield report
    finally:
        report.end()
