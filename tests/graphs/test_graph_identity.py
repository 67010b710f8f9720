"""A graph has one identity, known without building it: that of its card, its options and the rules that build it."""

import dataclasses

import pytest

from stagedb.graphs import graph_identity
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.lowering.preparing import instance_id
from stagedb.models import load_card
from stagedb.plans import GraphOptions, Plan

CARD, OPTIONS = load_card("gpt2"), GraphOptions(recipe="megatron")


def test_the_identity_is_that_of_the_graph_that_is_built() -> None:
    assert graph_identity.graph_key(CARD, OPTIONS) == build_graph(CARD, OPTIONS).key


def test_other_cards_options_and_rules_make_other_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [graph_identity.graph_key(CARD, OPTIONS)]
    keys.append(graph_identity.graph_key(dataclasses.replace(CARD, layers=CARD.layers + 1), OPTIONS))
    keys.append(graph_identity.graph_key(CARD, GraphOptions(recipe="torch")))
    monkeypatch.setattr("stagedb.graphs.graph_identity.FORMAT", FORMAT + 1)
    keys.append(graph_identity.graph_key(CARD, OPTIONS))
    assert len(set(keys)) == len(keys)


def test_ids_do_not_depend_on_words_that_have_their_default() -> None:
    """A word that a later version adds changes no id of what a store has: these ids change with a new format alone."""
    plan = Plan.from_mapping({"tp": 2, "dp": 4, "zero": 1, "sp": True, "recipe": "megatron", "seq_len": 512})
    formats = dict.fromkeys(("grad_dtype", "reduce_dtype", "opt_dtype", "master_dtype"), "fp32")
    assert plan.chosen == {"tp": 2, "dp": 4, "seq_len": 512, **formats, **plan.options.chosen}
    assert plan.options.chosen == {"recipe": "megatron", "sp": True, "zero": 1}
    graph = graph_identity.graph_key(CARD, plan.options)
    assert graph == "464a3a16edcbb3dff9c2e1147adb0af0"
    assert instance_id(graph, graph_identity.model_sizes(CARD, plan.options.framework), plan) == "9bcb6dbc128fd195e84b"
