"""A progress bar for work that takes longer than a second, only on a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from stagedb.cli.shared_options import Common

PATIENCE = 1.0
"""Seconds of work before a bar appears."""


class ReportProgress(Protocol):
    """Called with the amount that is done, the whole amount, and the bytes that are done."""

    def __call__(self, done: int, of: int, size: int = 0, /) -> None: ...


@contextmanager
def progress(common: Common, what: str, unit: str, *, speed: bool = False) -> Iterator[ReportProgress | None]:
    """Yield a function that reports progress, or None if no bar is shown. speed: show bytes a second."""
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
