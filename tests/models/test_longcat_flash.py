"""Configs of LongCat-Flash: the parameters of the class's defaults, what is read, and what is refused."""

import json
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face, load_card
from tests.models.test_drawn_configs import DRAWN

USUAL: dict[str, Any] = DRAWN["LongcatFlashForCausalLM"]["usual"]["config"]

PUBLISHER = {
    "attention_method": "MLA",
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
    "router_bias": False,
    "zero_expert_type": "identity",
    "num_hidden_layers": 56,
}
"""Keys of the publisher's file that the class does not have, or makes of others."""


def test_the_parameters_of_the_class_are_those_of_the_card_and_rows_that_are_never_read() -> None:
    """The class of transformers 5.24 makes 741,053,585,408 with its defaults: gates and ups of 256 zero experts too."""
    card = from_hugging_face(USUAL, name="usual")
    unread = card.layers * 256 * 2 * card.expert_ffn * card.hidden
    assert card.count_parameters() + unread == 741_053_585_408
    assert card.count_parameters() == load_card("longcat-flash").count_parameters()
    assert card.layer_kinds == load_card("longcat-flash").layer_kinds


def test_a_publishers_file_is_the_same_model() -> None:
    given = {key: value for key, value in USUAL.items() if key != "head_dim"}
    assert from_hugging_face({**given, **PUBLISHER}, name="usual") == from_hugging_face(USUAL, name="usual")


def test_without_zero_experts_all_choices_have_weights() -> None:
    card = from_hugging_face({**USUAL, "zero_expert_num": 0}, name="usual")
    assert card.top_k == 12
    assert "zero_experts" not in dict(card.kinds["layer"].values)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"moe_topk": 10}, "5120/768 of a token's choices are of experts with weights in the mean"),
        ({"zero_expert_type": "drop"}, "zero_expert_type 'drop' is not supported"),
        ({"router_bias": True}, "router_bias true is not supported"),
        ({"mla_scale_q_lora": False}, "mla_scale_q_lora false is not supported"),
        ({"num_hidden_layers": 28}, "num_hidden_layers 28 is not supported: it is 56, twice num_layers"),
        ({"num_nextn_predict_layers": 1}, "layers that predict further tokens of this architecture are not built"),
        ({"q_lora_rank": 0}, "q_lora_rank must be a whole number from 1"),
    ],
)
def test_what_is_not_built_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as found:
        from_hugging_face(json.loads(json.dumps({**USUAL, **changed})), name="other")
    assert why.casefold() in str(found.value).casefold()
