"""Weights of Kimi delta attention of a model's own code as those of a graph, whose rows are by heads."""

from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

WORDS = {
    **{f"{word}_proj": f"attn.in_{word}.weight" for word in ("q", "k", "v", "b")},
    **{f"{word}_proj": f"attn.{word}.weight" for word in ("f_a", "f_b", "g_a", "g_b")},
    "A_log": "attn.a_log",
    "dt_bias": "attn.step_bias",
    "o_norm": "attn.gated_norm.weight",
    "o_proj": "attn.wo.weight",
    "conv1d": "attn.conv.weight",
}


def kimi_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weight of a block that a parameter is; none if its layer has no Kimi delta attention."""
    block, place = key
    if not part.startswith("self_attn.") or (f"{block}.attn.f_a.weight", place) not in shapes:
        return
    word = part.removeprefix("self_attn.").removeprefix("forget_gate.").removesuffix(".weight")
    if word == "conv1d":
        # Queries, keys and values, each of all heads.
        heads = shapes[f"{block}.attn.conv.weight", place][0]
        value = np.concatenate([each.reshape(heads, -1, *value.shape[1:]) for each in np.split(value, 3)], axis=1)
    yield WORDS[word], value
