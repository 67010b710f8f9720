"""LongCat-Flash: two latent attentions and two feed-forwards a layer, with experts on a shortcut, some of them zero."""

from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import with_experts
from stagedb.models.readers.latent_decoders import latent_card
from stagedb.models.readers.parts import without_mtp_layers

ALONE = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "router_bias": False,
    "zero_expert_type": "identity",
}
"""Keys of the publisher's files that the package's class does not read, each with the one value that its code has."""


def longcat_flash(config: Config, name: str) -> Card:
    """LongCat-Flash: a softmax over all experts, zero ones included, whose chosen scores have a factor."""
    for key, value in ALONE.items():
        config.only(key, value, "the layers of its code have this alone")
    without_mtp_layers(config, "of this architecture")
    layers = _layers(config)
    config = config.changed(num_hidden_layers=layers, intermediate_size=config.count("ffn_hidden_size"))
    config.count("q_lora_rank")
    card, usual = latent_card(config, name)
    card = with_experts(config, card, config.count("expert_ffn_hidden_size"))
    zero = config.count("zero_expert_num", default=0, least=0)
    card = replace(card, top_k=_with_weights(card.top_k, card.experts, zero))
    words: dict[str, Value] = {
        **usual,
        "mixer": "shortcut_experts",
        "channel_mixer": "none",
        "residual": "mixer_makes_stream",
        "query_scale": _factor(card.hidden, int(usual["q_rank"])),
        "latent_scale": _factor(card.hidden, int(usual["kv_rank"])),
        "scores": "softmax",
        "normalised": False,
        "zero_experts": zero,
    }
    factor = config.number("routed_scaling_factor", default=6.0)
    kinds: Any = {"layer": words | ({} if factor == 1 else {"routing_scale": factor})}
    return replace(card, layer_kinds=kinds)


def _layers(config: Config) -> int:
    """The number of layers. Each has two attentions, and `num_hidden_layers` counts those."""
    attentions = config.given("num_hidden_layers")
    config.uses("num_hidden_layers")
    layers = config.count("num_layers")
    if attentions not in (None, 2 * layers):
        raise UsageError(
            f"num_hidden_layers {shown(attentions)} is not supported: it is {2 * layers}, twice num_layers, or left out"
        )
    return layers


def _factor(hidden: int, rank: int) -> float:
    """The factor of what is made from a latent of this rank (`mla_scale_q_lora`, `mla_scale_kv_lora`)."""
    return float((hidden / rank) ** 0.5)


def _with_weights(choices: int, experts: int, zero: int) -> int:
    """How many of a token's choices are of experts with weights in the mean over all experts."""
    found, rest = divmod(choices * experts, experts + zero)
    if rest or not found:
        raise UsageError(
            f"moe_topk {choices} of {experts} experts and {zero} zero experts is not supported: {choices * experts}/"
            f"{experts + zero} of a token's choices are of experts with weights in the mean, which is no whole number"
        )
    return found


READERS = {"LongcatFlashForCausalLM": longcat_flash}
"""The reader of each architecture."""
