"""Tiny models, one for each word of a layer kind and for each field around the layers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from stagedb.models import Card
from tests.ir.tiny import card

LATENT = {"mixer": "latent_attention", "kv_rank": 6, "nope_dim": 4, "rope_dim": 2, "value_dim": 5}
BOTH = {"channel_mixer": "dense_and_experts", "residual": "sandwich_of_stream"}

VARIANTS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "window": ("llama", {"mixer": "sliding_window", "window": 3}, {}),
    "chunk": ("llama", {"mixer": "chunked_attention", "chunk": 3}, {}),
    "no rotary positions": ("llama", {"rotary": False}, {}),
    "partial rotary positions": ("llama", {"rotary_dim": 2}, {}),
    "scale": ("llama", {"scale": 0.7}, {}),
    "softcap": ("llama", {"softcap": 1.5}, {}),
    "sinks": ("llama", {"sinks": True}, {}),
    "sinks, capped, in a window": (
        "llama",
        {"mixer": "sliding_window", "window": 3, "sinks": True, "softcap": 2.0},
        {},
    ),
    "own heads": ("llama", {"heads": 8, "kv_heads": 4, "head_dim": 6}, {"kv_heads": 2}),
    "own heads, a further token": ("llama", {"heads": 8, "head_dim": 6}, {"multi_token_prediction": 1}),
    "values of their own size": ("llama", {"value_dim": 6, "bias": "all", "sinks": True}, {}),
    "own heads of each size, with norms": (
        "llama",
        {"mixer": "sliding_window", "window": 3, "heads": 8, "head_dim": 6, "value_dim": 2, "qk_norm": "each_head"},
        {},
    ),
    "values that are keys": ("llama", {"shared_values": True, "value_norm": True, "qk_norm": "head"}, {}),
    "values that are keys, as they are": ("llama", {"shared_values": True, "rotary": False, "bias": "qkv"}, {}),
    "norms and a factor of values": ("llama", {"value_norm": True, "value_scale": 0.7, "kv_heads": 8, "heads": 8}, {}),
    "a factor of values": ("llama", {"value_scale": 0.7, "rotary": False}, {}),
    "gated": ("llama", {"gated": True}, {}),
    "gated, with norms and biases": ("llama", {"gated": True, "qk_norm": "head", "bias": "qkv"}, {}),
    "gate of its own matmul": ("llama", {"gate": "values", "qk_norm": "head"}, {}),
    "gate of heads, by a softplus": ("llama", {"gate": "heads", "gate_function": "softplus"}, {}),
    "norms before the matmuls back": ("llama", {"context_norm": True, "inner_norm": True}, {}),
    "norms of heads": ("llama", {"qk_norm": "head"}, {}),
    "norms of each head": ("llama", {"qk_norm": "each_head"}, {"norm": "layernorm_no_bias"}),
    "norms over all heads": ("llama", {"qk_norm": "all"}, {}),
    "norms without weights": ("llama", {"qk_norm": "l2"}, {}),
    "biases of q, k, v": ("llama", {"bias": "qkv"}, {}),
    "biases of attention": ("llama", {"bias": "all"}, {}),
    "bias of the projection back": ("llama", {"bias": "out"}, {}),
    "biases of the feed-forward": ("llama", {"ffn_bias": "all"}, {}),
    "fused projections": ("llama", {"qkv": "fused", "gate_up": "fused"}, {}),
    "apart": ("gpt", {"qkv": "apart"}, {}),
    "post-norm": ("llama", {"residual": "post_norm"}, {}),
    "sandwich": ("llama", {"residual": "sandwich"}, {}),
    "a norm after the channel mixer": ("llama", {"residual": "serial_ffn_post_norm"}, {}),
    "a stream of norms": (
        "llama",
        {"residual": "normed_stream", "attn_stream_scale": 1.5, "ffn_result_scale": 0.5},
        {},
    ),
    "a stream of norms with biases": ("gpt", {"residual": "normed_stream", "attn_result_scale": 0.8}, {}),
    "sandwich, scaled": ("llama", {"residual": "sandwich_scaled"}, {}),
    "sandwich with biases": ("gpt", {"residual": "sandwich"}, {}),
    "latent": ("llama", LATENT, {}),
    "latent queries": ("llama", {**LATENT, "q_rank": 7, "latent_bias": True}, {}),
    "indexer": ("llama", {**LATENT, "q_rank": 7, "index_heads": 3, "index_dim": 4, "index_top": 3}, {}),
    "indexer of all keys": ("llama", {**LATENT, "q_rank": 7, "index_heads": 2, "index_dim": 2, "index_top": 30}, {}),
    "router's softmax": ("deepseek", {"channel_mixer": "experts", "scores": "softmax", "normalised": False}, {}),
    "router's sigmoid": ("deepseek", {"channel_mixer": "experts", "scores": "sigmoid", "routing_scale": 2.5}, {}),
    "biases of experts": ("moe", {"channel_mixer": "experts", "expert_bias": True, "router_bias": True}, {}),
    "gate of shared experts": ("deepseek", {"channel_mixer": "experts", "shared_gate": True}, {}),
    "biases of shared experts": ("deepseek", {"channel_mixer": "experts", "shared_bias": True}, {}),
    "mean of shared and routed experts": ("deepseek", {"channel_mixer": "experts", "result_scale": 0.5}, {}),
    "experts between norms, bounded, with factors": (
        "moe",
        {
            "channel_mixer": "experts",
            "residual": "sandwich",
            "scores": "softmax",
            "normalised": False,
            "softcap": 1.5,
        },
        {"tied": True, "activation": "gelu_tanh", "embedding_scale": 3.0, "logit_scale": 0.25},
    ),
    "scaled inputs of experts": (
        "deepseek",
        {"channel_mixer": "experts", "scores": "sigmoid", "normalised": False, "scale_inputs": True},
        {},
    ),
    "sparsemixer": (
        "moe",
        {"channel_mixer": "experts", "scores": "sparsemixer", "normalised": False, "jitter": 0.4},
        {},
    ),
    "a feed-forward and experts": ("moe", BOTH, {"experts": 8}),
    "a feed-forward and experts, scores of all": ("moe", {**BOTH, "scores": "softmax", "router_bias": True}, {}),
    "plain experts": (
        "deepseek",
        {"channel_mixer": "experts", "scores": "sigmoid", "expert_bias": True, "shared_gate": True},
        {"mlp": "plain", "activation": "relu2"},
    ),
    "latent experts": ("deepseek", {"channel_mixer": "experts", "expert_latent": 6}, {}),
    "latent experts, plain": (
        "deepseek",
        {"channel_mixer": "experts", "expert_latent": 6, "scores": "sigmoid", "routing_scale": 2.5},
        {"mlp": "plain", "activation": "relu2"},
    ),
    "latent experts with scaled inputs and biases": (
        "moe",
        {
            "channel_mixer": "experts",
            "expert_latent": 6,
            "expert_bias": True,
            "scores": "sigmoid",
            "normalised": False,
            "scale_inputs": True,
        },
        {},
    ),
    "clamped gate": ("llama", {}, {"activation": "clamped_swiglu"}),
    "squared relu": ("gpt", {}, {"activation": "relu2"}),
    "tanh gelu": ("gpt", {}, {"activation": "gelu_tanh"}),
    "quick gelu": ("llama", {}, {"activation": "quick_gelu"}),
    "RMSNorm without a weight": ("llama", {"qk_norm": "head"}, {"norm": "rmsnorm_no_weight"}),
    "LayerNorm without a bias": ("gpt", {}, {"norm": "layernorm_no_bias"}),
    "ALiBi": ("llama", {}, {"positions": "alibi"}),
    "no positions": ("llama", {}, {"positions": "none"}),
    "rows before the first position": ("gpt", {}, {"position_offset": 2}),
    "norm of the embedding": ("llama", {}, {"embedding_norm": True}),
    "bias of the head": ("llama", {}, {"head_bias": True}),
    "factors": ("llama", {}, {"embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 0.25}),
    "bound of logits": ("llama", {}, {"logit_softcap": 2.0}),
    "a further token": ("llama", {}, {"multi_token_prediction": 1, "mtp_loss_factor": 0.7}),
    "further tokens": ("gpt", {}, {"multi_token_prediction": 2, "positions": "rotary", "head_bias": True}),
    "further tokens, tied": ("llama", {}, {"multi_token_prediction": 2, "tied": True, "embedding_scale": 2.0}),
    "further tokens of experts": (
        "deepseek",
        {**LATENT, "channel_mixer": "experts", "scores": "sigmoid"},
        {"multi_token_prediction": 2},
    ),
    "differential": ("llama", {"mixer": "differential_attention"}, {"heads": 8, "kv_heads": 8}),
    "differential, grouped, with biases": (
        "llama",
        {"mixer": "differential_attention", "bias": "all", "scale": 0.7},
        {"heads": 16, "kv_heads": 8},
    ),
    "experts of attention": (
        "moe",
        {"mixer": "attention_experts", "channel_mixer": "experts", "sum_bias": True},
        {"heads": 8},
    ),
    "experts of attention, with factors": (
        "moe",
        {"mixer": "attention_experts", "channel_mixer": "experts", "scores": "softmax", "scale": 0.7, "rotary_dim": 2},
        {"heads": 12, "top_k": 3, "residual_scale": 0.5},
    ),
    "scores by roots": (
        "deepseek",
        {"channel_mixer": "experts", "scores": "sqrtsoftplus", "routing_scale": 1.5},
        {},
    ),
    "groups of experts": (
        "deepseek",
        {"channel_mixer": "experts", "scores": "sigmoid", "expert_groups": 4, "chosen_groups": 2},
        {},
    ),
    "groups of experts, softmax": (
        "deepseek",
        {
            "channel_mixer": "experts",
            "scores": "softmax",
            "normalised": False,
            "expert_groups": 4,
            "chosen_groups": 3,
        },
        {},
    ),
    "experts by a table": (
        "deepseek",
        {"channel_mixer": "experts", "scores": "sqrtsoftplus", "hashed": True, "routing_scale": 1.5},
        {},
    ),
    "streams": ("llama", {"residual": "hyper_connections"}, {"hyper_connections": 3, "hyper_connection_rounds": 4}),
    "streams, one round, with biases": (
        "gpt",
        {"residual": "hyper_connections"},
        {"hyper_connections": 2, "hyper_connection_rounds": 1, "residual_scale": 0.5},
    ),
    "streams, a further token": (
        "llama",
        {"residual": "hyper_connections"},
        {"hyper_connections": 3, "multi_token_prediction": 1, "mtp_loss_factor": 0.6},
    ),
    "streams, further tokens of experts, tied": (
        "deepseek",
        {"residual": "hyper_connections", "channel_mixer": "experts"},
        {"hyper_connections": 2, "multi_token_prediction": 2, "tied": True},
    ),
    "streams of experts": (
        "deepseek",
        {"residual": "hyper_connections", "channel_mixer": "experts"},
        {"hyper_connections": 4},
    ),
}
"""By name: the style of `tests.ir.tiny.card`, the words of its layers, and fields of the card that differ."""


def variant(name: str, layers: int = 2, **more: Any) -> Card:
    """The model of a variant; heads of keys and values are as many as tp may be."""
    style, words, fields = VARIANTS[name]
    kinds: Any = {"layer": words} if words else ()
    usual = dataclasses.replace(card(style, kv_heads=4), dense_layers=0)
    return dataclasses.replace(usual, **{"layers": layers, "layer_kinds": kinds, **fields, **more})
