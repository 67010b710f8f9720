"""Decoders whose layers differ in their heads: MiMo-V2-Flash, the text models of Gemma 4, and Step 3.5 and 3.7."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.models.card import Card
from stagedb.models.kinds import Value
from stagedb.models.readers.config import Config
from stagedb.models.readers.expert_decoders import sigmoid_scores, with_experts
from stagedb.models.readers.layers import Layer, experts_from, layer_types, with_layers
from stagedb.models.readers.parts import activation, biases, decoder, mlp_biases, without_mtp_layers

_TYPES = {"sliding_attention": "window", "full_attention": "full"}


def mimo_v2_flash(config: Config, name: str) -> Card:
    """MiMo-V2-Flash: values of another size than keys; layers with a window have more K/V heads, and sinks."""
    config.only("scoring_func", "sigmoid", "its experts have sigmoid scores")
    config.only("n_shared_experts", 0, "its layers have no shared experts")
    config.uses("layernorm_epsilon", "swa_rope_theta", "attention_chunk_size")
    card = with_experts(config, decoder(config, name, "mimo-v2"), config.count("moe_intermediate_size"))
    types, sparse = _mimo_types(config, card.layers), experts_from(config, card.layers, 1)
    window = _mimo_window(config)
    turns, value = _turned(config, 0.334), config.count("v_head_dim", default=128)
    local = _heads(
        card,
        heads=config.count("swa_num_attention_heads", default=card.heads),
        kv_heads=config.count("swa_num_key_value_heads", default=2 * card.kv_heads),
        head_dim=config.count("swa_head_dim", default=card.head_dim),
        value_dim=config.count("swa_v_head_dim", default=value),
    )
    local |= {"sinks": config.flag("add_swa_attention_sink_bias", default=True)}
    local |= _turned_part(int(local.get("head_dim", card.head_dim)), turns["window"])
    full = _heads(card, value_dim=value) | _turned_part(card.head_dim, turns["full"])
    full |= {"sinks": config.flag("add_full_attention_sink_bias")}
    layers = [
        Layer(window=window if kind == "window" else 0, dense=not each, words=local if kind == "window" else full)
        for kind, each in zip(types, sparse, strict=True)
    ]
    usual = biases("qkv" if config.flag("attention_bias") else "none", False)
    usual |= {"value_scale": config.number("attention_value_scale", default=0.707), **sigmoid_scores(config)}
    return with_layers(card, layers, usual)


def _mimo_types(config: Config, layers: int) -> list[str]:
    """The type of each layer: `full` or `window`. A pattern of the checkpoint has 1 for a window."""
    pattern = config.get("hybrid_layer_pattern")
    types = layer_types(config, layers, _TYPES)
    if types is not None:
        return types
    if pattern is None:
        return ["full" if number == 0 or (number + 1) % 6 == 0 else "window" for number in range(layers)]
    if not isinstance(pattern, list) or len(pattern) != layers or any(each not in (0, 1) for each in pattern):
        raise UsageError(f"hybrid_layer_pattern is not supported: 0 or 1 for each of {layers} layers only")
    return ["window" if each else "full" for each in pattern]


def _mimo_window(config: Config) -> int:
    """The keys that a query sees. `sliding_window_size` counts those before its own."""
    if config.get("sliding_window_size") is not None:
        config.uses("sliding_window")
        return config.count("sliding_window_size") + 1
    return config.count("sliding_window", default=129)


def gemma4(config: Config, name: str) -> Card:
    """Gemma 4, text: as Gemma 3, with wider heads in full layers, whose values may be keys; experts in some. In E2B and
    E4B each token has a row for each layer, and the last layers have keys of earlier ones."""
    return _gemma4(config, name, 256)


def gemma4_unified(config: Config, name: str) -> Card:
    """Gemma 4 12B, text: as other dense ones of Gemma 4."""
    return _gemma4(config, name, 0)


def _gemma4(config: Config, name: str, width: int) -> Card:
    """width: that of embeddings for each layer in a config that does not name it."""
    if config.get("use_bidirectional_attention") == "all":
        raise UsageError("use_bidirectional_attention all is not supported: queries see earlier keys only")
    act = activation(config, "hidden_activation", default="gelu_pytorch_tanh")
    scale = math.sqrt(config.count("hidden_size"))
    near = decoder(config, name, "gemma4", activation=act, tied_default=True, embedding_scale=scale)
    types = layer_types(config, near.layers, _TYPES)
    types = types or ["full" if number % 6 == 5 else "window" for number in range(near.layers)]
    types[-1] = "full"
    shared = config.flag("attention_k_eq_v")
    heads, size = _full_heads(config, near, types, shared)
    # The card has the heads of full layers, of which ranks of tp may hold copies: they are the fewest.
    card = replace(near, kv_heads=heads, head_dim=size)
    turns = _turned(config, 1.0, full=0.25)
    local = _heads(card, kv_heads=near.kv_heads, head_dim=near.head_dim) | _turned_part(near.head_dim, turns["window"])
    full: dict[str, Value] = _turned_part(size, turns["full"])
    window, (first, later) = config.count("sliding_window", default=512), _later_layers(config, types, near.ffn)
    layers = []
    for number, kind in enumerate(types):
        words = local if kind == "window" else full | ({"shared_values": shared} if number < first else {})
        words = words | ({"value_norm": True} if number < first else later)
        layers.append(Layer(window=window if kind == "window" else 0, words=words))
    usual = biases("all" if config.flag("attention_bias") else "none", False)
    usual |= {"residual": "sandwich_scaled", "scale": 1.0, "qk_norm": "head"}
    inputs = _layer_inputs(config, width)
    if config.flag("enable_moe_block"):
        if inputs or first < card.layers:
            raise UsageError(
                "enable_moe_block with hidden_size_per_layer_input or num_kv_shared_layers is not supported: experts "
                "in layers without these only"
            )
        named = config.changed(num_experts_per_tok=config.count("top_k_experts"))
        card = with_experts(named, card, config.count("moe_intermediate_size"))
        usual |= {"residual": "sandwich_of_stream", "channel_mixer": "dense_and_experts", "scores": "softmax"}
    cap = config.number("final_logit_softcapping", default=0.0)
    return replace(with_layers(replace(card, logit_softcap=cap), layers, usual), **inputs)


def _layer_inputs(config: Config, width: int) -> dict[str, Any]:
    """The fields of a card whose layers have rows of their own of each token."""
    found = config.count("hidden_size_per_layer_input", default=width, least=0)
    rows = config.count("vocab_size_per_layer_input", default=262144)
    return {"layer_input": found, "layer_input_vocab": rows} if found else {}


def _later_layers(config: Config, types: list[str], ffn: int) -> tuple[int, dict[str, Value]]:
    """The first of the layers that have keys and values of earlier ones (the number of layers if there are none), and
    the words of these layers, whose feed-forwards may be twice as wide."""
    count, double = config.count("num_kv_shared_layers", default=0, least=0), config.flag("use_double_wide_mlp")
    first = len(types) - count
    if first < 1 or {*types[:first]} != {*types}:
        raise UsageError(
            f"num_kv_shared_layers {count} is not supported: a layer of each type comes before those, and makes "
            "keys and values for them"
        )
    return first, {"keys": "earlier", **({"ffn": 2 * ffn} if double else {})}


def step3(config: Config, name: str) -> Card:
    """Step 3.5 and 3.7, text: layers with a window have more heads, a gate for each head, experts in most layers."""
    config.only("gating", True, "a gate for each head only")
    without_mtp_layers(config, "of this architecture, each with a head of its own,")
    config.uses("mtp_layer_types", "mtp_mlp_layer_types", "rope_theta", "sliding_window")
    if config.given("num_local_experts") is not None:
        raise UsageError("num_local_experts is not supported: its class reads n_routed_experts alone")
    width, shared = config.count("moe_intermediate_size"), config.count("share_expert_dim", default=1280)
    card = with_experts(config, decoder(config, name, "step3", qk_norm=True), width, shared)
    types = layer_types(config, card.layers, _TYPES) or ["full"] * card.layers
    turns = _turned_by_layer(config, types) or _turned(config, 1.0)
    window = config.count("sliding_window") if "window" in types else 0
    local = _heads(card, heads=_window_heads(config, card, types)) | _turned_part(card.head_dim, turns["window"])
    full = _turned_part(card.head_dim, turns["full"])
    layers = [
        Layer(window=window, words=local, dense=not each) if kind == "window" else Layer(words=full, dense=not each)
        for kind, each in zip(types, _with_experts(config, card.layers), strict=True)
    ]
    factor = config.number("moe_router_scaling_factor", default=1.0)
    scalar = config.number("query_pre_attn_scalar", default=card.head_dim)
    if scalar <= 0:
        raise UsageError(f"query_pre_attn_scalar must be above 0, not {shown(scalar)}")
    usual: dict[str, Value] = {"gate": "heads", "scores": "sigmoid"}
    usual |= {} if factor == 1 else {"routing_scale": factor}
    usual |= {} if scalar == card.head_dim else {"scale": scalar**-0.5}
    usual |= biases("all" if config.flag("attention_bias") else "none", False) | mlp_biases(config, shared)
    return with_layers(card, layers, usual)


def _window_heads(config: Config, card: Card, types: list[str]) -> int:
    """The heads of layers with a window: a number of their own, in newer and older words."""
    other = config.get("attention_other_setting", default={})
    if not isinstance(other, Mapping) or not {*other} <= {"num_attention_heads", *_OTHER}:
        raise UsageError(f"attention_other_setting {shown(other)} is not supported: num_attention_heads only")
    usual = {"num_attention_groups": card.kv_heads, "head_dim": card.head_dim, "true_head_dim": card.head_dim}
    for key, size in usual.items():
        if other.get(key, size) != size:
            raise UsageError(f"attention_other_setting with {key}={shown(other[key])} is not supported: {size} only")
    heads = config.count(
        "num_sliding_attention_heads", default=Config(other).count("num_attention_heads", default=card.heads)
    )
    given = config.get("per_layer_config")
    if given is not None:
        made = {str(number): {"num_attention_heads": heads} for number, each in enumerate(types) if each == "window"}
        named = {str(_number(key)): value for key, value in given.items()} if isinstance(given, Mapping) else {}
        if named != made:
            raise UsageError("per_layer_config is not supported: the heads of all layers with sliding_attention only")
    return heads


_OTHER = ("attention_type", "num_attention_groups", "head_dim", "true_head_dim")
"""Further keys of `attention_other_setting`."""


def _with_experts(config: Config, layers: int) -> list[bool]:
    """Whether a layer has experts: by types, by the numbers of these layers, or all but the first three."""
    types, numbers = config.get("mlp_layer_types"), config.get("moe_layers_enum")
    if types is not None:
        if (
            not isinstance(types, list)
            or len(types) != layers
            or any(each not in ("dense", "sparse") for each in types)
        ):
            raise UsageError(f"mlp_layer_types is not supported: dense or sparse for each of {layers} layers only")
        config.uses("moe_layers_enum")
        return [each == "sparse" for each in types]
    if numbers is None:
        return [number > 2 for number in range(layers)]
    found = numbers.split(",") if isinstance(numbers, str) else numbers
    chosen = [_number(str(each).strip()) for each in found] if isinstance(found, list) else [-1]
    if any(not 0 <= each < layers for each in chosen):
        raise UsageError(f"moe_layers_enum must be numbers of layers from 0 to {layers - 1}, not {shown(numbers)}")
    return [number in chosen for number in range(layers)]


def _turned_by_layer(config: Config, types: list[str]) -> dict[str, float]:
    """The parts of a head that positions turn, by the type of layers, where a config has one for each layer."""
    parts = config.get("partial_rotary_factors")
    if parts is None:
        return {}
    if not isinstance(parts, list) or len(parts) != len(types) or any(type(each) not in (int, float) for each in parts):
        raise UsageError(f"partial_rotary_factors must be a number for each of {len(types)} layers")
    found = {kind: {float(part) for part, each in zip(parts, types, strict=True) if each == kind} for kind in types}
    if any(len(each) > 1 or not 0 < min(each) <= 1 for each in found.values()):
        raise UsageError("partial_rotary_factors must be above 0, at most 1, and equal in layers of a type")
    return {"window": 1.0, "full": 1.0, **{kind: min(each) for kind, each in found.items()}}


def _full_heads(config: Config, card: Card, types: list[str], shared: bool) -> tuple[int, int]:
    """The key/value heads, and the size of a head, of full layers."""
    given = config.get("per_layer_config")
    size = config.count("global_head_dim", default=512)
    heads = config.count("num_global_key_value_heads", default=card.kv_heads)
    if given is None:
        return heads if shared else card.kv_heads, size
    full = [number for number, kind in enumerate(types) if kind == "full"]
    # transformers writes the numbers in two digits.
    if not isinstance(given, Mapping) or sorted(_number(key) for key in given) != full:
        raise UsageError("per_layer_config is not supported: the numbers of all layers with full_attention only")
    made = {_of_layer(each, card) for each in given.values()}
    if len(made) != 1:
        raise UsageError("per_layer_config is not supported: layers with full_attention have the same heads only")
    return made.pop()


def _number(key: object) -> int:
    """The number of a layer, as a key of JSON; -1 for others."""
    text = str(key)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else -1


def _of_layer(content: Any, card: Card) -> tuple[int, int]:
    if not isinstance(content, Mapping) or not {*content} <= {"head_dim", "num_key_value_heads"}:
        raise UsageError(f"per_layer_config {shown(content)} is not supported: head_dim and num_key_value_heads only")
    own = Config(content)
    kv_heads = own.count("num_key_value_heads", default=card.kv_heads)
    return kv_heads, own.count("head_dim", default=card.head_dim)


def _heads(card: Card, **sizes: int) -> dict[str, Value]:
    """The words for heads that differ from the card's, and from each other in values."""
    own = {word: size for word, size in sizes.items() if word != "value_dim" and size != getattr(card, word)}
    values = {"value_dim": sizes["value_dim"]} if "value_dim" in sizes else {}
    return {**own, **({} if values.get("value_dim") == sizes.get("head_dim", card.head_dim) else values)}


def _turned(config: Config, default: float, full: float | None = None) -> dict[str, float]:
    """The part of a head that rotary positions turn, in layers with a window and in full ones.

    full: that of full layers in a config without rope_parameters; given: the code of `default` positions turns all.
    """
    named, given = config.number("partial_rotary_factor", default=default), config.get("rope_parameters", default={})
    if not isinstance(given, Mapping) or not ({*given} <= {*_TYPES} or not {*given} & {*_TYPES}):
        raise UsageError(f"rope_parameters {shown(given)} is not supported: by the type of layers, or for all of them")
    found = {}
    for key, kind in _TYPES.items():
        own = given.get(key) if {*given} & {*_TYPES} else given
        usual = named if full is None or given or kind == "window" else full
        read = Config(own if isinstance(own, Mapping) else {})
        part = read.number("partial_rotary_factor", default=usual)
        found[kind] = 1.0 if full is not None and read.get("rope_type") == "default" else part
        if not 0 < part <= 1:
            raise UsageError(f"partial_rotary_factor must be above 0 and at most 1, not {shown(part)}")
    return found


def _turned_part(size: int, part: float) -> dict[str, Value]:
    """The word for rotary positions on a part of a head of this size."""
    turned = int(size * part)
    return {} if turned == size else {"rotary_dim": turned - turned % 2}


READERS = {
    "MiMoV2FlashForCausalLM": mimo_v2_flash,
    "Gemma4ForCausalLM": gemma4,
    "Gemma4UnifiedForCausalLM": gemma4_unified,
    "Step3p5ForCausalLM": step3,
}
"""The reader of each architecture."""
