"""Weights of scans of a model's own code as those of a graph, whose rows are by groups of heads."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

EACH = {
    **{f"{word}_proj": f"attn.in_{word}" for word in "qkvab"},
    "g_proj": "attn.in_z",
    "o_norm": "attn.gated_norm",
    "o_proj": "attn.wo",
}
"""Modules of a delta rule with a matmul each, whose rows are as in a graph."""

SCAN = re.compile(r"(?:mixer|mamba|self_attn|linear_attn)\.(?P<word>in_proj\w*|conv1d|A_log|D|dt_bias|norm|out_proj)\b")

WORDS = {"A_log": "attn.a_log", "D": "attn.skip", "dt_bias": "attn.step_bias", "norm": "attn.gated_norm.weight"}
"""Parameters whose rows are as in a graph."""


def scan_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if its layer has no scan."""
    block, place = key
    if part.startswith("mamba.") and (f"{block}.scan.attn.a_log", place) in shapes:
        # A scan next to attention has a name of its own.
        yield from ((f"scan.{our}", each) for our, each in _of_scan(part, value, shapes, (f"{block}.scan", place)))
        return
    yield from _of_scan(part, value, shapes, key)


def _of_scan(part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key) -> Iterator[tuple[str, Array]]:
    block, place = key
    found, heads = SCAN.search(part), shapes.get((f"{block}.attn.a_log", place))
    each = EACH.get(part.removeprefix("linear_attn.").removesuffix(".weight")) if heads else None
    if each and part.startswith("linear_attn."):
        yield f"{each}.weight", value
        return
    if found is None or heads is None:
        return
    word, ending = found["word"], "bias" if part.endswith("bias") else "weight"
    groups, of_group = heads
    channels = shapes[f"{block}.attn.conv.weight", place][1]
    values = shapes[f"{block}.attn.wo.weight", place][2]
    small = (channels - values) // 2
    # Mamba-2 has values, B and C, the delta rule queries, keys and values.
    state_space = (f"{block}.attn.skip", place) in shapes
    convolved = (values, small, small) if state_space else (small, small, values)
    if word in WORDS:
        yield WORDS[word], value
    elif word == "out_proj":
        yield f"attn.wo.{ending}", value
    elif word == "conv1d":
        yield f"attn.conv.{ending}", _by_groups(value, groups, convolved)
    elif word == "in_proj":
        yield f"attn.in_proj.{ending}", _by_groups(value, groups, (values, *convolved, of_group))
    else:
        own = word.removeprefix("in_proj")
        yield f"attn.in{own}.{ending}", _by_groups(value, groups, convolved) if own == "_qkv" else value


def _by_groups(value: Array, groups: int, sizes: tuple[int, ...]) -> Array:
    """Rows by parts, each with all groups, as rows by groups, each with all parts. sizes: rows of a part in a group."""
    ends = np.cumsum([groups * size for size in sizes])[:-1]
    parts = np.split(value, ends)
    return np.concatenate([each.reshape(groups, -1, *value.shape[1:]) for each in parts], axis=1)
