"""`systems`: the presets of accelerators and networks."""

from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups


@option_groups
def systems(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SYSTEM", help="A preset's name, or the path of a system's file.", autocompletion=completion.systems
        ),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List the systems of the library, or show one.

    One system is shown whole: accelerator, network, and the sources of its numbers.
    """
    del common  # reads no store
    from stagedb import api

    if name is None:
        output.write_records(api.systems())
    else:
        output.write(("field", "value"), list(api.system(name).items()))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(systems)
