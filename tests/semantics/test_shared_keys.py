"""The attention of DeepSeek V4: gradients, partitioned runs, what a query sees, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import UsageError
from stagedb.expressions import evaluate
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.symbolic_rows import flops

SHARED = {"q_rank": 6, "rope_dim": 2, "window": 3, "out_groups": 4, "out_rank": 3}
HEAVY = {**SHARED, "mixer": "heavily_compressed", "heavy_ratio": 3}
SPARSE = {**SHARED, "mixer": "compressed_sparse", "sparse_ratio": 2, "index_heads": 3, "index_dim": 2, "index_top": 2}

KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "window": {"layer": {**SHARED, "mixer": "shared_keys"}},
    "heavy": {"layer": HEAVY},
    "blocks longer than the sequence": {"layer": {**HEAVY, "heavy_ratio": 9}},
    "sparse": {"layer": SPARSE},
    "sparse, all blocks": {"layer": {**SPARSE, "index_top": 30}},
    "both, in streams": {
        "layer": {**HEAVY, "residual": "streams"},
        "other": {**SPARSE, "residual": "streams"},
    },
}


def model(name: str, **words: Any) -> Card:
    """Two layers of each kind."""
    kinds: Any = KINDS[name]
    several = "streams" in name
    usual = dataclasses.replace(card("llama"), kv_heads=1)
    return dataclasses.replace(
        usual, layers=2, layer_kinds=kinds, pattern=tuple(kinds), streams=3 if several else 0, **words
    )


STYLES = {
    "torch": GraphOptions(),
    "eager": GraphOptions(kernels="eager"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name in KINDS for words in STYLES if words == "torch" or "streams" not in name]
)
def test_gradients_are_the_slopes_of_the_loss(name: str, words: str) -> None:
    made = model(name)
    case = example(build_graph(made, STYLES[words]))
    assert sum(value.size for value in case.weights.values()) == made.count_parameters()
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-5
    assert set(analytic) == set(case.weights)
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        ends = [case.run(weights={**case.weights, key: weight + sign * step * direction}).loss for sign in (1, -1)]
        # The indexer learns from a loss of its own.
        slope = 0.0 if ".index." in str(key) else float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6), key


MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2, "dp": 2}),
    "tp 4, sp": ({"sp": True}, {"tp": 4}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 4}),
    "megatron": ({"recipe": "megatron", "zero": 1}, {"tp": 2, "dp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", KINDS)
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model(name), GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model(name), GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_a_window_alone_is_divided_over_a_context() -> None:
    whole = example(build_graph(model("window"), GraphOptions()))
    graph = build_graph(model("window"), GraphOptions(cp_kind="ulysses"))
    assert_same(dataclasses.replace(whole, graph=graph).run(cp=2, tp=2), whole.run_whole())
