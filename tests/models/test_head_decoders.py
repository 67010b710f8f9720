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


def test_heads_by_number_of_layer_are_those_of_full_layers() -> None:
    full = {str(number): {"head_dim": 512, "num_key_value_heads": 2} for number in range(5, 30, 6)}
    without = {word: value for word, value in GEMMA.items() if "global" not in word}
    numbered = read({**without, "architectures": ["Gemma4ForCausalLM"]}, per_layer_config=full)
    assert shape(numbered) == shape(gemma())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input 256 is not supported: a table"),
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers 10 is not supported: layers that read keys"),
        ({"use_double_wide_mlp": True}, "use_double_wide_mlp True is not supported"),
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
