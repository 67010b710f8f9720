"""The own blocks of a model for a terminal: a line for each step, with the axes that it makes."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

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
