"""A graph has one identity, known without building it: that of its card, its options and the rules that build it."""

import dataclasses

import pytest

from stagedb.build import graph_identity
from stagedb.build.model_graph import build_graph
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.models import load_card
from stagedb.plans import GraphOptions

CARD, OPTIONS = load_card("gpt2"), GraphOptions(recipe="megatron")


def test_the_identity_is_that_of_the_graph_that_is_built() -> None:
    assert graph_identity.graph_key(CARD, OPTIONS) == build_graph(CARD, OPTIONS).key


def test_other_cards_options_and_rules_make_other_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [graph_identity.graph_key(CARD, OPTIONS)]
    keys.append(graph_identity.graph_key(dataclasses.replace(CARD, layers=CARD.layers + 1), OPTIONS))
    keys.append(graph_identity.graph_key(CARD, GraphOptions(recipe="torch")))
    monkeypatch.setattr("stagedb.build.graph_identity.FORMAT", FORMAT + 1)
    keys.append(graph_identity.graph_key(CARD, OPTIONS))
    assert len(set(keys)) == len(keys)
