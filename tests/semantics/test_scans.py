"""Layers with a scan: gradients, partitioned runs, FLOPs as matmuls over chunks, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import run_block
from stagedb.ir.operators import RankPlace, delta_rule, kimi_delta, lightning, selective_scan
from stagedb.ir.symbolic_graph import Collective
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import check_slopes, example, pipeline
from tests.semantics.test_experts import assert_same
from tests.symbolic_rows import flops

SCAN = {"mixer": "state_space", "scan_heads": 8, "scan_dim": 3, "scan_groups": 4, "scan_state": 5, "scan_chunk": 3}
ALONE = {**SCAN, "channel_mixer": "none", "residual": "mixer_alone"}
DELTA = {
    "mixer": "gated_delta",
    "delta_heads": 8,
    "delta_key_heads": 4,
    "delta_key_dim": 3,
    "delta_value_dim": 5,
    "delta_chunk": 3,
}
SELECTIVE = {"mixer": "selective_scan", "scan_inner": 12, "scan_state": 3, "scan_rank": 5}
SHORT = {"mixer": "short_convolution"}
BOTH = {**SCAN, "mixer": "attention_and_scan"}
SCALES = {
    **{f"scan_{word}_scale": 0.3 + 0.2 * place for place, word in enumerate(("gate", "value", "b", "c", "step"))},
    **{f"{word}_scale": 0.4 + 0.3 * place for place, word in enumerate(("scan_in", "scan_out", "key", "gate", "down"))},
    "attention_in_scale": 1.3,
    "attention_out_scale": 0.7,
}
RECURRENCE = {"mixer": "gated_recurrence", "recurrence_blocks": 4, "recurrence_values": 3}
KIMI = {"mixer": "kimi_delta", "kda_heads": 8, "kda_dim": 3, "kda_chunk": 3, "conv_bias": False}
LIGHTNING = {"mixer": "lightning_attention", "lightning_heads": 8, "lightning_dim": 3, "lightning_chunk": 3}
NOPE = {"mixer": "latent_attention", "kv_rank": 6, "nope_dim": 4, "rope_dim": 3, "value_dim": 5}
AFTER = {"mixer": "none", "residual": "channel_mixer_alone"}

KINDS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "usual": {"layer": SCAN},
    "alone": {"layer": ALONE},
    "biases, a least step": {"layer": {**SCAN, "scan_least": 0.7, "scan_bias": True, "conv_bias": False}},
    "taps of more tokens than there are": {"layer": {**SCAN, "conv_width": 12}},
    "hybrid": {"scan": ALONE, "layer": {"channel_mixer": "none", "residual": "mixer_alone"}, "after": AFTER},
    "delta rule": {"layer": DELTA},
    "delta rule, from four matmuls": {
        "layer": {**DELTA, "delta_projections": "apart", "conv_bias": False, "delta_key_heads": 8, "delta_chunk": 64}
    },
    "delta rule with both signs and six matmuls": {
        "layer": {**DELTA, "delta_projections": "each", "delta_negative": True, "conv_bias": False}
    },
    "delta rule and attention": {"delta": DELTA, "layer": {"gated": True, "rotary_dim": 2}},
    "selective scan": {"layer": SELECTIVE},
    "selective scan, norms and biases": {
        "layer": {**SELECTIVE, "scan_norm": "weighted", "scan_bias": True, "conv_bias": False}
    },
    "selective scan, norms without weights": {
        "scan": {**SELECTIVE, "scan_norm": "unweighted", "channel_mixer": "none", "residual": "mixer_alone"},
        "layer": {"channel_mixer": "none", "residual": "mixer_alone"},
    },
    "short convolution": {"layer": SHORT},
    "short convolution and attention": {
        "short": {**SHORT, "conv_bias": True, "conv_width": 4},
        "layer": {"qk_norm": "head"},
    },
    "attention and scan": {"layer": {**BOTH, "scan_norm": "none"}},
    "attention and scan, factors": {"layer": {**BOTH, **SCALES, "scan_norm": "first"}},
    "attention and scan, biases": {
        "layer": {**BOTH, **SCALES, "bias": "all", "ffn_bias": "all", "scan_bias": True, "scan_out_bias": "no"}
    },
    "gated recurrence": {"layer": RECURRENCE},
    "gated recurrence and attention": {
        "recurrence": {**RECURRENCE, "conv_bias": False, "conv_width": 2},
        "layer": {"mixer": "sliding_window", "window": 3},
    },
    "kimi delta": {"layer": KIMI},
    "kimi delta and latents without positions": {"delta": {**KIMI, "conv_bias": True, "kda_chunk": 64}, "layer": NOPE},
    "lightning attention": {"layer": LIGHTNING},
    "lightning attention and attention": {
        "lightning": {**LIGHTNING, "lightning_chunk": 64, "residual": "normed_stream", "attn_stream_scale": 1.4},
        "layer": {"residual": "normed_stream", "ffn_stream_scale": 1.2, "ffn_result_scale": 0.8},
    },
    "hybrid of experts": {"scan": ALONE, "after": {**AFTER, "channel_mixer": "experts"}},
}


def model(name: str, layers: int = 0) -> Card:
    """Layers of each kind in turn."""
    kinds: Any = KINDS[name]
    usual = dataclasses.replace(card("moe" if "experts" in name else "llama"), kv_heads=4)
    usual = dataclasses.replace(usual, positions="none") if "without positions" in name else usual
    return dataclasses.replace(usual, layers=layers or len(kinds), layer_kinds=kinds, pattern=tuple(kinds))


STYLES = {
    "torch": GraphOptions(),
    "eager": GraphOptions(kernels="eager", attention="math"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_slopes_of_the_loss(name: str, words: str) -> None:
    made = model(name)
    case = example(build_graph(made, STYLES[words]))
    assert sum(value.size for value in case.weights.values()) == made.count_parameters()
    gradients = case.run().gradients
    assert set(gradients) == set(case.weights)
    check_slopes(case, gradients)


MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "dp": ({}, {"dp": 4}),
    "tp": ({}, {"tp": 4}),
    "tp, dp": ({}, {"tp": 2, "dp": 2}),
    "tp, sp": ({"sp": True}, {"tp": 4}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 1": ({"zero": 1}, {"dp": 4}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 4}),
    "the scan again": ({"recompute": "operators", "recompute_operators": ("attn.scan",)}, {"tp": 2}),
    "megatron": ({"recipe": "megatron", "zero": 1}, {"tp": 2, "dp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
    "cp": ({"cp_kind": "ulysses"}, {"cp": 4}),
    "tp, cp, recomputed": ({"cp_kind": "ulysses", "recompute": "full"}, {"tp": 2, "cp": 2}),
    "sp, cp, dp": ({"cp_kind": "ulysses", "sp": True}, {"tp": 2, "cp": 2, "dp": 2}),
    "cp, zero 3": ({"cp_kind": "ulysses", "zero": 3}, {"cp": 2, "dp": 2}),
    "megatron, sp, cp": ({"recipe": "megatron", "cp_kind": "ulysses", "sp": True, "zero": 1}, {"tp": 2, "cp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", KINDS)
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    """On two stages of ranks, with two micro-batches."""
    options, degrees = MESHES[words]
    if "recompute_operators" in options:
        again = "scan.attn.scan" if name.startswith("attention and") else "attn.scan"
        again = "attn.conv" if "short" in name else "attn.qkv" if "lightning" in name else again
        options = {**options, "recompute_operators": (again,)}
    plain = {word: value for word, value in options.items() if word == "recipe"}
    layers = max(2, len(KINDS[name]))
    whole = example(build_graph(model(name, layers), GraphOptions(**plain)), microbatches=2)
    graph = build_graph(model(name, layers), GraphOptions(**options))
    some = dataclasses.replace(whole, graph=graph)
    stages = pipeline(graph, "1f1b", (1, layers - 1), 2)
    assert_same(some.run_pipelined(stages, **degrees), whole.run_whole())


def test_experts_behind_a_scan_are_divided() -> None:
    made = model("hybrid of experts")
    whole = example(build_graph(made, GraphOptions()))
    some = dataclasses.replace(whole, graph=build_graph(made, GraphOptions()))
    assert_same(some.run(dp=2, tp=2, ep=2), whole.run())


@pytest.mark.parametrize(
    "name",
    [
        "usual",
        "delta rule",
        "selective scan",
        "gated recurrence",
        "lightning attention",
        "taps of more tokens than there are",
    ],
)
def test_a_token_reaches_those_behind_it_alone(name: str) -> None:
    graph = build_graph(model(name), GraphOptions())
    env, made, rng = environment(graph), example(graph), np.random.default_rng(0)
    weights = {key: value for (key, place), value in made.weights.items() if place == 1}
    x = rng.normal(size=(env["B"], env["S"], env["H"]))

    def result(stream: Any) -> Any:
        return run_block(graph, env, "layer", weights, {"layer.input": stream})["layer.attn.wo"]

    plain = result(x)
    for token in range(env["S"]):
        changed = x.copy()
        changed[:, token] += rng.normal(size=env["H"])
        moved = np.abs(result(changed) - plain).max(axis=(0, 2)) > 1e-9
        assert list(moved) == [query >= token for query in range(env["S"])]


def test_a_short_convolution_reads_a_token_and_those_before_it() -> None:
    """The sum over its taps of gated values, gated again, written out token by token."""
    graph = build_graph(model("short convolution"), GraphOptions())
    env, rng = environment(graph), np.random.default_rng(0)
    weights = {key: value for (key, place), value in example(graph).weights.items() if place == 1}
    x = rng.normal(size=(env["B"], env["S"], env["H"]))
    found = run_block(graph, env, "layer", weights, {"layer.input": x})
    normal = found["layer.attn_norm"]
    rows, taps = weights["layer.attn.in_proj.weight"], weights["layer.attn.conv.weight"][:, 0]
    expected = np.zeros_like(x)
    for token in range(env["S"]):
        last = slice(max(0, token - 2), token + 1)
        before, _, values = np.einsum("bsh,cph->pbsc", normal[:, last], rows)
        kept = np.einsum("bsc,cs->bc", before * values, taps[:, 3 - normal[:, last].shape[1] :])
        behind = normal[:, token] @ rows[:, 1].T
        expected[:, token] = (behind * kept) @ weights["layer.attn.wo.weight"][..., 0].T
    np.testing.assert_allclose(found["layer.attn.wo"], expected, rtol=1e-10, atol=1e-12)


def test_flops_of_a_short_convolution() -> None:
    """Without a function its backward has no convolution to make again."""
    graph = build_graph(model("short convolution"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    tokens, hidden = env["B"] * env["S"], env["H"]
    assert found["layer.attn.conv"] == 2 * tokens * hidden * 3
    assert found["layer.attn.conv.input_gradient"] == 2 * found["layer.attn.conv"]
    assert found["layer.attn.in_proj"] == 2 * tokens * hidden * 3 * hidden
    assert found["layer.attn.wo"] == 2 * tokens * hidden**2
    decode = build_graph(model("short convolution"), GraphOptions(workflow="decode"))
    step = {**environment(decode), "S": 1}
    caches = {each.name: evaluate(each.bytes, step) for each in decode.tensors if each.role == "cache"}
    assert caches == {"layer.attn.conv.cache": env["B"] * hidden * 3 * env["e_act"]}


def scanned(q: int, chunks: int, heads: int, values: int, state: int) -> int:
    """FLOPs of the matmuls of the chunked scan, as its publication and transformers have them."""
    rows = [
        (heads * chunks, q, q, state),
        (heads * chunks, q, values, q),
        (heads * chunks, values, state, q),
        (heads, chunks + 1, values * state, chunks + 1),
        (heads * chunks, q, values, state),
    ]
    return sum(2 * b * m * n * k for b, m, n, k in rows)


def test_flops_are_those_of_matmuls_over_chunks() -> None:
    graph = build_graph(model("usual"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    chunks, heads = -(-env["S"] // 3), env["B"] * 8
    assert found["layer.attn.scan"] == scanned(3, chunks, heads, 3, 5)
    assert found["layer.attn.conv"] == 2 * env["B"] * env["S"] * (8 * 3 + 2 * 4 * 5) * 4
    assert found["layer.attn.conv.input_gradient"] == 3 * found["layer.attn.conv"]
    rank = {**env, "tp": 2}
    divided = {op.name: evaluate(flops(op), rank) for op in graph.ops}
    assert divided["layer.attn.scan"] * 2 == found["layer.attn.scan"]


def test_flops_of_a_selective_scan_are_those_of_a_product_a_token() -> None:
    """The rows of `slow_forward` of transformers 5.24: the states of all channels with C."""
    graph = build_graph(model("selective scan"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    assert found["layer.attn.scan"] == 2 * env["B"] * env["S"] * 12 * 3
    assert found["layer.attn.scan.input_gradient"] == 2 * found["layer.attn.scan"]
    assert found["layer.attn.conv"] == 2 * env["B"] * env["S"] * 12 * 4
    assert found["layer.attn.x_proj"] == 2 * env["B"] * env["S"] * 12 * (5 + 2 * 3)
    assert found["layer.attn.dt_proj"] == 2 * env["B"] * env["S"] * 5 * 12
    divided = {op.name: evaluate(flops(op), {**env, "tp": 2}) for op in graph.ops}
    assert divided["layer.attn.scan"] * 2 == found["layer.attn.scan"]


def test_what_all_channels_read_is_reduced_once_forward_and_once_backward() -> None:
    """An all-reduce of (tokens, rank + 2·state) each, besides those of the stream."""
    for name, backward in (
        ("selective scan", {"split_read.input_gradient": 5 + 2 * 3}),
        (
            "selective scan, norms and biases",
            {"dt_proj.input_gradient": 5, "scan.input_gradient.3": 3, "scan.input_gradient.4": 3},
        ),
    ):
        graph = build_graph(model(name), GraphOptions(sp=True))
        env = {**environment(graph), "tp": 4}
        found = {
            op.name: evaluate(op.work.comm_bytes, env)
            for op in graph.ops
            if isinstance(op.work, Collective) and op.block == "layer" and "all_reduce.tp" in op.name
        }
        read = {"x_proj": 5 + 2 * 3, **backward}
        sizes = {f"layer.attn.{word}.all_reduce.tp": env["B"] * env["S"] * size * 2 for word, size in read.items()}
        assert {name: bytes_ for name, bytes_ in found.items() if name.startswith("layer.attn.")} == sizes


def test_what_a_selective_scan_keeps_is_the_state_of_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of the next piece that begins with it is that of the whole."""
    monkeypatch.setattr(selective_scan, "PIECE", 3)
    rng, (tokens, inner, state) = np.random.default_rng(0), (7, 4, 2)
    x, dt, z = rng.normal(size=(3, 2, tokens, inner))
    b, c = rng.normal(size=(2, 2, tokens, state))
    held = [rng.normal(size=(inner, state)), *rng.normal(size=(2, inner))]
    place, scan = RankPlace({}, {}, {}), selective_scan.SelectiveScan(keeps=True)
    gated, y, pieces = selective_scan.SelectiveScan().run(place, [x, dt, z, b, c, *held])
    assert pieces.shape == (2, inner, 3, 2, state)
    np.testing.assert_allclose(gated, y * z / (1 + np.exp(-z)))
    for piece, start in ((0, 3), (1, 6)):
        rest = [each[:, start:] for each in (x, dt, z, b, c)]
        behind, last = scan.run(place, [*rest, *held, pieces[:, :, piece, 1]])
        np.testing.assert_allclose(behind, gated[:, start:], rtol=1e-10)
        np.testing.assert_allclose(last, pieces[:, :, 2, 1], rtol=1e-10)
    # A state that nothing is added to is multiplied by the decays.
    first = rng.normal(size=(2, inner, state))
    kept = scan.run(place, [*([each[:, :3] for each in (0 * x, dt, z, b, c)]), *held, first])[1]
    np.testing.assert_allclose(kept, first * pieces[:, :, 0, 0], rtol=1e-10)


def test_flops_of_a_delta_rule_are_those_of_its_code() -> None:
    """The rows of `torch_chunk_gated_delta_rule` of transformers 5.24."""
    graph = build_graph(model("delta rule"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    q, chunks, heads, key, value = 3, -(-env["S"] // 3), env["B"] * 8, 3, 5
    once = [(heads * chunks, q, q, key)] * 2
    each = [(heads, q, value, key)] * 2 + [(heads, q, value, q), (heads, key, value, q)]
    assert found["layer.attn.scan"] == sum(2 * b * m * n * k for b, m, n, k in once + chunks * each)
    again = [once[0], once[1], *chunks * [each[0], each[3]]]
    more = sum(2 * b * m * n * k for b, m, n, k in again)
    assert found["layer.attn.scan.input_gradient"] == 2 * found["layer.attn.scan"] + more


def test_what_a_delta_rule_keeps_solves_its_triangular_systems() -> None:
    """The inverse times β·values is what the recurrence learns in a chunk that begins without a state."""
    rng, (tokens, heads, key, value) = np.random.default_rng(0), (4, 2, 3, 5)
    qkv = rng.normal(size=(1, tokens, 1, 2 * key + heads * value))
    b, a = rng.normal(size=(2, 1, tokens, 1, heads))
    rates, bias = rng.normal(size=(2, 1, heads))
    place = RankPlace({"delta_values": heads * value}, {}, {})
    y, _, inverse = delta_rule.DeltaScan(tokens).run(place, [qkv, b, a, rates, bias])
    q, k, v = (part[0, :, 0] for part in np.split(qkv, (key, 2 * key), axis=-1))
    q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
    for head in range(heads):
        beta = 1 / (1 + np.exp(-b[0, :, 0, head]))
        sums = np.cumsum(-np.exp(rates[0, head]) * np.logaddexp(0, a[0, :, 0, head] + bias[0, head]))
        learnt = inverse[0, :, 0, head] @ (beta[:, None] * v[:, head * value : (head + 1) * value])
        scores = np.tril(q @ k.T / np.sqrt(key) * np.exp(sums[:, None] - sums[None, :]))
        np.testing.assert_allclose(y[0, :, 0, head * value : (head + 1) * value], scores @ learnt, rtol=1e-10)


def test_kimi_delta_attention_is_its_recurrence_and_its_chunks() -> None:
    """One head, token by token, as arXiv 2510.26692 has it, and what is kept as its chunk without a state before."""
    rng, (tokens, dim) = np.random.default_rng(0), (4, 3)
    qkv, f = rng.normal(size=(1, tokens, 1, 3 * dim)), rng.normal(size=(1, tokens, 1, dim))
    b, rate, bias = rng.normal(size=(1, tokens, 1)), rng.normal(size=1), rng.normal(size=(1, dim))
    y, sums, inverse, scores = kimi_delta.KimiDeltaScan(tokens).run(RankPlace({}, {}, {}), [qkv, b, f, rate, bias])
    q, k, v = np.split(qkv[0, :, 0], 3, axis=-1)
    q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + 1e-6) for each in (q, k))
    decays = -np.exp(rate) * np.log1p(np.exp(f[0, :, 0] + bias))
    beta, state = 1 / (1 + np.exp(-b[0, :, 0])), np.zeros((dim, dim))
    for token in range(tokens):
        state = np.diag(np.exp(decays[token])) @ state
        state = state + beta[token] * np.outer(k[token], v[token] - state.T @ k[token])
        np.testing.assert_allclose(y[0, token, 0], state.T @ q[token] / np.sqrt(dim), rtol=1e-10)
    np.testing.assert_allclose(sums[0, :, 0], np.cumsum(decays, axis=0))
    learnt = inverse[0, :, 0] @ (beta[:, None] * v)
    np.testing.assert_allclose(y[0, :, 0], scores[0, :, 0] @ learnt, rtol=1e-10)


def test_flops_of_kimi_delta_attention_are_those_of_its_code() -> None:
    """The rows of `chunk_kimi_delta_attention` of transformers 5.24, and its two sums of products."""
    graph = build_graph(model("kimi delta"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    q, chunks, heads, dim = 3, -(-env["S"] // 3), env["B"] * 8, 3
    sums = [(heads * chunks, q, q, dim)] * 2
    once = [(heads * chunks, q, dim, q)] * 2
    each = [(heads, q, dim, dim)] * 2 + [(heads, q, dim, q), (heads, dim, dim, q)]
    assert found["layer.attn.scan"] == sum(2 * b * m * n * k for b, m, n, k in sums + once + chunks * each)
    more = sum(2 * b * m * n * k for b, m, n, k in once + chunks * [each[1], each[3]])
    assert found["layer.attn.scan.input_gradient"] == 2 * found["layer.attn.scan"] + more


def test_lightning_attention_is_a_sum_over_earlier_tokens() -> None:
    """Each head of each layer has a decay of its own: `MiniMaxLightningAttention.get_slope_rate`, written out."""
    rng, (tokens, heads, dim, layers) = np.random.default_rng(0), (5, 4, 3, 6)
    qkv = rng.normal(size=(1, tokens, heads, 3 * dim))
    q, k, v = (part[0].swapaxes(0, 1) for part in np.split(qkv, 3, axis=-1))
    scan = lightning.LightningScan(2, layers)
    behind = dataclasses.replace(scan, keeps=True)
    for layer in range(layers):
        sizes = {"lightning_heads": heads}
        place = RankPlace(sizes, {"lightning_heads": 1}, {"lightning_heads": 2}, layer=layer)
        (found,) = scan.run(place, [qkv[:, :, 1:3]])
        for head in (1, 2):
            rate = (1 / 2 ** (8 / heads)) ** (head + 1) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)
            apart = np.arange(tokens)[:, None] - np.arange(tokens)
            decayed = np.tril(q[head] @ k[head].T * np.exp(-rate * np.maximum(apart, 0)))
            np.testing.assert_allclose(found[0, :, head - 1], decayed @ v[head], rtol=1e-10)
        _, state = behind.run(place, [qkv[:, :3, 1:3]])
        rest, _ = behind.run(place, [qkv[:, 3:, 1:3], state])
        np.testing.assert_allclose(rest, found[:, 3:], rtol=1e-10)


def test_flops_of_lightning_attention_are_those_of_its_code() -> None:
    """The rows of `MiniMaxLightningAttention.forward` of transformers 5.24, whose last block is not padded."""
    graph = build_graph(model("lightning attention"), GraphOptions())
    env = environment(graph)
    heads, dim = env["B"] * 8, 3
    rows: list[tuple[int, int, int]] = []
    for tokens in (3, 3, 2):
        rows += [(tokens, tokens, dim), (tokens, dim, tokens), (tokens, dim, dim), (dim, dim, tokens)]
    assert env["S"] == 8
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    assert found["layer.attn.scan"] == sum(2 * heads * m * n * k for m, n, k in rows)
    again = sum(2 * heads * m * n * k for at, (m, n, k) in enumerate(rows) if at % 4 in (0, 3))
    assert found["layer.attn.scan.input_gradient"] == 2 * found["layer.attn.scan"] + again
    assert found["layer.attn.in_qkv"] == 2 * env["B"] * env["S"] * env["H"] * 3 * 8 * dim
    divided = {op.name: evaluate(flops(op), {**env, "tp": 2}) for op in graph.ops}
    assert divided["layer.attn.scan"] * 2 == found["layer.attn.scan"]
    decode = build_graph(model("lightning attention"), GraphOptions(workflow="decode"))
    step = {**environment(decode), "S": 1}
    assert {op.name: evaluate(flops(op), step) for op in decode.ops}["layer.attn.scan"] == 2 * 2 * heads * dim * dim
    states = {each.name: evaluate(each.bytes, step) for each in decode.tensors if each.role == "cache"}
    assert states == {"layer.attn.scan.cache": heads * dim * dim * env["e_act"]}


def test_ranks_add_the_squares_of_all_heads() -> None:
    """The norm behind lightning attention: a number a token forward, and one backward."""
    graph = build_graph(model("lightning attention"), GraphOptions(sp=True))
    env = {**environment(graph), "tp": 4}
    found = {
        op.name: evaluate(op.work.comm_bytes, env)
        for op in graph.ops
        if isinstance(op.work, Collective) and op.name.startswith("layer.attn.") and "all_reduce.tp" in op.name
    }
    words = ("scan_norm.mean_square", "scan_norm.rstd_gradient")
    assert found == {f"layer.attn.{word}.all_reduce.tp": env["B"] * env["S"] * 4 for word in words}


UNDIVIDED = {
    "usual": ("state_space, which passes its state from token to token", "groups of heads"),
    "delta rule": ("gated_delta, which passes its state from token to token", "groups of heads"),
    "selective scan": ("selective_scan, which passes its state from token to token", "channels"),
    "gated recurrence": ("gated_recurrence, which passes its state from token to token", "blocks"),
    "lightning attention": ("lightning_attention, which passes its state from token to token", "heads"),
    "kimi delta": ("kimi_delta, which passes its state from token to token", "heads"),
    "attention and scan": ("attention_and_scan, which passes its state from token to token", "groups of heads"),
    "short convolution": ("short_convolution, which reads values of the tokens before its own.*", "channels"),
}


@pytest.mark.parametrize("kind", ["allgather-kv", "ring-alltoall"])
@pytest.mark.parametrize("name", UNDIVIDED)
def test_ranks_of_a_context_without_an_exchange_are_refused(name: str, kind: Any) -> None:
    why, exchanged = UNDIVIDED[name]
    ways = rf"take --cp-kind ulysses, or --cp 1 \(ranks of cp exchange {exchanged} for tokens\)"
    with pytest.raises(UsageError, match=f"{why}: {ways}"):
        build_graph(model(name), GraphOptions(cp_kind=kind))


def test_ranks_of_a_context_exchange_what_megatron_exchanges() -> None:
    """Gates, values, B, C and steps to heads; then results and gates back, for the norm of all heads
    (`MambaContextParallel` of Megatron-Core 0.16). Its gradients go the same ways.

    A rank of cp and tp has 8 / 2 tokens of 4 / 2 groups of two heads.
    """
    graph = build_graph(model("usual"), GraphOptions(cp_kind="ulysses"))
    env = {**environment(graph), "cp": 2, "tp": 2}
    inner, state, heads, tokens = 8 * 3, 4 * 5, 8, env["B"] * env["S"] // 2
    whole, back = tokens * (2 * inner + 2 * state + heads) // 2, tokens * inner // 2
    found = {
        op.name: evaluate(op.work.comm_bytes, env) // env["e_act"]
        for op in graph.ops
        if isinstance(op.work, Collective) and op.block == "layer" and "all_to_all.cp" in op.name
    }
    assert sorted(found.values()) == sorted(2 * [whole, back, back]), found
    assert found["layer.attn.in_proj.all_to_all.cp"] == whole


def test_ranks_of_tp_and_a_context_have_whole_groups() -> None:
    sizes = build_graph(dataclasses.replace(model("usual"), heads=8, kv_heads=8), GraphOptions()).sizes
    words = {"micro_batch_size": 4, "global_batch_size": 4, "seq_len": 16, "cp_kind": "ulysses"}
    assert plan_for({**words, "tp": 2, "cp": 2}, sizes).cp == 2
    with pytest.raises(UsageError, match=r"the 4 groups of heads of the scan"):
        plan_for({**words, "tp": 2, "cp": 4}, sizes)
    with pytest.raises(UsageError, match=r"allgather-kv with groups of heads of the scan, .*: take --cp-kind ulysses"):
        plan_for({**words, "cp": 2, "cp_kind": "allgather-kv"}, sizes)


def test_a_tp_that_does_not_divide_groups_is_refused() -> None:
    sizes = build_graph(dataclasses.replace(model("usual"), heads=8, kv_heads=8), GraphOptions()).sizes
    words = {"micro_batch_size": 4, "global_batch_size": 4, "seq_len": 8}
    assert plan_for({**words, "tp": 4}, sizes).tp == 4
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 groups of heads of the scan: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    sizes = build_graph(dataclasses.replace(model("selective scan"), heads=8, kv_heads=8), GraphOptions()).sizes
    assert plan_for({**words, "tp": 4}, sizes).tp == 4
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 12 channels of the scan: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    sizes = build_graph(dataclasses.replace(model("gated recurrence"), heads=8, kv_heads=8), GraphOptions()).sizes
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 blocks of the gated recurrence: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    sizes = build_graph(dataclasses.replace(model("delta rule"), heads=8, kv_heads=8), GraphOptions()).sizes
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 heads of keys of the delta rule: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    few: Any = {"layer": {**LIGHTNING, "lightning_heads": 4}}
    sizes = build_graph(dataclasses.replace(model("usual"), heads=8, kv_heads=8, layer_kinds=few), GraphOptions()).sizes
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 4 heads of lightning attention: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)
    narrow = dataclasses.replace(model("short convolution"), hidden=12, heads=8, kv_heads=8)
    sizes = build_graph(narrow, GraphOptions()).sizes
    with pytest.raises(UsageError, match=r"tp 8 does not divide the 12 channels of the short convolution: .* --tp 4"):
        plan_for({**words, "tp": 8}, sizes)


def test_a_token_behind_others_has_no_chunk() -> None:
    """The rows of the steps of transformers 5.24; that of the delta rule has no matmul."""
    for name, scanned, channels, state in (
        ("usual", 2 * 8 * 3 * 5, 8 * 3 + 2 * 4 * 5, 8 * 3 * 5),
        ("delta rule", 0, 2 * 4 * 3 + 8 * 5, 8 * 3 * 5),
        ("selective scan", 2 * 12 * 3, 12, 12 * 3),
    ):
        graph = build_graph(model(name), GraphOptions(workflow="decode"))
        env = {**environment(graph), "S": 1}
        found = {op.name: evaluate(flops(op), env) for op in graph.ops}
        assert found["layer.attn.scan"] == env["B"] * scanned
        assert found["layer.attn.conv"] == 2 * env["B"] * channels * 4
        states = {each.name: evaluate(each.bytes, env) for each in graph.tensors if each.role == "cache"}
        assert states["layer.attn.conv.cache"] == env["B"] * channels * 4 * env["e_act"]
        assert states["layer.attn.scan.cache"] == env["B"] * state * 4


def test_a_gated_recurrence_keeps_its_last_values() -> None:
    """One fewer than the convolution has taps, and a number for each value: `RecurrentGemmaRecurrentBlock`."""
    graph = build_graph(model("gated recurrence"), GraphOptions(workflow="decode"))
    env = {**environment(graph), "S": 1}
    states = {each.name: evaluate(each.bytes, env) for each in graph.tensors if each.role == "cache"}
    assert states["layer.attn.conv.cache"] == env["B"] * 12 * 3 * env["e_act"]
    assert states["layer.attn.scan.cache"] == env["B"] * 12 * 4
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    assert found["layer.attn.input_gate"] == found["layer.attn.decay_gate"] == 2 * env["B"] * 4 * 3 * 3
    assert found["layer.attn.scan"] == 0
    trained = build_graph(model("gated recurrence"), GraphOptions())
    convolved = {op.name: evaluate(flops(op), env) for op in trained.ops}
    assert convolved["layer.attn.conv.input_gradient"] == 2 * convolved["layer.attn.conv"]


def test_recomputing_what_no_layer_has_is_refused() -> None:
    for name in ("short convolution", "delta rule"):
        with pytest.raises(UsageError, match="no attention whose core would run again"):
            build_graph(model(name), GraphOptions(attention="math", recompute="core"))
    alone = dataclasses.replace(model("alone"), ffn=0)
    with pytest.raises(UsageError, match="no attention whose core would run again: take --recompute full"):
        build_graph(alone, GraphOptions(attention="math", recompute="core"))
    for module, lacks in (("core_attn", "attention"), ("mlp", "feed-forward without experts")):
        with pytest.raises(UsageError, match=f"has no {lacks}, .* takes layernorm for it"):
            words: Any = {"recipe": "megatron", "attention": "math", "recompute": "modules"}
            build_graph(alone, GraphOptions(**words, recompute_modules=(module,)))


def test_words_that_do_not_suit_are_refused() -> None:
    for words, reason in (
        ({**SCAN, "scan_groups": 3}, "scan_heads=8 do not divide into scan_groups=3"),
        ({**DELTA, "delta_key_heads": 3}, "delta_heads=8 do not divide into delta_key_heads=3"),
        ({**SELECTIVE, "scan_norm": "some"}, "scan_norm must be one of none, weighted, unweighted"),
        ({**RECURRENCE, "conv_width": 1}, "conv_width must be 2 or more with gated_recurrence, not 1"),
        ({**SCAN, "channel_mixer": "none"}, "channel_mixer: none goes with residual: mixer_alone"),
        ({**SCAN, "residual": "mixer_alone"}, "channel_mixer: none goes with residual: mixer_alone"),
        ({"mixer": "none"}, "mixer: none goes with residual: channel_mixer_alone"),
        ({**ALONE, "mixer": "none"}, "'none' is both mixer and channel_mixer"),
    ):
        kinds: Any = {"layer": words}
        with pytest.raises(UsageError, match=reason):
            dataclasses.replace(card("llama"), layer_kinds=kinds)
    lit: Any = {"layer": LIGHTNING}
    with pytest.raises(UsageError, match="clamped_swiglu is for feed-forwards: take another one, such as silu"):
        dataclasses.replace(card("llama"), activation="clamped_swiglu", layer_kinds=lit)


@pytest.mark.parametrize("negative", [False, True])
def test_the_gated_delta_rule_is_the_recurrence_of_its_paper(negative: bool) -> None:
    """One head after the other, token by token (Yang et al. 2025, equation 10); β is doubled if negative."""
    rng, (seq, groups, heads, key, value) = np.random.default_rng(0), (5, 2, 3, 4, 2)
    qkv = rng.normal(size=(1, seq, groups, 2 * key + heads * value))
    b, a = rng.normal(size=(2, 1, seq, groups, heads))
    a_log, bias = rng.normal(size=(2, groups, heads))
    place = RankPlace({"delta_values": heads * value}, {}, {})
    made, *_ = delta_rule.DeltaScan(3, negative=negative).run(place, [qkv, b, a, a_log, bias])
    for group in range(groups):
        for head in range(heads):
            state = np.zeros((value, key))
            for at in range(seq):
                q, k, values = np.split(qkv[0, at, group], (key, 2 * key))
                v = values[head * value : (head + 1) * value]
                q, k = q / np.linalg.norm(q) / key**0.5, k / np.linalg.norm(k)
                beta = (2 if negative else 1) / (1 + np.exp(-b[0, at, group, head]))
                softplus = np.log(1 + np.exp(a[0, at, group, head] + bias[group, head]))
                alpha = np.exp(-np.exp(a_log[group, head]) * softplus)
                state = alpha * state @ (np.eye(key) - beta * np.outer(k, k)) + beta * np.outer(v, k)
                own = made[0, at, group, head * value : (head + 1) * value]
                np.testing.assert_allclose(own, state @ q, rtol=1e-4)
