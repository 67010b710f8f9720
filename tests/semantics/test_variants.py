"""Every word of a layer kind, and every field around the layers: gradients, partitioned runs, parameters."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Array, IndexLossGradient, RankPlace
from stagedb.ir.symbolic_graph import MessageEnd
from stagedb.plans import GraphOptions
from tests.ir.environments import BATCH, SEQ, environment
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.variants import VARIANTS, variant
from tests.symbolic_rows import flops

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
        ends = [case.loss(key, weight + sign * step * direction) for sign in (1, -1)]
        # The indexer learns from a loss of its own: another test.
        slope = 0.0 if ".index." in str(key) else float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", ["indexer", "indexer of all keys"])
def test_an_indexer_learns_how_far_it_is_from_the_attention(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    divergences: list[float] = []
    plain = IndexLossGradient.run

    def noted(self: IndexLossGradient, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores, target = inputs
        share, seen = target / place.sizes["heads"], np.isfinite(scores)
        own = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        divergences.append(float((share[seen] * (np.log(share[seen]) - own[seen])).sum()) / scores[..., 0].size)
        return plain(self, place, inputs)

    monkeypatch.setattr(IndexLossGradient, "run", noted)
    case = example(build_graph(variant(name, layers=1), STYLES[words]))
    case = dataclasses.replace(case, weights={key: 3 * weight for key, weight in case.weights.items()})
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-6
    assert divergences.pop() > 0.01
    learnt = [key for key in case.weights if ".index." in str(key)]
    assert len(learnt) == 5
    for key in learnt:
        direction = rng.normal(size=case.weights[key].shape)
        for sign in (1, -1):
            case.run(weights={**case.weights, key: case.weights[key] + sign * step * direction})
        slope = (divergences[-2] - divergences[-1]) / (2 * step)
        assert slope == pytest.approx(float((analytic[key] * direction).sum()), rel=1e-4, abs=1e-7), key


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


@pytest.mark.parametrize("name", ["window", "chunk", "sinks", "indexer", "ALiBi"])
def test_rings_refuse_scores_that_they_do_not_compute(name: str) -> None:
    with pytest.raises(UsageError, match="take --cp-kind ulysses"):
        build_graph(variant(name), GraphOptions(cp_kind="ring-alltoall"))


RINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gathered": ({"cp_kind": "ring-allgather"}, {"cp": 4}),
    "rotated": ({"cp_kind": "ring-alltoall", "cp_chunks": "contiguous"}, {"cp": 2, "tp": 2}),
    "sent": ({"recipe": "megatron", "cp_kind": "ring-p2p"}, {"cp": 4}),
    "sent among neighbours": ({"recipe": "megatron", "cp_kind": "ulysses-ring"}, {"cp": 4, "cpa": 2}),
    "in calls by part": ({"recipe": "megatron", "cp_kind": "allgather-kv"}, {"cp": 4}),
    "in a call": ({"recipe": "megatron", "cp_kind": "allgather-kv", "cp_chunks": "contiguous"}, {"cp": 2}),
}


@pytest.mark.parametrize("words", RINGS)
@pytest.mark.parametrize("name", ["scale", "softcap", "experts between norms, bounded, with factors"])
def test_ranks_that_share_a_sequence_cap_scores_as_one_does(name: str, words: str) -> None:
    """The bound and the factor of a score need the score alone, so that a turn computes them from its own keys."""
    options, degrees = RINGS[words]
    model = variant(name, kv_heads=4)
    whole = example(build_graph(model, GraphOptions(recipe=options.get("recipe", "torch"))))
    whole = dataclasses.replace(whole, weights={key: 3 * weight for key, weight in whole.weights.items()})
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(**options)))
    assert_same(some.run(**degrees), whole.run())


@pytest.mark.parametrize("words", RINGS)
@pytest.mark.parametrize("name", ["latent", "latent queries"])
def test_ranks_that_share_a_sequence_have_keys_made_from_latents(name: str, words: str) -> None:
    """Keys and values have sizes of their own, in one message."""
    options, degrees = RINGS[words]
    model = variant(name)
    whole = example(build_graph(model, GraphOptions(recipe=options.get("recipe", "torch"))))
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(**options)))
    assert_same(some.run(**degrees), whole.run())


def test_a_ring_of_latent_attention_sends_a_key_and_a_value_of_each_head() -> None:
    """FLOPs of all ranks and turns are those of the pairs of balanced chunks: `(cp + 1) / (2·cp)` of all."""
    cp = 4
    graph = build_graph(variant("latent", 1), GraphOptions(recipe="megatron", cp_kind="ring-p2p"))
    env = environment(graph, cp=cp)
    ops = {op.name: op for op in graph.ops}
    sent = ops["layer.attn.core.exchange.send"].work
    assert isinstance(sent, MessageEnd)
    assert evaluate(sent.comm_bytes, env) == BATCH * (SEQ // cp) * env["A"] * (4 + 2 + 5) * env["e_act"]
    whole = BATCH * env["A"] * SEQ**2
    for name, size in (("turn", 6 + 5), ("input_gradient.turn", 3 * 6 + 2 * 5)):
        each = [
            evaluate(flops(ops[f"layer.attn.core.{name}"]), {**env, "step": step, "cp_rank": rank})
            for step in range(1, cp + 1)
            for rank in range(1, cp + 1)
        ]
        # A rank's own turn has all pairs of its two chunks, those above the diagonal included.
        assert sum(each) == 2 * size * whole * (2 * cp**2 + 2 * cp) // (4 * cp**2)
