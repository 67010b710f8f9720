"""The derived backward against numeric gradients of the graph's own forward."""

import numpy as np
import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.semantics.running import example

OPTIONS = {
    "fused": GraphOptions(),
    "math": GraphOptions(attention="math"),
    "dropout": GraphOptions(attention="math", dropout=0.2),
    "eager": GraphOptions(kernels="eager"),
    "gathered logits": GraphOptions(loss_parallel=False),
    "megatron": GraphOptions(recipe="megatron"),
    "megatron, math, dropout": GraphOptions(recipe="megatron", attention="math", dropout=0.2),
}


@pytest.mark.parametrize("style", ["llama", "gpt", "gpt tied", "llama qkv bias", "qwen3"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_weight_s_gradient_is_the_slope_of_the_loss(style: str, options: GraphOptions) -> None:
    words = style.split()
    model = card(words[0], layers=1, tied="tied" in words, qkv_bias="qkv" in words)
    case = example(build_graph(model, options))
    whole = case.run()
    analytic = whole.gradients
    assert set(analytic) == set(case.weights)
    rng, step = np.random.default_rng(1), 1e-5
    assert all(case.loss(*item) == whole.loss for item in case.weights.items())
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        up = case.loss(key, weight + step * direction)
        down = case.loss(key, weight - step * direction)
        slope = float((analytic[key] * direction).sum())
        assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7), key
