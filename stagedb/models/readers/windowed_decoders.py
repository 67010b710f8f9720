"""Decoders whose layers differ by windows, positions and experts together: Hunyuan 3, Trinity, Granite with windows."""

import math
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config, rotary_dim
from stagedb.models.readers.expert_decoders import sigmoid_scores, softmax_scores, with_experts
from stagedb.models.readers.gated_decoders import granite_card, granite_scale, windows
from stagedb.models.readers.layers import Layer, experts_from, read_sparse, with_layers
from stagedb.models.readers.parts import biases, decoder, mlp_biases


def hunyuan3(config: Config, name: str) -> Card:
    """Hunyuan 3: norms of queries and keys, sigmoid scores, a shared expert, the first layer dense."""
    width = config.count("moe_intermediate_size")
    shared = width * config.count("num_shared_experts", default=1, least=0)
    card = with_experts(config, decoder(config, name, "hunyuan"), width, shared)
    factor = config.number("router_scaling_factor", default=1.0)
    words: dict[str, Value] = {"qk_norm": "head", "scores": "sigmoid", "routing_scale": factor}
    words |= biases("all" if config.flag("attention_bias") else "none", False) | mlp_biases(config, shared)
    return with_layers(card, [Layer(dense=not each) for each in experts_from(config, card.layers, 1)], words)


def mellum(config: Config, name: str) -> Card:
    """Mellum 2: Qwen 3 with experts, windows in the layers that its types name."""
    card = with_experts(config, decoder(config, name, "qwen3", qk_norm=True), config.count("moe_intermediate_size"))
    typed = config if config.get("layer_types") else config.changed(layer_types=["full_attention"] * card.layers)
    sparse = experts_from(config, card.layers)
    layers = [
        Layer(window=window, dense=not each) for window, each in zip(windows(typed, card.layers), sparse, strict=True)
    ]
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, layers, {**bias, **softmax_scores(config, True)})


def granite_swa(config: Config, name: str) -> Card:
    """Granite 4 with windows: its factors, sinks, and positions in the layers that have a base of them."""
    card = granite_card(config, name, tied=True)
    bias = biases("all" if config.flag("attention_bias") else "none", config.flag("mlp_bias"))
    return with_layers(card, _granite_layers(config, card), {"sinks": True, **bias, **granite_scale(config)})


def granite_moe_swa(config: Config, name: str) -> Card:
    """Granite 4 with windows and experts."""
    shared = config.count("shared_intermediate_size", default=0, least=0)
    card = with_experts(config, granite_card(config, name), config.count("intermediate_size"), shared)
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, _granite_layers(config, card), {"sinks": True, **bias, **granite_scale(config)})


def _granite_layers(config: Config, card: Card) -> list[Layer]:
    types = ["sliding_attention" if number % 4 else "full_attention" for number in range(card.layers)]
    typed = config if config.get("layer_types") else config.changed(layer_types=types)
    bases = config.get("layer_rope_theta", default=[1] * card.layers)
    if (
        not isinstance(bases, list)
        or len(bases) != card.layers
        or any(type(each) not in (int, float) for each in bases)
    ):
        raise UsageError(f"layer_rope_theta must have a number for each of {card.layers} layers, not {shown(bases)}")
    return [
        Layer(window=window, rotary=bool(base)) for window, base in zip(_windows(typed, card, 128), bases, strict=True)
    ]


def _windows(config: Config, card: Card, window: int) -> list[int]:
    """The window of each layer, of this size if the config has none."""
    if config.get("sliding_window") is None:
        config = config.changed(sliding_window=window)
    return windows(config, card.layers)


def flint(config: Config, name: str) -> Card:
    """Flint: sinks, positions in layers with windows alone, sigmoid scores, shared experts."""
    shared = config.count("shared_expert_intermediate_size", default=0, least=0)
    card = with_experts(
        config, decoder(config, name, "flint", qk_norm=True), config.count("moe_intermediate_size"), shared
    )
    last = card.layers - 1
    whole = [number < 2 or number % 4 == 1 or number == last for number in range(card.layers)]
    types = ["full_attention" if each else "sliding_attention" for each in whole]
    typed = config if config.get("layer_types") else config.changed(layer_types=types)
    first = config if config.get("mlp_only_layers") is not None else config.changed(mlp_only_layers=[0, 1])
    layers = [
        Layer(window=window, rotary=bool(window), dense=not each)
        for window, each in zip(_windows(typed, card, 513), read_sparse(first, card.layers), strict=True)
    ]
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, layers, {"sinks": True, **bias, **sigmoid_scores(config)})


def kolibri(config: Config, name: str) -> Card:
    """Kolibri: norms before and after parts, positions in layers with windows alone, sigmoid scores, shared experts."""
    width = config.count("moe_intermediate_size")
    shared = config.count("shared_expert_intermediate_size", default=width)
    config.uses("intermediate_size")
    card = with_experts(config, decoder(config, name, "kolibri", ffn=width), width, shared)
    every = ["sliding_attention" if (number + 1) % 5 else "full_attention" for number in range(card.layers)]
    typed = config if config.get("layer_types") else config.changed(layer_types=every)
    layers = [Layer(window=each, rotary=bool(each)) for each in _windows(typed, card, 513)]
    words: dict[str, Value] = {"residual": "sandwich", "qk_norm": "head", **sigmoid_scores(config, normalised=False)}
    return with_layers(card, layers, words)


def afmoe(config: Config, name: str) -> Card:
    """Trinity: a gate of its own matmul, norms before and after parts, positions in layers with windows alone."""
    width = config.count("moe_intermediate_size")
    shared = width * config.count("num_shared_experts", default=2, least=0)
    scale = math.sqrt(config.count("hidden_size")) if config.flag("mup_enabled") else 0.0
    card = with_experts(config, decoder(config, name, "afmoe", qk_norm=True, embedding_scale=scale), width, shared)
    every = config.count("global_attn_every_n_layers", default=4)
    types = ["sliding_attention" if (number + 1) % every else "full_attention" for number in range(card.layers)]
    typed = config if config.get("layer_types") else config.changed(layer_types=types)
    first = config.count("num_dense_layers", default=1, least=0)
    layers = [
        Layer(window=window, rotary=bool(window), dense=number < first)
        for number, window in enumerate(_windows(typed, card, 1024))
    ]
    factor = config.number("route_scale", default=1.0)
    # The bias that corrects the scores is a parameter in the model's own code, here and in Laguna.
    words: dict[str, Value] = {"residual": "sandwich", "gate": "values", "scores": "sigmoid", "router_bias": True}
    words |= {} if factor == 1 else {"routing_scale": factor}
    return with_layers(card, layers, words | biases("all" if config.flag("attention_bias") else "none", False))


def laguna(config: Config, name: str) -> Card:
    """Laguna: a gate a head or a value, by a softplus, sigmoid scores, a shared expert, the first layer dense."""
    width = config.count("moe_intermediate_size")
    shared = config.count("shared_expert_intermediate_size", default=width)
    card = with_experts(config, decoder(config, name, "laguna", qk_norm=True), width, shared)
    config.only("moe_apply_router_weight_on_input", False, "the model's own code scales what experts give")
    if config.number("moe_router_logit_softcapping", default=0.0):
        raise UsageError("moe_router_logit_softcapping is not supported: 0 only")
    heads = config.get("num_attention_heads_per_layer", default=[card.heads] * card.layers)
    if heads != [card.heads] * card.layers:
        raise UsageError(
            f"num_attention_heads_per_layer is not supported: {card.heads} in each of {card.layers} layers"
        )
    gate = config.get("gating", default=True)
    if gate is not True and gate not in ("per-head", "per-element"):
        raise UsageError(f"gating {shown(gate)} is not supported: true, per-head or per-element only")
    typed = config if config.get("layer_types") else config.changed(layer_types=["full_attention"] * card.layers)
    layers = [
        Layer(window=window, dense=not each, words=_turned_by_type(config, card, "sliding" if window else "full"))
        for window, each in zip(_windows(typed, card, 512), experts_from(config, card.layers, 1), strict=True)
    ]
    factor = config.number("moe_routed_scaling_factor", default=1.0)
    words: dict[str, Value] = {"gate": "values" if gate == "per-element" else "heads", "gate_function": "softplus"}
    words |= {"scores": "sigmoid", "router_bias": True, **({} if factor == 1 else {"routing_scale": factor})}
    return with_layers(card, layers, words | biases("all" if config.flag("attention_bias") else "none", False))


def _turned_by_type(config: Config, card: Card, type_: str) -> dict[str, Value]:
    """The word for rotary positions on a part of each head, which `rope_parameters` has for each type of layer."""
    usual = {"sliding_attention": {}, "full_attention": {"partial_rotary_factor": 0.5}}
    given = config.get("rope_parameters", default=usual)
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        raise UsageError(f"rope_parameters must have a mapping for each type of layer, not {shown(given)}")
    share = given.get(f"{type_}_attention", {}).get("partial_rotary_factor", 1.0)
    config.uses("partial_rotary_factor")
    size = rotary_dim(Config({"partial_rotary_factor": share}), card.head_dim)
    return {"rotary_dim": size} if size else {}


def cohere2_moe(config: Config, name: str) -> Card:
    """Command A with experts: parallel layers with one norm; layers with a window have positions; shared experts, whose
    mean with the routed ones is taken in some."""
    width = config.count("intermediate_size")
    shared = width * config.count("num_shared_experts", default=0, least=0)
    dense = config.count("prefix_dense_intermediate_size", default=width)
    norm = "layernorm_no_bias" if config.get("rms_norm_eps") is None else "rmsnorm"
    words: dict[str, Any] = {"tied_default": True, "logit_scale": config.number("logit_scale", default=0.0625)}
    card = with_experts(config, decoder(config, name, "command-r", norm=norm, ffn=dense, **words), width, shared)
    layers, sparse = card.layers, experts_from(config, card.layers)
    first = min(config.count("first_k_dense_replace", default=0, least=0), layers)
    before = config.count("prefix_dense_sliding_window_pattern", default=1)
    every = config.count("sliding_window_pattern", default=4)
    ends = [(n + 1) % before == 0 for n in range(first)] + [(n + 1) % every == 0 for n in range(layers - first)]
    types = ["full_attention" if each else "sliding_attention" for each in ends]
    typed = config if config.get("layer_types") else config.changed(layer_types=types)
    made = [
        Layer(window=window, rotary=bool(window) or (before == 1 and not each), dense=not each)
        for window, each in zip(_windows(typed, card, 4096), sparse, strict=True)
    ]
    bias = biases("all" if config.flag("attention_bias") else "none", False)
    return with_layers(card, made, {"residual": "parallel", **bias, **_cohere_scores(config, shared)})


def _cohere_scores(config: Config, shared: int) -> dict[str, Value]:
    chosen = config.get("expert_selection_fn", default="softmax")
    if chosen not in ("softmax", "sigmoid"):
        raise UsageError(f"expert_selection_fn {shown(chosen)} is not supported: softmax or sigmoid only")
    normalised = config.flag("norm_topk_prob", default=True)
    words: dict[str, Value] = {} if chosen == "softmax" else {"scores": "sigmoid", "normalised": normalised}
    joined = config.get("shared_expert_combination_strategy", default="average")
    if joined not in ("sum", "average"):
        raise UsageError(f"shared_expert_combination_strategy {shown(joined)} is not supported: sum or average only")
    return words | ({"result_scale": 0.5} if joined == "average" and shared else {})


READERS = {
    "AfmoeForCausalLM": afmoe,
    "LagunaForCausalLM": laguna,
    "Cohere2MoeForCausalLM": cohere2_moe,
    "HYV3ForCausalLM": hunyuan3,
    "MellumForCausalLM": mellum,
    "GraniteSWAForCausalLM": granite_swa,
    "GraniteMoeSWAForCausalLM": granite_moe_swa,
    "FlintForCausalLM": flint,
    "Kolibri1ForCausalLM": kolibri,
}
"""The reader of each architecture."""
