"""RecurrentGemma: gated linear recurrences, and attention in a window, in turn."""

import math

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import activation, decoder, turned
from stagedb.models.sizes import MOST_TOKENS

MIXER = "gated_recurrence"

_BLOCKS = ("recurrent", "attention")


def recurrent_gemma(config: Config, name: str) -> Card:
    """RecurrentGemma: gated recurrences in two of three layers, attention in a window in the others."""
    config.only("embeddings_scale_by_sqrt_dim", True, "its embedded tokens are scaled")
    card = decoder(
        config,
        name,
        "recurrent-gemma",
        activation=activation(config, "hidden_activation", default="gelu_pytorch_tanh"),
        ffn=config.count("intermediate_size") // 2,
        max_positions=MOST_TOKENS,
        tied_default=True,
        floor=True,
        embedding_scale=math.sqrt(config.count("hidden_size")),
        logit_softcap=config.number("logits_soft_cap", default=30.0),
    )
    window = config.count("attention_window_size", default=2048)
    recurrence = Layer(mixer=MIXER, words=_recurrence_words(config, card))
    layers = [recurrence if each == "recurrent" else Layer(window=window) for each in _block_types(config, card.layers)]
    bias = "all" if config.flag("attention_bias") else "out"
    return with_layers(card, layers, {"bias": bias, "ffn_bias": "all", **turned(config, card, 0.5)})


def _recurrence_words(config: Config, card: Card) -> dict[str, Value]:
    width = config.count("lru_width", default=card.hidden)
    if width % card.heads:
        raise UsageError(f"lru_width {width} does not divide into num_attention_heads {card.heads}, its blocks")
    return {
        "recurrence_blocks": card.heads,
        "recurrence_values": width // card.heads,
        "conv_width": config.count("conv1d_width", default=4),
    }


def _block_types(config: Config, layers: int) -> list[str]:
    """The block of each layer: those of the config, again and again."""
    blocks = config.get("block_types", default=["recurrent", "recurrent", "attention"])
    if not isinstance(blocks, list | tuple) or not blocks or any(each not in _BLOCKS for each in blocks):
        raise UsageError(f"block_types {shown(blocks)} is not supported: {' and '.join(_BLOCKS)} only")
    return [blocks[number % len(blocks)] for number in range(layers)]


READERS = {"RecurrentGemmaForCausalLM": recurrent_gemma}
"""The reader of each architecture."""
