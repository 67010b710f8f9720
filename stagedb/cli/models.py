"""`models`: the library of model cards."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from string import ascii_lowercase, ascii_uppercase
from typing import Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.printed_rows import Output, RowFormat
from stagedb.cli.shared_options import Common, option_groups, print_line
from stagedb.errors import UsageError

# The own blocks of a model for a terminal: a line for each step, with the axes that it makes.

WIDTH = 80


def draw_blocks(steps: Sequence[Mapping[str, Any]]) -> str:
    """Lines of at most 80 columns: each block with its parameters, then its steps. `/tp` marks an axis that tp cuts."""
    lines = []
    for block, rows in groupby(steps, key=lambda step: step["block"]):
        own = list(rows)
        parameters = {name: text for step in own for name, text in step["parameters"].items()}
        text = "; ".join(f"{name} ({axes})" for name, axes in parameters.items())
        lines += textwrap.wrap(f"{block}, with the parameters {text}" if text else block, WIDTH, subsequent_indent="  ")
        wide = max(len(step["step"]) for step in own)
        for step in own:
            made = " ".join(f"{axis}/tp" if axis == step["tp"] else axis for axis in step["axes"])
            summed = f", a sum over {step['tp']}/tp" if step["tp"] and step["tp"] not in step["axes"] else ""
            word = step["operator"] if step["argument"] is None else f"{step['operator']} {step['argument']}"
            if step["operator"] == "einsum":
                word = "einsum"
            text = f"  {step['step']:<{wide}} = {word} of {', '.join(step['of'])}: {made}{summed}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent=" " * (wide + 5))
    return "\n".join(lines)


# The layers of a model for a terminal: a letter for each layer, and what the letters mean.

MARKS = ascii_lowercase + ascii_uppercase
A_LINE = 60
"""Layers of a line."""


def draw_layers(kinds: Sequence[Mapping[str, Any]]) -> str:
    """Lines of at most 80 columns: the layers in forward order, 60 a line, then the parts of each kind."""
    marks = dict(zip((each["kind"] for each in kinds), MARKS, strict=False))
    at = {number: marks.get(each["kind"], "?") for each in kinds for number in each["numbers"]}
    layers = "".join(at[number] for number in sorted(at))
    lines = ["layers, from the first one on:"]
    lines += [f"  {start:>4}  {layers[start : start + A_LINE]}" for start in range(0, len(layers), A_LINE)]
    for each in kinds:
        words = ", ".join(f"{name} {value}" for name, value in each["words"].items())
        parts = f"{each['mixer']}, then {each['channel_mixer']} ({each['residual']})"
        count = f"{len(each['numbers'])} x" if each["numbers"] else "further tokens:"
        text = f"{marks.get(each['kind'], '?')}  {count} {each['kind']}: {parts}"
        lines += textwrap.wrap(text + (f"; {words}" if words else ""), WIDTH, subsequent_indent="   ")
    return "\n".join(lines)


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
