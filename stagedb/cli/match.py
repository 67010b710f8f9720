"""`match`: a run that was imported, op by op against an instance."""

from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups

PRINTED = ("finding", "module", "ranks", "planned", "seen")
"""Columns of a table on a terminal."""


@option_groups
def match(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Id or name of a run that was imported.", autocompletion=completion.runs),
    ],
    instance: Annotated[
        str | None,
        typer.Argument(
            metavar="[INSTANCE]",
            help="Id or name of an instance.  [your newest one]",
            show_default=False,
            autocompletion=completion.instances,
        ),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """Compare a run with a plan, op by op.

    Matmuls, attentions and what ranks communicate are aligned in the order of issue. Findings have the module, the
    ranks and the plan's reason: ops that are missing or extra, collectives of another size, format, group or kind,
    others that were moved, tasks of micro-batches in another order, ranks that are late or slow. The store keeps the
    match: `stagedb query run_against_plan --run RUN` answers again, and `seen_and_planned` compares times with profiles.
    """
    with common.connect() as db, progress(common, "writing", "relationships") as report:
        found = db.match(run, instance, progress=report)
    printed = output.format is RowFormat.TABLE and output.output is None
    write = common.line if printed else common.note
    write(f"run {found.run.id[:12]} and instance {found.instance.id[:12]}: {found}")
    rows = found.findings
    if printed:
        chosen = [rows.columns.index(name) for name in PRINTED]
        if rows.rows:
            output.write(PRINTED, [tuple(row[at] for at in chosen) for row in rows.rows])
    else:
        output.write(rows.columns, rows.rows)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(match)
