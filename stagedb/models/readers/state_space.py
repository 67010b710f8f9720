"""Decoders with the mixer of Mamba-2: alone, or in layers next to others with attention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.kinds.part import FAR
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import with_experts
from stagedb.models.readers.gated_decoders import granite_card, granite_scale
from stagedb.models.readers.layers import Layer, layer_types, with_layers
from stagedb.models.readers.parts import biases, decoder, turned
from stagedb.models.sizes import MOST_TOKENS

MIXER = "state_space"

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("linear_attention", "mamba"), "scan"),
    **dict.fromkeys(("full_attention", "attention"), "attention"),
}
"""Types of layers, in newer and older words."""


@dataclass(frozen=True)
class ScanKeys:
    """The keys of a config for the sizes of scans. dim: the values of a head; width: of the convolution."""

    heads: str = "mamba_n_heads"
    dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    width: str = "mamba_d_conv"
    chunk: str = "mamba_chunk_size"
    bias: str = "mamba_proj_bias"
    conv_bias: str = "mamba_conv_bias"
    activation: str = "hidden_act"


OF_MAMBA2 = ScanKeys(
    *("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "chunk_size", "use_bias", "use_conv_bias")
)
OF_NEMOTRON_H = ScanKeys(
    *("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "chunk_size"),
    *("use_bias", "use_conv_bias", "mamba_hidden_act"),
)


def scan_words(config: Config, keys: ScanKeys, dim: int = 0) -> dict[str, Value]:
    """The words of a mixer with a scan. dim: the values of a head where the config has no number of them."""
    config.only(keys.activation, "silu", "the kernels of the convolution and of gates have silu")
    words: dict[str, Value] = {
        "scan_heads": config.count(keys.heads),
        "scan_dim": dim or config.count(keys.dim),
        "scan_groups": config.count(keys.groups, default=1),
        "scan_state": config.count(keys.state),
        "scan_chunk": config.count(keys.chunk, default=256),
        "conv_width": config.count(keys.width, default=4),
        "scan_bias": config.flag(keys.bias),
        "conv_bias": config.flag(keys.conv_bias, default=True),
    }
    if int(words["scan_heads"]) % int(words["scan_groups"]):
        raise UsageError(f"{keys.groups} {words['scan_groups']} does not divide {keys.heads} {words['scan_heads']}")
    return words


_INFINITE = ("Infinity", {"__float__": "Infinity"})
"""A file's Infinity, which is read as a text, and how newer versions of transformers write it."""


def step_bounds(config: Config) -> dict[str, Value]:
    """The word for `time_step_limit`, the bounds of steps: the lower one. UsageError for an upper one."""
    found = config.get("time_step_limit", default=[0.0, math.inf])
    numbers = [math.inf if each in _INFINITE else each for each in found] if isinstance(found, list | tuple) else []
    if len(numbers) != 2 or any(type(each) not in (int, float) for each in numbers) or not 0 <= numbers[0] < FAR:
        raise UsageError(f"time_step_limit must be two numbers from 0, not {shown(found)}")
    if numbers[1] != math.inf:
        raise UsageError(f"time_step_limit {shown(found)} is not supported: steps have no upper bound here")
    return {"scan_least": float(numbers[0])} if numbers[0] else {}


def check_inner(config: Config, key: str, hidden: int, words: Mapping[str, Value]) -> None:
    """Raise UsageError if heads and their size are not as wide as `key` times the hidden size, as the class wants.

    hidden: the hidden size. words: of the scan, with the number of its heads and their size.
    """
    inner, wide = int(words["scan_heads"]) * int(words["scan_dim"]), config.count(key, default=2) * hidden
    if inner != wide:
        raise UsageError(f"the heads of the scan are {inner} wide, and {key} times the hidden size is {wide}")


def mamba2(config: Config, name: str) -> Card:
    """Mamba-2: a scan in each layer, and no feed-forward. Its sequences have no longest length."""
    words = scan_words(config, OF_MAMBA2) | step_bounds(config)
    config.only("rms_norm", True, "its gated norm is an RMSNorm")
    config.uses("norm_before_gate", "time_step_min", "time_step_rank")  # its own code reads none after weights began
    heads = int(words["scan_heads"])
    described: Any = {"layer": {"mixer": MIXER, **words, "channel_mixer": "none", "residual": "mixer_alone"}}
    card = Card(
        name=name,
        family="mamba2",
        hidden=config.count("hidden_size"),
        layers=config.count("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=int(words["scan_dim"]),
        ffn=0,
        vocab=config.count("vocab_size"),
        norm="rmsnorm",
        mlp="gated",
        activation="silu",
        positions="none",
        max_positions=MOST_TOKENS,
        tied=config.flag("tie_word_embeddings"),
        linear_bias=False,
        qkv_bias=False,
        source="config.json",
        layer_kinds=described,
    )
    check_inner(config, "expand", card.hidden, words)
    return card


def bamba(config: Config, name: str) -> Card:
    """Bamba: scans, attention in the layers that it numbers, positions on half of each head."""
    card = decoder(config, name, "bamba")
    config.uses("num_logits_to_keep")
    numbers = config.get("attn_layer_indices", default=[])
    if not isinstance(numbers, list) or any(type(each) is not int or not 0 <= each < card.layers for each in numbers):
        raise UsageError(f"attn_layer_indices must be numbers of layers from 0 to {card.layers - 1}")
    types = ["attention" if number in numbers else "scan" for number in range(card.layers)]
    named = layer_types(config, card.layers, TYPES)
    if named is not None and named != types:
        raise UsageError("layer_types are others than those of attn_layer_indices, which decides: leave it out")
    bias = biases("all" if config.flag("attention_bias") else "none", config.flag("mlp_bias"))
    return _mixed(config, card, types, {**bias, **turned(config, card, 0.5)})


def granite_hybrid(config: Config, name: str) -> Card:
    """Granite 4 hybrid: its factors, scans or attention by the type of a layer, experts in some."""
    shared = config.count("shared_intermediate_size", default=1024)
    experts = config.count("num_local_experts", default=8, least=0)
    kind = config.get("position_embedding_type")
    if kind not in (None, "rope", "nope"):
        raise UsageError(f"position_embedding_type {shown(kind)} is not supported: rope or null only")
    width = config.count("intermediate_size")
    card = granite_card(config.changed(intermediate_size=shared), name)
    config.uses("intermediate_size")
    card = replace(card, positions="rotary" if kind == "rope" else "none")
    if experts:
        card = replace(with_experts(config, card, width, shared), ffn=0)
    else:
        config.uses("num_experts_per_tok", "num_local_experts")
    types = layer_types(config, card.layers, TYPES) or ["scan"] * card.layers
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    gate: dict[str, Value] = {} if experts else {"gate_up": "fused"}
    return _mixed(config, card, types, {**bias, **gate, **granite_scale(config)})


def _mixed(config: Config, card: Card, types: list[str], words: Mapping[str, Value]) -> Card:
    """The card with a scan or attention in each layer, as its type names. words: those of all layers."""
    head = config.get("mamba_d_head", default="auto")
    expanded = config.count("mamba_expand", default=2) * card.hidden
    dim = expanded // config.count("mamba_n_heads") if head == "auto" else 0
    scan = scan_words(config, ScanKeys(), dim) | step_bounds(config)
    check_inner(config, "mamba_expand", card.hidden, scan)
    each = {"scan": Layer(mixer=MIXER, words=scan), "attention": Layer()}
    return with_layers(card, [each[kind] for kind in types], words)


READERS = {
    "BambaForCausalLM": bamba,
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "Mamba2ForCausalLM": mamba2,
}
"""The reader of each architecture."""
