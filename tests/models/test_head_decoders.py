"""Configs of decoders whose layers differ in their heads, in the words of checkpoints and of transformers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import Card, from_hugging_face
from stagedb.models.card_library import load_card

MIMO: Mapping[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "vocab_size": 152576,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 192,
    "v_head_dim": 128,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_head_dim": 192,
    "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0 if number == 0 or number % 6 == 5 else 1 for number in range(48)],
    "moe_layer_freq": [0] + [1] * 47,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "layernorm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_value_scale": 0.707,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "attention_chunk_size": 128,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "swa_rope_theta": 10000,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": None,
}
"""The words of the checkpoint."""

GEMMA: Mapping[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": 30,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "use_bidirectional_attention": "vision",
}
DENSE: Mapping[str, Any] = {
    **dict.fromkeys(("num_experts", "top_k_experts", "moe_intermediate_size")),
    "enable_moe_block": False,
}
WHOLE: Mapping[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": GEMMA,
    "vision_config": {"hidden_size": 1152},
    "audio_config": None,
    "boi_token_id": 255999,
    "eoi_token_id": 258882,
    "boa_token_id": 256000,
    "eoa_token_index": 258883,
    "image_token_id": 258880,
    "video_token_id": 258884,
    "audio_token_id": 258881,
    "vision_soft_tokens_per_image": 280,
    "tie_word_embeddings": True,
}


def shape(card: Card) -> dict[str, Any]:
    """What shapes a card's graph."""
    about: dict[str, Any] = {"name": "x", "source": "x", "train_seq_len": 0, "train_seq_len_source": "", "family": "x"}
    return replace(card, **about).to_dict()


def read(config: Mapping[str, Any], **changes: Any) -> Card:
    return from_hugging_face({**config, **changes}, name="read")


def gemma(**changes: Any) -> Card:
    return read({**GEMMA, "architectures": ["Gemma4ForCausalLM"]}, **changes)


def test_the_words_of_a_checkpoint_make_the_librarys_card() -> None:
    assert shape(read(MIMO)) == shape(load_card("mimo-v2-flash"))
    assert shape(read(WHOLE)) == shape(load_card("gemma-4-26b-a4b-text"))
    assert shape(gemma()) == shape(load_card("gemma-4-26b-a4b-text"))


SMALL: Mapping[str, Any] = {
    **GEMMA,
    **DENSE,
    "architectures": ["Gemma4ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "attention_k_eq_v": False,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True,
    "use_bidirectional_attention": None,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
}
"""The words of the checkpoint E2B."""


def test_the_last_layers_of_e2b_have_keys_of_earlier_ones_and_twice_the_width() -> None:
    card = from_hugging_face(SMALL, name="read")
    assert shape(card) == shape(load_card("gemma-4-e2b-text"))
    assert [name.endswith("earlier") for name in card.sequence] == [False] * 15 + [True] * 20
    assert {kind.settings["ffn"] for kind in card.kinds.values() if kind.reads_keys} == {12288}
    # Queries and results in all, keys and values in the first; norms of heads, of the layer and of its own rows.
    queries = 2 * 1536 * 8 * (28 * 256 + 7 * 512) + 28 * 256 + 7 * 512
    keys = 2 * 1536 * (12 * 256 + 3 * 512) + 12 * 256 + 3 * 512
    wide = 3 * 1536 * 6144 * (15 + 2 * 20) + 5 * 35 * 1536
    rows = 35 * 256 * (262144 + 3 * 1536) + 256
    assert card.parameters == 262144 * 1536 + queries + keys + wide + rows + 1536


def test_other_words_of_e2b_make_other_cards() -> None:
    assert read(SMALL, use_double_wide_mlp=False).kinds["earlier"].settings["ffn"] == 0
    assert read(SMALL, num_kv_shared_layers=0).sequence.count("layer") == 7
    assert read(SMALL, hidden_size_per_layer_input=0).layer_input == 0
    fewer = read(SMALL, vocab_size_per_layer_input=1000)
    assert load_card("gemma-4-e2b-text").parameters - fewer.parameters == 261144 * 35 * 256


def test_heads_by_number_of_layer_are_those_of_full_layers() -> None:
    full = {str(number): {"head_dim": 512, "num_key_value_heads": 2} for number in range(5, 30, 6)}
    without = {word: value for word, value in GEMMA.items() if "global" not in word}
    numbered = read({**without, "architectures": ["Gemma4ForCausalLM"]}, per_layer_config=full)
    assert shape(numbered) == shape(gemma())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hidden_size_per_layer_input": 256}, "experts in layers without these only"),
        ({"num_kv_shared_layers": 10}, "experts in layers without these only"),
        ({**DENSE, "num_kv_shared_layers": 30}, "num_kv_shared_layers 30 is not supported: a layer of each type"),
        ({**DENSE, "num_kv_shared_layers": 25}, "num_kv_shared_layers 25 is not supported: a layer of each type"),
        ({**DENSE, "num_kv_shared_layers": 10}, "heads are of one number: leave heads, kv_heads and value_dim out"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention all is not supported"),
        ({"per_layer_config": {"0": {"head_dim": 512}}}, "per_layer_config is not supported: the numbers of all"),
        ({"per_layer_config": {str(at): {"ffn": 2} for at in range(5, 30, 6)}}, "per_layer_config .*head_dim and"),
        ({"rope_parameters": {"full_attention": {}, "rope_theta": 1.0}}, "rope_parameters .*by the type of layers"),
        ({"made_up": 3}, "made_up=3 is not supported"),
    ],
)
def test_what_a_card_of_gemma_4_cannot_express_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        gemma(**changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern is not supported: 0 or 1 for each of 48"),
        ({"n_shared_experts": 1}, "n_shared_experts 1 is not supported"),
        ({"scoring_func": "softmax"}, "scoring_func .*softmax.* is not supported"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be above 0"),
        ({"swa_num_key_value_heads": 7}, "heads=64 is not divisible by kv_heads=7"),
    ],
)
def test_what_a_card_of_mimo_cannot_express_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        read(MIMO, **changes)


def test_layers_of_mimo_may_have_other_heads_and_sinks() -> None:
    more: dict[str, Any] = {"swa_num_attention_heads": 32, "swa_head_dim": 64, "swa_v_head_dim": 64}
    card = read(MIMO, **more, add_full_attention_sink_bias=True, add_swa_attention_sink_bias=False)
    local, full = card.kinds["local"].settings, card.kinds["layer"].settings
    words = ("heads", "kv_heads", "head_dim", "value_dim", "rotary_dim", "sinks")
    assert tuple(local[word] for word in words) == (32, 8, 64, 0, 20, False)
    assert tuple(full[word] for word in words) == (0, 0, 0, 128, 64, True)


@pytest.mark.parametrize("residual", ["sandwich", "serial"])
def test_a_part_that_reads_the_stream_goes_with_a_residual_that_gives_it(residual: str) -> None:
    card = load_card("gemma-4-26b-a4b-text")
    content = {name: {**kind.to_dict(), "residual": residual} for name, kind in card.kinds.items()}
    with pytest.raises(UsageError, match="which goes with residual: sandwich_of_stream, and not with"):
        replace(card, layer_kinds=content)  # type: ignore[arg-type]  # kinds as a file has them
    others = {name: {**kind.to_dict(), "channel_mixer": "experts"} for name, kind in card.kinds.items()}
    with pytest.raises(UsageError, match="experts, which goes with residual: serial"):
        replace(card, layer_kinds=others)  # type: ignore[arg-type]  # kinds as a file has them


STEP: Mapping[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "vocab_size": 128896,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dims": 1280,
    "moe_layers_enum": ",".join(str(number) for number in range(3, 45)),
    "moe_router_scaling_factor": 3.0,
    "sliding_window": 512,
    "layer_types": ["sliding_attention" if number % 4 else "full_attention" for number in range(45)],
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96, "head_dim": 128},
    "partial_rotary_factors": [1.0 if number % 4 else 0.5 for number in range(45)],
    "swiglu_limits": [0.0] * 43 + [7.0] * 2,
}
"""The words of the checkpoint, without layers that predict further tokens."""


def test_layers_of_step_with_a_window_have_more_heads_and_each_head_a_gate() -> None:
    card = from_hugging_face(STEP, name="step")
    assert card.sequence[:5] == ("dense", "local_dense", "local_dense", "local", "layer")
    full, local = card.kinds["layer"].settings, card.kinds["local"].settings
    assert (card.heads, card.kv_heads, local["heads"], full["heads"]) == (64, 8, 96, 0)
    assert (local["window"], local["rotary_dim"], full["rotary_dim"]) == (512, 0, 64)
    assert all(kind.settings["gate"] == "heads" for kind in card.kinds.values())
    assert (full["scores"], full["routing_scale"], card.shared_ffn) == ("sigmoid", 3.0, 1280)
    # Attention: queries and results, keys and values, a gate a head, norms of a head; norms of the layer.
    each = {heads: 2 * 4096 * 128 * (heads + 8) + 4096 * heads + 2 * 128 + 2 * 4096 for heads in (64, 96)}
    experts = 4096 * 288 + 3 * 4096 * 1280 * 289
    layers = 12 * each[64] + 33 * each[96] + 3 * 3 * 4096 * 11264 + 42 * experts
    assert card.parameters == layers + 2 * 128896 * 4096 + 4096


def test_newer_and_older_words_of_step_are_one_card() -> None:
    older = from_hugging_face(STEP, name="step")
    gone = ("attention_other_setting", "partial_rotary_factors", "moe_layers_enum", "architectures")
    text = {key: value for key, value in STEP.items() if key not in gone}
    text |= {"num_sliding_attention_heads": 96, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42}
    text["rope_parameters"] = {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}
    text["rope_parameters"]["sliding_attention"] = {"rope_type": "default"}
    text["per_layer_config"] = {f"{number:02}": {"num_attention_heads": 96} for number in range(45) if number % 4}
    whole = {"architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7", "text_config": text}
    assert replace(from_hugging_face(whole, name="step"), source=older.source) == older


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_nextn_predict_layers": 3}, "num_nextn_predict_layers 3 is not supported"),
        ({"gating": "per-channel"}, "gating 'per-channel' is not supported"),
        ({"moe_layers_enum": "3,45"}, "moe_layers_enum must be numbers of layers from 0 to 44"),
        ({"moe_layers_enum": 3}, "moe_layers_enum must be numbers of layers"),
        ({"mlp_layer_types": ["sparse"] * 44}, "dense or sparse for each of 45 layers"),
        ({"partial_rotary_factors": [0.5] * 44}, "a number for each of 45 layers"),
        ({"partial_rotary_factors": [0.5] + [1.0] * 44}, "equal in layers of a type"),
        ({"attention_other_setting": {"head_dim": 64}}, "head_dim=64 is not supported: 128 only"),
        ({"attention_other_setting": [96]}, "attention_other_setting"),
        ({"per_layer_config": {"1": {"num_attention_heads": 96}}}, "all layers with sliding_attention only"),
        ({"num_local_experts": 288}, "its class reads n_routed_experts alone"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be above 0"),
        ({"sliding_window": None}, "missing sliding_window"),
        ({"layer_types": ["chunked_attention"] * 45}, "layer_types"),
    ],
)
def test_what_a_card_of_step_cannot_express_is_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        from_hugging_face({**STEP, **changes}, name="step")
