"""A config's class decides what its keys mean: spellings, defaults, and keys that it does not have."""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

RECORDED = json.loads((Path(__file__).parents[1] / "validation" / "models.json").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = {each["name"]: each["config"] for each in RECORDED}


@pytest.mark.parametrize("whole", ["Qwen3VLMoeForConditionalGeneration", "InternVLForConditionalGeneration"])
def test_experts_of_a_text_model_are_those_of_its_file_in_each_spelling(whole: str) -> None:
    """Qwen3-VL 235B: 128 experts of 1,536 in 94 layers, whose number transformers writes as `num_local_experts`."""
    type_ = "qwen3_vl_moe_text" if whole.startswith("Qwen") else "qwen3_moe"
    text = {
        "model_type": type_,
        "hidden_size": 4096,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 8,
    }
    config = {"architectures": [whole], "tie_word_embeddings": False}
    for spelling in ("num_local_experts", "num_experts"):
        read = from_hugging_face({**config, "text_config": {**text, spelling: 128}}, name="whole")
        assert (read.experts, read.top_k, read.parameters) == (128, 8, 235_093_634_560)


def test_two_spellings_of_a_key_with_two_values_are_refused() -> None:
    config = CONFIGS["qwen3-30b-a3b"]
    assert from_hugging_face({**config, "num_experts": 128}, name="both").experts == 128
    with pytest.raises(UsageError, match=r"is 128 and num_experts is 64, .* two spellings of one key"):
        from_hugging_face({**config, "num_experts": 64}, name="both")


def test_glm_ocr_has_no_biases_and_glm_4v_has_some() -> None:
    """Their classes have no `attention_bias`: the code of each decides."""
    text = {"hidden_size": 1024, "num_hidden_layers": 4}
    ocr = {"architectures": ["GlmOcrForConditionalGeneration"], "text_config": {**text, "model_type": "glm_ocr_text"}}
    assert from_hugging_face(ocr, name="ocr").parameters == 184_566_784
    for architecture, type_, other in (("GlmOcr", "glm_ocr_text", True), ("Glm4v", "glm4v_text", False)):
        inner = {**text, "model_type": type_, "attention_bias": other}
        config = {"architectures": [f"{architecture}ForConditionalGeneration"], "text_config": inner}
        with pytest.raises(UsageError, match=f"attention_bias {other} is not supported in {architecture}"):
            from_hugging_face(config, name="biased")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("mistral-7b-window", "num_key_value_heads", 8),
        ("mixtral-8x7b", "num_key_value_heads", 8),
        ("olmo-2-7b", "num_key_value_heads", None),
    ],
)
def test_a_key_that_a_file_leaves_out_has_the_default_of_its_class(name: str, key: str, value: int | None) -> None:
    config = {word: each for word, each in CONFIGS[name].items() if word != key}
    read = from_hugging_face(config, name="without")
    assert read.kv_heads == (read.heads if value is None else value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"head_dim": 32}),
        ("olmo-2-7b", {"mlp_bias": True}),
        ("mixtral-8x7b", {"attention_bias": True}),
        ("qwen1.5-moe-a2.7b", {"moe_layer_freq": 2}),
        ("bloom-7b1", {"n_inner": 64}),
    ],
)
def test_a_key_of_another_class_is_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(changes))}=.* the class of its config has no such key"):
        from_hugging_face({**CONFIGS[name], **changes}, name="other")


def test_a_model_type_of_another_class_is_refused() -> None:
    config = CONFIGS["llama-3.2-3b"]
    with pytest.raises(UsageError, match="model_type 'qwen2' is another class than that of LlamaForCausalLM"):
        from_hugging_face({**config, "model_type": "qwen2"}, name="other")
    published = CONFIGS["deepseek-v3"]
    kimi = from_hugging_face({**published, "model_type": "kimi_k2"}, name="kimi")
    assert kimi == from_hugging_face(published, name="kimi")


def test_a_key_next_to_a_text_config_that_nothing_reads_is_refused() -> None:
    config = CONFIGS["internvl3-8b"]
    for key, value in (("num_hidden_layers", 4), ("attention_bias", True), ("made_up", 2)):
        with pytest.raises(UsageError, match=f"{key}={value} next to text_config is not supported"):
            from_hugging_face({**config, key: value}, name="around")
    layers = config["text_config"]["num_hidden_layers"]
    assert from_hugging_face({**config, "num_hidden_layers": layers}, name="same").layers == layers


def test_two_words_of_two_classes_are_not_both_read() -> None:
    """A reader looks for a size under the words of several families; a second one with another value is refused."""
    with pytest.raises(UsageError, match="n_embd=64"):
        from_hugging_face({**CONFIGS["llama-3.2-3b"], "n_embd": 64}, name="both")
