"""Stages that share layers evenly once the ends count."""

import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.models import load_card
from stagedb.validation.step_rows import counted_ends


@pytest.mark.parametrize(
    ("framework", "words", "found"),
    [
        ("megatron-deepspeed", {"pp": 12}, {"counted_ends": "both"}),  # 70 layers of BLOOM, as it was trained
        ("megatron-deepspeed", {"pp": 10}, {}),
        ("megatron-deepspeed", {"pp": 11}, {}),
        ("megatron-deepspeed", {"pp": 6, "virtual_stages": 2}, {}),
        ("torchtitan", {"pp": 12}, {}),
        ("megatron-deepspeed", {"pp": None}, {}),
    ],
)
def test_ends_count_where_layers_alone_are_uneven(framework: str, words: dict[str, int], found: object) -> None:
    assert counted_ends(find_profile(framework), load_card("bloom-176b"), words) == found
