"""`models`: the library of model cards."""

from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output
from stagedb.cli.shared_options import Common, option_groups


@option_groups
def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model's name, or a card's path.", autocompletion=completion.models),
    ] = None,
    *,
    output: Output,
    common: Common,
) -> None:
    """List the models of the library, or show one model's card."""
    del common  # reads no store
    from stagedb import api

    if name is None:
        output.write_records(api.models())
    else:
        output.write(("field", "value"), list(api.model(name).items()))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(models)
