"""`models`: the library of model cards."""

from collections.abc import Mapping
from typing import Annotated

import typer

from stagedb.cli import completion
from stagedb.cli.block_chart import draw_blocks
from stagedb.cli.layer_chart import draw_layers
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups, print_line
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
            help="The FLOPs of a forward of MODEL on one sequence of so many tokens, instead of its card.",
            show_default=False,
        ),
    ] = None,
    output: Output,
    common: Common,
) -> None:
    """List the models of the library, or show one and its layers.

    `--like` lists the models nearest in size: `factor` is how much their sizes differ on average. FLOPs are
    those that counters have, and without the pairs of queries and keys that masks leave out. Own blocks of a card
    are drawn step by step.
    """
    del common  # reads no store
    from stagedb import api

    if name is None:
        if seq_len is not None:
            raise UsageError("--seq-len is for one model: give MODEL")
        output.write_records(api.models(like=like), keep=("name", "parameters", "layers", "hidden", "factor", "family"))
        return
    if like is not None:
        raise UsageError("MODEL shows one card, and --like lists the nearest ones: give one of them")
    if seq_len is not None:
        output.write(("field", "value"), list(api.model_flops(name, seq_len).items()))
        return
    card, drawn = api.model(name), output.format is RowFormat.TABLE and output.output is None
    steps = api.model_blocks(name) if drawn else []
    if steps:
        card["blocks"] = list(card["blocks"])
    output.write(("field", "value"), list(card.items()))
    if drawn:
        typer.echo("\n" + draw_layers(api.model_layers(name)))
        if steps:
            typer.echo("\n" + draw_blocks(steps))
        print_line("\n" + _flops(api.model_flops(name)))


def _flops(found: Mapping[str, int]) -> str:
    """The FLOPs of a forward in a line."""
    tokens = found["seq_len"]
    counted, without = found["forward_flops"] / tokens / 1e9, found["forward_flops_without_masked"] / tokens / 1e9
    return f"a forward of {tokens:,} tokens: {counted:,.2f} GFLOP a token, {without:,.2f} without masked pairs"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(models)
