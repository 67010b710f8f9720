"""Decoders with the mixer of Mamba-1: alone, or in layers next to others with attention."""

from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import with_experts
from stagedb.models.readers.layers import Layer, with_layers
from stagedb.models.readers.parts import decoder
from stagedb.models.sizes import MOST_TOKENS

MIXER = "selective_scan"


@dataclass(frozen=True)
class SelectiveKeys:
    """The keys of a config for the sizes of scans. rank: of the latent of the steps; width: of the convolution."""

    state: str = "state_size"
    width: str = "conv_kernel"
    rank: str = "time_step_rank"
    bias: str = "use_bias"
    conv_bias: str = "use_conv_bias"


OF_JAMBA = SelectiveKeys("mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_proj_bias", "mamba_conv_bias")


def selective_words(config: Config, keys: SelectiveKeys, hidden: int, inner: int, norm: str) -> dict[str, Value]:
    """The words of a mixer with a selective scan.

    inner: its channels. norm: `scan_norm`, which a class decides. Where the config has no size of the latent, it is a
    sixteenth of the hidden size, rounded up.
    """
    config.only("hidden_act", "silu", "the kernels of the convolution and of gates have silu")
    rank = config.get(keys.rank, default="auto")
    return {
        "scan_inner": inner,
        "scan_state": config.count(keys.state, default=16),
        "scan_rank": -(-hidden // 16) if rank == "auto" else config.count(keys.rank),
        "scan_norm": norm,
        "scan_bias": config.flag(keys.bias),
        "conv_width": config.count(keys.width, default=4),
        "conv_bias": config.flag(keys.conv_bias, default=True),
    }


def mamba(config: Config, name: str) -> Card:
    """Mamba: a selective scan in each layer, and no feed-forward. Its sequences have no longest length."""
    return _of_scans(config, name, "mamba", "none")


def falcon_mamba(config: Config, name: str) -> Card:
    """Falcon-Mamba: Mamba, with norms without weights of the latent of the steps, B and C."""
    return _of_scans(config, name, "falcon-mamba", "unweighted")


def _of_scans(config: Config, name: str, family: str, norm: str) -> Card:
    hidden = config.count("hidden_size", "d_model")
    expanded = config.count("expand", default=2) * hidden
    inner = config.count("intermediate_size", "d_inner", default=expanded)
    config.only("rms_norm", True, "its norms are RMSNorms")
    # How weights begin, a kernel, and what vocab_size has been padded to.
    config.uses("time_step_min", "fused_add_norm", "pad_vocab_size_multiple")
    words = selective_words(config, SelectiveKeys(), hidden, inner, norm)
    described: Any = {"layer": {"mixer": MIXER, **words, "channel_mixer": "none", "residual": "mixer_alone"}}
    return Card(
        name=name,
        family=family,
        hidden=hidden,
        layers=config.count("num_hidden_layers", "n_layer"),
        heads=inner,
        kv_heads=inner,
        head_dim=1,
        ffn=0,
        vocab=config.count("vocab_size"),
        norm="rmsnorm",
        mlp="gated",
        activation="silu",
        positions="none",
        max_positions=MOST_TOKENS,
        tied=config.flag("tie_word_embeddings", default=True),
        linear_bias=False,
        qkv_bias=False,
        source="config.json",
        layer_kinds=described,
    )


def jamba(config: Config, name: str) -> Card:
    """Jamba: selective scans with norms, attention without positions in each n-th layer, experts in each m-th."""
    longest = config.count("max_position_embeddings", "n_ctx", default=262144)
    card = decoder(config, name, "jamba", positions="none", max_positions=longest)
    config.only("mamba_inner_layernorms", True, "the latent of its steps, B and C are normalised")
    config.uses("calc_logits_for_entire_prompt")
    attention, sparse = (_in_turn(config, card.layers, *each) for each in (("attn", 8, 4), ("expert", 2, 1)))
    if config.count("num_experts") > 1:
        card = with_experts(config, card, card.ffn)
    else:
        config.uses("num_experts_per_tok")
        sparse = [False] * card.layers
    inner = config.count("mamba_expand", default=2) * card.hidden
    scan = selective_words(config, OF_JAMBA, card.hidden, inner, "weighted")
    dense = [bool(card.experts) and not experts for experts in sparse]
    layers = [
        Layer(dense=each) if attends else Layer(dense=each, mixer=MIXER, words=scan)
        for each, attends in zip(dense, attention, strict=True)
    ]
    return with_layers(card, layers, {"scores": "softmax", "normalised": False})


def _in_turn(config: Config, layers: int, of: str, period: int, offset: int) -> list[bool]:
    """For each layer whether it comes after `offset` others in its `period`, from 0. period, offset: the defaults."""
    period = config.count(f"{of}_layer_period", default=period)
    offset = config.count(f"{of}_layer_offset", default=offset, least=0)
    if offset >= period:
        raise UsageError(f"{of}_layer_offset {shown(offset)} must be below {of}_layer_period {shown(period)}")
    return [number % period == offset for number in range(layers)]


READERS = {
    "FalconMambaForCausalLM": falcon_mamba,
    "JambaForCausalLM": jamba,
    "MambaForCausalLM": mamba,
}
"""The reader of each architecture."""
