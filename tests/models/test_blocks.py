"""The blocks hold the weights that their cards count."""

import math

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.models import card_names, load_card
from stagedb.plans import GraphOptions
from tests.symbolic_rows import parameter


@pytest.mark.parametrize("name", card_names())
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_a_graph_s_weights_are_the_card_s_parameters(name: str, recipe: str) -> None:
    model = load_card(name)
    graph = build_graph(model, GraphOptions(recipe=recipe))
    # The published vocabulary: the padding that a framework adds is no parameter of the model.
    env = {**graph.sizes, "V": model.vocab, "tp": 1, "pp": 1}
    weights = [tensor for tensor in graph.tensors if tensor.role == "weight" and parameter(tensor).tied is None]
    vocabulary = {"torch": model.vocab, "megatron": -(-model.vocab // 128) * 128}[recipe]
    padding = (vocabulary - model.vocab) * model.hidden * (1 if model.tied else 2)
    repeats = {block.name: evaluate(block.repeat, env) for block in graph.blocks}
    total = sum(math.prod(evaluate(size, env) for size in tensor.shape) * repeats[tensor.block] for tensor in weights)
    assert total - padding == model.count_parameters()
