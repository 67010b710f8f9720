"""Several residual streams: what they compute, what they cost and send, and partitioned runs in every product."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import run_block
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.schedules import SCHEDULES
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.test_partitioned import context, options
from tests.semantics.variants import variant
from tests.symbolic_rows import communication, flops

UNCHUNKED = [name for name, schedule in SCHEDULES.items() if not schedule.several_chunks]


def streamed(style: str = "llama", layers: int = 2, streams: int = 3, **words: Any) -> Card:
    kinds: Any = {"layer": {"residual": "hyper_connections"}}
    usual = dataclasses.replace(card(style, kv_heads=4), dense_layers=0)
    return dataclasses.replace(usual, layers=layers, hyper_connections=streams, layer_kinds=kinds, **words)


@settings(max_examples=examples(20), deadline=None)
@given(
    style=st.sampled_from(["llama", "gpt"]),
    chosen=options(),
    sharing=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    tp=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(UNCHUNKED),
    stages=st.sampled_from([(2,), (1, 1), (0, 2)]),
    scattered=st.booleans(),
)
def test_streams_compute_the_same_in_every_product(
    style: str,
    chosen: GraphOptions,
    sharing: tuple[int, int],
    tp: int,
    schedule: str,
    stages: tuple[int, ...],
    scattered: bool,
) -> None:
    if chosen.recipe == "megatron" and not chosen.sp:
        chosen = dataclasses.replace(chosen, scatter_gather=scattered)
    dp, hsdp = sharing if chosen.zero > (chosen.recipe == "torch") else (sharing[0], 1)
    names = ("recipe", "attention", "matmul_dtype", "dropout", "kernels", "shared_input", "loss_parallel")
    plain = GraphOptions(**{name: getattr(chosen, name) for name in names})
    model = streamed(style)
    made = example(build_graph(model, chosen), microbatches=2)
    cp, cpa, tp = context(chosen, 4, 2, tp)
    found = made.run_pipelined(pipeline(made.graph, schedule, stages, 2), dp, tp, hsdp, cp, cpa=cpa)
    assert_same(found, dataclasses.replace(made, graph=build_graph(model, plain)).run_whole())


@pytest.mark.parametrize(
    ("words", "degrees"),
    [
        ({}, {"dp": 2, "ep": 2, "tp": 2}),
        ({"sp": True, "zero": 3, "recompute": "full"}, {"dp": 2, "ep": 2, "tp": 2}),
        ({"cp_kind": "allgather-kv", "zero": 2}, {"dp": 2, "cp": 2, "ep": 4}),
        ({"recipe": "megatron", "sp": True, "zero": 1}, {"dp": 2, "ep": 2, "tp": 2}),
    ],
)
def test_streams_around_divided_experts_compute_the_same(words: dict[str, Any], degrees: dict[str, int]) -> None:
    model = variant("streams of experts")
    plain = {word: value for word, value in words.items() if word == "recipe"}
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model, GraphOptions(**words))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_a_matrix_that_mixes_streams_adds_and_loses_nothing() -> None:
    """Its rows and columns have the sum 1, the more rounds the nearer."""
    far = []
    for rounds in (1, 3, 30):
        graph = build_graph(streamed(layers=1, hyper_connection_rounds=rounds), GraphOptions())
        env, made = environment(graph), example(graph)
        weights = {name: value for (name, place), value in made.weights.items() if place == 1}
        x = np.random.default_rng(0).normal(size=(env["B"], env["S"], 3, env["H"]))
        matrix = run_block(graph, env, "layer", weights, {"layer.input": x})["layer.attn_streams.matrix"]
        np.testing.assert_allclose(matrix.sum(axis=-2), 1, atol=1e-5)
        far.append(np.abs(matrix.sum(axis=-1) - 1).max())
    assert far[0] > far[1] > far[2]
    assert far[2] < 1e-4


def test_what_streams_cost_and_send() -> None:
    graph = build_graph(streamed(), GraphOptions())
    env = environment(graph, pp=2)
    tokens, n, hidden = env["B"] * env["S"], 3, env["H"]
    found = {op.name: evaluate(flops(op), env) for op in graph.ops if not op.template.differentiates}
    assert found["layer.attn_streams.fn"] == found["layer.ffn_streams.fn"] == 2 * tokens * n * (n + 2) * n * hidden
    assert found["layer.attn_streams.mixed"] == 2 * tokens * n * n * hidden
    assert found["head.streams.fn"] == 2 * tokens * n * n * hidden
    sent = {evaluate(communication(op).comm_bytes, env) for op in graph.ops if op.block == "cut"}
    assert sent == {2 * tokens * n * hidden}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hyper_connections": 0}, "layer has the residual hyper_connections, and the card has no hyper_connections"),
        ({"layer_kinds": ()}, "layer has the residual serial, and the card has hyper_connections=3"),
        ({"hyper_connections": 65}, "hyper_connections must be at most 64"),
        ({"hyper_connections": -1}, "hyper_connections must be positive"),
        ({"hyper_connection_rounds": 0}, "hyper_connection_rounds must be positive"),
        (
            {"hyper_connections": 0, "hyper_connection_rounds": 4, "layer_kinds": ()},
            "hyper_connection_rounds is for several streams",
        ),
    ],
)
def test_what_makes_no_streams_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        dataclasses.replace(streamed(), **changes)
