"""Groups of experts from some of which a token chooses: configs, cards, and the choice itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.operators import GroupedTopK, RankPlace, TopK
from stagedb.models import Card, from_hugging_face
from stagedb.models.card_library import load_card
from stagedb.plans import GraphOptions

V2: Mapping[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "norm_topk_prob": False,
    "routed_scaling_factor": 16.0,
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "n_group": 8,
    "topk_group": 3,
    "hidden_act": "silu",
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}
"""DeepSeek-V2, in the words of its checkpoint."""


def read(**changes: Any) -> Card:
    return from_hugging_face({**V2, **changes}, name="deepseek-v2")


def words(card: Card) -> tuple[object, object]:
    settings = card.kinds["layer"].settings
    return settings["expert_groups"], settings["chosen_groups"]


def test_a_config_with_groups_has_them_on_its_card() -> None:
    card = read()
    assert words(card) == (8, 3)
    assert Card(**card.to_dict()) == card
    assert card.count_parameters() == read(topk_method="greedy").count_parameters()


@pytest.mark.parametrize("changes", [{"topk_method": "greedy"}, {"n_group": 1}, {"topk_group": 8}])
def test_a_choice_from_all_experts_has_no_words(changes: Mapping[str, Any]) -> None:
    assert "expert_groups" not in read(**changes).to_dict()["layer_kinds"]["layer"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_group": 7}, "expert_groups=7 does not divide experts=160"),
        ({"topk_group": 9}, "chosen_groups=9 is above expert_groups=8"),
        ({"n_group": 80, "topk_group": 2}, "2 groups have 4 experts, and top_k=6 process a token"),
        ({"n_group": 0}, "n_group must be a whole number from 1, not 0"),
        ({"topk_method": "hash"}, "topk_method 'hash' is not supported here"),
    ],
)
def test_groups_from_which_no_token_can_choose_are_refused(changes: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read(**changes)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ({"expert_groups": 8}, "expert_groups has no chosen_groups: set both"),
        ({"chosen_groups": 8}, "chosen_groups has no expert_groups: set both"),
        ({"expert_groups": 8, "chosen_groups": 2, "scores": ""}, "expert_groups are chosen by the scores of all"),
    ],
)
def test_half_of_the_words_is_refused(kind: Mapping[str, Any], reason: str) -> None:
    content = load_card("deepseek-v3").to_dict()
    layer = {name: value for name, value in content["layer_kinds"]["layer"].items() if "groups" not in name}
    layer = {name: value for name, value in {**layer, **kind}.items() if name != "routing_scale"}
    with pytest.raises(UsageError, match=reason):
        Card(**{**content, "layer_kinds": {**content["layer_kinds"], "layer": layer}})


@pytest.mark.parametrize(("name", "found"), [("deepseek-v3", (8, 4)), ("deepseek-v3.2", (8, 4)), ("kimi-k2", (0, 0))])
def test_cards_have_the_groups_of_their_publications(name: str, found: tuple[int, int]) -> None:
    assert words(load_card(name)) == found


def test_a_graph_has_the_groups_among_its_sizes() -> None:
    sizes = build_graph(load_card("deepseek-v3"), GraphOptions()).sizes
    assert (sizes["EG"], sizes["EC"]) == (8, 4)
    assert "EG" not in build_graph(load_card("kimi-k2"), GraphOptions()).sizes


@pytest.mark.parametrize(("best", "chosen"), [(1, 3), (2, 2), (2, 4)])
def test_a_token_chooses_from_the_best_groups(best: int, chosen: int) -> None:
    groups, experts, choices = 4, 12, 4
    scores = np.random.default_rng(best + chosen).random((2, 5, experts))
    place = RankPlace({"experts": experts, "choices": choices}, {}, {})
    values, found = GroupedTopK(groups, chosen, best).run(place, [scores])
    for token in np.ndindex(2, 5):
        of_groups = [sum(sorted(scores[token][3 * group : 3 * group + 3])[-best:]) for group in range(groups)]
        allowed = sorted(range(groups), key=lambda group: -of_groups[group])[:chosen]
        from_these = [expert for group in allowed for expert in range(3 * group, 3 * group + 3)]
        wanted = sorted(from_these, key=lambda expert: -scores[token][expert])[:choices]
        assert found[token].tolist() == wanted
        assert values[token].tolist() == [scores[token][expert] for expert in wanted]
    if chosen == groups:
        assert found.tolist() == TopK().run(place, [scores])[1].tolist()
