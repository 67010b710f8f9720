"""Nemotron-H and Nemotron 3: scans, attention, feed-forwards and experts.

A block of a config is a norm and one part. Where each attention is followed by a feed-forward or experts, two blocks
are a layer of the card; in every other order each block is a layer of its own, with a mixer or a channel mixer alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.part import FAR
from stagedb.models.readers.config import OF_STATES, Config
from stagedb.models.readers.expert_decoders import sigmoid_scores, with_experts
from stagedb.models.readers.layers import Layer, taken, with_layers
from stagedb.models.readers.parts import activation, decoder, without_mtp_layers
from stagedb.models.readers.state_space import MIXER, OF_NEMOTRON_H, scan_words

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_LEGACY = {"mamba": "linear_attention", "attention": "full_attention"}

_SCAN, _ATTENTION, _FEED_FORWARD, _EXPERTS = _LETTERS.values()

_NAMES = {_SCAN: "scan", _ATTENTION: "attention", _FEED_FORWARD: "mlp", _EXPERTS: "moe"}
"""The kinds of layers with one part."""


def nemotron_h(config: Config, name: str) -> Card:
    """Nemotron-H and Nemotron 3: scans (Mamba-2), attention without positions, feed-forwards, plain and latent experts,
    a norm before each."""
    types = _types(config)
    if config.given("attention_head_dim") is not None:  # the word of its first files
        config = config.changed(head_dim=config.get("head_dim", "attention_head_dim"))
    config.uses("sliding_window", "partial_rotary_factor", "time_step_rank", *OF_STATES)
    config.only("attention_bias", False, "its attention has no biases")
    config.only("tie_word_embeddings", False, "its own code does not tie the tables")
    without_mtp_layers(config, "of this architecture")
    config.uses("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    pairs, experts = _are_pairs(types), _EXPERTS in types
    bias = config.flag("mlp_bias")
    if bias and experts:
        raise UsageError("mlp_bias True is not supported with experts: their shared experts and projections have none")
    plain = {"mlp": "plain", "activation": activation(config, "mlp_hidden_act", default="relu2"), "positions": "none"}
    layers = len(types) // 2 if pairs else len(types)
    card = decoder(config.changed(num_hidden_layers=layers), name, "nemotron-h", **plain)
    words: dict[str, Value] = {"ffn_bias": "all"} if bias else {}
    keys = ("moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size", "n_shared_experts")
    config.uses(*keys, "n_routed_experts", "num_experts_per_tok", "routed_scaling_factor", "norm_topk_prob")
    if experts:
        card = with_experts(config, card, config.count(keys[0]), config.count(keys[1]))
        words |= {**sigmoid_scores(config), "expert_latent": config.count(keys[2], default=0, least=0)}
    if pairs:
        return with_layers(card, [Layer(dense=experts and each == _FEED_FORWARD) for each in types[1::2]], words)
    return _with_parts(config, card, types, words)


def _with_parts(config: Config, card: Card, types: list[str], words: Mapping[str, Value]) -> Card:
    """The card with a layer for each block. words: those of feed-forwards and experts."""
    scan: dict[str, Value] = {}
    if _SCAN in types:
        scan = scan_words(config, OF_NEMOTRON_H)
        least = config.number("time_step_min", default=0.001)
        if not 0 <= least < FAR:
            raise UsageError(f"time_step_min must be a number from 0, not {shown(least)}")
        scan |= {"scan_least": least}
    alone: dict[str, Value] = {"channel_mixer": "none", "residual": "mixer_alone"}
    after: dict[str, Value] = {"mixer": "none", "residual": "channel_mixer_alone", **words}
    contents: dict[str, dict[str, Value]] = {
        _SCAN: {**alone, "mixer": MIXER, **scan},
        _ATTENTION: {**alone, "mixer": "attention"},
        _FEED_FORWARD: {**after, "channel_mixer": "feed_forward"},
        _EXPERTS: {**after, "channel_mixer": "experts"},
    }
    kinds: Any = {_NAMES[each]: taken(contents[each]) for each in dict.fromkeys(types)}
    ffn = card.ffn if _FEED_FORWARD in types else 0
    return replace(card, ffn=ffn, layer_kinds=kinds, pattern=tuple(_NAMES[each] for each in types))


def _types(config: Config) -> list[str]:
    """The types of blocks in newer words."""
    types = config.get("layers_block_type", "layer_types")
    letters = config.get("hybrid_override_pattern")
    if types is None and isinstance(letters, str):
        types = [_LETTERS.get(each, each) for each in letters]
    if not isinstance(types, list) or not types or not all(isinstance(each, str) for each in types):
        raise UsageError(f"layers_block_type must be a list of types of blocks, not {shown(types)}")
    types = [_LEGACY.get(each, each) for each in types]
    unknown = [each for each in types if each not in _LETTERS.values()]
    if unknown:
        raise UsageError(f"layers_block_type {shown(unknown[0])} is not supported: {', '.join(_LETTERS.values())} only")
    if config.get("num_hidden_layers", default=len(types)) != len(types):
        raise UsageError(f"num_hidden_layers must be {len(types)}, as many as layers_block_type has")
    return types


def _are_pairs(types: list[str]) -> bool:
    """Whether each attention is followed by one feed-forward or experts, and there is nothing else."""
    return len(types) % 2 == 0 and set(types[::2]) == {_ATTENTION} and set(types[1::2]) <= {_FEED_FORWARD, _EXPERTS}


READERS = {"NemotronHForCausalLM": nemotron_h}
"""The reader of each architecture."""
