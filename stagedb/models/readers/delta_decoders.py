"""Decoders with the gated delta rule in most layers, and gated attention in the others."""

from collections.abc import Mapping
from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import softmax_scores, with_experts
from stagedb.models.readers.layers import Layer, layer_types, read_sparse, with_layers
from stagedb.models.readers.parts import biases, decoder, turned

MIXER = "gated_delta"

_TYPES = {"linear_attention": "delta", "full_attention": "attention"}


def qwen3_next(config: Config, name: str) -> Card:
    """Qwen3-Next: the gated delta rule in three of four layers, gated attention in the others, experts in most."""
    card = _with_shared_experts(config, decoder(config, name, "qwen3-next", qk_norm=True))
    sparse = read_sparse(config, card.layers)
    return _laid_out(config, card, [not each for each in sparse], "joined", softmax_scores(config, True))


def qwen3_5(config: Config, name: str) -> Card:
    """Qwen 3.5: the gated delta rule in three of four layers, from four matmuls, and gated attention in the others."""
    card = decoder(config, name, "qwen3.5", qk_norm=True)
    return _laid_out(config, card, [False] * card.layers, "apart")


def qwen3_5_moe(config: Config, name: str) -> Card:
    """Qwen 3.5 with experts in all layers."""
    card = decoder(config, name, "qwen3.5", qk_norm=True, ffn=config.count("moe_intermediate_size"))
    card = replace(_with_shared_experts(config, card), ffn=0)
    return _laid_out(config, card, [False] * card.layers, "apart")


def olmo_hybrid(config: Config, name: str) -> Card:
    """OLMo Hybrid: the gated delta rule in most layers, attention with norms after the parts in the others."""
    card = decoder(config, name, "olmo", positions="rotary" if _has_base(config) else "none")
    config.uses("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")
    types = layer_types(config, card.layers, _TYPES)
    if types is None:
        types = _in_turn(config, card.layers)
        types = types if "attention" in types else [*types[:-1], "attention"]
    groups = config.count("linear_num_key_heads", default=card.heads)
    key = config.count("linear_key_head_dim", default=3 * card.hidden // (4 * groups))
    filled = {
        "linear_num_value_heads": config.count("linear_num_value_heads", default=card.heads),
        "linear_num_key_heads": groups,
        "linear_key_head_dim": key,
        "linear_value_head_dim": config.count("linear_value_head_dim", default=2 * key),
    }
    delta = _delta_words(config.changed(**filled), "each")
    delta["delta_negative"] = config.flag("linear_allow_neg_eigval", default=True)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    known = {
        "delta": Layer(mixer=MIXER, words=delta),
        "attention": Layer(words={"residual": "post_norm", "qk_norm": "all", **bias}),
    }
    return with_layers(card, [known[each] for each in types])


def _has_base(config: Config) -> bool:
    """Whether attention has rotary positions: files without have null as their base (`rope_theta`)."""
    given = config.get("rope_parameters")
    return not (isinstance(given, Mapping) and "rope_theta" in given and given["rope_theta"] is None)


def _with_shared_experts(config: Config, card: Card) -> Card:
    shared = config.count("shared_expert_intermediate_size", default=512)
    return with_experts(config, card, config.count("moe_intermediate_size"), shared)


def _laid_out(
    config: Config, card: Card, dense: list[bool], projections: str, words: dict[str, Value] | None = None
) -> Card:
    """The card with the mixer of each layer. dense: whether it has a feed-forward where others have experts."""
    config.only("attn_output_gate", True, "its attention has gates")
    config.uses("full_attention_interval")
    types = layer_types(config, card.layers, _TYPES) or _in_turn(config, card.layers)
    delta = _delta_words(config, projections)
    usual: dict[str, Value] = {"gated": True, **turned(config, card, 0.25), **(words or {})}
    usual |= biases("all" if config.flag("attention_bias") else "none", False)
    usual |= {"shared_gate": True} if card.experts else {}
    layers = [
        Layer(dense=each, mixer=MIXER, words=delta) if kind == "delta" else Layer(dense=each)
        for kind, each in zip(types, dense, strict=True)
    ]
    return with_layers(card, layers, usual)


def _in_turn(config: Config, layers: int) -> list[str]:
    """The types of layers for a config without `layer_types`: each n-th layer has attention
    (`full_attention_interval`), the others the delta rule.
    """
    every = config.count("full_attention_interval", default=4)
    return ["delta" if (number + 1) % every else "attention" for number in range(layers)]


def _delta_words(config: Config, projections: str) -> dict[str, Value]:
    config.only("hidden_act", "silu", "the kernels of the convolution and of gates have silu")
    words: dict[str, Value] = {
        "delta_heads": config.count("linear_num_value_heads"),
        "delta_key_heads": config.count("linear_num_key_heads"),
        "delta_key_dim": config.count("linear_key_head_dim"),
        "delta_value_dim": config.count("linear_value_head_dim"),
        "delta_projections": projections,
        "conv_width": config.count("linear_conv_kernel_dim", default=4),
        "conv_bias": False,
    }
    if int(words["delta_heads"]) % int(words["delta_key_heads"]):
        raise UsageError(
            f"linear_num_key_heads {shown(words['delta_key_heads'])} does not divide linear_num_value_heads "
            f"{shown(words['delta_heads'])}"
        )
    return words


READERS = {
    "Qwen3NextForCausalLM": qwen3_next,
    "Qwen3_5ForCausalLM": qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen3_5_moe,
    "OlmoHybridForCausalLM": olmo_hybrid,
}
"""The reader of each architecture."""
