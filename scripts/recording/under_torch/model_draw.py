"""Configs as `save_pretrained` writes them, one key of each class changed, with the parameters of the class's model.

`rows` draws for one architecture: its class with few layers, and then with one key at a time that has another value,
that the file leaves out, or that it has under another spelling of the class's `attribute_map`. The model is made on the
meta device. What the package itself refuses is not drawn.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers

from scripts.recording.under_torch.model_code import parameters

LAYERS = 4
"""Layers of a drawn model, where its class takes that."""

_OF_ALL = set(transformers.PreTrainedConfig.__dataclass_fields__) - {"tie_word_embeddings"}
"""Keys that every class has: how the package runs a model."""

_NOT_DRAWN = {
    "text_config",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "vision_config",
    "audio_config",
}
_NO_SIZES = (
    *(
        "_token_id",
        "_token_ids",
        "_token_index",
        "_dropout",
        "_pdrop",
        "dropout",
        "initializer_range",
        "_eps",
        "epsilon",
    ),
    *("_coef", "_factor", "_theta", "_jitter", "_noise", "logits", "pretraining_tp"),
)
"""Ends of keys without a size. Leaving them out, or changing them, is not drawn."""

_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_KINDS = {
    "layer_types": ("full_attention", "sliding_attention"),
    "mlp_layer_types": ("dense", "sparse"),
}
_FIRST = ("mlp_only_layers", "moe_layers")
OTHER_BASES: Mapping[str, Mapping[str, Any]] = {
    "DbrxForCausalLM": {"attn_config": {"kv_n_heads": 8, "rope_theta": 10000.0}},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "DeepseekV4ForCausalLM": {"mlp_layer_types": ["moe"] * LAYERS, "num_nextn_predict_layers": 0},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "Gemma4ForCausalLM": {
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "num_kv_shared_layers": LAYERS // 2,
        "use_double_wide_mlp": True,
    },
    "Gemma4ForConditionalGeneration": {"hidden_size_per_layer_input": 0},
    "HunYuanDenseV1ForCausalLM": {"head_dim": 128},
    "HunYuanMoEV1ForCausalLM": {"head_dim": 128},
    "JambaForCausalLM": {"attn_layer_period": 4, "attn_layer_offset": 2},
    "KimiLinearForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "MiniMaxM3VLForCausalLM": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * (LAYERS // 2),
        "mlp_layer_types": ["dense", "sparse"] * (LAYERS // 2),
    },
    "MiniMaxForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "MinistralForCausalLM": {"head_dim": 128},
    "NemotronForCausalLM": {"num_key_value_heads": 8},
    "NemotronHForCausalLM": {"layers_block_type": ["full_attention", "mlp", "full_attention", "moe"]},
    "OlmoHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "Qwen3OmniMoeThinkerForConditionalGeneration": {"head_dim": 128},
    "Zamba2ForCausalLM": {"layers_block_type": ["hybrid", "linear_attention"] * (LAYERS // 2)},
}
"""What others differ from, where no reader reads the defaults of a class, or its code makes no model of them."""

OTHER_PARTS: Mapping[str, Mapping[str, Any]] = {
    "AyaVisionForConditionalGeneration": {
        "vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}
    },
}
"""The same for the other parts of whole models."""

OF_OTHERS = {
    **dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias", "use_bias", "bias", "qkv_bias"), True),
    **dict.fromkeys(("use_qkv_bias", "lm_head_bias", "use_qk_norm", "qk_layernorm", "qk_norm", "use_post_norm"), True),
    **dict.fromkeys(("alibi", "multi_query", "parallel_attn", "new_decoder_architecture", "tie_encoder_decoder"), True),
    **dict.fromkeys(("use_parallel_residual", "scale_embedding", "attention_k_eq_v", "use_sliding_window"), True),
    **dict.fromkeys(("head_dim", "num_key_value_heads", "v_head_dim", "qk_head_dim", "global_head_dim"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "moe_intermediate_size"), 192),
    **dict.fromkeys(("shared_expert_intermediate_size", "intermediate_size_mlp", "word_embed_proj_dim"), 192),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 6),
    **dict.fromkeys(("num_shared_experts", "n_shared_experts", "moe_num_shared_experts"), 3),
    **dict.fromkeys(("first_k_dense_replace", "decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step"), 2),
    **dict.fromkeys(
        ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "sliding_window", "hidden_size_per_layer_input"), 64
    ),
    **dict.fromkeys(
        ("n_embd", "hidden_size", "d_model", "n_head", "num_heads", "n_layer", "num_layers", "n_positions"), 8
    ),
}
"""Keys of other classes, each with a value: a class that has none of a name does not read it, or its code does."""

_MADE = ("intermediate_size",)
"""Keys that some classes make of others, and that are in their files: the value of a file decides."""

_OFTEN = (
    *("attention_bias", "mlp_bias", "use_bias", "qkv_bias", "use_qk_norm", "head_dim", "num_key_value_heads"),
    *("v_head_dim", "intermediate_size", "n_inner", "moe_intermediate_size", "num_experts", "n_shared_experts"),
    *("first_k_dense_replace", "moe_layer_freq", "q_lora_rank", "n_embd"),
)
"""Those that are drawn for each class."""


def rows(architecture: str, text: str = "") -> Iterator[dict[str, Any]]:
    """The drawn files of an architecture, each with its parameters. text: the `model_type` of a whole model's text."""
    made = getattr(transformers, architecture)
    of = made.config_class
    base = _first(made, of, text, OTHER_BASES.get(architecture))
    if base is None:
        return
    whole, words = base
    yield row(made, whole)
    for change in changes(whole, words):
        try:
            drawn = of(**change)
        except Exception:  # noqa: BLE001, S112 - the package refuses in many forms
            continue
        yield from _counted(made, drawn)
    written = written_by(whole)
    for file in files(whole, written):
        try:
            drawn = of.from_dict(_with_infinities(copy.deepcopy(file)))
        except Exception:  # noqa: BLE001, S112
            continue
        found = count(made, drawn)
        if found is not None:
            yield {"config": {**file, "architectures": [architecture]}, "parameters": found}


def usual(architecture: str, text: str = "") -> dict[str, Any] | None:
    """The file of a class's own defaults, with its parameters; None if its code makes no model of them."""
    made = getattr(transformers, architecture)
    config = made.config_class(**({"text_config": {"model_type": text}} if text else {}))
    found = row(made, config)
    return None if found["parameters"] is None else found


def _first(made: Any, of: Any, text: str, more: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]] | None:
    """The config that others differ from, and the arguments that make it: with few layers, if that is a model."""
    own = getattr(of(), "text_config", None)
    nested = text or own is not None
    inner = {"model_type": text or getattr(own, "model_type", "")} if nested else {}
    for words in ({**(more or {}), "num_hidden_layers": LAYERS}, {**(more or {})}):
        given = {"text_config": {**inner, **words}, **OTHER_PARTS.get(made.__name__, {})} if nested else words
        try:
            whole = of(**copy.deepcopy(given))
        except Exception:  # noqa: BLE001, S112
            continue
        if count(made, whole) is not None:
            return whole, given
    return None


def _counted(made: Any, config: Any) -> Iterator[dict[str, Any]]:
    found = count(made, config)
    if found is not None:
        yield {"config": written_by(config, made), "parameters": found}


def row(made: Any, config: Any) -> dict[str, Any]:
    """One drawn file."""
    return {"config": written_by(config, made), "parameters": count(made, config)}


def written_by(config: Any, made: Any = None) -> dict[str, Any]:
    """The file that `save_pretrained` writes of a config."""
    written: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    if made is not None:
        written["architectures"] = [made.__name__]
    return written


def count(made: Any, config: Any) -> int | None:
    """The parameters of a class's model, on the meta device; None if there is no such model."""
    try:
        with torch.device("meta"):
            model = made._from_config(copy.deepcopy(config), attn_implementation="eager", dtype=torch.bfloat16)
        return sum(parameters(model).values())
    except Exception:  # noqa: BLE001
        return None


def changes(whole: Any, words: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of configs that differ from one in one key, of the model or of its text model."""
    inner = whole.get_text_config(decoder=True)
    if inner is not whole and "text_config" in words:
        for key, value in _values(inner):
            yield copy.deepcopy({**words, "text_config": {**words["text_config"], key: value}})
    for key, value in _values(whole):
        yield copy.deepcopy({**words, key: value})


def _values(config: Any) -> Iterator[tuple[str, Any]]:
    """Other values of each key of a class."""
    for key, field in type(config).__dataclass_fields__.items():
        if key in _OF_ALL or key in _NOT_DRAWN or key.endswith(_NO_SIZES):
            continue
        value = _value(config, key)
        for other in others(key, value, str(field.type)):
            yield key, other
    if "tie_word_embeddings" not in type(config).__dataclass_fields__:
        for tied in (True, False):
            yield "tie_word_embeddings", tied


def _value(config: Any, key: str) -> Any:
    """The value of a key; that of most layers, where layers may differ."""
    try:
        return getattr(config, key, None)
    except RuntimeError:
        return vars(config).get(key)


def others(key: str, value: Any, kind: str) -> list[Any]:
    """Other values of a key. kind: what its class writes for its type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value // 2] if value > 1 else [value + 1, value + 2]
    if isinstance(value, float):
        return [value * 2, value / 2] if value else [0.5]
    if isinstance(value, str):
        return ["gelu", "relu2"] if key in _ACTIVATIONS else []
    if key in _KINDS:
        layers = len(value) if isinstance(value, list | tuple) else LAYERS
        return [[kind] * layers for kind in _KINDS[key]] + [[*[_KINDS[key][0]] * (layers - 1), _KINDS[key][1]]]
    if key in _FIRST:
        return [[0], [1, 2]]
    if isinstance(value, dict):
        return [{**value, "partial_rotary_factor": 0.5}] if "rope_theta" in value else []
    if isinstance(value, transformers.PreTrainedConfig):
        return [{word: other} for word, other in _values(value)]
    if value is None:
        return [8, 64] if "int" in kind else [True] if "bool" in kind else [0.5] if "float" in kind else []
    return []


def files(whole: Any, written: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Files that leave one key out, or have it under another spelling, with twice its value if it is a number."""
    inner = whole.get_text_config(decoder=True)
    for place, config in (((), whole), (("text_config",), inner)):
        part = written
        for name in place:
            part = part.get(name, {})
        if place and inner is whole:
            continue
        for key in part:
            if key not in ("model_type", "architectures", "transformers_version", *_NOT_DRAWN, *_OF_ALL) and not (
                key.endswith(_NO_SIZES)
            ):
                yield _with(written, place, {name: value for name, value in part.items() if name != key})
        for key in _OFTEN:
            value = OF_OTHERS[key]
            if config is inner and key not in part and key not in type(config).attribute_map:
                yield _with(written, place, {**part, key: value})
        for alias, key in type(config).attribute_map.items():
            value = _value(config, key)
            if type(value) in (int, bool, str):
                rest = {name: each for name, each in part.items() if name not in (key, alias)}
                yield _with(written, place, {**rest, alias: value})
                if type(value) is int:
                    yield _with(written, place, {**rest, alias: value * 2})
                    yield _with(written, place, {**rest, key: value * 2})


def _with_infinities(written: Any) -> Any:
    """What a file has, with infinities as numbers: `save_pretrained` writes them in a form that `from_dict` refuses."""
    if isinstance(written, dict):
        if set(written) == {"__float__"}:
            return float(written["__float__"])
        return {key: _with_infinities(value) for key, value in written.items()}
    return [_with_infinities(each) for each in written] if isinstance(written, list) else written


def read_by_code(architecture: str) -> tuple[str, list[str]]:
    """The class of an architecture's text model, and the keys that its code reads without a field of the class."""
    made = getattr(transformers, architecture)
    first = _first(made, made.config_class, "", OTHER_BASES.get(architecture))
    if first is None:
        return made.config_class.model_type, []
    whole = first[0]
    inner, usual, written = whole.get_text_config(decoder=True), count(made, whole), written_by(whole)
    place = () if inner is whole else ("text_config",)
    part = written["text_config"] if place else written
    found = []
    for key, value in OF_OTHERS.items():
        made_of_others = key in _MADE and key not in type(inner).__dataclass_fields__
        if (key in part and not made_of_others) or key in type(inner).attribute_map:
            continue
        try:
            drawn = made.config_class.from_dict(_with_infinities(_with(written, place, {**part, key: value})))
        except Exception:  # noqa: BLE001, S112
            continue
        if count(made, drawn) not in (None, usual):
            found.append(key)
    return inner.model_type, found


def _with(written: Mapping[str, Any], place: tuple[str, ...], part: Mapping[str, Any]) -> dict[str, Any]:
    return (
        copy.deepcopy({**written, **({place[0]: part} if place else {**dict.fromkeys(()), **part})})
        if place
        else (copy.deepcopy(dict(part)))
    )
