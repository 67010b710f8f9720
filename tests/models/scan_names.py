"""Weights of scans of a model's own code as those of a graph, whose rows are by groups of heads."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

SCAN = re.compile(r"(?:mixer|mamba|self_attn)\.(?P<word>in_proj|conv1d|A_log|D|dt_bias|norm|out_proj)\b")

WORDS = {"A_log": "a_log", "D": "skip", "dt_bias": "step_bias"}
"""Parameters of the scan itself."""


def scan_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if its layer has no scan."""
    block, place = key
    found, heads = SCAN.search(part), shapes.get((f"{block}.attn.a_log", place))
    if found is None or heads is None:
        return
    word, ending = found["word"], "bias" if part.endswith("bias") else "weight"
    groups, of_group = heads
    values = shapes[f"{block}.attn.gated_norm.weight", place][1]
    channels = shapes[f"{block}.attn.conv.weight", place][1]
    state = (channels - values) // 2
    if word in WORDS:
        yield f"attn.{WORDS[word]}", value
    elif word == "norm":
        yield "attn.gated_norm.weight", value
    elif word == "out_proj":
        yield f"attn.wo.{ending}", value
    elif word == "conv1d":
        yield f"attn.conv.{ending}", _by_groups(value, groups, (values, state, state))
    else:
        yield f"attn.in_proj.{ending}", _by_groups(value, groups, (values, values, state, state, of_group))


def _by_groups(value: Array, groups: int, sizes: tuple[int, ...]) -> Array:
    """Rows by parts, each with all groups, as rows by groups, each with all parts. sizes: rows of a part in a group."""
    ends = np.cumsum([groups * size for size in sizes])[:-1]
    parts = np.split(value, ends)
    return np.concatenate([each.reshape(groups, -1, *value.shape[1:]) for each in parts], axis=1)
