"""Decoders with gated short convolutions in most layers, and attention in the others: LFM2."""

from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import sigmoid_scores, with_experts
from stagedb.models.readers.layers import Layer, layer_types, with_layers
from stagedb.models.readers.parts import decoder

MIXER = "short_convolution"

_TYPES = {"conv": "convolution", "full_attention": "attention"}


def lfm2(config: Config, name: str) -> Card:
    """LFM2: gated short convolutions, attention with norms of queries and keys in the layers that it numbers."""
    card = _decoder(config, name, _width(config))
    types = layer_types(config, card.layers, _TYPES)
    config.uses("full_attn_idxs")
    types = types or ["attention" if each else "convolution" for each in _numbered(config, card.layers)]
    return _laid_out(config, card, types, [False] * card.layers)


def lfm2_moe(config: Config, name: str) -> Card:
    """LFM2 with experts, sigmoid scores, and feed-forwards in the first layers."""
    card = _decoder(config, name, config.count("intermediate_size"))
    card = with_experts(config, card, config.count("moe_intermediate_size"))
    types = layer_types(config, card.layers, _TYPES)
    if types is None:
        raise UsageError("missing layer_types")
    first = config.count("num_dense_layers", default=2, least=0)
    return _laid_out(config, card, types, [number < first for number in range(card.layers)], sigmoid_scores(config))


def _decoder(config: Config, name: str, ffn: int) -> Card:
    _check_publisher(config)
    card = decoder(config, name, "lfm2", ffn=ffn, activation="silu", qk_norm=True, floor=True, tied_default=True)
    tied = config.get("tie_embedding")
    return card if tied is None else replace(card, tied=config.flag("tie_embedding"))


def _laid_out(
    config: Config, card: Card, types: list[str], dense: list[bool], usual: dict[str, Value] | None = None
) -> Card:
    """The card with the mixer of each layer. dense: whether it has a feed-forward where others have experts."""
    short = {"conv_width": config.count("conv_L_cache", default=3), "conv_bias": config.flag("conv_bias")}
    layers = [
        Layer(dense=each, mixer=MIXER, words=short) if kind == "convolution" else Layer(dense=each)
        for kind, each in zip(types, dense, strict=True)
    ]
    return with_layers(card, layers, usual)


def _numbered(config: Config, layers: int) -> list[bool]:
    """Whether each layer has attention: those that the config numbers, or all."""
    numbers = config.get("full_attn_idxs", default=[*range(layers)])
    if not isinstance(numbers, list) or any(type(each) is not int or not 0 <= each < layers for each in numbers):
        raise UsageError(f"full_attn_idxs must be numbers of layers from 0 to {layers - 1}")
    return [number in numbers for number in range(layers)]


def _width(config: Config) -> int:
    """The width of feed-forwards: two thirds of the one that the config has, times a factor, in whole blocks."""
    older = config.get("block_ff_dim") is not None
    width = config.count("block_ff_dim" if older else "intermediate_size")
    config.uses("intermediate_size")
    block = config.count("block_multiple_of", default=256)
    factor = config.get("block_ffn_dim_multiplier")
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if factor is None:
        return width
    number = config.number("block_ffn_dim_multiplier", default=1.0)
    if number <= 0:
        raise UsageError(f"block_ffn_dim_multiplier must be above 0, not {shown(factor)}")
    return -(-int(number * width) // block) * block


def _check_publisher(config: Config) -> None:
    """Raise UsageError for a value of the publisher's own keys that its code does not have."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    for key, value in (("block_dim", hidden), ("conv_dim", hidden), ("conv_dim_out", hidden), ("num_heads", heads)):
        config.only(key, value, f"it is {value} by another key, which decides")
    config.only("block_use_swiglu", True, "its feed-forwards are gated")
    config.only("use_pos_enc", True, "its attention has rotary positions")


READERS = {
    "Lfm2ForCausalLM": lfm2,
    "Lfm2MoeForCausalLM": lfm2_moe,
}
"""The reader of each architecture."""
