"""Configs of NemotronH: the blocks that make layers, and those that are refused."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

CONFIG: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 24,
    "moe_latent_size": 12,
    "hybrid_override_pattern": "*E*-",
    "mamba_num_heads": 8,
    "mamba_head_dim": 5,
    "ssm_state_size": 6,
    "n_groups": 2,
}


def test_a_pattern_of_letters_is_that_of_types() -> None:
    types = {**CONFIG, "hybrid_override_pattern": None}
    types["layers_block_type"] = ["attention", "moe", "full_attention", "mlp"]
    card = from_hugging_face(CONFIG, name="one")
    assert card == from_hugging_face(types, name="one")
    assert (card.layers, card.sequence, card.word("expert_latent")) == (2, ("layer", "dense"), 12)


@pytest.mark.parametrize("letters", ["M-M*", "*EE", "E*", "MEM*E", "M"])
def test_other_orders_have_a_layer_for_each_block(letters: str) -> None:
    card = from_hugging_face({**CONFIG, "hybrid_override_pattern": letters}, name="one")
    names = {"M": "scan", "*": "attention", "-": "mlp", "E": "moe"}
    assert card.sequence == tuple(names[each] for each in letters)
    assert {(kind.mixer, kind.channel_mixer) for kind in card.kinds.values()} <= {
        ("state_space", "none"),
        ("attention", "none"),
        ("none", "feed_forward"),
        ("none", "experts"),
    }
    assert (card.ffn, card.experts) == (24 if "-" in letters else 0, 4 if "E" in letters else 0)


def test_bounds_of_steps_are_read_in_all_spellings() -> None:
    config = {
        "architectures": ["Mamba2ForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_heads": 8,
        "head_dim": 8,
    }
    config |= {"num_hidden_layers": 2, "state_size": 6, "n_groups": 2}
    for most in (float("inf"), "Infinity", {"__float__": "Infinity"}):
        card = from_hugging_face({**config, "time_step_limit": [0.25, most]}, name="one")
        assert card.kinds["layer"].settings["scan_least"] == 0.25
    with pytest.raises(UsageError, match="steps have no upper bound here"):
        from_hugging_face({**config, "time_step_limit": [0.0, 0.1]}, name="one")
    with pytest.raises(UsageError, match="the heads of the scan are 64 wide, and expand times the hidden size is 96"):
        from_hugging_face({**config, "expand": 3}, name="one")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hybrid_override_pattern": "*x"}, "layers_block_type 'x' is not supported: linear_attention, full_attention"),
        ({"hybrid_override_pattern": "M*", "mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu' is not supported"),
        ({"hybrid_override_pattern": "M*", "n_groups": 3}, "n_groups 3 does not divide mamba_num_heads 8"),
        ({"hybrid_override_pattern": "M*", "time_step_min": -1}, "time_step_min must be a number from 0, not -1"),
        ({"hybrid_override_pattern": ""}, "must be a list of types of blocks"),
        ({"num_hidden_layers": 5}, "num_hidden_layers must be 4"),
        ({"mlp_bias": True}, "mlp_bias True is not supported with experts"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers 1 is not supported"),
        ({"made_up": 1}, "no reader knows that key"),
    ],
)
def test_what_is_not_built_is_refused_by_its_key(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        from_hugging_face({**CONFIG, **changes}, name="one")
