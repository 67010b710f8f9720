"""Ranks of cp that share the caches of requests, on a simulated mesh: together they make what one rank makes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.operators import Route
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.semantics.test_serving import CACHES, CHUNKS, KEYS, TOKENS, Serving, agree, by_position, whole
from tests.semantics.test_serving import model as of_caches

KIND: dict[str, Any] = {"cp_kind": "allgather-lse"}
SHARED = (
    *("grouped", "packed", "latent", "absorbed", "window", "chunks", "differential"),
    *("latent without positions", "absorbed without positions"),
)
"""The caches of `test_serving` that ranks of cp share by position."""
REFUSED = ("indexer", "absorbed indexer")
WHOLE = tuple(name for name in CACHES if name not in (*SHARED, *REFUSED))
"""Caches with states, of which each rank of cp has all."""
PAIRS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": ({}, {}),
    "tp": ({}, {"tp": 2}),
    "tp, sp": ({"sp": True}, {"tp": 2}),
    "dp": ({}, {"dp": 2}),
    "tp, dp": ({}, {"tp": 2, "dp": 2}),
}


def options(name: str, **words: Any) -> GraphOptions:
    """Those of a decode over a cache of this name."""
    latents: dict[str, Any] = {"latents": "expanded"} if name in ("latent", "latent without positions") else {}
    return GraphOptions(workflow="decode", **latents, **words)


def reference(name: str) -> GraphOptions:
    latent = "kv_rank" in CACHES[name][1]
    return GraphOptions(workflow="decode", latents="expanded" if latent else "usual")


@pytest.mark.parametrize("cp", [2, 3])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", [*SHARED, *WHOLE])
def test_ranks_share_caches_by_position(name: str, pair: str, cp: int) -> None:
    words, degrees = PAIRS[pair]
    graph = build_graph(of_caches(name), options(name, **KIND, **words))
    steps = CHUNKS if words else TOKENS
    agree(Serving(graph, cp=cp, **degrees).run(steps), whole(build_graph(of_caches(name), reference(name)), steps))


@pytest.mark.parametrize("name", SHARED)
def test_each_rank_keeps_its_own_positions_and_no_other(name: str) -> None:
    graph = build_graph(of_caches(name), options(name, **KIND))
    serving = Serving(graph, cp=5)
    serving.run(TOKENS)
    alone = Serving(build_graph(of_caches(name), options(name)))
    alone.weights = serving.weights
    alone.run(TOKENS)
    assert serving.caches.keys() == alone.caches.keys()
    for key, (values,) in alone.caches.items():
        for rank, part in enumerate(serving.caches[key]):
            np.testing.assert_allclose(part, values[:, rank::5], rtol=1e-8, atol=1e-11)
            assert part.shape[1] == len(range(rank, KEYS, 5))


@pytest.mark.parametrize("begins", [(2,), (1, 2, 3)], ids=["two", "four"])
@pytest.mark.parametrize("name", SHARED)
def test_stages_share_layers(name: str, begins: tuple[int, ...]) -> None:
    graph = build_graph(of_caches(name), options(name, **KIND))
    found = Serving(graph, begins, pp=1 + len(begins), cp=2, tp=2).run(TOKENS)
    agree(found, whole(build_graph(of_caches(name), reference(name)), TOKENS))


EXPERTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "ep": ({}, {"ep": 2}),
    "ep, dp": ({}, {"ep": 2, "dp": 2}),
    "ep of cp and dp": ({}, {"ep": 4, "dp": 2}),
    "ep, tp": ({}, {"ep": 2, "tp": 2}),
    "ep, tp, torch": ({"recipe": "torch"}, {"ep": 2, "dp": 2, "tp": 2}),
    "ep, sp": ({"sp": True}, {"ep": 2, "tp": 2}),
    "experts of tp": ({"expert_tp": False}, {"ep": 2, "tp": 2}),
    "expert tp, sp": ({"expert_tp": True, "sp": True}, {"ep": 2, "dp": 2, "tp": 2}),
    "copies to ranks": ({"dispatch": "ranks"}, {"ep": 2}),
    "copies to nodes": ({"dispatch": "nodes"}, {"ep": 4, "dp": 2, "epr": 2}),
}
"""Experts over ranks of cp: these have the same tokens, and each routes those of its part of the requests."""


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_ranks_share_experts(style: str, experts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    words, degrees = EXPERTS[experts]
    model = dataclasses.replace(card(style), max_positions=64)
    alone, graph = (build_graph(model, GraphOptions(workflow="decode", **each)) for each in ({}, {**KIND, **words}))
    steps = CHUNKS if "sp" in words else TOKENS
    agree(Serving(graph, cp=2, **degrees).run(steps), whole(alone, steps))


def test_stages_share_experts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    model = dataclasses.replace(card("moe"), max_positions=64)
    alone, graph = (build_graph(model, GraphOptions(workflow="decode", **each)) for each in ({}, KIND))
    agree(Serving(graph, (2,), pp=2, cp=2, ep=2).run(TOKENS), whole(alone, TOKENS))


SCORES: Mapping[str, dict[str, Any]] = {
    "sinks": {"sinks": True},
    "a soft cap": {"softcap": 0.7},
    "sinks in a window": {"mixer": "sliding_window", "window": 3, "sinks": True},
    "a scale": {"scale": 0.3},
    "slopes": {"positions": "alibi"},
}


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("scores", SCORES)
def test_what_scores_have_is_in_them_once(scores: str, recipe: str) -> None:
    words = dict(SCORES[scores])
    own = dataclasses.replace(card("llama"), positions=words.pop("positions", "rotary"), max_positions=64)
    kinds: Any = {"layer": words} if words else {}
    model = dataclasses.replace(own, layer_kinds=kinds)
    alone, graph = (build_graph(model, GraphOptions(workflow="decode", recipe=recipe, **each)) for each in ({}, KIND))
    agree(Serving(graph, cp=3, tp=2).run(TOKENS), whole(alone, TOKENS))


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("absorbed indexer", {}, "has an indexer, which chooses among the keys of a whole request.*: take --cp 1"),
        ("indexer", {"latents": "expanded"}, "has an indexer, which chooses among the keys of a whole request"),
    ],
)
def test_what_reads_the_keys_of_a_whole_request_is_refused(name: str, words: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        build_graph(of_caches(name), GraphOptions(workflow="decode", **KIND, **words))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"workflow": "training"}, "shares the cache of each request: .* needs --workflow prefill or"),
        ({"attention": "math"}, "it needs --attention fused"),
        ({"cp_chunks": "contiguous"}, "has every cp-th position of the cache: leave --cp-chunks out"),
        ({"cp_kind": "ring-p2p"}, "decode takes --cp-kind allgather-lse, or leave"),
    ],
)
def test_words_that_no_shared_cache_can_have_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        GraphOptions(**{"workflow": "decode", **KIND, **words})
