"""Sliding-window attention: what it computes, its gradients, partitioned runs, and what it counts."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import Compute
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import AdditiveMask, Array, Attention, RankPlace, Softmax
from stagedb.models import Card, from_hugging_face
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
        ends = [case.loss(key, weight + sign * step * direction) for sign in (1, -1)]
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
                mine, theirs = (
                    [evaluate(text, env) for text in (work.bytes_read, work.bytes_written)]
                    for work in (op.work, other.work)
                )
                assert mine == theirs, op.name
            else:
                assert op.work == other.work
            assert op.kind == "attention" or flops(op) == flops(other)
        assert [t.bytes for t in graph.tensors] == [t.bytes for t in plain.tensors]


CONFIG: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "vocab_size": 32000,
}
MISTRAL: dict[str, Any] = {**CONFIG, "architectures": ["MistralForCausalLM"]}
QWEN: dict[str, Any] = {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 36}
GEMMA: dict[str, Any] = {**MISTRAL, "num_hidden_layers": 12}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def pairs(seq: int, window: int) -> int:
    """The pairs of a query and a key that a kernel counts in a head, from a mask.

    They are those of the causal band, and for the first queries those before the sequence: a kernel with a window
    counts them, as one without counts the pairs above the diagonal.
    """
    kept = min(seq, window)
    apart = np.arange(seq)[:, None] - np.arange(1 - kept, seq)[None, :]
    return int(((apart >= 0) & (apart < kept)).sum())


@pytest.mark.parametrize("seq", [1, 7, 64])
@pytest.mark.parametrize("window", [1, 5, 7, 63, 64, 65, 300])
def test_pairs_are_those_of_the_band_and_of_its_corner(seq: int, window: int) -> None:
    apart = np.arange(seq)[:, None] - np.arange(seq)[None, :]
    band, kept = int(((apart >= 0) & (apart < window)).sum()), min(seq, window)
    corner = kept * (kept - 1) // 2
    assert pairs(seq, window) == band + corner == seq * kept
    graph = build_graph(from_hugging_face({**MISTRAL, "sliding_window": window}, name="mistral"), GraphOptions())
    (core,) = [op for op in graph.ops if op.name.endswith("attn.core")]
    env = {**environment(graph), "S": seq, "SK": seq}
    assert evaluate(flops(core), env) == 4 * BATCH * 32 * 128 * pairs(seq, window)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (MISTRAL, 32),
        ({**MISTRAL, "sliding_window": None}, 0),
        (QWEN, 0),
        ({**QWEN, "use_sliding_window": False, "max_window_layers": 28}, 0),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 28}, 8),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 0}, 36),
        ({**QWEN, "use_sliding_window": True, "layer_types": [GLOBAL] * 30 + [LOCAL] * 6}, 6),
        ({**GEMMA, "layer_types": [LOCAL, GLOBAL] * 6}, 6),
        ({**GEMMA, "sliding_window_pattern": 6}, 10),
    ],
)
def test_attention_of_configs_is_counted_layer_by_layer(config: dict[str, Any], windows: int) -> None:
    """FLOPs of all layers at 32,768 tokens, forward and backward, with windows of 4,096 in some."""
    seq, window = 32768, 4096
    model = from_hugging_face(config, name="model")
    graph = build_graph(model, GraphOptions())
    env = {**environment(graph), "S": seq, "SK": seq}
    layers = {block: model.sequence.count(block) for block in model.kinds}
    found = [
        layers[op.block] * evaluate(flops(op), env)
        for op in graph.ops
        if op.kind == "attention" and "attn.core" in op.name
    ]
    counted = windows * pairs(64, 8) * (seq // 64) * (window // 8) + (model.layers - windows) * seq * seq
    assert sum(found) == (4 + 10) * BATCH * model.heads * model.head_dim * counted


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
