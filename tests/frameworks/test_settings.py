"""A plan has each of its words in the settings of its framework, or the word is named as one without a setting."""

from typing import Any

import pytest

from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, find_profile
from stagedb.frameworks.settings import SILENT
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.schedules import SCHEDULES

MEGATRON = [name for name, each in FRAMEWORK_PROFILES.items() if each.recipe == "megatron"]

PLAN: dict[str, Any] = {
    "recipe": "megatron",
    "tp": 4,
    "pp": 2,
    "cp": 2,
    "dp": 8,
    "ep": 8,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "seq_len": 8192,
    "sp": True,
    "zero": 1,
    "hsdp": 2,
    "virtual_stages": 5,
    "schedule": "1f1b",
    "recompute": "modules",
    "recompute_modules": ("layernorm", "moe_act"),
    "cp_kind": "ring-p2p",
    "expert_tp": False,
    "dispatch": "nodes",
    "recompute_every": 1,
}
BLOCK: dict[str, Any] = {"recipe": "megatron", "tp": 4, "recompute": "full", "recompute_first": 3}


def test_frameworks_of_megatron_have_settings_and_others_none() -> None:
    assert [name for name, each in FRAMEWORK_PROFILES.items() if each.settings is not None] == MEGATRON
    assert len(MEGATRON) == 5


def test_the_words_of_megatron_core() -> None:
    settings = find_profile("megatron-core").settings
    assert settings is not None
    found = settings.settings(PLAN, PLAN)
    assert found.without == ()
    assert found.text.split(" --") == [
        "--tensor-model-parallel-size 4",
        "pipeline-model-parallel-size 2",
        "context-parallel-size 2",
        "expert-model-parallel-size 8",
        "micro-batch-size 1",
        "global-batch-size 64",
        "seq-length 8192",
        "num-virtual-stages-per-pipeline-rank 5",
        "num-distributed-optimizer-instances 2",
        "sequence-parallel",
        "use-distributed-optimizer",
        "recompute-granularity selective",
        "recompute-modules layernorm moe_act",
        "cp-comm-type p2p",
        "expert-tensor-parallel-size 1",
        "moe-token-dispatcher-type flex",
    ]


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        (
            "megatron-core",
            "--tensor-model-parallel-size 4 --recompute-granularity full --recompute-method block "
            "--recompute-num-layers 3",
        ),
        (
            "nemo",
            "model.tensor_model_parallel_size=4 model.activations_checkpoint_granularity=full "
            "model.activations_checkpoint_method=block model.activations_checkpoint_num_layers=3",
        ),
        (
            "megatron-bridge",
            "model.tensor_model_parallel_size=4 model.recompute_granularity=full model.recompute_method=block "
            "model.recompute_num_layers=3",
        ),
    ],
)
def test_the_first_layers_are_the_method_block(framework: str, expected: str) -> None:
    settings = find_profile(framework).settings
    assert settings is not None
    found = settings.settings(BLOCK, BLOCK)
    assert (found.text, found.without) == (expected, ())
    uniform = settings.settings({**BLOCK, "recompute_first": None}, {})
    assert uniform.text == expected.replace("block", "uniform").replace("3", "1")
    # Megatron has no such choice of what it recomputes in part.
    selective = {**BLOCK, "recompute": "core"}
    assert settings.settings(selective, selective).without == ("recompute_first",)


@pytest.mark.parametrize("framework", ["megatron-2021", "megatron-deepspeed"])
def test_frameworks_without_a_setting_for_the_first_layers_name_the_word(framework: str) -> None:
    settings = find_profile(framework).settings
    assert settings is not None
    assert settings.settings(BLOCK, BLOCK).without == ("recompute_first",)


@pytest.mark.parametrize("framework", MEGATRON)
def test_every_word_has_a_setting_or_is_named(framework: str) -> None:
    settings = find_profile(framework).settings
    assert settings is not None
    assert {*settings.numbers, *settings.values} <= PLAN_WORDS.keys()
    for word in (*PLAN, "rank_order", "strategy", "layers_per_chunk"):
        plan = {"tp": 4, **({word: PLAN[word]} if word in PLAN else {word: ["other"]})}
        found = settings.settings(plan, plan)
        known = word in settings.numbers or PLAN.get(word, "other") in settings.values.get(word, {})
        assert found.without == (() if known or word in SILENT else (word,)), word


@pytest.mark.parametrize("framework", MEGATRON)
def test_values_of_settings_are_those_of_plans(framework: str) -> None:
    settings = find_profile(framework).settings
    assert settings is not None
    for word, values in settings.values.items():
        about = PLAN_WORDS[word]
        known = SCHEDULES if word == "schedule" else about.choices or ((True, False) if about.kind is bool else (1,))
        assert set(values) <= set(known), word


def test_degrees_of_one_are_left_out_and_modules_listed() -> None:
    bridge = find_profile("megatron-bridge").settings
    assert bridge is not None
    words = {**PLAN, "cp": 1, "cp_kind": "none", "ep": 1, "hsdp": 1, "virtual_stages": 1}
    text = bridge.settings(words, words).text
    assert "context" not in text and "expert_model" not in text and "virtual" not in text and "instances" not in text
    assert "model.recompute_modules=[layernorm,moe_act]" in text and "train.micro_batch_size=1" in text
