"""Weights of selective scans of a model's own code as those of a graph, whose matmul in has rows channel by channel."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

SCAN = re.compile(r"(?:mixer|mamba)\.(?P<word>[\w.]+)")

WORDS = {
    "A_log": "a_log",
    "D": "skip",
    "conv1d.weight": "conv.weight",
    "conv1d.bias": "conv.bias",
    "x_proj.weight": "x_proj.weight",
    "dt_proj.weight": "dt_proj.weight",
    "dt_proj.bias": "step_bias",
    "dt_layernorm.weight": "step_latent_norm.weight",
    "b_layernorm.weight": "b_norm.weight",
    "c_layernorm.weight": "c_norm.weight",
    "out_proj.weight": "wo.weight",
    "out_proj.bias": "wo.bias",
}
"""Parameters whose rows are as in a graph."""


def selective_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if its layer has no selective scan."""
    block, place = key
    found = SCAN.search(part)
    if found is None or (f"{block}.attn.x_proj.weight", place) not in shapes:
        return
    word = found["word"]
    if word.startswith("in_proj"):
        yield f"attn.{word}", np.stack(np.split(value, 2), axis=1)
    else:
        yield f"attn.{WORDS[word]}", value
