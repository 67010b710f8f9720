"""Megatron-Core's texts for the chunks of a pipeline, as its recipes write them."""

import pytest

from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.plans.written_words import parse_layout_text

LAYOUTS = {
    # Megatron-Bridge's DeepSeek-V3 on H100, and of another one on GB200; Megatron-Core's own example.
    "Et|(tt|)*30mL": (1, *(2,) * 30, 0),
    "Et*4|(tttt|)*14tmL": (4, *(4,) * 14, 1),
    "E|(t|)*2,L": (0, 1, 1, 0),
    "E t | t t | L": (1, 2, 0),
    "EttL": (2,),
    "E|L": (0, 0),
}


@pytest.mark.parametrize("text", list(LAYOUTS))
def test_a_layout_is_the_layers_of_each_chunk(text: str) -> None:
    assert parse_layout_text(text) == LAYOUTS[text]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Et*3|(tt|)*29,m|L", "further tokens \\(m\\) are in the last chunk"),
        ("t|tL", "the embedding"),
        ("Et|t", "the loss"),
        ("EE|L", "once each"),
        ("tE|tL", "begins with the embedding"),
        ("Et|mtL", "then those for further tokens"),
        ("E(t|L", "brackets"),
        ("Et|*L", "brackets"),
        ("Et|x|L", "it takes E, t, m, L"),
        ("Et|((t*9999)*9999)*9999|L", "letters"),
    ],
)
def test_another_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_layout_text(text)


def test_a_plan_takes_a_layout_in_place_of_numbers() -> None:
    words = {"pp": 8, "virtual_stages": 4, "global_batch_size": 64}
    plan = Plan.from_mapping({**words, "layers_per_chunk": "Et|(tt|)*30mL"})
    assert plan.chunk_layers(61) == (1, *(2,) * 30, 0)
    assert Plan.from_mapping({**words, "layers_per_chunk": "1" + ",2" * 30 + ",0"}) == plan
