"""`config.json` as checkpoints have them: with words of older versions, and without what classes have by default.

`checkpoint_configs.json` has the parameters that the checkpoint's publisher names, and for tiny models those of the
classes of transformers 5.23, each without parts for images.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

CONFIGS = {
    each["name"]: each
    for each in json.loads(Path(__file__).with_name("checkpoint_configs.json").read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_has_its_parameters(name: str) -> None:
    assert from_hugging_face(CONFIGS[name]["config"], name=name).parameters == CONFIGS[name]["parameters"]


def test_an_inner_config_has_the_values_of_its_class() -> None:
    """Gemma 3 4B: vocabulary, heads and their size are not in its file."""
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
    }
    read = from_hugging_face(config, name="gemma-3-4b")
    assert (read.vocab, read.heads, read.kv_heads, read.head_dim) == (262208, 8, 4, 256)
    assert read.parameters == 3880263168
    whole = {**config["text_config"], "architectures": ["Gemma3ForCausalLM"]}  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="missing"):
        from_hugging_face(whole, name="a config of its own")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepseek-v2-lite", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid'"),
        ("qwen3-30b-a3b", {"scoring_func": "sigmoid"}, "scoring_func='sigmoid'"),
        ("phi-4-mini", {"full_attn_mod": 2}, "full_attn_mod 2"),
        ("minimax-m2", {"attn_type_list": [1, 0] * 31}, "attn_type_list"),
        ("minimax-m2", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("gemma-2-9b", {"sliding_window_size": 1024}, "sliding_window_size 1024"),
        ("gpt-j-6b", {"rotary": False}, "rotary False"),
    ],
)
def test_what_other_files_do_not_have_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_hugging_face({**CONFIGS[name]["config"], **changes}, name=name)


@pytest.mark.parametrize("key", ["moe_topk", "num_shared_expert", "moe_intermediate_size"])
def test_layers_of_hunyuan_that_differ_are_refused(key: str) -> None:
    config = {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "hidden_size": 256,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 512,
        "num_experts": 4,
        "moe_topk": [2, 2],
        "num_shared_expert": [1, 1],
        "moe_intermediate_size": [128, 128],
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
    }
    alike = from_hugging_face(config, name="hunyuan")
    assert (alike.top_k, alike.expert_ffn, alike.shared_ffn) == (2, 128, 128)
    with pytest.raises(UsageError, match=key):
        from_hugging_face({**config, key: [1, 2]}, name="hunyuan")


def test_layers_that_predict_further_tokens_may_be_left_out_of_a_file() -> None:
    config = CONFIGS["nemotron-3-super-120b-a12b"]["config"]
    with pytest.raises(UsageError, match="not built; 0 leaves them out"):
        from_hugging_face({**config, "num_nextn_predict_layers": 1}, name="super")


def test_sampling_has_no_effect_with_the_values_of_every_old_file() -> None:
    config = CONFIGS["qwen3-coder-480b-a35b"]["config"]
    assert from_hugging_face({**config, "top_k": 50, "num_beams": 1}, name="coder").top_k == 8
    with pytest.raises(UsageError, match="top_k=2"):
        from_hugging_face({**config, "top_k": 2}, name="coder")
    with pytest.raises(UsageError, match="use_qk_norm False"):
        from_hugging_face({**config, "use_qk_norm": False}, name="coder")
