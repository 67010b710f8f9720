"""Configs of Mamba, Falcon-Mamba, Jamba and RecurrentGemma: what files of the hub have, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

MAMBA: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"],
    "vocab_size": 50280,
    "hidden_size": 2560,
    "state_size": 16,
    "num_hidden_layers": 64,
    "conv_kernel": 4,
    "time_step_rank": 160,
}
"""Of 2,768,345,600 parameters."""

JAMBA: dict[str, Any] = {
    "architectures": ["JambaForCausalLM"],
    "vocab_size": 65536,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}

GRIFFIN: dict[str, Any] = {
    "architectures": ["RecurrentGemmaForCausalLM"],
    "vocab_size": 256000,
    "hidden_size": 2560,
    "intermediate_size": 15360,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
}


def test_sizes_of_a_mamba_have_several_spellings() -> None:
    card = from_hugging_face(MAMBA, name="one")
    assert card.count_parameters() == 2_768_345_600
    words: dict[str, Any] = {"d_inner": 5120, "d_model": 2560, "n_layer": 64, "rms_norm": True, "fused_add_norm": True}
    words |= {"intermediate_size": 5120, "expand": 2, "ssm_cfg": {}, "pad_vocab_size_multiple": 8}
    assert from_hugging_face({**MAMBA, **words, "architectures": ["MambaForCausalLM"]}, name="one") == card
    auto = {key: value for key, value in MAMBA.items() if key != "time_step_rank"}
    assert from_hugging_face(auto, name="one") == card
    wide = from_hugging_face({**MAMBA, "expand": 16, "intermediate_size": 8192}, name="one")
    assert wide.word("scan_inner") == 8192


def test_a_falcon_mamba_is_a_mamba_with_norms_without_weights() -> None:
    falcon = from_hugging_face({**MAMBA, "architectures": ["FalconMambaForCausalLM"]}, name="one")
    assert falcon.count_parameters() == 2_768_345_600
    assert falcon.kinds["layer"].settings["scan_norm"] == "unweighted"


def test_layers_of_a_jamba_are_in_turn() -> None:
    card = from_hugging_face(JAMBA, name="one")
    assert card.count_parameters() == 51_570_323_328
    kinds = [card.kinds[name] for name in card.sequence]
    assert [number for number, kind in enumerate(kinds) if kind.mixer == "attention"] == [4, 12, 20, 28]
    assert [number for number, kind in enumerate(kinds) if kind.channel_mixer == "experts"] == list(range(1, 32, 2))
    assert card.max_positions == 262_144
    older = {"n_ctx": 262_144, "mamba_inner_layernorms": True, "calc_logits_for_entire_prompt": False}
    assert from_hugging_face({**JAMBA, **older}, name="one") == card
    plain = from_hugging_face({**JAMBA, "num_experts": 1, "attn_layer_period": 40, "attn_layer_offset": 39}, name="one")
    assert {(kind.mixer, kind.channel_mixer) for kind in plain.kinds.values()} == {("selective_scan", "feed_forward")}
    assert (plain.experts, plain.ffn) == (0, 14336)


def test_blocks_of_a_recurrent_gemma_are_in_turn() -> None:
    card = from_hugging_face(GRIFFIN, name="one")
    assert card.count_parameters() == 2_682_862_080
    mixers = [card.kinds[name].mixer for name in card.sequence]
    assert mixers[:3] == ["gated_recurrence", "gated_recurrence", "sliding_window"]
    assert mixers.count("sliding_window") == 8
    assert card.ffn == 7680


@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        (MAMBA, {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported: the kernels of the convolution"),
        (MAMBA, {"time_step_rank": "much"}, "time_step_rank must be a whole number from 1, not 'much'"),
        (MAMBA, {"rms_norm": False}, "rms_norm False is not supported: its norms are RMSNorms"),
        (MAMBA, {"intermediate_size": 5120, "d_inner": 4096}, "d_inner=4096 is not supported"),
        (MAMBA, {"made_up": 1}, "no reader knows that key"),
        (JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset 8 must be below attn_layer_period 8"),
        (JAMBA, {"expert_layer_offset": 2}, "expert_layer_offset 2 must be below expert_layer_period 2"),
        (JAMBA, {"mamba_inner_layernorms": False}, "mamba_inner_layernorms False is not supported"),
        (JAMBA, {"mamba_dt_rank": 0}, "mamba_dt_rank must be a whole number from 1, not 0"),
        (GRIFFIN, {"lru_width": 2561}, "lru_width 2561 does not divide into num_attention_heads 10, its blocks"),
        (GRIFFIN, {"block_types": ["recurrent", "scan"]}, "block_types .* is not supported: recurrent and attention"),
        (GRIFFIN, {"embeddings_scale_by_sqrt_dim": False}, "embeddings_scale_by_sqrt_dim False is not supported"),
    ],
)
def test_what_is_not_built_is_refused_by_its_key(
    config: Mapping[str, Any], changes: Mapping[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        from_hugging_face({**config, **changes}, name="one")
