"""The layers of a model for a terminal: a letter for each layer, and what the letters mean."""

import textwrap
from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

MARKS = ascii_lowercase + ascii_uppercase
WIDTH = 80
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
