"""Weights of Zamba 2's own code as those of a graph: blocks that layers share, and what each layer has of its own."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stagedb.ir.operators import Array
from tests.models.scan_names import scan_weights
from tests.semantics.stage import Key

LAYER = re.compile(r"\.layers\.(?P<number>\d+)\.(?P<part>.*)")
ADAPTER = re.compile(r"(?P<of>linear_[qkv]|gate_up_proj)_adapter_list\.(?P<turn>\d+)\.(?P<second>[01])\.weight")

OF_BLOCK = {
    **{f"self_attn.{word}_proj": f"attn.w{word}" for word in "qkvo"},
    "feed_forward.gate_up_proj": "ffn.w13",
    "feed_forward.down_proj": "ffn.w2",
    "input_layernorm": "joined_norm",
    "pre_ff_layernorm": "ffn_norm",
}


def shared_weights(
    name: str, value: Array, shapes: Mapping[Key, tuple[int, ...]], config: Mapping[str, Any]
) -> Iterator[tuple[Key, Array]]:
    """The weight that a parameter of a layer is; none outside layers. Blocks have the names of their first layers."""
    match = LAYER.search(name)
    if match is None:
        return
    number, part = int(match["number"]), match["part"].removeprefix("mamba_decoder.")
    hybrids = [at for at, each in enumerate(config["layers_block_type"]) if each == "hybrid"]
    ending, own = name.rpartition(".")[2], f"stack.layer_{number}"
    adapter = ADAPTER.search(part)
    if adapter is not None:
        up = adapter["second"] == "1"
        word = "ffn.w13" if adapter["of"] == "gate_up_proj" else f"attn.w{adapter['of'][-1]}"
        value = _side_by_side(value) if up and word == "ffn.w13" else value
        yield (f"stack.layer_{hybrids[int(adapter['turn'])]}.{word}.{'up' if up else 'down'}.weight", 1), value
    elif part.startswith("shared_transformer."):
        ours = OF_BLOCK[part.removeprefix("shared_transformer.").rpartition(".")[0]]
        value = _side_by_side(value) if ours == "ffn.w13" else value
        yield (f"stack.block_{hybrids.index(number)}.{ours}.{ending}", 1), value
    elif part in ("linear.weight", "input_layernorm.weight"):
        yield (f"{own}.{'behind' if part == 'linear.weight' else 'attn_norm'}.weight", 1), value
    else:
        yield from (((f"{own}.{ours}", 1), each) for ours, each in scan_weights(part, value, shapes, (own, 1)))


def _side_by_side(value: Array) -> Array:
    """Rows of gates, then of what they multiply, as pairs of both."""
    return np.stack(np.split(value, 2), axis=1)
