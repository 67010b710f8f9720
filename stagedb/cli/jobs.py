"""`jobs`: what commands of all users do at the moment, and what they did last."""

import typer

from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups

COLUMNS = ("job", "of", "state", "done", "total", "unit", "seconds", "by", "on", "started", "detail", "about", "id")
SHOWN = len(COLUMNS) - 2
"""Columns of a table on a terminal."""


@option_groups
def jobs(*, output: Output, common: Common) -> None:
    """List jobs that run or ran, on any machine.

    Exports, imports, searches and profiles of all users that took longer than a second, the newest 200. One whose
    process was killed on this machine, or gave no sign of life for a minute, is lost. Times are UTC.
    """
    with common.connect() as db:
        found = db.jobs()
    rows = [
        [
            *(each.kind, each.what, each.state, each.done, each.of, each.unit, round(each.seconds), each.user),
            *(each.host, each.started, each.detail, None if each.about is None else each.about[1], each.id),
        ]
        for each in found
    ]
    whole = output.format is not RowFormat.TABLE or output.output is not None
    output.write(COLUMNS if whole else COLUMNS[:SHOWN], rows if whole else [row[:SHOWN] for row in rows])


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(jobs)
