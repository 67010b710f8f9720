"""MiniMax-01: lightning attention in most layers, softmax attention in the others, experts in all of them."""

from collections.abc import Mapping
from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import with_experts
from stagedb.models.readers.layers import Layer, layer_types, with_layers
from stagedb.models.readers.parts import decoder, turned

MIXER = "lightning_attention"

_TYPES = {"linear_attention": MIXER, "full_attention": ""}

_NUMBERS = {0: MIXER, 1: ""}
"""The types of layers in a publisher's file."""

_OF_CLASS = {MIXER: "linear_attn_{}_factor", "": "full_attn_{}_factor", "ffn": "mlp_{}_factor"}
_PUBLISHED = {
    MIXER: "layernorm_linear_attention_{}",
    "": "layernorm_full_attention_{}",
    "ffn": "layernorm_mlp_{}",
}
"""The keys of factors, by mixer and for the channel mixer: alpha is that of the stream, beta that of the result."""


def minimax(config: Config, name: str) -> Card:
    """MiniMax-01 as transformers has it: lightning attention, softmax attention in the layers named, experts in all."""
    card = with_experts(config, decoder(config, name, "minimax"), config.count("intermediate_size"))
    types = layer_types(config, card.layers, _TYPES)
    types = [MIXER if number % 2 else "" for number in range(card.layers)] if types is None else types
    attention = Layer(window=0 if config.get("sliding_window") is None else config.count("sliding_window"))
    return _laid_out(config, card, types, _OF_CLASS, attention, config.count("block_size", default=256))


def minimax_published(config: Config, name: str) -> Card:
    """MiniMax-Text-01 and MiniMax-M1 as their publisher has them: rotary positions on a part of each head."""
    config.only("shared_intermediate_size", 0, "a shared expert with a coefficient of its own is not built")
    config.only("sliding_window", None, "its attention has no window")
    config.uses("shared_moe_mode")
    if config.flag("postnorm") is not True:
        raise UsageError("postnorm false is not supported: layers whose stream goes on from norms only")
    card = with_experts(config, decoder(config, name, "minimax"), config.count("intermediate_size"))
    if card.heads & (card.heads - 1):
        raise UsageError(f"num_attention_heads {card.heads} is not supported: decays are for a power of two of them")
    numbers = config.need("attn_type_list")
    if not isinstance(numbers, list) or any(type(each) is not int or each not in _NUMBERS for each in numbers):
        raise UsageError(f"attn_type_list {shown(numbers)} is not supported: 0 (linear) and 1 (softmax) only")
    if len(numbers) != card.layers:
        raise UsageError(f"attn_type_list of {len(numbers)} layers, and there are {card.layers} layers")
    attention = Layer(words=turned(config, card))
    return _laid_out(config, card, [_NUMBERS[each] for each in numbers], _PUBLISHED, attention, 256)


def _laid_out(
    config: Config, card: Card, types: list[str], keys: Mapping[str, str], attention: Layer, chunk: int
) -> Card:
    """The card with its layers. types: the mixer of each layer that is not attention. chunk: the tokens of a scan's."""
    scanned: dict[str, Value] = {
        "lightning_heads": card.heads,
        "lightning_dim": card.head_dim,
        "lightning_chunk": chunk,
    }
    known = {
        MIXER: Layer(mixer=MIXER, words={**scanned, **_factors(config, "attn", keys[MIXER])}),
        "": replace(attention, words={**attention.words, **_factors(config, "attn", keys[""])}),
    }
    layers = [known[each] for each in types]
    usual: dict[str, Value] = {"residual": "normed_stream", **_factors(config, "ffn", keys["ffn"])}
    return with_layers(card, layers, usual)


def _factors(config: Config, word: str, key: str) -> dict[str, Value]:
    """The words for what multiplies the stream and a part's result. UsageError for factors that are not above 0."""
    found: dict[str, Value] = {}
    for side, own in (("stream", key.format("alpha")), ("result", key.format("beta"))):
        factor = config.number(own, default=1.0)
        if factor <= 0:
            raise UsageError(f"{own} {shown(factor)} is not supported: factors are above 0")
        found |= {} if factor == 1 else {f"{word}_{side}_scale": factor}
    return found


READERS = {
    "MiniMaxForCausalLM": minimax,
    "MiniMaxText01ForCausalLM": minimax_published,
    "MiniMaxM1ForCausalLM": minimax_published,
}
"""The reader of each architecture."""
