"""`validate`: is a trace set sound?"""

from pathlib import Path
from typing import Annotated

import typer

from stagedb.cli.options import Common, option_groups
from stagedb.cli.output import Output


@option_groups
def validate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory of traces, of any tool.")],
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Run the traces as a simulator would, to find what hangs.")
    ] = True,
    *,
    output: Output,
    common: Common,
) -> None:
    """Check a trace set against every rule that simulators rely on.

    Prints the first faults with rank, node and rule, and exits with status 1 if there is one.
    """
    from stagedb import api

    report = api.validate(directory, replay=replay)
    if report.faults:
        output.write_records(
            [{"rank": f.rank, "node": f.node, "rule": f.rule, "message": f.message} for f in report.faults]
        )
        raise typer.Exit(1)
    common.say(f"{directory}: sound: {report.summary}")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(validate)
