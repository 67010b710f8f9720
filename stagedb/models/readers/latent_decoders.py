"""Decoders with multi-head latent attention: DeepSeek V2 and V3, Kimi K2, and what has their architecture."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config, rotary
from stagedb.models.readers.expert_decoders import expert_groups, sigmoid_scores, with_experts
from stagedb.models.readers.layers import Layer, experts_from, with_layers
from stagedb.models.readers.parts import decoder, mlp_biases, with_mtp_layers


def deepseek_v2(config: Config, name: str) -> Card:
    """DeepSeek V2: a softmax over all experts, whose chosen scores may be divided by their sum; not the defaults of its
    class, which have no num_experts_per_tok and do not run."""
    config.only("scoring_func", "softmax", "DeepSeek V2 has a softmax")
    card, usual = latent_card(config, name)
    words: dict[str, Value] = {"scores": "softmax", "normalised": config.flag("norm_topk_prob")}
    words |= mlp_biases(config, config.count("n_shared_experts", default=2, least=0))
    factor = config.number("routed_scaling_factor", default=1.0)
    chosen = config.get("topk_method", default="greedy")
    if chosen not in ("greedy", "group_limited_greedy"):
        raise UsageError(f"topk_method {shown(chosen)} is not supported here: greedy or group_limited_greedy only")
    words |= expert_groups(config) if chosen == "group_limited_greedy" else {}
    return _laid_out(config, card, usual | words | ({} if factor == 1 else {"routing_scale": factor}), 0, 2)


def deepseek_v3(config: Config, name: str) -> Card:
    """DeepSeek V3 and R1, Kimi K2: sigmoid scores."""
    card, usual = latent_card(config, name)
    return with_mtp_layers(config, _laid_out(config, card, usual | sigmoid_scores(config, factor=2.5), 3, 1))


def glm4_moe_lite(config: Config, name: str) -> Card:
    """GLM-4.7 Flash: DeepSeek V3's attention with GLM's experts, the first layer dense."""
    card, usual = latent_card(config, name)
    return with_mtp_layers(config, _laid_out(config, card, usual | sigmoid_scores(config, factor=1.8), 1, 1))


def mistral4(config: Config, name: str) -> Card:
    """Mistral 4: DeepSeek V3's attention, a softmax over all experts."""
    card, usual = latent_card(config, name)
    if rotary(config).get("partial_rotary_factor") == config["qk_rope_head_dim"] / card.head_dim:
        config.uses("partial_rotary_factor")
    words: dict[str, Value] = {"scores": "softmax", "normalised": config.flag("norm_topk_prob", default=True)}
    words |= expert_groups(config)
    factor = config.number("routed_scaling_factor", default=1.0)
    return _laid_out(config, card, usual | words | ({} if factor == 1 else {"routing_scale": factor}), 0, 1)


def minicpm3(config: Config, name: str) -> Card:
    """MiniCPM 3: latent attention, dense; the embedding, each part's result and the logits have factors."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    value = config.count("v_head_dim", default=hidden // heads)
    tied = config.flag("tie_word_embeddings", default=True)
    card, usual = latent_card(config.changed(v_head_dim=value), name)
    depth = config.number("scale_depth", default=math.sqrt(card.layers))
    base = config.number("dim_model_base", default=hidden)
    factors: dict[str, Any] = {"embedding_scale": config.number("scale_emb", default=1.0)}
    factors |= {"residual_scale": depth / math.sqrt(card.layers), "logit_scale": base / hidden}
    return with_layers(replace(card, tied=tied, **factors), [Layer()] * card.layers, usual | mlp_biases(config))


def axk1(config: Config, name: str) -> Card:
    """A.X K1: DeepSeek V3 with a norm after the experts."""
    config.count("q_lora_rank")
    card, usual = latent_card(config, name)
    words = {**usual, **sigmoid_scores(config, factor=2.5)}
    return with_mtp_layers(config, _laid_out(config, card, words, 1, 1, {"residual": "serial_ffn_post_norm"}))


def youtu(config: Config, name: str) -> Card:
    """Youtu-LLM: DeepSeek V3's attention, dense."""
    config.only("mlp_bias", False, "feed-forwards have no biases here")
    tied = config.flag("tie_word_embeddings", default=True)
    card, usual = latent_card(config, name)
    return with_layers(replace(card, tied=tied), [Layer()] * card.layers, usual)


def sparse(config: Config, name: str) -> Card:
    """DeepSeek V3.2 and GLM-5: as DeepSeek V3, with an indexer that chooses the keys of each query."""
    kinds = config.get("indexer_types", default=[])
    frequent = config.count("index_topk_freq", default=1, least=0)
    if frequent > 1 or config.get("index_topk_pattern") or any(each != "full" for each in _listed(kinds)):
        raise UsageError("indexer_types with layers that share the keys of others is not supported: full only")
    types = _listed(config.get("layer_types", default=[]))
    if any(each != "indexed_attention" for each in types):
        raise UsageError("layer_types is not supported here: indexed_attention only")
    config.only("mlp_bias", False, "feed-forwards have no biases here")
    words: dict[str, Value] = {
        "index_heads": config.count("index_n_heads"),
        "index_dim": config.count("index_head_dim"),
        "index_top": config.count("index_topk"),
    }
    config.uses("index_skip_topk_offset")
    card, usual = latent_card(config, name)
    return with_mtp_layers(config, _laid_out(config, card, usual | words | sigmoid_scores(config, factor=2.5), 3, 1))


def _listed(found: object) -> list[object]:
    """A list of types. UsageError for other values."""
    if not isinstance(found, list):
        raise UsageError(f"types of layers must be a list, not {shown(found)}")
    return found


def latent_card(config: Config, name: str) -> tuple[Card, dict[str, Value]]:
    """A card without experts yet, and the words of its attention."""
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    heads = config.count("num_attention_heads")
    for key, known in (
        ("head_dim", (rope, nope + rope)),
        ("qk_head_dim", (nope + rope,)),
        ("num_key_value_heads", (heads,)),
    ):
        if config.get(key, default=known[0]) not in known:
            raise UsageError(f"{key} {shown(config.get(key))} is not supported with latent attention: {known[0]} only")
    changed = config.changed(head_dim=nope + rope, num_key_value_heads=heads)
    card = decoder(changed, name, "deepseek")
    words: dict[str, Value] = {
        "mixer": "latent_attention",
        "q_rank": config.count("q_lora_rank", default=0, least=0),
        "kv_rank": config.count("kv_lora_rank"),
        "nope_dim": nope,
        "rope_dim": rope,
        "value_dim": config.count("v_head_dim"),
        "latent_bias": config.flag("attention_bias"),
        "scale": _scale(config, nope + rope),
    }
    return card, words


def _scale(config: Config, size: int) -> float:
    """The factor of scores: YaRN's, if positions are extended; 0: the usual one."""
    turned = rotary(config)
    factor, every = turned.get("factor"), turned.get("mscale_all_dim")
    if not isinstance(factor, int | float) or not isinstance(every, int | float) or not every or factor <= 1:
        return 0.0
    more = 0.1 * float(every) * math.log(factor) + 1.0
    return float(more * more / math.sqrt(size))


def _laid_out(
    config: Config,
    card: Card,
    usual: dict[str, Value],
    first: int,
    shared: int,
    routed: Mapping[str, Value] = MappingProxyType({}),
) -> Card:
    """first, shared: the dense first layers and the shared experts of a config that does not name them. routed: words
    of layers with experts."""
    if not config.get("n_routed_experts"):
        return with_layers(card, [Layer()] * card.layers, usual)
    width = config.count("moe_intermediate_size")
    shared = config.count("n_shared_experts", default=shared, least=0)
    card = with_experts(config, card, width, width * shared)
    sparse = experts_from(config, card.layers, first)
    return with_layers(card, [Layer(dense=not each, words=routed if each else {}) for each in sparse], usual)


READERS = {
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "KimiK2ForCausalLM": deepseek_v3,
    "Glm4MoeLiteForCausalLM": glm4_moe_lite,
    "Mistral4ForCausalLM": mistral4,
    "MiniCPM3ForCausalLM": minicpm3,
    "AXK1ForCausalLM": axk1,
    "YoutuForCausalLM": youtu,
    "DeepseekV32ForCausalLM": sparse,
    "GlmMoeDsaForCausalLM": sparse,
}
"""The reader of each architecture."""
