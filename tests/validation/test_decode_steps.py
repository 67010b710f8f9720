"""Steps of decoding as models' own code has them, against graphs of their configs with more keys than queries.

`decode_steps.json` (transformers, shapes only) has the matmuls of one step that adds a token to each of `batch`
sequences, whose cache has `seq` tokens, and the bytes of that cache in bf16. `models.json` has the configs.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import cached_names
from stagedb.models import Card, from_hugging_face
from stagedb.plans import GraphOptions
from stagedb.validation import read_models
from stagedb.validation.model_check import decode_options, forward_rows, matched

FOLDER = Path(__file__).parent
STEPS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((FOLDER / "decode_steps.json").read_text(encoding="utf-8"))
}
CONFIGS = {model.name: model.config for model in read_models(FOLDER / "models.json") if model.name in STEPS}


def built(name: str) -> tuple[Card, SymGraph]:
    card = replace(from_hugging_face(CONFIGS[name], name="recorded"), vocab_multiple=1, multi_token_prediction=0)
    return card, build_graph(card, GraphOptions(workflow="forward-only"))


@pytest.mark.parametrize("name", STEPS)
def test_matmuls_of_a_step_are_those_of_the_models_own_code(name: str) -> None:
    step, (card, graph) = STEPS[name], built(name)
    env = on_one_rank(graph, step["batch"], 1, step["seq"] + 1)
    theirs = {(op, tuple(dims)): count for op, dims, count in step["decode"]}
    rules, differences = matched(theirs, forward_rows(card, graph, env))
    assert not differences
    assert set(rules) <= {
        "experts have as many slots each",
        "projections of one input are one matmul",
        "keys before a window are computed together with those of blocks",
    }


@pytest.mark.parametrize("name", STEPS)
def test_matmuls_of_the_workflow_are_those_too(name: str) -> None:
    step, (card, _) = STEPS[name], built(name)
    try:
        graph = build_graph(card, decode_options(card))
    except UsageError as error:
        assert "cannot be served with a cache" in str(error)
        return
    env = on_one_rank(graph, step["batch"], 1, step["seq"] + 1)
    theirs = {(op, tuple(dims)): count for op, dims, count in step["decode"]}
    assert not matched(theirs, forward_rows(card, graph, env))[1]


@pytest.mark.parametrize("name", STEPS)
def test_what_is_read_of_earlier_positions_is_what_the_models_own_code_caches(name: str) -> None:
    step, (_, graph) = STEPS[name], built(name)
    env = on_one_rank(graph, step["batch"], step["seq"])
    tensors, held = {tensor.name: tensor for tensor in graph.tensors}, 0
    for block in graph.blocks:
        for tensor in (tensors[each] for each in cached_names(graph, block.name)):
            size = evaluate(tensor.bytes, env) * evaluate(block.repeat, env)
            if "packed" in tensor.axes:  # of the queries, the key and the value of a head the last two
                size = size * 2 // evaluate(tensor.shape[tensor.axes.index("packed")], env)
            held += size
    assert held == step["kv_cache_bytes"]
