"""Dropping collectives of one member leaves the order of everything else as it was."""

import dataclasses
import functools

import pytest
import rustworkx
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.sampling import examples


@functools.lru_cache(maxsize=64)
def graph_of(style: str, tied: bool, options: GraphOptions) -> SymGraph:
    return build_graph(card(style, tied=tied), options)


def reachable(names: list[str], pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    graph = rustworkx.PyDiGraph()
    index = dict(zip(names, graph.add_nodes_from(names), strict=True))
    graph.add_edges_from_no_data([(index[a], index[b]) for a, b in pairs])
    return {(a, graph[b]) for a in names for b in rustworkx.descendants(graph, index[a])}


@settings(max_examples=examples(30), deadline=None)
@given(
    style=st.sampled_from(["llama", "gpt"]),
    tied=st.booleans(),
    recipe=st.sampled_from(["torch", "megatron"]),
    sp=st.booleans(),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    loss_parallel=st.booleans(),
    kernels=st.sampled_from(["fused", "eager"]),
    wide=st.booleans(),
)
def test_bypasses_keep_what_waits_for_what(
    style: str, tied: bool, recipe: str, sp: bool, tp: int, pp: int, loss_parallel: bool, kernels: str, wide: bool
) -> None:
    options = GraphOptions(recipe=recipe, sp=sp, loss_parallel=loss_parallel, kernels=kernels)  # type: ignore[arg-type]
    graph = graph_of(style, tied, options)
    env = {**environment(graph, tp=tp), "pp": pp, "e_logits": 4, "e_act": 4 if wide else 2}

    def exists(condition: str | None) -> bool:
        return condition is None or evaluate(condition, env) > 0

    kept = [op.name for op in graph.ops if exists(op.present)]
    inside = [edge for edge in graph.edges if edge.hop == "same"]
    plain = {(edge.source, edge.target) for edge in inside if edge.present is None}
    shown = {(e.source, e.target) for e in inside if exists(e.present) and {e.source, e.target} <= set(kept)}
    whole = reachable([op.name for op in graph.ops], plain)
    assert reachable(kept, shown) == {(a, b) for a, b in whole if a in set(kept) and b in set(kept)}


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        GraphOptions(sp=True, recompute="full"),
        GraphOptions(recipe="megatron", sp=True, recompute="full"),
        GraphOptions(sp=True, kernels="eager", recompute="pointwise"),
        GraphOptions(attention="math", recompute="core"),
        GraphOptions(sp=True, recompute="operators", recompute_operators=("attn_norm", "ffn.gate")),
    ],
    ids=lambda options: f"{options.recipe} {options.recompute}",
)
def test_a_layer_that_recomputes_nothing_has_the_operators_and_edges_of_one_without(
    options: GraphOptions, tp: int
) -> None:
    def shown(graph: SymGraph, runs: int) -> tuple[list[str], set[tuple[str, str, str, str]]]:
        env = {**environment(graph, tp=tp), "runs": runs}
        kept = [op.name for op in graph.ops if op.present is None or evaluate(op.present, env) > 0]
        joined = {
            (edge.source, edge.target, edge.kind, edge.hop)
            for edge in graph.edges
            if edge.present is None or evaluate(edge.present, env) > 0
        }
        return kept, {edge for edge in joined if {edge[0], edge[1]} <= set(kept)}

    plain = build_graph(card("llama"), dataclasses.replace(options, recompute="none", recompute_operators=()))
    graph = build_graph(card("llama"), options)
    assert shown(graph, 1) == shown(plain, 1)
    kept, edges = shown(graph, 2)
    repeated = {name for name in kept if name.endswith(".recompute")}
    assert set(kept) == set(shown(plain, 2)[0]) | repeated
    assert {target for source, target, *_ in edges if source in repeated} - repeated
    # The copy is in between: an op that reads it does not wait for the forward's own.
    originals = {name.removesuffix(".recompute") for name in repeated}
    readers = {target for source, target, *_ in edges if source in repeated}
    assert not [
        (source, target)
        for source, target, _, hop in edges
        if source in originals and target in readers - repeated and hop == "same"
    ]


def test_an_edge_joins_operators_that_exist() -> None:
    graph = build_graph(card("gpt", tied=True), GraphOptions(sp=True))
    names = {op.name for op in graph.ops}
    assert all(edge.source in names and edge.target in names for edge in graph.edges)
    assert len(set(graph.edges)) == len(graph.edges)


def test_issue_order_follows_the_data() -> None:
    graph = build_graph(card("llama"), GraphOptions(sp=True, shared_input=False))
    order = {op.name: (("forward", "backward", "optimizer").index(op.phase), op.order) for op in graph.ops}
    for edge in graph.edges:
        if edge.hop == "same":
            assert order[edge.source] < order[edge.target], edge


def test_the_backward_waits_for_the_loss() -> None:
    graph = build_graph(card("llama"), GraphOptions())
    into = {(edge.source, edge.kind) for edge in graph.edges if edge.target == "head.loss.input_gradient"}
    assert into == {("head.loss", "program")}
