"""Steps of serving on a simulated mesh: a prefill in chunks and then a token at a time make what one forward makes."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import OpType, SymGraph
from stagedb.ir.operators import Array, CacheAppend, RankPlace, Route
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
    "delta rule with both signs and six matmuls": (
        "llama",
        {**DELTA, "delta_projections": "each", "delta_negative": True},
    ),
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
    "differential": ("gpt", {"mixer": "differential_attention", "bias": "all"}),
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

    def __init__(self, graph: SymGraph, begins: Sequence[int] = (), **degrees: Any) -> None:
        """begins: the positions of blocks with which later stages begin."""
        self.inputs: dict[str, Array] = {}  # in place of the tokens, by the name of a tensor
        rng = np.random.default_rng(3)
        self.begins = begins
        self.graph, self.degrees = graph, degrees
        env = environment(graph)
        self.weights = {key: rng.normal(size=shape) * 0.3 for key, shape in weight_shapes(graph, env).items()}
        self.tokens = rng.integers(0, graph.sizes["V"], (BATCH, KEYS))
        self.caches: dict[Key, Value] = {}

    def step(self, start: int, end: int) -> tuple[Array, Array]:
        """The logits of last tokens, whole, and the tokens that follow them, after a step over so many positions."""
        # Slots for all choices: of few tokens more than a share go to one expert.
        env = {**environment(self.graph, **self.degrees), "S": end - start, "SK": end, "capacity": 4}
        mesh, values, before = SimulatedMesh(self.graph, env), dict[Key, Value](), ""
        for place, block in enumerate(positions(self.graph, env)):
            for row in mesh.weights(block):
                values[row.name, place] = mesh.scatter(self.weights[place_of_value(row, place)], row)
            for row in (row for row in self.graph.tensors if row.block == block and row.role == "input"):
                values[row.name, place] = mesh.scatter(self.inputs.get(row.name, self.tokens)[:, start:end], row)
            for row in (row for row in self.graph.tensors if row.block == block and row.role == "buffer"):
                values[row.name, place] = mesh.table(row)
            spec = mesh.specs[block]
            if place in self.begins:
                before = self._across(mesh, values, before, place)
            if spec.input is not None:
                mesh.check_same(before, spec.input)
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
        self.made = {name: mesh.gather(values[name, place], mesh.tensors[name]) for name in self.kept(mesh)}
        return self.made["head.out"], self.made.get("head.next", np.empty(0))

    def kept(self, mesh: SimulatedMesh) -> list[str]:
        """The logits and the tokens that the last block makes."""
        return [name for name in mesh.tensors if re.fullmatch(r"head\.(further_\d+\.)?(out|next|ahead)", name)]

    def _across(self, mesh: SimulatedMesh, values: dict[Key, Value], before: str, place: int) -> str:
        """The name of what a stage has of the one before: each rank sends its own part."""
        send, (receive, *gathers) = mesh.cut(OpType.SEND, FORWARD), mesh.arriving(FORWARD)
        (source,), (name,) = send.reads, receive.writes
        mesh.check_same(before, source)
        value = values[before, place - 1]
        value = mesh.execute(send, [value])[0] if send.name in mesh.operators else value
        mesh.check_local(value, name)
        for op in gathers:
            (name,), (value,) = op.writes, mesh.execute(op, [value])
        values[name, place - 1] = value
        return name

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


DEGREES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
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


def by_position(_: Route, place: RankPlace, __: list[Array]) -> list[Array]:
    """Experts that a token keeps whichever step it comes in, unlike those of `Route`, which are by place in a step."""
    choices, experts = place.sizes["choices"], place.sizes["experts"]
    token = 3 * place.indices("batch")[:, None] + place.before + place.indices("seq")
    expert = (5 * token[..., None] + np.arange(choices)) % experts
    flat, order = expert.reshape(-1), np.empty(expert.size, np.int64)
    for each in range(experts):
        order[flat == each] = np.arange((flat == each).sum()) * experts + each
    return [order.reshape(expert.shape)]


SHARED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ep": ({}, {"ep": 2, "dp": 2}),
    "ep, tp": ({}, {"ep": 2, "dp": 2, "tp": 2}),
    "ep, tp, torch": ({"recipe": "torch"}, {"ep": 2, "dp": 2, "tp": 2}),
    "ep, sp": ({"sp": True}, {"ep": 2, "dp": 2, "tp": 2}),
    "all ranks of dp": ({}, {"ep": 4, "dp": 4}),
    "experts of tp": ({"expert_tp": False}, {"tp": 2}),
    "experts of tp, each alone": ({"expert_tp": False}, {"tp": 4}),
    "experts of tp, torch": ({"expert_tp": False, "recipe": "torch"}, {"tp": 2}),
    "experts of tp, requests of dp": ({"expert_tp": False}, {"tp": 2, "dp": 2}),
    "experts of tp and dp": ({"expert_tp": False}, {"ep": 2, "dp": 2, "tp": 2}),
    "expert tp": ({"expert_tp": True}, {"ep": 2, "dp": 2, "tp": 2}),
    "expert tp, sp": ({"expert_tp": True, "sp": True}, {"ep": 2, "dp": 2, "tp": 2}),
    "copies to ranks": ({"dispatch": "ranks"}, {"ep": 2, "dp": 2}),
    "copies to ranks, tp": ({"dispatch": "ranks"}, {"ep": 2, "dp": 2, "tp": 2}),
    "copies to nodes": ({"dispatch": "nodes"}, {"ep": 4, "dp": 4, "epr": 2}),
    "copies to nodes, tp": ({"dispatch": "nodes"}, {"ep": 4, "dp": 4, "epr": 2, "tp": 2}),
}
"""Attention that ranks of dp share by requests, and experts that they share over ep."""


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_ranks_share_experts(style: str, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    options, degrees = SHARED[shared]
    own = dataclasses.replace(card(style), max_positions=64)
    reference, graph = (build_graph(own, GraphOptions(workflow="prefill", **words)) for words in ({}, options))
    # sp divides the positions of a step among the ranks of tp.
    steps = CHUNKS if "sp" in options else TOKENS
    agree(Serving(graph, **degrees).run(steps), whole(reference, steps))


STAGES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "alone": ("llama", {}, {}),
    "tp": ("llama", {}, {"tp": 2}),
    "dp": ("llama", {}, {"dp": 2}),
    "tp, sp": ("llama", {"sp": True}, {"tp": 2}),
    "scatter-gather": ("gpt", {"recipe": "megatron", "scatter_gather": True}, {"tp": 2}),
    "experts": ("moe", {}, {"ep": 2, "dp": 2}),
    "experts, tp": ("deepseek", {}, {"ep": 2, "dp": 2, "tp": 2}),
    "experts of tp": ("deepseek", {"expert_tp": False}, {"ep": 2, "dp": 2, "tp": 2}),
    "copies to ranks": ("deepseek", {"dispatch": "ranks"}, {"ep": 2, "dp": 2}),
}


@pytest.mark.parametrize("degrees", STAGES)
@pytest.mark.parametrize("begins", [(2,), (1, 2, 3)], ids=["two", "four"])
def test_stages_share_layers_and_their_caches(degrees: str, begins: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    style, options, mesh = STAGES[degrees]
    own = dataclasses.replace(card(style), max_positions=64)
    reference, graph = (build_graph(own, GraphOptions(workflow="prefill", **words)) for words in ({}, options))
    # What sp divides, and what is sent in parts, has a position for each rank of tp.
    steps = CHUNKS if {"sp", "scatter_gather"} & options.keys() else TOKENS
    agree(Serving(graph, begins, pp=1 + len(begins), **mesh).run(steps), whole(reference, steps))


@pytest.mark.parametrize("name", CACHES)
def test_stages_share_caches_of_every_kind(name: str) -> None:
    graph = build_graph(model(name), GraphOptions(workflow="prefill", **ABSORBED.get(name, {})))
    expanded = build_graph(model(name), GraphOptions(workflow="prefill"))
    agree(Serving(graph, (2,), pp=2, tp=2).run(TOKENS), whole(expanded, TOKENS))


def test_what_a_cache_cannot_keep_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be served with a cache, because of .*blocks of keys"):
        build_graph(with_shared_keys("heavy"), GraphOptions(workflow="decode"))
