"""The configurations of block kinds: each kind alone, whole, under FSDP, and under tensor and sequence parallelism.

`scripts/record --blocks -o tests/validation/block_records.json` records them.

`block` has the words of `under_torch/blocks.py`. mixer: `attention` or `latent` (with `q_rank`, `kv_rank`, `nope_dim`,
`rope_dim`, `value_dim`); windows: those of the layers in turn, 0 for none; sinks: whether heads have some; residual:
`serial`, `post_norm`, `sandwich` or `parallel`.
"""

from collections.abc import Iterator
from typing import Any

from scripts.recording.configurations import DEFAULTS, Config

SIZES: Config = {
    "hidden": 256,
    "layers": 2,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "ffn": 512,
    "vocab": 1024,
    "batch": 2,
    "seq": 64,
}
LATENT = {"kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 24}
BLOCKS: dict[str, tuple[Config, Config, Config]] = {
    "qk-norm": ({"qk_norm": True}, {"mixer": "attention"}, {"qk_norm": True}),
    "window": ({}, {"windows": [16, 0]}, {}),
    "sinks": ({"all_bias": False}, {"windows": [16, 0], "sinks": True}, {}),
    "latent": ({"kv_heads": 8}, {"mixer": "latent", **LATENT}, {"head_dim": 48}),
    "latent-queries": ({"kv_heads": 8}, {"mixer": "latent", "q_rank": 96, **LATENT}, {"head_dim": 48}),
    "post-norm": ({}, {"residual": "post_norm"}, {}),
    "sandwich": ({}, {"residual": "sandwich"}, {}),
    "parallel": ({}, {"residual": "parallel"}, {}),
}
"""Fields of a configuration, its block, and what else its card has, by the name of a kind."""

PLANS: dict[str, Config] = {
    "single": {},
    "fsdp": {"dp": 2, "dp_kind": "fsdp"},
    "fsdp2": {"dp": 2, "dp_kind": "fsdp", "reshard": False},
    "tp": {"tp": 2},
    "tp-sp": {"tp": 2, "sp": True},
    "tp-sp-fsdp": {"tp": 2, "sp": True, "dp": 2, "dp_kind": "fsdp"},
    "full": {"recompute": "full"},
}


def configurations() -> Iterator[Config]:
    """All of them."""
    for kind, (fields, block, card) in BLOCKS.items():
        for plan, words in PLANS.items():
            if kind == "parallel" and words.get("tp"):
                # torchtitan has no tensor-parallel plan for such layers.
                continue
            config = DEFAULTS | SIZES | fields | words | {"model": kind, "block": block, "label": f"{kind}/{plan}"}
            yield config | {"extension": {"card": {**card, **layers_of(block)}, "plan": {}}}


def layers_of(block: Config) -> Config:
    """The layers of a block in the words of stagedb's cards."""
    usual: dict[str, Any] = {"mixer": "attention", "channel_mixer": "feed_forward", "residual": "serial"}
    usual["residual"] = block.get("residual", "serial")
    if block.get("mixer") == "latent":
        sizes = {word: block[word] for word in ("q_rank", *LATENT) if word in block}
        return {"layer_kinds": {"layer": {**usual, "mixer": "latent_attention", **sizes}}}
    if block.get("sinks"):
        usual["sinks"] = True
    if not block.get("windows"):
        return {"layer_kinds": {"layer": usual}} if len(usual) > 3 or usual["residual"] != "serial" else {}
    kinds = {
        f"window{size}" if size else "layer": {**usual, **({"mixer": "sliding_window", "window": size} if size else {})}
        for size in block["windows"]
    }
    return {"layer_kinds": kinds, "pattern": list(kinds)}
