"""Steps of serving on a simulated mesh: a prefill in chunks and then a token at a time make what one forward makes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import UsageError
from stagedb.ir import SymGraph
from stagedb.ir.operators import Array, CacheAppend
from stagedb.ir.operators.state_space import KeepsState
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.workflows.training import FORWARD
from tests.ir.environments import BATCH, environment
from tests.ir.tiny import card
from tests.semantics.mesh import SimulatedMesh, Value
from tests.semantics.stage import Key
from tests.semantics.step import positions, weight_shapes
from tests.semantics.test_scans import BOTH, DELTA, KIMI, LIGHTNING, NOPE, RECURRENCE, SCALES, SCAN, SELECTIVE, SHORT
from tests.semantics.test_shared_keys import model as with_shared_keys
from tests.semantics.variants import LATENT
from tests.symbolic_rows import place_of_value

KEYS = 12
CHUNKS = ((0, 6), (6, 8), (8, 10), (10, 12))
"""The first and the last position of each step. Two each, so that two ranks can share them under sp."""
TOKENS = ((0, 6), *((at, at + 1) for at in range(6, KEYS)))

CACHES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("llama", {}),
    "packed": ("gpt", {}),
    "latent": ("llama", LATENT),
    "absorbed": ("llama", LATENT),
    "absorbed indexer": ("llama", {**LATENT, "q_rank": 7, "index_heads": 3, "index_dim": 4, "index_top": 3}),
    "indexer": ("llama", {**LATENT, "q_rank": 7, "index_heads": 3, "index_dim": 4, "index_top": 3}),
    "window": ("llama", {"mixer": "sliding_window", "window": 3}),
    "state space": ("llama", {**SCAN, "conv_bias": False}),
    "state space, three taps": ("gpt", {**SCAN, "conv_width": 3, "scan_least": 0.4}),
    "delta rule": ("llama", DELTA),
    "selective scan": ("llama", {**SELECTIVE, "scan_norm": "weighted"}),
    "selective scan, norms without weights": ("gpt", {**SELECTIVE, "scan_norm": "unweighted", "scan_bias": True}),
    "short convolution": ("llama", SHORT),
    "kimi delta": ("llama", KIMI),
    "lightning attention": ("llama", {**LIGHTNING, "residual": "normed_stream", "attn_stream_scale": 1.4}),
    "latent without positions": ("llama", NOPE),
    "absorbed without positions": ("llama", {**NOPE, "q_rank": 7}),
    "attention and scan": ("llama", {**BOTH, **SCALES}),
    "short convolution, biases": ("gpt", {**SHORT, "conv_bias": True, "conv_width": 4}),
    "gated recurrence": ("llama", RECURRENCE),
    "gated recurrence, two taps": ("gpt", {**RECURRENCE, "conv_width": 2, "conv_bias": False}),
    "chunks": ("llama", {"mixer": "chunked_attention", "chunk": 4}),
}


ABSORBED: Mapping[str, dict[str, Any]] = {name: {"latents": "absorbed"} for name in CACHES if "absorbed" in name}
"""Options of caches whose latents queries read themselves."""


def model(name: str) -> Card:
    style, words = CACHES[name]
    kinds: Any = {"layer": dict(words)} if words else {}
    positions: Any = {"positions": "none"} if "without positions" in name else {}
    return dataclasses.replace(card(style), layer_kinds=kinds, max_positions=64, **positions)


class Serving:
    """Requests of a graph with random weights, and the caches that steps leave, by op and position of the block."""

    def __init__(self, graph: SymGraph, **degrees: Any) -> None:
        rng = np.random.default_rng(3)
        self.graph, self.degrees = graph, degrees
        env = environment(graph)
        self.weights = {key: rng.normal(size=shape) * 0.3 for key, shape in weight_shapes(graph, env).items()}
        self.tokens = rng.integers(0, graph.sizes["V"], (BATCH, KEYS))
        self.caches: dict[Key, Value] = {}

    def step(self, start: int, end: int) -> tuple[Array, Array]:
        """The logits of last tokens, whole, and the tokens that follow them, after a step over so many positions."""
        env = {**environment(self.graph, **self.degrees), "S": end - start, "SK": end}
        mesh, values, before = SimulatedMesh(self.graph, env), dict[Key, Value](), ""
        for place, block in enumerate(positions(self.graph, env)):
            for row in mesh.weights(block):
                values[row.name, place] = mesh.scatter(self.weights[place_of_value(row, place)], row)
            for row in (row for row in self.graph.tensors if row.block == block and row.role == "input"):
                values[row.name, place] = mesh.scatter(self.tokens[:, start:end], row)
            spec = mesh.specs[block]
            if spec.input is not None:
                values[spec.input, place] = values[before, place - 1]
            for op in mesh.ops(block, (FORWARD,)):
                operator, key = mesh.operators.get(op.name), (op.name, place)
                keeps = isinstance(operator, KeepsState) and operator.keeps
                held = [self.caches[key]] if keeps and key in self.caches else []
                outputs = mesh.execute(op, [*(values[name, place] for name in op.reads), *held], layer=place - 1)
                if keeps:
                    self.caches[key] = outputs[-1]
                if isinstance(operator, CacheAppend):
                    outputs = [self._behind(key, outputs[0])]
                values.update(zip(((name, place) for name in op.writes), outputs, strict=True))
            before = spec.output or ""
        logits, chosen = mesh.tensors["head.out"], mesh.tensors["head.next"]
        return mesh.gather(values["head.out", place], logits), mesh.gather(values["head.next", place], chosen)

    def _behind(self, key: Key, new: Value) -> Value:
        held = self.caches.get(key)
        parts = new if held is None else [np.concatenate(each, axis=1) for each in zip(held, new, strict=True)]
        self.caches[key] = parts
        return parts

    def run(self, steps: Sequence[tuple[int, int]]) -> list[tuple[Array, Array]]:
        return [self.step(start, end) for start, end in steps]


def whole(graph: SymGraph, steps: Sequence[tuple[int, int]]) -> list[tuple[Array, Array]]:
    """What forwards over all positions up to the end of each step make, on one rank and without a cache."""
    return [Serving(graph).step(0, end) for _, end in steps]


def agree(found: list[tuple[Array, Array]], expected: list[tuple[Array, Array]]) -> None:
    for (logits, chosen), (theirs, same) in zip(found, expected, strict=True):
        np.testing.assert_allclose(logits, theirs, rtol=1e-8, atol=1e-11)
        np.testing.assert_array_equal(chosen, same)
        np.testing.assert_array_equal(chosen, theirs.argmax(axis=-1))


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", CACHES)
def test_a_prefill_and_tokens_one_by_one_are_one_forward(name: str, attention: Any) -> None:
    graph = build_graph(model(name), GraphOptions(workflow="decode", attention=attention))
    latent = "kv_rank" in CACHES[name][1]
    own: Any = "expanded" if latent else "usual"
    reference = build_graph(model(name), GraphOptions(workflow="decode", attention=attention, latents=own))
    reads = any("attn.keys.cache" in each.name for each in graph.tensors)
    assert reads is (latent and attention == "fused"), "a decode reads latents"
    agree(Serving(graph).run(TOKENS), whole(reference, TOKENS))


DEGREES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2}),
    "dp": ({}, {"dp": 2}),
    "tp, dp": ({}, {"tp": 2, "dp": 2}),
    "tp, sp": ({"sp": True}, {"tp": 2}),
    "tp, sp, dp": ({"sp": True}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("name", CACHES)
def test_ranks_share_heads_and_requests(name: str, degrees: str, recipe: str) -> None:
    options, mesh = DEGREES[degrees]
    reference = build_graph(model(name), GraphOptions(workflow="prefill"))
    own = ABSORBED.get(name, {})
    graph = build_graph(model(name), GraphOptions(workflow="prefill", recipe=recipe, **options, **own))
    steps = CHUNKS if options else TOKENS
    if recipe == "megatron" and reference.sizes != graph.sizes:
        pytest.fail("the same model has other sizes")
    expanded = build_graph(model(name), GraphOptions(workflow="prefill", recipe=recipe, **options))
    agree(Serving(graph, **mesh).run(steps), whole(expanded, steps))


@pytest.mark.parametrize("degrees", [{"ep": 2, "dp": 2}, {"ep": 2, "dp": 2, "tp": 2}], ids=str)
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_ranks_share_experts(style: str, degrees: dict[str, int]) -> None:
    graph = build_graph(dataclasses.replace(card(style), max_positions=64), GraphOptions(workflow="prefill"))
    agree([Serving(graph, **degrees).step(0, KEYS)], [Serving(graph).step(0, KEYS)])


def test_what_a_cache_cannot_keep_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be served with a cache, because of .*blocks of keys"):
        build_graph(with_shared_keys("heavy"), GraphOptions(workflow="decode"))
