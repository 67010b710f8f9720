"""One block run whole: its forward against formulas written out, its gradients against slopes, what is refused."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import gradient_names, run_block
from stagedb.ir.key_lengths import NO_SEMANTICS
from stagedb.ir.operators import AdamW, Array, Quantize, SplitHeads, TokenMean, dump, load
from stagedb.ir.quotients import DimensionError
from stagedb.plans import GraphOptions, Plan
from tests.ir.tiny import card

BATCH, SEQ = 2, 6
ENV = {"B": BATCH, "S": SEQ}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer with random weights, a random input and a random gradient of its output."""

    graph: SymGraph
    weights: dict[str, Array]
    x: Array
    dy: Array

    def run(self, gradient: bool = False, **words: Any) -> dict[str, Array]:
        given: dict[str, Any] = {
            "env": ENV,
            "weights": self.weights,
            "inputs": {"layer.input": self.x},
            "output_gradient": self.dy if gradient else None,
        }
        return run_block(self.graph, block="layer", **{**given, **words})

    def changed(self, name: str, **fields: Any) -> "Case":
        """The same with another op of this name."""
        ops = tuple(dataclasses.replace(op, **fields) if op.name == name else op for op in self.graph.ops)
        assert ops != self.graph.ops
        return dataclasses.replace(self, graph=dataclasses.replace(self.graph, ops=ops))

    def without(self, name: str) -> "Case":
        """The same without the op of this name."""
        ops = tuple(op for op in self.graph.ops if op.name != name)
        assert ops != self.graph.ops
        return dataclasses.replace(self, graph=dataclasses.replace(self.graph, ops=ops))


def case(style: str, options: GraphOptions | None = None) -> Case:
    graph = build_graph(card(style, kv_heads=2), options or GraphOptions())
    rng = np.random.default_rng(3)
    env = {**graph.sizes, **ENV, "tp": 1}
    weights = {
        row.name: rng.normal(size=[evaluate(expr, env) for expr in row.shape]) * 0.3
        for row in graph.tensors
        if row.block == "layer" and row.role == "weight"
    }
    return Case(graph, weights, *rng.normal(size=(2, BATCH, SEQ, graph.sizes["H"])))


def attend(q: Array, k: Array, v: Array) -> Array:
    """Causal attention, a query at a time. Heads that share a key have a copy each."""
    out = np.empty_like(q)
    for batch, at, head in np.ndindex(q.shape[:3]):
        scores = k[batch, : at + 1, head] @ q[batch, at, head] / math.sqrt(q.shape[-1])
        chances = np.exp(scores) / np.exp(scores).sum()
        out[batch, at, head] = chances @ v[batch, : at + 1, head]
    return out


def turned(x: Array) -> Array:
    """Rotary positions: the two halves of a head are real and imaginary parts, turned by an angle a position."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** (-np.arange(half) / half)
    turns = np.exp(1j * np.arange(SEQ)[:, None] * speeds)[:, None, :]
    complexes = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([complexes.real, complexes.imag], axis=-1)


def rms(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weight)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias)


def llama(x: Array, w: Mapping[str, Array]) -> Array:
    normal = rms(x, w["attn_norm.weight"])
    q, k, v = (np.einsum("bsh,adh->bsad", normal, w[f"attn.{name}.weight"]) for name in ("wq", "wk", "wv"))
    k, v = (np.repeat(each, q.shape[2] // each.shape[2], axis=2) for each in (k, v))
    x = x + np.einsum("bsad,had->bsh", attend(turned(q), turned(k), v), w["attn.wo.weight"])
    normal = rms(x, w["ffn_norm.weight"])
    gate, up = (normal @ w[f"ffn.{name}.weight"].T for name in ("w1", "w3"))
    return np.asarray(x + (gate / (1 + np.exp(-gate)) * up) @ w["ffn.w2.weight"].T)


def gpt(x: Array, w: Mapping[str, Array]) -> Array:
    normal = layer_norm(x, w["attn_norm.weight"], w["attn_norm.bias"])
    qkv = np.einsum("bsh,apdh->bsapd", normal, w["attn.wqkv.weight"]) + w["attn.wqkv.bias"]
    context = attend(*(qkv[..., part, :] for part in range(3)))
    x = x + np.einsum("bsad,had->bsh", context, w["attn.wo.weight"]) + w["attn.wo.bias"]
    inner = layer_norm(x, w["ffn_norm.weight"], w["ffn_norm.bias"]) @ w["ffn.w1.weight"].T + w["ffn.w1.bias"]
    inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    return np.asarray(x + inner @ w["ffn.w2.weight"].T + w["ffn.w2.bias"])


OPTIONS = {
    "fused": GraphOptions(),
    "math": GraphOptions(attention="math"),
    "eager": GraphOptions(kernels="eager"),
    "fp8": GraphOptions(matmul_dtype="fp8"),
    "sequence parallel": GraphOptions(sp=True),
    "recomputed": GraphOptions(recompute="full"),
    "fsdp": GraphOptions(zero=3),
    "gathered keys": GraphOptions(cp_kind="allgather-kv"),
}
"""Ways of writing a layer down that compute the same."""


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_layer_s_forward_is_its_formula(style: str, options: GraphOptions) -> None:
    made = case(style, options)
    found = made.run()
    expected = {"llama": llama, "gpt": gpt}[style](
        made.x, {name.removeprefix("layer."): value for name, value in made.weights.items()}
    )
    np.testing.assert_allclose(found["layer.ffn.add"], expected, rtol=1e-9, atol=1e-12)
    assert not any(name.endswith("gradient") for name in found)


SLOPED = {
    **OPTIONS,
    "dropout": GraphOptions(attention="math", dropout=0.2),
    "megatron": GraphOptions(recipe="megatron"),
    "megatron, recomputed": GraphOptions(recipe="megatron", sp=True, recompute="full"),
}


@pytest.mark.parametrize("options", SLOPED.values(), ids=SLOPED)
@pytest.mark.parametrize("style", ["llama", "gpt", "qwen3", "moe"])
def test_gradients_of_a_layer_are_the_slopes_of_its_output(style: str, options: GraphOptions) -> None:
    made = case(style, options)
    found, names = made.run(gradient=True), gradient_names(made.graph, "layer")
    assert set(names) == {*made.weights, "layer.input"}

    def value(name: str, moved: Array) -> float:
        """The output's product with its gradient, with another weight or input."""
        if name == "layer.input":
            out = made.run(inputs={name: moved})
        else:
            out = made.run(weights={**made.weights, name: moved})
        return float((out["layer.ffn.add"] * made.dy).sum())

    rng, step = np.random.default_rng(4), 1e-5
    for name, start in {**made.weights, "layer.input": made.x}.items():
        direction = rng.normal(size=start.shape)
        slope = (value(name, start + step * direction) - value(name, start - step * direction)) / (2 * step)
        analytic = float((found[names[name]] * direction).sum())
        assert analytic == pytest.approx(slope, rel=1e-5, abs=1e-6), name


def test_a_head_runs_to_its_loss_and_back() -> None:
    """The loss is the mean of -log p(label); its gradient with respect to the logits is (p - onehot) / tokens."""
    graph = build_graph(card("llama"), GraphOptions())
    hidden, vocabulary = graph.sizes["H"], graph.sizes["V"]
    rng = np.random.default_rng(5)
    x, out = rng.normal(size=(BATCH, SEQ, hidden)), rng.normal(size=(vocabulary, hidden))
    scale, labels = rng.normal(size=hidden), rng.integers(0, vocabulary, (BATCH, SEQ))
    weights = {"head.norm.weight": scale, "head.out.weight": out}
    found = run_block(graph, ENV, "head", weights, {"head.input": x, "head.labels": labels}, np.asarray(1.0))
    normal = rms(x, scale)
    chances = np.exp(normal @ out.T)
    chances /= chances.sum(axis=-1, keepdims=True)
    onehot = np.eye(vocabulary)[labels]
    assert float(found["head.loss"]) == pytest.approx(-np.log((chances * onehot).sum(axis=-1)).mean(), rel=1e-12)
    by_logits = (chances - onehot) / labels.size
    gradient = found[gradient_names(graph, "head")["head.out.weight"]]
    np.testing.assert_allclose(gradient, np.einsum("bsv,bsh->vh", by_logits, normal), rtol=1e-9, atol=1e-12)


def test_an_embedding_takes_tokens() -> None:
    graph = build_graph(card("gpt"), GraphOptions())
    rng = np.random.default_rng(6)
    tokens, dy = rng.integers(0, graph.sizes["V"], (BATCH, SEQ)), rng.normal(size=(BATCH, SEQ, graph.sizes["H"]))
    words, places = (rng.normal(size=(graph.sizes[size], graph.sizes["H"])) for size in ("V", "P"))
    weights = {"embedding.word.weight": words, "embedding.position.weight": places}
    found = run_block(graph, ENV, "embedding", weights, {"embedding.tokens": tokens}, dy)
    spec = next(block for block in graph.blocks if block.name == "embedding")
    np.testing.assert_allclose(found[spec.output or ""], words[tokens] + places[:SEQ])
    names = gradient_names(graph, "embedding")
    assert set(names) == set(weights)
    np.testing.assert_allclose(found[names["embedding.position.weight"]][:SEQ], dy.sum(axis=0))
    row = tokens[0, 0]
    np.testing.assert_allclose(found[names["embedding.word.weight"]][row], dy[tokens == row].sum(axis=0))


def test_the_environment_of_a_plan_will_do() -> None:
    made = case("moe")
    plan = Plan(micro_batch_size=BATCH, seq_len=SEQ)
    found, expected = made.run(gradient=True, env=plan.env(made.graph.sizes)), made.run(gradient=True)
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name])


def test_arithmetic_is_in_double_precision_and_leaves_what_is_given_alone() -> None:
    made = case("llama")
    single = {name: value.astype(np.float32) for name, value in made.weights.items()}
    copies = {name: value.copy() for name, value in single.items()}
    found = made.run(gradient=True, weights=single)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float64)}
    for name, value in copies.items():
        np.testing.assert_array_equal(single[name], value)


WEIGHT = "layer.ffn.w1.weight"


def test_a_request_that_cannot_be_served_is_refused() -> None:
    made = case("llama")
    less = {name: value for name, value in made.weights.items() if name != WEIGHT}
    wide = np.zeros((BATCH, SEQ, 17))
    for words, reason in (
        ({"weights": less}, f"the weight {WEIGHT} is missing: layer.ffn.w1 reads it"),
        ({"inputs": {}}, r"the input layer.input is missing: layer.attn_norm reads it"),
        ({"weights": {**less, WEIGHT: made.x}}, rf"{WEIGHT} of shape \(2, 6, 16\): .*\(ffn, hidden\) = \(24, 16\)"),
        ({"inputs": {"layer.input": wide}}, r"layer.input of shape \(2, 6, 17\): .* = \(2, 6, 16\)"),
        ({"output_gradient": wide}, r"gradient layer.ffn.add.gradient of shape \(2, 6, 17\): .* = \(2, 6, 16\)"),
        ({"weights": {**made.weights, "layer.w9": wide}}, r"no op reads 'layer.w9' as a given weight: .*ffn.w1.weight"),
        ({"inputs": {"layer.input": made.x, "head.labels": wide}}, "no op reads 'head.labels' as a given input"),
        ({"env": {**ENV, "tp": 2}}, "run whole, on one rank: tp is 2 and must be 1"),
    ):
        with pytest.raises(UsageError, match=reason):
            made.run(**words)
    with pytest.raises(DimensionError, match="B has no value"):
        made.run(env={"S": SEQ})
    for call in (lambda: run_block(made.graph, ENV, "body", {}, {}), lambda: gradient_names(made.graph, "body")):
        with pytest.raises(UsageError, match="no block 'body' in the graph: it has embedding, layer, head"):
            call()


@pytest.mark.parametrize("kind", ["ring-p2p", "ring-alltoall", "ring-allgather", "ulysses-ring"])
def test_a_ring_has_no_meaning_on_one_rank(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"layer.attn.core.* runs in turns"):
        case("llama", GraphOptions(cp_kind=kind)).run()


def test_an_error_names_the_op_that_cannot_be_run() -> None:
    made = case("llama")
    for broken, reason in (
        (made.changed("layer.ffn.gate", semantics="{}"), r"layer.ffn.gate \(activation\) has no semantics"),
        (made.changed("layer.ffn.gate", semantics='{"operator": "Gatt"}'), "layer.ffn.gate: not an operator"),
        (made.changed("layer.ffn.gate", semantics='{"operator": "Gate"}'), "layer.ffn.gate: .*function"),
        (made.changed("layer.ffn.gate", semantics="Gate"), "layer.ffn.gate: "),
        (made.changed("layer.ffn.gate", semantics=dump(AdamW())), "layer.ffn.gate fails .*AdamW has no numpy meaning"),
        (
            made.changed("layer.ffn.gate", semantics=dump(SplitHeads())),
            r"layer.ffn.gate fails on layer.ffn.w1 \(2, 6, 24",
        ),
        (made.changed("layer.ffn.gate", semantics=dump(TokenMean())), r"gate makes layer.ffn.gate of shape \(\): .*24"),
        (made.changed("layer.attn_norm", semantics=dump(Quantize())), "attn_norm makes 1 arrays for layer.attn_norm, "),
        (made.changed("layer.ffn.w2", order=0), "layer.ffn.w2 reads layer.ffn.gate before an op makes it"),
        (made.changed("layer.ffn.w2", reads=("layer.ffn.gate", "layer.w")), "layer.ffn.w2 names the tensor layer.w, "),
    ):
        with pytest.raises(ValueError, match=reason):
            broken.run()
    with pytest.raises(UsageError, match=r"the input layer.ffn.gate is missing: layer.ffn.w2 reads it"):
        made.without("layer.ffn.gate").run()
    cut = made.without("layer.ffn.gate.input_gradient")
    with pytest.raises(ValueError, match=r"starts from layer.ffn.add.gradient, .*, and must start from one gradient"):
        cut.run(gradient=True)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "sgd-momentum", "muon"])
def test_operators_of_every_optimizer_are_restored(optimizer: str) -> None:
    words: dict[str, Any] = {"recipe": "torch", "optimizer": optimizer}
    graph = build_graph(card("llama", kv_heads=2), GraphOptions(**words))
    steps = [op for op in graph.ops if op.template.once and op.semantics != NO_SEMANTICS]
    assert steps
    for op in graph.ops:
        if op.semantics != NO_SEMANTICS:
            assert dump(load(op.semantics)) == op.semantics
