"""Graphs that were built with other rules are other graphs, and no graph changes without need."""

import pytest

from stagedb.build import graph_identity
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.semantics.variants import variant

SINKS, SCORED, SOFTMAX = variant("sinks"), variant("router's sigmoid"), variant("router's softmax")


@pytest.mark.parametrize(
    ("rule", "card", "options", "changes"),
    [
        ("SINKS", SINKS, GraphOptions(), True),
        ("SINKS", SINKS, GraphOptions(recipe="megatron"), True),
        ("SINKS", variant("window"), GraphOptions(), False),
        ("SHARES", SCORED, GraphOptions(), True),
        ("SHARES", SOFTMAX, GraphOptions(), False),
        ("SHARES", SINKS, GraphOptions(), False),
        ("EXPERT_BIASES", variant("biases of experts"), GraphOptions(), True),
        ("EXPERT_BIASES", SCORED, GraphOptions(), False),
    ],
)
def test_a_rule_that_changes_makes_other_graphs_of_the_models_that_it_is_for(
    monkeypatch: pytest.MonkeyPatch, rule: str, card: Card, options: GraphOptions, changes: bool
) -> None:
    before = graph_identity.graph_key(card, options)
    monkeypatch.setattr(graph_identity, rule, getattr(graph_identity, rule) + 1)
    assert (graph_identity.graph_key(card, options) != before) is changes
