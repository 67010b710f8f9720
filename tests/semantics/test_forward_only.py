"""A step of forwards alone, run on a simulated mesh, has the loss of a training step with nothing partitioned."""

from typing import Any

import numpy as np
import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.step import ALONE, Pipeline

MICROBATCHES = 3


@pytest.mark.parametrize("style", ["llama", "gpt", "deepseek"])
@pytest.mark.parametrize("words", [{"sp": True}, {"zero": 3}], ids=str)
@pytest.mark.parametrize("stages", [1, 2])
def test_the_loss_is_that_of_training(style: str, words: dict[str, Any], stages: int) -> None:
    model = card(style, layers=4)
    trained = example(build_graph(model, GraphOptions()), microbatches=MICROBATCHES)
    forward = example(build_graph(model, GraphOptions(workflow="forward-only", **words)), microbatches=MICROBATCHES)
    layers = (4,) if stages == 1 else (2, 2)
    made = pipeline(forward.graph, "1f1b", layers, MICROBATCHES)
    orders = [[task for task in order if task[0] == ALONE[0][0]] for order in made.orders]
    found = forward.run_pipelined(Pipeline(made.positions, orders), dp=2, tp=2, ep=2 if style == "deepseek" else 1)
    np.testing.assert_allclose(found.loss, trained.run_whole().loss, rtol=1e-9)
    assert not found.gradients
