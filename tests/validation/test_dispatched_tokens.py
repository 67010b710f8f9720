"""How the tokens of a row reach their experts: by the framework, and by what of the network a group of ep takes."""

from typing import Any

import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.systems import load_system
from stagedb.validation.step_rows import dispatch_words

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "in a node": ("megatron-core", "h100", {"ep": 8}, {}),
    "with whole experts in a node": ("megatron-core", "h100", {"ep": 8, "tp": 4, "expert_tp": False}, {}),
    "between nodes": ("megatron-core", "h100", {"ep": 32}, {"dispatch": "nodes", "node_ranks": 8}),
    "between nodes, apart": ("megatron-core", "h100", {"ep": 8, "tp": 4}, {"dispatch": "nodes", "node_ranks": 2}),
    "a rank of each node": ("megatron-core", "h100", {"ep": 8, "tp": 8}, {"dispatch": "ranks"}),
    "in a domain of nodes": ("megatron-core", "gb200-nvl72", {"ep": 32}, {"dispatch": "ranks"}),
    "by choice": ("megatron-core", "h100", {"ep": 32, "dispatch": "copies"}, {}),
    "another framework": ("nemo", "h100", {"ep": 32}, {}),
    "no experts apart": ("megatron-core", "h100", {"ep": None}, {}),
    "slots of a fixed number": ("megatron-core", "h100", {"ep": 32, "capacity_factor": 1.0}, {}),
}


@pytest.mark.parametrize("case", list(CASES))
def test_tokens_are_sent_once_where_the_framework_does(case: str) -> None:
    framework, system, words, found = CASES[case]
    assert dispatch_words(find_profile(framework), words, load_system(system)) == found
