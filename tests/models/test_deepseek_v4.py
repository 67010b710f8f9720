"""Configs of DeepSeek V4: published counts of parameters, older words, and what is refused."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "max_position_embeddings": 1048576,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4],
    "num_nextn_predict_layers": 0,
}

PRO: dict[str, Any] = {
    **FLASH,
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "moe_intermediate_size": 3072,
    "n_routed_experts": 384,
    "index_topk": 1024,
    "routed_scaling_factor": 2.5,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4],
}


@pytest.mark.parametrize(("config", "parameters"), [(FLASH, 284_332_230_231), (PRO, 1_572_997_179_491)])
def test_parameters_are_the_published_ones(config: dict[str, Any], parameters: int) -> None:
    assert from_hugging_face(config, name="v4").count_parameters() == parameters


def test_older_words_are_those_of_today() -> None:
    today = {key: value for key, value in FLASH.items() if key != "compress_ratios"}
    types = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    today["layer_types"] = [types[ratio] for ratio in FLASH["compress_ratios"]]
    today["mlp_layer_types"] = ["hash_moe"] * 3 + ["moe"] * 40
    assert from_hugging_face(today, name="v4") == from_hugging_face(FLASH, name="v4")
    usual = from_hugging_face({**FLASH, "compress_ratios": None}, name="v4").sequence
    assert usual == (*["heavy_hashed"] * 3, *("sparse", "heavy") * 20)


@pytest.mark.parametrize("layers", [0, 1, 43])
def test_a_table_chooses_the_experts_of_the_first_layers(layers: int) -> None:
    read = from_hugging_face({**FLASH, "num_hash_layers": layers}, name="v4")
    assert [name.endswith("_hashed") for name in read.sequence] == [True] * layers + [False] * (43 - layers)
    assert read.hashed_tokens == (129280 if layers else 0)
    assert all(bool(kind.settings["hashed"]) == name.endswith("_hashed") for name, kind in read.kinds.items())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hash_layers": -1}, "num_hash_layers must be a whole number from 0"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers must be a whole number from 0"),
        ({"mlp_layer_types": ["moe"]}, "mlp_layer_types is not supported: moe or hash_moe for each of 43 layers"),
        ({"mlp_layer_types": [["moe"]] * 43}, "mlp_layer_types is not supported"),
        ({"compress_ratios": [4, 8]}, "layer_types .or compress_ratios. is not supported"),
        ({"layer_types": ["full_attention"] * 43}, "layer_types"),
        ({"num_key_value_heads": 2}, "one head has all keys"),
        ({"n_shared_experts": 2}, "one shared expert"),
        ({"scoring_func": "tanh"}, "scoring_func 'tanh' is not supported"),
        ({"attention_bias": True}, "its projections have no biases"),
        ({"made_up": 1}, "no reader knows that key"),
    ],
)
def test_what_is_not_built_is_refused_by_its_key(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        from_hugging_face({**FLASH, **changes}, name="v4")
