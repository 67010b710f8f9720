"""Files of ERNIE 4.5 VL: its text model, for tokens of text."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.models import from_hugging_face

TEXT: dict[str, Any] = {
    "model_type": "ernie4_5_vl_moe_text",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [22, 22, 20]},
}


def read(**changes: Any) -> Any:
    file = {"architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_vl_moe"}
    return from_hugging_face({**file, "text_config": {**TEXT, **changes}}, name="read")


def test_a_file_without_sizes_has_those_of_its_class() -> None:
    card = read()
    assert (card.layers, card.dense_layers, card.experts, card.top_k) == (28, 1, 64, 6)
    assert (card.expert_ffn, card.shared_ffn) == (1536, 2 * 1536)
    assert card.tied


def test_the_width_of_experts_for_images_changes_nothing() -> None:
    assert read(moe_intermediate_size=[1536, 512]) == read(moe_intermediate_size=[1536, 64])
    assert read(moe_intermediate_size=[512, 512]).expert_ffn == 512


def test_what_is_not_built_is_refused() -> None:
    for changes, reason in (
        ({"moe_intermediate_size": 1536}, "the widths of experts for text and for images"),
        ({"head_dim": 64}, r"mrope_section .* is not supported with heads of 64"),
        ({"mlp_layer_types": ["dense"]}, "dense or sparse for each of 28 layers only"),
    ):
        with pytest.raises(UsageError, match=reason):
            read(**changes)
