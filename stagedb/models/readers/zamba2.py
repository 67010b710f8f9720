"""Zamba 2: scans (Mamba-2), and in some layers before them a block whose weights layers share."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.part import FAR
from stagedb.models.readers.config import Config
from stagedb.models.readers.parts import activation, decoder
from stagedb.models.readers.state_space import MIXER, ScanKeys, scan_words

HYBRID = "hybrid"
SCAN = "scan"

TYPES: Mapping[str, str] = {**dict.fromkeys(("linear_attention", "mamba"), SCAN), HYBRID: HYBRID}
"""Types of layers, in newer and older words."""

KEYS = ScanKeys(
    *("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_d_state", "mamba_d_conv", "chunk_size"),
    *("add_bias_linear", "use_conv_bias"),
)

_LONG = 16384
"""The positions of a model with `use_long_context`."""


def zamba2(config: Config, name: str) -> Card:
    """Zamba 2: in `hybrid` layers a shared block, with adapters of the layer's own, before the scan."""
    config.uses("num_logits_to_keep", "use_conv_bias", "kv_channels", "num_query_groups")
    config.uses("hybrid_layer_ids", "max_position_embeddings")
    config.only("tie_word_embeddings", True, "its own code shares neither tables nor blocks then")
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads", default=32)
    _same(config, "attention_hidden_size", 2 * hidden, "twice the hidden size, which blocks read")
    long = {"max_positions": _LONG} if config.flag("use_long_context") else {}
    card = decoder(
        config.changed(head_dim=config.count("head_dim", default=2 * hidden // heads)),
        name,
        "zamba2",
        activation=activation(config, "hidden_act", default="gelu"),
        positions="rotary" if config.flag("use_mem_rope") else "none",
        ffn=config.count("intermediate_size", default=4 * hidden),
        tied_default=True,
        **long,
    )
    types = _types(config, card.layers)
    scan = _scan(config, hidden)
    kinds: Any = {SCAN: {"mixer": MIXER, **scan, "channel_mixer": "none", "residual": "mixer_alone"}}
    kinds[HYBRID] = {"mixer": "shared_block", **scan, "channel_mixer": "none", "residual": "mixer_of_stream"}
    kinds[HYBRID] |= _block(config, card, types.count(HYBRID))
    used: Any = {each: kinds[each] for each in dict.fromkeys(types)}
    return replace(card, layer_kinds=used, pattern=tuple(types))


def _same(config: Config, key: str, size: int, why: str) -> None:
    """Raise UsageError for a key that the class makes of others, with another value."""
    if config.given(key) not in (None, size):
        raise UsageError(f"{key} {shown(config.given(key))} is not supported: it is {size}, {why}")
    config.uses(key)


def _types(config: Config, layers: int) -> list[str]:
    """The type of each layer. UsageError for an unknown one, and for another number of them."""
    types = config.need("layers_block_type")
    if not isinstance(types, list) or len(types) != layers or any(each not in TYPES for each in types):
        raise UsageError(f"layers_block_type must be {' or '.join(TYPES)} for each of {layers} layers")
    found = [TYPES[each] for each in types]
    numbers = [number for number, each in enumerate(found) if each == HYBRID]
    given = config.given("hybrid_layer_ids")
    if given is not None and given != numbers:
        raise UsageError(
            f"hybrid_layer_ids {shown(given)} are not the hybrid layers of layers_block_type: leave it out"
        )
    return found


def _scan(config: Config, hidden: int) -> dict[str, Value]:
    """The words of scans, whose convolutions have a bias and whose steps a least value in every config."""
    expand, heads = config.count("mamba_expand", default=2), config.count("n_mamba_heads", default=8)
    if expand * hidden % heads:
        raise UsageError(f"n_mamba_heads {heads} does not divide {expand * hidden}, mamba_expand times the hidden size")
    _same(config, "mamba_headdim", expand * hidden // heads, "mamba_expand times the hidden size over n_mamba_heads")
    words = scan_words(config.changed(hidden_act="silu"), KEYS, expand * hidden // heads)
    least = config.number("time_step_min", default=0.001)
    if not 0 <= least < FAR:
        raise UsageError(f"time_step_min must be a number from 0, not {shown(least)}")
    return {**words, "conv_bias": True, "scan_least": least}


def _block(config: Config, card: Card, layers: int) -> dict[str, Value]:
    """The words of the blocks that layers share. layers: how many there are."""
    blocks, adapters = config.count("num_mem_blocks", default=1), config.flag("use_shared_attention_adapter")
    if adapters and {card.heads * card.head_dim, card.kv_heads * card.head_dim} != {2 * card.hidden}:
        raise UsageError(
            f"use_shared_attention_adapter with {card.heads} heads and {card.kv_heads} key/value heads of "
            f"{card.head_dim} is not supported: its adapters make queries, keys and values of {2 * card.hidden}"
        )
    words: dict[str, Value] = {
        "shared_blocks": max(1, min(blocks, layers)),
        "adapter_rank": config.count("adapter_rank", default=128),
        "attention_adapters": adapters,
    }
    return words | ({"ffn_bias": "all"} if config.flag("add_bias_linear") else {})


READERS = {"Zamba2ForCausalLM": zamba2}
"""The reader of each architecture."""
