"""A progress bar for work that takes longer than a second, on a terminal only."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stagedb.cli.options import Common

Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

PATIENCE = 1.0
"""Seconds that work may take before a bar appears."""


@contextmanager
def progress(common: Common, what: str, unit: str) -> Iterator[Report | None]:
    """Yield a function to report to, or None where nobody would see the bar."""
    if common.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    began = time.monotonic()
    shown = False

    def report(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - began > PATIENCE:
            shown = True
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if shown:
            bar.stop()
