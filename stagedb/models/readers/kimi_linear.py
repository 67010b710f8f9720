"""Kimi Linear: Kimi delta attention in most layers, latent attention without positions in the others, experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import sigmoid_scores, with_experts
from stagedb.models.readers.latent_decoders import latent_card
from stagedb.models.readers.layers import Layer, experts_from, layer_types, with_layers

MIXER = "kimi_delta"

_TYPES = {"linear_attention": "delta", "full_attention": "attention"}

_LISTS = {"kda_layers": "delta", "full_attn_layers": "attention"}
"""Lists of the numbers of layers, from 1, in `linear_attn_config`."""

_SIZES = {"num_heads": "linear_num_heads", "head_dim": "linear_head_dim"}
_WIDTH = ("short_conv_kernel_size", "linear_conv_kernel_dim")


def kimi_linear(config: Config, name: str) -> Card:
    """Kimi Linear: Kimi delta attention in three of four layers, latent attention without positions, experts."""
    config.only("hidden_act", "silu", "the kernels of the convolution and of gates have silu")
    config.only("moe_router_activation_func", "sigmoid", "its router has sigmoid scores")
    config.only("mla_use_nope", True, "its attention has no positions")
    config.only("mla_use_output_gate", False, "its attention has no gates")
    config.only("moe_layer_freq", 1, "all layers behind the first ones have experts")
    config.only("tie_word_embeddings", False, "its own code does not tie the tables")
    card, usual = latent_card(_with_known_heads(config), name)
    card = replace(card, family="kimi-linear", positions="none")
    inner = _inner(config)
    width = config.count("moe_intermediate_size")
    card = with_experts(config, card, width, width * config.count("n_shared_experts", default=1, least=0))
    types = layer_types(config, card.layers, _TYPES) or _numbered(inner, card.layers)
    delta = {f"kda_{ours}": _size(config, inner, key, own) for ours, (key, own) in _words().items()}
    delta |= {"conv_width": _size(config, inner, *_WIDTH), "conv_bias": False}
    sparse = experts_from(config, card.layers, 1)
    layers = [
        Layer(dense=not each, mixer=MIXER, words=delta) if kind == "delta" else Layer(dense=not each)
        for kind, each in zip(types, sparse, strict=True)
    ]
    return with_layers(card, layers, {**usual, "scale": 0.0, **sigmoid_scores(config, factor=2.446)})


def _with_known_heads(config: Config) -> Config:
    """The config without a size of heads that nothing reads: a publisher's is the hidden size over the heads."""
    rope, size = config.count("qk_rope_head_dim"), config.get("head_dim")
    if size == config.count("hidden_size") // config.count("num_attention_heads"):
        return config.changed(head_dim=rope)
    return config


def _words() -> Mapping[str, tuple[str, str]]:
    return {ours: (key, _SIZES[key]) for ours, key in (("heads", "num_heads"), ("dim", "head_dim"))}


def _inner(config: Config) -> Mapping[str, Any]:
    """The settings of linear attention in a publisher's file. UsageError for a key that the class does not read."""
    found = config.get("linear_attn_config", default={})
    if not isinstance(found, Mapping):
        raise UsageError(f"linear_attn_config must be a mapping, not {shown(found)}")
    for key in found:
        if key not in (*_SIZES, *_LISTS, _WIDTH[0]):
            raise UsageError(f"linear_attn_config: {key} is not supported: the class of its config has no such key")
    return found


def _size(config: Config, inner: Mapping[str, Any], key: str, own: str) -> Value:
    """A size of the publisher's file, which decides, or of the class's key."""
    usual = {"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}[own]
    given = config.count(own, default=usual)
    found = inner.get(key, given)
    if type(found) is not int or found < 1:
        raise UsageError(f"linear_attn_config: {key} must be a whole number from 1, not {shown(found)}")
    return found


def _numbered(inner: Mapping[str, Any], layers: int) -> list[str]:
    """The type of each layer by the lists of a publisher's file; without them each fifth, ninth, … has attention."""
    if not all(key in inner for key in _LISTS):
        return ["attention" if number and number % 4 == 0 else "delta" for number in range(layers)]
    found: dict[int, str] = {}
    for key, kind in _LISTS.items():
        numbers = inner[key]
        if not isinstance(numbers, list) or any(type(n) is not int or not 1 <= n <= layers for n in numbers):
            raise UsageError(f"linear_attn_config: {key} must be numbers of layers from 1 to {layers}")
        found |= dict.fromkeys(numbers, kind)
    if len(found) != layers or sum(len(inner[key]) for key in _LISTS) != layers:
        raise UsageError(f"linear_attn_config: {' and '.join(_LISTS)} must name each of {layers} layers once")
    return [found[number] for number in range(1, layers + 1)]


READERS = {"KimiLinearForCausalLM": kimi_linear}
"""The reader of each architecture."""
