"""Every word of a layer kind, and every field around the layers: gradients, partitioned runs, parameters."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import UsageError
from stagedb.plans import GraphOptions
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.variants import VARIANTS, variant

STYLES = {
    "torch": GraphOptions(),
    "eager, math": GraphOptions(kernels="eager", attention="math"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_the_slopes_of_the_loss(name: str, words: str) -> None:
    model = variant(name, layers=1)
    case = example(build_graph(model, STYLES[words]))
    padded = sum(value.size for value in case.weights.values())
    assert padded == model.count_parameters()
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-5
    assert set(analytic) == set(case.weights)
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        ends = [case.run(weights={**case.weights, key: weight + sign * step * direction}).loss for sign in (1, -1)]
        slope = float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6), key


MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2, "dp": 2}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "separate inputs": ({"sp": True, "shared_input": False}, {"tp": 4}),
    "ulysses": ({"cp_kind": "ulysses"}, {"cp": 2, "tp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 1}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", VARIANTS)
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word in ("recipe", "dropout")}
    model = variant(name)
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model, GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("name", ["window", "chunk", "scale", "softcap", "sinks", "latent", "ALiBi"])
def test_rings_refuse_scores_that_they_do_not_compute(name: str) -> None:
    with pytest.raises(UsageError, match="take --cp-kind ulysses"):
        build_graph(variant(name), GraphOptions(cp_kind="ring-alltoall"))
