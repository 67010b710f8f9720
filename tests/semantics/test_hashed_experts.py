"""Experts that a table of tokens chooses (DeepSeek V4), with everything that divides them: costs, memory, serving."""

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from scripts.recording.drawn_values import drawn_table
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import RankPlace, Route
from stagedb.ir.operators.routing_variants import ChosenScores, TableChoice
from stagedb.ir.symbolic_graph import Compute
from stagedb.memory import memory_of
from stagedb.plans import GraphOptions
from tests.ir.environments import environment
from tests.lowered import program
from tests.semantics.running import check_slopes, example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.test_latent_experts import PLANS
from tests.semantics.test_serving import CHUNKS, TOKENS, Serving, agree, by_position, whole
from tests.semantics.variants import variant

NAME = "experts by a table"


def test_gradients_are_the_slopes_of_the_loss() -> None:
    case = example(build_graph(variant(NAME), GraphOptions()))
    gradients = case.run().gradients
    assert set(gradients) == set(case.weights)
    check_slopes(case, gradients)


@pytest.mark.parametrize("plan", PLANS)
def test_divided_experts_compute_the_same(plan: str) -> None:
    """On two stages, the second of which reads the tokens again."""
    options, degrees = PLANS[plan]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    one = example(build_graph(variant(NAME), GraphOptions(**plain)), microbatches=2)
    graph = build_graph(variant(NAME), GraphOptions(**options))
    some = dataclasses.replace(one, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), one.run_whole())


@pytest.mark.parametrize("options", [{}, {"sp": True}], ids=["tp", "sp"])
def test_serving_in_steps_is_one_forward(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    made = variant(NAME, max_positions=64)
    reference, graph = (build_graph(made, GraphOptions(workflow="prefill", **words)) for words in ({}, options))
    steps = CHUNKS if options else TOKENS
    agree(Serving(graph, tp=2, dp=2, ep=2).run(steps), whole(reference, steps))


def test_the_weights_are_the_scores_of_the_experts_of_the_table() -> None:
    rng, place = np.random.default_rng(0), RankPlace({"experts": 6, "choices": 2}, {}, {})
    table, tokens, scores = drawn_table(11, 2, 6), rng.integers(0, 11, (3, 5)), rng.normal(size=(3, 5, 6))
    (chosen,) = TableChoice().run(place, [tokens, table])
    (best,) = ChosenScores().run(place, [scores, chosen])
    for (row, column), token in np.ndenumerate(tokens):
        assert list(chosen[row, column]) == [3 * token % 6, (3 * token + 1) % 6]
        assert list(best[row, column]) == [scores[row, column, each] for each in chosen[row, column]]


def test_nothing_searches_and_a_row_of_the_table_is_read_for_each_token() -> None:
    graph = build_graph(variant(NAME), GraphOptions())
    env = environment(graph)
    ops = {op.name: op for op in graph.ops}
    tokens, choices = env["B"] * env["S"], env["K"]
    lookup, gather = ops["layer.ffn.chosen"], ops["layer.ffn.topk"]
    assert "topk" not in {op.kind for op in graph.ops if op.phase == "forward"}
    for op, read, written in (
        (lookup, 8 * tokens * (1 + choices), 8 * tokens * choices),
        (gather, (4 + 8) * tokens * choices, 4 * tokens * choices),
    ):
        assert isinstance(op.work, Compute)
        assert evaluate(op.work.bytes_read, env) == read
        assert evaluate(op.work.bytes_written, env) == written


@pytest.mark.parametrize(("recipe", "pp"), [*product(("torch", "megatron"), (1, 2))])
def test_memory_holds_a_table_a_layer_and_the_tokens_once(recipe: str, pp: int) -> None:
    made = dataclasses.replace(variant(NAME, 4), vocab_multiple=1)
    kinds: Any = {"layer": {"channel_mixer": "experts", "scores": "sqrtsoftplus", "routing_scale": 1.5}}
    usual = dataclasses.replace(made, layer_kinds=kinds)
    words = {"recipe": recipe, "pp": pp, "seq_len": 8, "global_batch_size": 4, "micro_batch_size": 1}
    both = [memory_of(program(each, **words)) for each in (made, usual)]
    tables = 4 // pp * made.vocab * made.top_k * 8
    for ours, theirs in zip(*both, strict=True):
        held, without = (dict(each.ends())["start"]["inputs_and_buffers"] for each in (ours, theirs))
        assert held == without + tables
        peak, before = (dict(each.peaks())["backward_peak"]["inputs_and_buffers"] for each in (ours, theirs))
        assert peak == before + tables


def test_parameters_have_no_table() -> None:
    made = variant(NAME)
    kinds: Any = {"layer": {"channel_mixer": "experts", "scores": "sqrtsoftplus", "routing_scale": 1.5}}
    assert made.count_parameters() == dataclasses.replace(made, layer_kinds=kinds).count_parameters()


@pytest.mark.parametrize(
    ("words", "fields", "why"),
    [
        ({"scores": ""}, {}, "set scores to sqrtsoftplus, sigmoid or softmax"),
        ({"expert_groups": 4, "chosen_groups": 2}, {}, "leave expert_groups out"),
        ({}, {"multi_token_prediction": 1}, "would have experts that a table of tokens chooses"),
    ],
)
def test_what_has_no_meaning_is_refused(words: dict[str, Any], fields: dict[str, Any], why: str) -> None:
    usual = {"channel_mixer": "experts", "scores": "sigmoid", "hashed": True}
    kinds: Any = {"layer": {**usual, **words}}
    with pytest.raises(UsageError, match=why):
        dataclasses.replace(variant(NAME), layer_kinds=kinds, **fields)
