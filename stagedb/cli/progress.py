"""A progress bar for work that takes longer than a second, on a terminal only."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from stagedb.cli.shared_options import Common

PATIENCE = 1.0
"""Seconds that work may take before a bar appears."""


class ReportProgress(Protocol):
    """Called with how much is done, of how much, and how many bytes that is."""

    def __call__(self, done: int, of: int, size: int = 0, /) -> None: ...


@contextmanager
def progress(common: Common, what: str, unit: str, *, speed: bool = False) -> Iterator[ReportProgress | None]:
    """Yield a function to report to, or None where nobody would see the bar. speed: show bytes a second."""
    if common.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit)]
    rate = [TextColumn("{task.fields[speed]}")] if speed else []
    bar = Progress(*columns, *rate, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None, speed="")
    began: float | None = None
    shown = False

    def report(done: int, of: int, size: int = 0, /) -> None:
        nonlocal shown, began
        now = time.monotonic()
        began = began or now
        if not shown and now - began > PATIENCE:
            shown = True
            bar.start()
        passed = now - began
        bar.update(task, completed=done, total=of, speed=f"{decimal(int(size / passed))}/s" if passed > 0 else "")

    try:
        yield report
    finally:
        if shown:
            bar.stop()
