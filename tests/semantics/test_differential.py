"""Differential attention: its FLOPs, ranks that share a sequence, recomputed cores, and what is refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import RankPlace, differential
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from stagedb.validation.model_check import cache_bytes
from tests.ir.environments import BATCH, SEQ, environment
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.test_variants import RINGS
from tests.semantics.variants import variant
from tests.symbolic_rows import compute, flops

NAMES = ("differential", "differential, grouped, with biases")


@pytest.mark.parametrize("words", RINGS)
@pytest.mark.parametrize("name", NAMES)
def test_ranks_that_share_a_sequence_compute_the_same(name: str, words: str) -> None:
    options, degrees = RINGS[words]
    model = variant(name)
    whole = example(build_graph(model, GraphOptions(recipe=options.get("recipe", "torch"))))
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(**options)))
    assert_same(some.run(**degrees), whole.run())


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "math", "recompute": "modules", "recompute_modules": ("core_attn",)},
        {"attention": "math", "recompute": "core"},
        {"recompute": "operators", "recompute_operators": ("attn.difference", "attn.pair_values")},
    ],
)
def test_recomputed_parts_know_their_layer(options: dict[str, Any]) -> None:
    """On two stages: the factor of a layer depends on its number in the model, not on the stage."""
    model = variant(NAMES[1])
    graph = build_graph(model, GraphOptions(recipe="megatron", **options))
    whole = example(build_graph(model, GraphOptions(recipe="megatron")), microbatches=2)
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), tp=4), whole.run_whole())


def test_pairs_are_subtracted_as_in_the_paper() -> None:
    """(softmax₁ - λ softmax₂) · V, where V has both heads of the pair: one attention with values of twice the size."""
    rng, (tokens, pairs, each, dim, layer) = np.random.default_rng(0), (4, 3, 2, 5, 6)
    scores = rng.normal(size=(pairs, 2, each, tokens, tokens))
    shares = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    values = rng.normal(size=(1, tokens, 2 * pairs, dim))
    vectors = list(rng.normal(size=(4, dim)))
    place = RankPlace({"heads": 2 * each * 4, "kv_heads": 2 * 4}, {}, {}, layer=layer)
    contexts = []
    for copied in differential.PairValues().run(place, [values]):
        of_head = np.repeat(copied[0], each, axis=1).reshape(tokens, pairs, 2, each, dim)
        context = np.einsum("psgqk,kpsgd->qpsgd", shares, of_head)
        contexts.append(context.reshape(1, tokens, pairs * 2 * each, dim))
    (found,) = differential.HeadDifference().run(place, [*contexts, *vectors])
    share = np.exp(vectors[0] @ vectors[1]) - np.exp(vectors[2] @ vectors[3]) + 0.8 - 0.6 * np.exp(-0.3 * layer)
    whole = values[0].reshape(tokens, pairs, 2 * dim)
    expected = np.einsum("pgqk,kpd->qpgd", shares[:, 0] - share * shares[:, 1], whole)
    np.testing.assert_allclose(found[0].reshape(expected.shape), expected, rtol=1e-10)


def test_flops_are_those_of_two_attentions() -> None:
    model = variant(NAMES[1], layers=1)
    graph = build_graph(model, GraphOptions(attention="math"))
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    heads, size, hidden, tokens = model.heads, model.head_dim, model.hidden, BATCH * SEQ
    matmuls = {
        f"{word}.attn.{part}": 2 * BATCH * heads * SEQ * SEQ * size
        for word in ("first", "second")
        for part in ("scores", "context")
    }
    matmuls |= {"attn.wq": 2 * tokens * hidden * heads * size, "attn.wo": 2 * tokens * hidden * heads * size}
    matmuls |= dict.fromkeys(("attn.wk", "attn.wv"), 2 * tokens * hidden * model.kv_heads * size)
    ours = {name: each for name, each in found.items() if "attn." in name and each and "gradient" not in name}
    assert ours == {f"layer.{name}": each for name, each in matmuls.items()}
    back = sum(each for name, each in found.items() if "attn." in name and "gradient" in name)
    assert back == 2 * sum(matmuls.values())


def test_what_does_not_hold_is_refused() -> None:
    model = variant("differential")
    sizes = build_graph(model, GraphOptions()).sizes
    words = {"micro_batch_size": 1, "global_batch_size": 1, "seq_len": 8}
    assert plan_for({**words, "tp": 4}, sizes).tp == 4
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 pairs of key/value heads of diff.*: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    with pytest.raises(UsageError, match="pairs of heads: kv_heads=3 must be even"):
        variant("differential", heads=9, kv_heads=3)


def test_a_cache_keeps_each_key_and_value_once() -> None:
    model = variant(NAMES[1], max_positions=64)
    graph = build_graph(model, GraphOptions(workflow="decode"))
    kept = 2 * model.kv_heads * model.head_dim * 2
    for tokens in (5, 40):
        assert cache_bytes(graph, on_one_rank(graph, 3, 1, tokens)) == model.layers * 3 * tokens * kept
    (copied,) = [op for op in graph.ops if op.name == "layer.attn.pair_values"]
    values = 3 * 40 * model.kv_heads * model.head_dim * 2
    env = on_one_rank(graph, 3, 1, 40)
    assert [evaluate(each, env) for each in (compute(copied).bytes_read, compute(copied).bytes_written)] == [
        values,
        2 * values,
    ]
