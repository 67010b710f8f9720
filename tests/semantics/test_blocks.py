"""Blocks that run one by one make the step that a whole run makes."""

import numpy as np
import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.interpreter import gradient_names, run_block
from stagedb.ir.operators import Array
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import Example, example
from tests.semantics.step import Run, positions
from tests.semantics.test_partitioned import agree
from tests.symbolic_rows import place_of_value

OPTIONS = {
    "torch": GraphOptions(),
    "torch, eager, recomputed": GraphOptions(kernels="eager", attention="math", recompute="full", sp=True),
    "torch, fsdp": GraphOptions(zero=3),
    "megatron": GraphOptions(recipe="megatron", sp=True, dropout=0.2, attention="math"),
}


def in_blocks(made: Example) -> Run:
    """The step, with nothing but what blocks take and hand on between one run of a block and the next."""
    graph, env = made.graph, environment(made.graph)
    specs = {spec.name: spec for spec in graph.blocks}
    places = list(enumerate(positions(graph, env)))
    weights = [
        {
            row.name: made.weights[place_of_value(row, place)]
            for row in graph.tensors
            if row.block == block and row.role == "weight"
        }
        for place, block in places
    ]
    ends = {"embedding": {"embedding.tokens": made.tokens}, "head": {"head.labels": made.labels}}
    inputs: list[dict[str, Array]] = []
    values: dict[str, Array] = {}
    for place, block in places:
        spec = specs[block]
        before = specs[places[place - 1][1]].output
        handed = {} if spec.input is None else {spec.input: values[before or ""]}
        inputs.append({**ends.get(block, {}), **handed})
        values = run_block(graph, env, block, weights[place], inputs[place])
    gradients: dict[tuple[str, int], Array] = {}
    loss, gradient = float(values["head.loss"]), np.asarray(1.0)
    for place, block in reversed(places):
        values = run_block(graph, env, block, weights[place], inputs[place], gradient)
        names = gradient_names(graph, block)
        for row in graph.tensors:
            if row.name in weights[place]:
                key = place_of_value(row, place)
                gradients[key] = gradients.get(key, 0) + values[names[row.name]]
        if place:
            gradient = values[names[specs[block].input or ""]]
    return Run(loss, gradients)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("style", ["llama", "gpt", "llama tied", "moe", "deepseek"])
def test_blocks_that_run_one_by_one_make_the_whole_step(style: str, options: GraphOptions) -> None:
    name, *tied = style.split()
    made = example(build_graph(card(name, tied=bool(tied)), options))
    agree(in_blocks(made), made.run())
