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
}


def test_a_pattern_of_letters_is_that_of_types() -> None:
    types = {**CONFIG, "hybrid_override_pattern": None}
    types["layers_block_type"] = ["attention", "moe", "full_attention", "mlp"]
    card = from_hugging_face(CONFIG, name="one")
    assert card == from_hugging_face(types, name="one")
    assert (card.layers, card.sequence, card.word("expert_latent")) == (2, ("layer", "dense"), 12)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hybrid_override_pattern": "M*E"}, "state-space blocks .Mamba 2. are not built"),
        ({"hybrid_override_pattern": "*EE"}, "each full_attention is followed by one mlp or moe"),
        ({"hybrid_override_pattern": "E*"}, "each full_attention is followed by one mlp or moe"),
        ({"hybrid_override_pattern": "*x"}, "layers_block_type 'x' is not supported"),
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
