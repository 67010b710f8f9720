"""The configurations of block kinds: each kind alone, whole, under FSDP, and under tensor and sequence parallelism.

`scripts/record --blocks -o tests/validation/block_records.json` records them.

`block` has the words of `under_torch/blocks.py`. mixer: `attention`, `latent` (with `q_rank`, `kv_rank`, `nope_dim`,
`rope_dim`, `value_dim`) or `gated_delta` (with the words of its card); windows: those of the layers in turn, 0 for
none; chunks: the same of chunks, whose layers alone have rotary positions; sinks: whether heads have some; softcap,
logit_softcap: the bounds of scores and of logits; gated: heads have gates; alibi: positions are distances in scores;
residual: `serial`, `post_norm`, `sandwich` or `parallel`; further: whether a layer predicts a further token; biased:
experts, their router and attention have biases, and the gate is gpt-oss's.
"""

from collections.abc import Iterator

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
DELTA = {
    "delta_heads": 8,
    "delta_key_heads": 4,
    "delta_key_dim": 32,
    "delta_value_dim": 16,
    "delta_chunk": 16,
    "conv_width": 4,
}
EXPERTS: Config = {"style": "moe", "experts": 4, "topk": 2, "expert_ffn": 128, "shared_ffn": 96}
BLOCKS: dict[str, tuple[Config, Config, Config]] = {
    "qk-norm": ({"qk_norm": True}, {"mixer": "attention"}, {"qk_norm": True}),
    "window": ({}, {"windows": [16, 0]}, {}),
    "sinks": ({"all_bias": False}, {"windows": [16, 0], "sinks": True}, {}),
    "latent": ({"kv_heads": 8}, {"mixer": "latent", **LATENT}, {"head_dim": 48}),
    "latent-queries": ({"kv_heads": 8}, {"mixer": "latent", "q_rank": 96, **LATENT}, {"head_dim": 48}),
    "scored-experts": (EXPERTS, {"scores": "sigmoid", "routing_scale": 2.5}, {"shared_ffn": 96}),
    "latent-experts": (
        {**EXPERTS, "kv_heads": 8, "dense_layers": 1},
        {"mixer": "latent", "q_rank": 96, **LATENT, "scores": "sigmoid", "routing_scale": 2.5},
        {"head_dim": 48, "shared_ffn": 96},
    ),
    "gpt-oss": (
        {**EXPERTS, "shared_ffn": 0, "all_bias": True},
        {"windows": [16, 0], "sinks": True, "biased": True},
        {"activation": "clamped_swiglu"},
    ),
    "capped": (
        {},
        {"residual": "sandwich", "windows": [16, 0], "softcap": 50.0, "logit_softcap": 30.0},
        {"logit_softcap": 30.0},
    ),
    "alibi": ({}, {"alibi": True}, {"positions": "alibi"}),
    "gated": ({"qk_norm": True}, {"gated": True}, {"qk_norm": True}),
    "gated-plain": ({}, {"gated": True}, {}),
    "chunks": ({}, {"chunks": [16, 0]}, {}),
    "further": ({}, {"further": 1}, {"multi_token_prediction": 1}),
    "gated-delta": ({}, {"mixer": "gated_delta", **DELTA}, {}),
    "post-norm": ({}, {"residual": "post_norm"}, {}),
    "sandwich": ({}, {"residual": "sandwich"}, {}),
    "parallel": ({}, {"residual": "parallel"}, {}),
}
"""Fields of a configuration, its block, and what else its card has, by the name of a kind."""

WITHOUT_TENSOR_PLAN = ("parallel", "capped", "alibi")
"""Kinds without a tensor-parallel plan in torchtitan. Its Llama 4 had the one of Llama 3 for chunks."""

PLANS: dict[str, Config] = {
    "single": {},
    "fsdp": {"dp": 2, "dp_kind": "fsdp"},
    "fsdp2": {"dp": 2, "dp_kind": "fsdp", "reshard": False},
    "tp": {"tp": 2},
    "tp-sp": {"tp": 2, "sp": True},
    "tp-sp-fsdp": {"tp": 2, "sp": True, "dp": 2, "dp_kind": "fsdp"},
    "full": {"recompute": "full"},
    "ep": {"ep": 2},
}


def configurations() -> Iterator[Config]:
    """All of them."""
    for kind, (fields, block, card) in BLOCKS.items():
        for plan, words in PLANS.items():
            routed = fields.get("style") == "moe"
            # Experts with tp are not recorded.
            if (words.get("tp") and (routed or kind in WITHOUT_TENSOR_PLAN)) or (words.get("ep") and not routed):
                continue
            config = DEFAULTS | SIZES | fields | words | {"model": kind, "block": block, "label": f"{kind}/{plan}"}
            yield config | {
                "extension": {"card": {**card, **layers_of(block, fields.get("dense_layers", 0))}, "plan": {}}
            }


def layers_of(block: Config, dense: int) -> Config:
    """The layers of a block in the words of stagedb's cards. dense: how many of the first have no experts."""
    mixer: Config = {"mixer": "attention", "residual": block.get("residual", "serial")}
    if block.get("mixer") == "latent":
        mixer |= {"mixer": "latent_attention"} | {word: block[word] for word in ("q_rank", *LATENT) if word in block}
    if block.get("mixer") == "gated_delta":
        mixer |= {"mixer": "gated_delta", "delta_projections": "apart", "conv_bias": False}
        mixer |= {word: block[word] for word in DELTA}
    mixer |= {word: block[word] for word in ("sinks", "softcap", "gated") if word in block}
    usual = {**mixer, "channel_mixer": "feed_forward"}
    if block.get("biased"):
        usual = {**mixer, "channel_mixer": "experts", "bias": "all", "expert_bias": True, "router_bias": True}
    if block.get("scores"):
        routed = {**mixer, "channel_mixer": "experts", "scores": "sigmoid", "routing_scale": block["routing_scale"]}
        return {"layer_kinds": {"layer": routed, **({"dense": usual} if dense else {})}, "dense_layers": dense}
    if block.get("chunks"):
        first, *_ = block["chunks"]
        kinds = {
            "chunk": {**usual, "mixer": "chunked_attention", "chunk": first},
            "layer": {**usual, "rotary": False},
        }
        return {"layer_kinds": kinds, "pattern": list(kinds)}
    windows = block.get("windows") or [0]
    kinds = {
        f"window{size}" if size else "layer": {**usual, **({"mixer": "sliding_window", "window": size} if size else {})}
        for size in windows
    }
    return {"layer_kinds": kinds} | ({"pattern": list(kinds)} if len(kinds) > 1 else {})
