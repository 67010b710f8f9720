"""Files of MiniMax-01: as its publisher has them, and as transformers writes them."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.models import from_hugging_face, load_card
from stagedb.plans import GraphOptions

FACTOR = 160**0.25
"""The factor of the stream in a model of 80 layers, (2 · 80)¼ (DeepNorm)."""

FACTORS = {
    f"layernorm_{part}_{word}": factor
    for part in ("full_attention", "linear_attention", "mlp")
    for word, factor in (("alpha", FACTOR), ("beta", 1.0))
}

SIZES = {
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 200064,
    "num_local_experts": 32,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 10240000,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
}

PUBLISHED: dict[str, Any] = {
    **SIZES,
    **FACTORS,
    "architectures": ["MiniMaxText01ForCausalLM"],
    "model_type": "minimax_text_01",
    "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
    "postnorm": True,
    "rope_theta": 10000000,
    "rotary_dim": 64,
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
}

TINY: dict[str, Any] = {
    **SIZES,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "head_dim": None,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "architectures": ["MiniMaxForCausalLM"],
    "model_type": "minimax",
}


@pytest.mark.parametrize(
    "names", [("MiniMaxText01ForCausalLM", "minimax_text_01"), ("MiniMaxM1ForCausalLM", "minimax_m1")]
)
def test_a_published_file_is_the_card(names: tuple[str, str]) -> None:
    read = from_hugging_face({**PUBLISHED, "architectures": [names[0]], "model_type": names[1]}, name="published")
    card = load_card("minimax-text-01")
    assert read.parameters == card.count_parameters() == 456_089_655_296
    for ours, theirs in ((read.kinds["lightning_attention"], card.kinds["lightning"]), (read.kinds["layer"],) * 2):
        found, expected = ours.to_dict(), theirs.to_dict()
        for word in ("attn_stream_scale", "ffn_stream_scale"):
            assert found.pop(word) == pytest.approx(expected.pop(word), rel=1e-12)
        assert found == expected
    assert [name == "layer" for name in read.sequence] == [name == "layer" for name in card.sequence]


def test_a_file_without_types_has_lightning_attention_in_every_other_layer() -> None:
    read = from_hugging_face(TINY, name="tiny")
    assert read.sequence == ("layer", "lightning_attention", "layer")
    assert dict(read.kinds["lightning_attention"].values) == {"lightning_heads": 4, "lightning_dim": 8}
    some = from_hugging_face({**TINY, "sliding_window": 5, "mlp_beta_factor": 0.5, "block_size": 3}, name="tiny")
    assert some.sequence == ("local", "lightning_attention", "local")
    assert some.kinds["local"].settings["window"] == 5
    for kind in some.kinds.values():
        assert kind.settings["ffn_result_scale"] == 0.5
    assert some.kinds["lightning_attention"].settings["lightning_chunk"] == 3


def test_factors_of_one_need_no_kernel() -> None:
    one = dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), 1)
    scaled = {**one, "linear_attn_alpha_factor": 2}
    names = [
        {op.name for op in build_graph(from_hugging_face({**TINY, **words}, name="tiny"), GraphOptions()).ops}
        for words in (one, scaled)
    ]
    assert {name for name in names[1] - names[0] if "input_gradient" not in name} == {"lightning_attention.attn.stream"}


@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        (TINY, {"mlp_alpha_factor": 0}, "mlp_alpha_factor 0.0 is not supported: factors are above 0"),
        (TINY, {"rotary_dim": 4}, "MiniMaxForCausalLM with rotary_dim=4 is not supported"),
        (PUBLISHED, {"postnorm": False}, "postnorm false is not supported"),
        (PUBLISHED, {"shared_intermediate_size": 64}, "shared_intermediate_size 64 is not supported"),
        (PUBLISHED, {"attn_type_list": [0, 1]}, "attn_type_list of 2 layers, and there are 80 layers"),
        (PUBLISHED, {"attn_type_list": [2] * 80}, "0 .linear. and 1 .softmax. only"),
        (PUBLISHED, {"num_attention_heads": 48, "num_key_value_heads": 8}, "num_attention_heads 48 is not supported"),
    ],
)
def test_what_is_not_built_is_refused(config: dict[str, Any], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        from_hugging_face({**config, **changes}, name="changed")
