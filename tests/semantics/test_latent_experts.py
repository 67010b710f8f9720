"""Experts that work on a latent, with everything that divides them: what travels, what it costs, what it computes."""

import dataclasses
from itertools import product
from typing import Any

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.variants import variant
from tests.symbolic_rows import communication, flops

NAMES = ("latent experts", "latent experts, plain", "latent experts with scaled inputs and biases")

PLANS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ep": ({}, {"dp": 2, "ep": 2}),
    "ep, tp": ({}, {"dp": 2, "ep": 2, "tp": 2}),
    "ep, tp, sp, zero 3": ({"sp": True, "zero": 3}, {"dp": 2, "ep": 2, "tp": 2}),
    "ep, sp, whole experts, zero 2, recomputed": (
        {"sp": True, "zero": 2, "expert_tp": False, "recompute": "full"},
        {"dp": 2, "ep": 4, "tp": 2},
    ),
    "ep, cp, zero 3": ({"cp_kind": "allgather-kv", "zero": 3}, {"dp": 2, "cp": 2, "ep": 4}),
    "ep, cp, tp, sp": ({"cp_kind": "ulysses", "sp": True}, {"cp": 2, "tp": 2, "ep": 2}),
    "megatron, ep, tp, sp, zero 1": ({"recipe": "megatron", "sp": True, "zero": 1}, {"dp": 2, "ep": 2, "tp": 2}),
    "megatron, ep, cp, zero 3": (
        {"recipe": "megatron", "cp_kind": "ring-p2p", "zero": 3},
        {"dp": 2, "cp": 2, "ep": 2},
    ),
}


@pytest.mark.parametrize(("name", "plan"), [*product(NAMES, PLANS)])
def test_divided_latent_experts_compute_the_same(name: str, plan: str) -> None:
    options, degrees = PLANS[plan]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    model = variant(name)
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model, GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("load", [(2, 1, 1, 0), (0, 0, 2, 2)])
def test_an_uneven_load_of_latent_experts_computes_the_same(load: tuple[int, ...]) -> None:
    model = variant("latent experts")
    whole = dataclasses.replace(example(build_graph(model, GraphOptions())), load=load)
    assert_same(whole.run(dp=2, ep=2), whole.run_whole())


def _layer(words: dict[str, Any]) -> tuple[SymGraph, dict[str, int]]:
    kinds: Any = {"layer": words}
    graph = build_graph(dataclasses.replace(variant("latent experts", 1), layer_kinds=kinds), GraphOptions())
    return graph, environment(graph, dp=2, ep=2)


def test_what_travels_is_as_narrow_as_the_latent() -> None:
    sent = []
    for words in ({"expert_latent": 6}, {}):
        graph, env = _layer({"channel_mixer": "experts", **words})
        ops = [communication(op) for op in graph.ops if ".all_to_all." in op.name]
        assert len(ops) == 4
        sent.append({evaluate(op.comm_bytes, env) for op in ops})
    assert sent == [{each * 6 // 16 for each in sent[1]}, sent[1]]


def test_flops_are_those_of_narrow_experts_and_two_projections() -> None:
    graph, env = _layer({"channel_mixer": "experts", "expert_latent": 6})
    found = {op.name: evaluate(flops(op), env) for op in graph.ops if not op.template.differentiates}
    tokens = env["B"] // 2 * env["S"]
    assert found["layer.ffn.latent"] == found["layer.ffn.latent_back"] == 2 * tokens * 16 * 6
    assert found["layer.ffn.experts.w1"] == found["layer.ffn.experts.w2"] == 2 * tokens * 2 * 6 * 8
    assert found["layer.ffn.shared.w1"] == 2 * tokens * 16 * 12
