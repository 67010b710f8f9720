"""Configs as transformers writes them, one key changed at a time, against the parameters of the models' own code.

`drawn_configs.json` comes from `scripts/record_models --draw`: every class that is read, on torch's meta device.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.recording.drawn_configs import packed, unpacked
from stagedb.errors import UsageError
from stagedb.models import from_hugging_face
from stagedb.models.readers import READERS
from stagedb.models.readers.nested_decoders import WHOLE_MODELS

CONTENT = json.loads(Path(__file__).with_name("drawn_configs.json").read_text(encoding="utf-8"))
DRAWN: Mapping[str, Any] = CONTENT["drawn"]

OF_OTHER_CODE = {
    *("DeepseekForCausalLM", "IQuestCoderForCausalLM", "InternLM3ForCausalLM", "KimiK25ForConditionalGeneration"),
    *("KimiK2ForCausalLM", "MPTForCausalLM", "MiMoForCausalLM", "PhiMoEForCausalLM"),
    "DeciLMForCausalLM",
    *("MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM", "Step3p5ForCausalLM"),
}
"""Architectures that transformers does not have."""

REFUSED: Mapping[str, str] = {
    "DeepseekV2ForCausalLM": "missing num_experts_per_tok",
    "Qwen3OmniMoeThinkerForConditionalGeneration": "no head_dim, and hidden size 2048 is not divisible by 28 heads",
}
"""The classes whose own defaults are refused, each with the beginning of the reason."""


def test_every_class_is_drawn() -> None:
    drawn = {name.split()[0] for name in DRAWN}
    assert drawn == {*READERS, *WHOLE_MODELS} - OF_OTHER_CODE


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_config_has_the_parameters_of_its_own_code_or_is_refused(name: str) -> None:
    counts: Counter[str] = Counter()
    for config, parameters, changed in unpacked(DRAWN[name]):
        try:
            card = from_hugging_face(config, name="drawn")
        except UsageError as reason:
            counts["refused"] += 1
            assert str(reason), changed
            continue
        counts["agree"] += 1
        # The package's own classes have no layers that predict further tokens.
        assert replace(card, multi_token_prediction=0).count_parameters() == parameters, changed
    assert counts["agree"] >= 3


@pytest.mark.parametrize("name", [name for name, each in DRAWN.items() if each["usual"]])
def test_the_defaults_of_a_class_are_read(name: str) -> None:
    usual = DRAWN[name]["usual"]
    if name in REFUSED:
        with pytest.raises(UsageError, match=REFUSED[name]):
            from_hugging_face(usual["config"], name="usual")
        return
    card = from_hugging_face(usual["config"], name="usual")
    assert replace(card, multi_token_prediction=0).count_parameters() == usual["parameters"]


def test_packed_rows_are_what_was_packed() -> None:
    rows = [
        {"config": {"a": 1, "b": {"c": 2, "d": None}}, "parameters": 1},
        {"config": {"a": True, "b": {"c": 2}}, "parameters": 2},
        {"config": {"b": {"c": 3, "d": [], "e": {}}}, "parameters": 3},
    ]
    made = packed(rows)
    assert made is not None
    assert [(config, count) for config, count, _ in unpacked(made)] == [(r["config"], r["parameters"]) for r in rows]
    assert packed([]) is None
