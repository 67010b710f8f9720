"""Configs that no model has are refused at the door: absurd sizes, and keys that make another model."""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import Card, from_hugging_face, load_card

RECORDED = json.loads((Path(__file__).parents[1] / "validation" / "models.json").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = {each["name"]: each["config"] for each in RECORDED}
LENGTHS = ("max_position_embeddings", "sliding_window", "index_topk", "max_window_layers")
HARMLESS = (
    "decoder_sparse_step",
    "query_pre_attn_scalar",
    "first_k_dense_replace",
    "bos_token_id",
    "eos_token_id",
    "pretraining_tp",
)
"""A step of layers beyond the last one leaves experts out, as the models' own code does; the others are not sizes."""

SIZES = [
    (name, key)
    for name in ("deepseek-v3.2", "qwen3-30b-a3b", "llama-3.2-3b", "gemma-2-9b", "gpt-oss-20b")
    for key, value in CONFIGS[name].items()
    if type(value) is int and key not in HARMLESS and "token" not in key.removesuffix("_per_tok")
]


@pytest.mark.parametrize(("name", "key"), SIZES)
def test_absurd_sizes_are_refused(name: str, key: str) -> None:
    for size in (2**40, 10**18) if key in LENGTHS else (10**9, 2**40, 10**18):
        with pytest.raises(
            UsageError, match=r"at most|not supported|is not from|not divisible|than its head|more than"
        ):
            from_hugging_face({**CONFIGS[name], key: size}, name="absurd")


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"])
def test_a_million_layers_that_predict_further_tokens_are_refused(key: str) -> None:
    for name in ("deepseek-v3", "llama-3.2-3b", "glm-4.5-air"):
        with pytest.raises(UsageError, match=f"{key} must be at most 64, not 1000000"):
            from_hugging_face({**CONFIGS[name], key: 1_000_000}, name="far")


def test_sizes_that_are_each_possible_and_together_not_are_refused() -> None:
    wide = {**CONFIGS["llama-3.2-3b"], "num_hidden_layers": 100_000, "intermediate_size": 1 << 24}
    with pytest.raises(UsageError, match="more than 10,000,000,000,000,000 parameters"):
        from_hugging_face(wide, name="wide")


def test_a_card_of_ones_own_has_the_same_bounds() -> None:
    values = load_card("llama3-8b").to_dict() | {"parameters": 0}
    for word, size in (("hidden", 2**40), ("vocab", 10**9), ("heads", 10**9), ("experts", 10**9)):
        with pytest.raises(UsageError, match=f"{word} must be at most"):
            Card(**{**values, word: size})
    local = {"layer": {"mixer": "sliding_window", "window": 2**40}}
    with pytest.raises(UsageError, match=r"window must be .*at most"):
        Card(**{**values, "layer_kinds": local})


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("is_encoder_decoder", True, "is_encoder_decoder is not supported: decoder-only"),
        ("torchscript", True, "torchscript is not supported"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quant_method 'gptq' is not supported"),
        ("quantization_config", {"load_in_4bit": True}, "quant_method None is not supported"),
        ("quantization_config", {"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' is not supported"),
    ],
)
def test_keys_that_make_another_model_are_refused(key: str, value: Any, message: str, inside: bool) -> None:
    config = CONFIGS["qwen3-vl-8b" if inside else "llama-3.2-3b"]
    made = {**config, "text_config": {**config["text_config"], key: value}} if inside else {**config, key: value}
    with pytest.raises(UsageError, match=message):
        from_hugging_face(made, name="other")


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (AWQ, "int4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True}, "int4"),
        (GPTQ, "int4_symmetric"),
        ({**GPTQ, "sym": False}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({**AWQ, "group_size": 64}, ""),
        ({**AWQ, "zero_point": False}, ""),
        ({**GPTQ, "bits": 8}, ""),
        ({**GPTQ, "desc_act": True}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ""),
    ],
)
def test_weights_packed_after_training_are_refused_with_the_word_that_serves_them(found: Any, word: str) -> None:
    way = f"serve the model with --weight-dtype {word}, which stores" if word else "the plan decides number formats"
    with pytest.raises(UsageError, match=way):
        from_hugging_face({**CONFIGS["llama-3.2-3b"], "quantization_config": found}, name="packed")


def test_formats_of_a_publishers_files_are_left_to_the_plan() -> None:
    config = CONFIGS["deepseek-v3"]
    block = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    made = from_hugging_face({**config, "quantization_config": block}, name="v3")
    assert made.parameters == from_hugging_face(config, name="v3").parameters


def test_several_architectures_are_refused() -> None:
    config = CONFIGS["llama-3.2-3b"]
    for named in (["LlamaForCausalLM", "MistralForCausalLM"], ["OtherForCausalLM", "LlamaForCausalLM"]):
        with pytest.raises(UsageError, match="`architectures` names several"):
            from_hugging_face({**config, "architectures": named}, name="both")
    twice = from_hugging_face({**config, "architectures": ["LlamaForCausalLM"] * 2}, name="twice")
    assert twice == from_hugging_face(config, name="twice")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepseek-v3", "DeepseekV2ForCausalLM"),
        ("gemma-2-9b", "Gemma2ForCausalLM"),
        ("qwen3-30b-a3b", "Qwen3MoeForCausalLM"),
        ("bloom-7b1", "BloomForCausalLM"),
        ("qwen3-vl-8b", "Qwen3VLForConditionalGeneration"),
    ],
)
def test_near_ones_of_an_unknown_architecture_are_near_in_structure(name: str, near: str) -> None:
    """Its name is near to another one's, and the keys of its config are those of these."""
    with pytest.raises(UsageError, match=rf"near in structure are .*{near} \(uses all its keys\)"):
        from_hugging_face({**CONFIGS[name], "architectures": ["Llama9ForCausalLM"]}, name="unknown")


def test_keys_that_a_near_architecture_does_not_use_are_named() -> None:
    config = {**CONFIGS["llama-3.2-3b"], "architectures": ["LlamaXForCausalLM"], "loops": 3, "memory_slots": 64}
    with pytest.raises(UsageError, match=r"LlamaForCausalLM \(uses all its keys but loops, memory_slots\)"):
        from_hugging_face(config, name="unknown")


def test_names_decide_where_nothing_reads_the_config() -> None:
    with pytest.raises(UsageError, match="near names are LlamaForCausalLM, "):
        from_hugging_face({"architectures": ["Llama9ForCausalLM"]}, name="unknown")
    with pytest.raises(UsageError, match=r"'T5ForConditionalGeneration'\. 177 are read"):
        from_hugging_face({"architectures": ["T5ForConditionalGeneration"], "d_model": 512}, name="unknown")
