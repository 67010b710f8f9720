"""Sliding-window attention: what it computes, its gradients, partitioned runs, and what it counts."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import UsageError
from stagedb.expressions import evaluate
from stagedb.ir import Compute
from stagedb.ir.operators import AdditiveMask, Array, Attention, RankPlace, Softmax
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.ir.environments import BATCH, SEQ, environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.symbolic_rows import compute, flops

WINDOW = 3


def local(style: str = "llama", pattern: tuple[str, ...] = (), layers: int = 4) -> Card:
    """Every layer with a window, or those that the pattern calls `local`."""
    kind = {"mixer": "sliding_window", "window": WINDOW}
    kinds: Any = {"local" if pattern else "layer": kind}
    return dataclasses.replace(card(style, layers=layers, kv_heads=4), layer_kinds=kinds, pattern=pattern)


def by_hand(q: Array, k: Array, v: Array, window: int) -> Array:
    """Attention of one query at a time over the keys that it sees."""
    out = np.zeros_like(q)
    for b, i, a in np.ndindex(q.shape[:3]):
        seen = slice(max(0, i - window + 1), i + 1)
        scores = k[b, seen, a] @ q[b, i, a] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, i, a] = weights @ v[b, seen, a] / weights.sum()
    return out


@pytest.mark.parametrize("window", [1, 2, 5, 8, 20])
def test_a_query_sees_the_last_keys_alone(window: int) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 8, 4, 6)) for _ in range(3))
    sizes = {"batch": 2, "seq": 8, "kseq": 8, "heads": 4, "kv_heads": 4, "head_dim": 6}
    place = RankPlace(sizes, dict.fromkeys(sizes, 0), sizes)
    expected = by_hand(q, k, v, window)
    fused, _ = Attention(window=window).run(place, [q, k, v])
    np.testing.assert_allclose(fused, expected)
    (weights,) = Softmax(window).run(place, [np.einsum("bqhd,bkhd->bhqk", q, k)])
    np.testing.assert_allclose(np.einsum("bhqk,bkhd->bqhd", weights, v), expected)
    (mask,) = AdditiveMask(window).run(place, [])
    assert np.isfinite(mask).sum() == sum(min(i + 1, window) for i in range(8))
    if window >= 8:
        np.testing.assert_allclose(fused, Attention().run(place, [q, k, v])[0])


OPTIONS = {
    "torch": GraphOptions(),
    "math": GraphOptions(attention="math", recompute="core"),
    "megatron": GraphOptions(recipe="megatron", sp=True),
}


@pytest.mark.parametrize("words", OPTIONS)
def test_gradients_are_the_slopes_of_the_loss(words: str) -> None:
    case = example(build_graph(local(layers=1), OPTIONS[words]))
    analytic, rng, step = case.run().gradients, np.random.default_rng(1), 1e-5
    for key, weight in case.weights.items():
        direction = rng.normal(size=weight.shape)
        ends = [case.run(weights={**case.weights, key: weight + sign * step * direction}).loss for sign in (1, -1)]
        slope = float((analytic[key] * direction).sum())
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7), key


def test_a_window_changes_the_loss_and_one_of_the_whole_sequence_does_not() -> None:
    plain = example(build_graph(card("llama", layers=4, kv_heads=4), GraphOptions()))
    kinds: Any = {"layer": {"mixer": "sliding_window", "window": SEQ}}
    wide = dataclasses.replace(card("llama", layers=4, kv_heads=4), layer_kinds=kinds)
    assert_same(dataclasses.replace(plain, graph=build_graph(wide, GraphOptions())).run(), plain.run())
    narrow = dataclasses.replace(plain, graph=build_graph(local(), GraphOptions())).run()
    assert narrow.loss != pytest.approx(plain.run().loss, rel=1e-9)


MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp, sp": ({"sp": True}, {"tp": 2, "dp": 2}),
    "ulysses": ({"cp_kind": "ulysses"}, {"cp": 2, "tp": 2}),
    "gathered keys with a mask": ({"cp_kind": "allgather-kv"}, {"cp": 2, "tp": 2}),
    "megatron, ulysses": ({"recipe": "megatron", "cp_kind": "ulysses", "zero": 1}, {"cp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
def test_windows_that_alternate_with_whole_attention_compute_the_same_on_a_mesh(words: str) -> None:
    options, degrees = MESHES[words]
    model = local(pattern=("local", "local", "layer"))
    assert model.sequence == ("local", "local", "layer", "local")
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model, GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 3), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("window", [3, 8, 64])
def test_flops_of_the_fused_kernel_are_those_of_the_keys_in_the_window(window: int) -> None:
    kinds: Any = {"layer": {"mixer": "sliding_window", "window": window}}
    model = dataclasses.replace(card("llama", kv_heads=4), layer_kinds=kinds)
    graph, plain = build_graph(model, GraphOptions()), build_graph(card("llama", kv_heads=4), GraphOptions())
    for tp in (1, 2):
        env = environment(graph, tp=tp)
        cores = {op.name: op for op in graph.ops if op.kind == "attention"}
        keys = min(SEQ, window)
        forward = 4 * BATCH * model.heads // tp * SEQ * keys * model.head_dim
        assert evaluate(flops(cores["layer.attn.core"]), env) == forward
        assert evaluate(flops(cores["layer.attn.core.input_gradient"]), env) == forward * 5 // 2
        sizes = [evaluate(dim, env) for dim in compute(cores["layer.attn.core"]).dims]
        assert sizes == [BATCH, 4 // tp, 4 // tp, SEQ, keys, model.head_dim]
        # Keys and values are whole: bytes and all other operators are those of whole attention.
        for op, other in zip(graph.ops, plain.ops, strict=True):
            assert op.name == other.name
            if isinstance(op.work, Compute) and isinstance(other.work, Compute):
                assert (op.work.bytes_read, op.work.bytes_written) == (other.work.bytes_read, other.work.bytes_written)
            else:
                assert op.work == other.work
            assert op.kind == "attention" or flops(op) == flops(other)
        assert [t.bytes for t in graph.tensors] == [t.bytes for t in plain.tensors]


def test_matmuls_of_unfused_attention_are_of_all_pairs() -> None:
    found = [
        [flops(op) for op in build_graph(model, GraphOptions(attention="math")).ops]
        for model in (local(layers=2), card("llama", kv_heads=4))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "options",
    [
        GraphOptions(cp_kind="ring-alltoall"),
        GraphOptions(recipe="megatron", cp_kind="ring-p2p"),
        GraphOptions(recipe="megatron", cp_kind="allgather-kv"),
        GraphOptions(cp_kind="ulysses-ring"),
    ],
)
def test_rings_with_a_window_are_refused(options: GraphOptions) -> None:
    with pytest.raises(UsageError, match=r"tiny-llama has sliding-window attention, .* take --cp-kind ulysses"):
        build_graph(local(), options)
