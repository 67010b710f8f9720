"""Parallel layers: what they compute, their gradients, their one reduction, and partitioned runs."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.interpreter import run_block
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same

FORMS = ("parallel", "parallel_two_norms")


def parallel(style: str, form: str, layers: int = 2) -> Card:
    kinds: Any = {"layer": {"residual": form}}
    return dataclasses.replace(card(style, layers=layers, kv_heads=4), layer_kinds=kinds)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_layer_adds_both_results_to_its_input(style: str, form: str) -> None:
    """Whichever part has no weights adds nothing, and what each adds does not depend on the other."""
    graph = build_graph(parallel(style, form, layers=1), GraphOptions())
    env, rng = environment(graph), np.random.default_rng(0)
    made = example(graph)
    weights = {name: value for (name, place), value in made.weights.items() if place == 1}
    x = rng.normal(size=(env["B"], env["S"], env["H"]))

    def added(*parts: str) -> Any:
        """What the layer adds where only these parts have weights."""
        some = {
            name: value if "norm" in name or name.split(".")[1] in parts else np.zeros_like(value)
            for name, value in weights.items()
        }
        return run_block(graph, env, "layer", some, {"layer.input": x})["layer.parallel.add"] - x

    assert not added().any()
    np.testing.assert_allclose(added("attn", "ffn"), added("attn") + added("ffn"), atol=1e-12)


OPTIONS = {
    "fused": GraphOptions(),
    "eager, math": GraphOptions(kernels="eager", attention="math"),
    "dropout": GraphOptions(dropout=0.2),
    "megatron, dropout": GraphOptions(recipe="megatron", attention="math", dropout=0.2),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ["llama", "gpt"])
@pytest.mark.parametrize("words", OPTIONS)
def test_gradients_are_the_slopes_of_the_loss(style: str, form: str, words: str) -> None:
    case = example(build_graph(parallel(style, form, layers=1), OPTIONS[words]))
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-5
    assert set(analytic) == set(case.weights)
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        ends = [case.loss(key, weight + sign * step * direction) for sign in (1, -1)]
        slope = float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7), key


MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2, "dp": 2}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "separate inputs": ({"sp": True, "shared_input": False}, {"tp": 4}),
    "ring": ({"cp_kind": "ring-alltoall"}, {"cp": 2, "tp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 1}, {"tp": 2, "dp": 2}),
    "megatron, sp, dropout": ({"recipe": "megatron", "sp": True, "dropout": 0.2}, {"tp": 2}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("style", ["llama", "gpt", "moe"])
@pytest.mark.parametrize("words", MESHES)
def test_partitioned_layers_compute_the_same(style: str, form: str, words: str) -> None:
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word in ("recipe", "dropout")}
    model = parallel(style, form)
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model, GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize(("words", "count"), [({}, 1), ({"dropout": 0.2}, 2), ({"shared_input": False}, 2)])
def test_tensor_parallel_ranks_reduce_the_sum_of_both_once(words: dict[str, Any], count: int) -> None:
    """Not where dropout reads each of the two whole, or where nothing is shared."""
    graph = build_graph(parallel("llama", "parallel"), GraphOptions(**words))
    reduced = [op for op in graph.ops if (op.block, op.axis, op.phase) == ("layer", "tp", "forward")]
    assert [op.kind for op in reduced] == ["all_reduce"] * count


def test_parallel_layers_alternate_with_serial_ones() -> None:
    kinds: Any = {"wide": {"residual": "parallel"}, "layer": {}}
    model = dataclasses.replace(card("llama", layers=4), layer_kinds=kinds, pattern=("wide", "layer"))
    graph = build_graph(model, GraphOptions(sp=True, zero=3))
    whole = example(build_graph(model, GraphOptions()), microbatches=2)
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (3, 1), 2), dp=2, tp=2), whole.run_whole())
    assert sum(weight.size for weight in some.weights.values()) == model.count_parameters()
