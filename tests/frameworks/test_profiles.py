"""What the profiles of frameworks imply for a plan, and that plans take it."""

import pytest

from stagedb.frameworks.profiles import FRAMEWORK_PROFILES, find_profile
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import GraphOptions, plan_for


@pytest.mark.parametrize("name", ["megatron-deepspeed", "fsdp", "automodel", "maxtext"])
def test_each_word_of_recomputing_makes_a_graph(name: str) -> None:
    profile, card = find_profile(name), load_card("llama3-8b")
    for words in ({}, *profile.recompute.values()):
        given = {"tp": 2, "dp": 4, "zero": 3 if profile.recipe == "torch" else 1, "global_batch_size": 8, **words}
        plan = plan_for(profile.plan_words(given), model_sizes(card, GraphOptions(recipe=profile.recipe).framework))
        graph = build_graph(card, plan.options)
        assert any(op.phase == "recompute" for op in graph.ops) == (plan.options.recompute != "none")


@pytest.mark.parametrize("name", FRAMEWORK_PROFILES)
def test_each_way_to_make_kernels_has_words(name: str) -> None:
    profile = FRAMEWORK_PROFILES[name]
    assert set(profile.hidden_by) <= set(profile.kernels)
    assert profile.source


def test_formats_follow_the_activations() -> None:
    words = find_profile("megatron-deepspeed").plan_words
    assert (words({"dtype": "fp16"})["grad_dtype"], words({"dtype": "fp16"})["reduce_dtype"]) == ("fp16", "fp16")
    assert "grad_dtype" not in words({"dtype": "bf16"})


def test_messages_are_cut_where_ranks_of_tp_send_them() -> None:
    words = find_profile("megatron-deepspeed").plan_words
    assert words({"tp": 2, "pp": 2})["scatter_gather"] is True
    assert "scatter_gather" not in words({"tp": 2}) | words({"pp": 2})
