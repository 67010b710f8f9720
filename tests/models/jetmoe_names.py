"""Weights of JetMoE's own code as those of a graph: experts of attention and of feed-forwards."""

from collections.abc import Iterator, Mapping

import numpy as np

from stagedb.ir.operators import Array
from tests.semantics.stage import Key

HALVES = ("ffn.experts.w1.weight", "ffn.experts.w3.weight")


def jetmoe_weights(
    part: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], key: Key
) -> Iterator[tuple[str, Array]]:
    """The weights of a block that a parameter is; none if its layer has no experts of attention."""
    block, place = key
    if (f"{block}.attn.experts.wq.weight", place) not in shapes or "layernorm" in part:
        return
    mixer = part.startswith("self_attention")
    if part.endswith("kv_proj.weight"):
        # All keys, then all values; a graph has both of a head next to each other.
        heads, wide, hidden = shapes[f"{block}.attn.wkv.weight", place]
        yield "attn.wkv.weight", value.reshape(2, heads, wide // 2, hidden).swapaxes(0, 1)
    elif part.endswith("experts.bias" if mixer else "mlp.bias"):
        yield "attn.bias" if mixer else "ffn.bias", value
    elif "router" in part:
        yield "attn.router.weight" if mixer else "ffn.router.weight", value
    elif "output_linear" in part:
        yield ("attn.experts.wo.weight", value) if mixer else ("ffn.experts.w2.weight", value.swapaxes(1, 2))
    elif mixer:
        yield "attn.experts.wq.weight", value.swapaxes(1, 2)
    else:
        yield from zip(HALVES, (each.swapaxes(1, 2) for each in np.split(value, 2, axis=1)), strict=True)
