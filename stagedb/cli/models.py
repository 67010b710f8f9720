"""`models`: the library of model cards."""

from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.layer_chart import draw_layers
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups
from stagedb.errors import UsageError


@option_groups
def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model's name, or a card's path.", autocompletion=completion.models),
    ] = None,
    *,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The ten models whose sizes are nearest to this one's; a name, or a path.",
            autocompletion=completion.models,
            show_default=False,
        ),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Tokens of the sequence whose FLOPs are shown, instead of those that MODEL was trained with.",
            show_default=False,
        ),
    ] = None,
    output: Output,
    common: Common,
) -> None:
    """List the models of the library, or show one and its layers.

    `--like` lists the models nearest in size: `factor` is how much their sizes differ on average. One model has the
    FLOPs of a forward of one sequence, as counters have them, and without the pairs that masks leave out.
    """
    del common  # reads no store
    from stagedb import api

    if name is None:
        if seq_len is not None:
            raise UsageError("--seq-len is for one model: give MODEL")
        output.write_records(api.models(like=like))
        return
    if like is not None:
        raise UsageError("MODEL shows one card, and --like lists the nearest ones: give one of them")
    output.write(("field", "value"), list(api.model(name, seq_len=seq_len).items()))
    if output.format is RowFormat.TABLE and output.output is None:
        typer.echo("\n" + draw_layers(api.model_layers(name)))


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(models)
