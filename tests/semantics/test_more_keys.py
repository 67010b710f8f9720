"""Graphs with more keys than queries, as in a step of decoding or a chunk of a prefill: their counts and values."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.interpreter import cached_names, run_block
from stagedb.ir.operators import Array
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.models.own_blocks import MIXES, with_block
from tests.semantics.test_shared_keys import model as with_shared_keys
from tests.semantics.variants import LATENT, VARIANTS
from tests.symbolic_rows import compute

BATCH, KEYS, WIDE = 3, 11, 2
"""Sequences, positions of each, and bytes of a value."""

MIXERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "grouped": ("llama", {}),
    "packed": ("gpt", {}),
    "latent": ("llama", LATENT),
    "window": ("llama", {"mixer": "sliding_window", "window": 3}),
    "chunks": ("llama", {"mixer": "chunked_attention", "chunk": 4}),
    "indexer": ("llama", {**LATENT, "q_rank": 7, "index_heads": 3, "index_dim": 4, "index_top": 3}),
}


def model(style: str, words: Mapping[str, Any], **fields: Any) -> Card:
    kinds: Any = {"layer": dict(words)} if words else {}
    return dataclasses.replace(card(style), layer_kinds=kinds, max_positions=64, **fields)


def forward(of: Card, **options: Any) -> SymGraph:
    return build_graph(of, GraphOptions(**{"workflow": "forward-only", **options}))


def costs(graph: SymGraph, queries: int, keys: int, **degrees: int) -> dict[str, tuple[int, ...]]:
    """FLOPs, bytes read and written, and dimensions of each compute op of a layer."""
    env = {**on_one_rank(graph, BATCH, queries, keys), **degrees}
    return {
        op.name: tuple(evaluate(text, env) for text in (work.flops, work.bytes_read, work.bytes_written, *work.dims))
        for op in graph.ops
        if op.block == "layer" and op.work.type == "compute"
        for work in (compute(op),)
    }


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("queries", [1, 4, 11])
@pytest.mark.parametrize("name", MIXERS)
def test_a_kernel_counts_the_pairs_of_its_queries_and_keys_and_reads_each_key(name: str, queries: int, tp: int) -> None:
    graph = forward(model(*MIXERS[name]))
    found = costs(graph, queries, KEYS, tp=tp)["layer.attn.core"]
    heads, head, value = 4 // tp, 4, 4
    of_keys = {"packed": heads, "latent": heads, "indexer": heads}.get(name, 2 // tp)
    if name in ("latent", "indexer"):
        head, value = 4 + 2, 5
    # Keys that a kernel scores with a query, and those that any query reads.
    seen = {"window": 3, "chunks": 4, "indexer": 3}.get(name, KEYS)
    first = KEYS - queries
    read = {
        "window": KEYS - max(first - 2, 0),
        "chunks": KEYS - first // 4 * 4,
        "indexer": min(KEYS, queries * 3),
    }.get(name, KEYS)
    read_bytes = WIDE * BATCH * (queries * heads * head + read * of_keys * (head + value))
    if name == "indexer":  # the scores and the places of chosen keys
        read_bytes += BATCH * queries * 3 * (4 + 8)
    written = BATCH * queries * heads * (WIDE * value + 4)
    flops = 2 * BATCH * heads * queries * seen * (head + value)
    values = () if head == value else (value,)
    assert found == (flops, read_bytes, written, BATCH, heads, of_keys, queries, seen, head, *values)


@pytest.mark.parametrize("queries", [1, 4])
def test_an_indexer_scores_all_keys(queries: int) -> None:
    found = costs(forward(model(*MIXERS["indexer"])), queries, KEYS)["layer.attn.index"]
    read = WIDE * BATCH * (queries * 3 * 4 + KEYS * 4 + queries * 3)
    written = BATCH * queries * 3 * (4 + 8)
    assert found == (2 * BATCH * queries * KEYS * 3 * 5, read, written, BATCH * queries, 3, KEYS, 4)


@pytest.mark.parametrize("queries", [1, 4])
def test_matmuls_of_plain_attention_have_the_pairs_of_queries_and_keys(queries: int) -> None:
    found = costs(forward(model("llama", {}), attention="math"), queries, KEYS)
    pairs, heads = BATCH * 4 * queries * KEYS, 4
    q, k = WIDE * BATCH * queries * heads * 4, WIDE * BATCH * KEYS * heads * 4
    assert found["layer.attn.wide_k"][:3] == (0, k // 2, k)
    assert found["layer.attn.scores"][:3] == (2 * pairs * 4, q + k, WIDE * pairs)
    assert found["layer.attn.weights"][:3] == (0, WIDE * pairs, WIDE * pairs)
    assert found["layer.attn.context"][:3] == (2 * pairs * 4, WIDE * pairs + k, q)


@pytest.mark.parametrize("name", MIXERS)
def test_all_else_counts_its_queries_alone(name: str) -> None:
    graph = forward(model(*MIXERS[name]))
    decode, short = costs(graph, 2, KEYS), costs(graph, 2, 2)
    changed = {each for each in decode if decode[each] != short[each]}
    further = {"indexer": {"index", "wkv_b", "k"}, "latent": {"wkv_b", "k"}}.get(name, set())
    assert changed == {f"layer.attn.{each}" for each in {"core", *further}}


@pytest.mark.parametrize("queries", [1, 4])
def test_keys_and_values_of_all_positions_are_made_again_from_latents(queries: int) -> None:
    found = costs(forward(model(*MIXERS["latent"])), queries, KEYS)
    latents, weights, made = BATCH * KEYS * 6, 4 * (4 + 5) * 6, BATCH * KEYS * 4 * (4 + 5)
    flops = 2 * made * 6
    assert found["layer.attn.wkv_b"] == (flops, WIDE * (latents + weights), WIDE * made, BATCH * KEYS, 4 * (4 + 5), 6)
    rotary, keys, values = BATCH * KEYS * 2, BATCH * KEYS * 4 * (4 + 2), BATCH * KEYS * 4 * 5
    assert found["layer.attn.k"] == (0, WIDE * (made + rotary), WIDE * (keys + values))


def test_a_step_of_a_large_model_by_hand() -> None:
    """Llama 3 8B: one token of each of 64 sequences with 8,192 keys."""
    graph = forward(load_card("llama3-8b"))
    env = on_one_rank(graph, 64, 1, 8192)
    (core,) = [compute(op) for op in graph.ops if op.kind == "attention"]
    assert evaluate(core.flops, env) == 4 * 64 * 32 * 8192 * 128
    assert evaluate(core.bytes_read, env) == 2 * 64 * (32 * 128 + 8192 * 2 * 8 * 128)


def weights_of(graph: SymGraph, rng: np.random.Generator) -> dict[str, Array]:
    env = on_one_rank(graph, 1, 1)
    return {
        row.name: rng.normal(size=[evaluate(size, env) for size in row.shape]) * 0.3
        for row in graph.tensors
        if row.block == "layer" and row.role == "weight"
    }


ATTENTION = [name for name, (_, words, fields) in VARIANTS.items() if "experts" not in str(words.get("channel_mixer"))]


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", [*ATTENTION, "llama", "gpt", "qwen3"])
def test_steps_over_the_keys_of_earlier_runs_are_the_last_rows_of_one_forward(name: str, attention: str) -> None:
    style, words, fields = VARIANTS.get(name, (name, {}, {}))
    check_steps(forward(model(style, words, **fields), attention=attention))


def test_an_own_block_that_mixes_tokens_takes_more_keys() -> None:
    (name,) = MIXES
    check_steps(forward(with_block(name, max_positions=64)))


def check_steps(graph: SymGraph) -> None:
    """A prefill in two chunks, and then a token at a time, make the rows of one forward."""
    rng = np.random.default_rng(5)
    weights = weights_of(graph, rng)
    (stream,) = [row for row in graph.tensors if row.name == "layer.input"]
    x = rng.normal(size=(BATCH, KEYS, *(evaluate(size, on_one_rank(graph, 1, 1)) for size in stream.shape[2:])))
    output = next(spec.output for spec in graph.blocks if spec.name == "layer") or ""
    whole = run_block(graph, {"B": BATCH, "S": KEYS}, "layer", weights, {"layer.input": x})[output]
    cached: dict[str, Array] = {}
    for start, end in ((0, 5), (5, 8), (8, 9), (9, 10), (10, 11)):
        env = {"B": BATCH, "S": end - start, "SK": end}
        made = run_block(graph, env, "layer", weights, {"layer.input": x[:, start:end]}, before=cached)
        np.testing.assert_allclose(made[output], whole[:, start:end], rtol=1e-9, atol=1e-12)
        names = cached_names(graph, "layer")
        cached = {key: np.concatenate([cached[key], made[key]], axis=1) if cached else made[key] for key in names}


CACHED = {
    "grouped": ("rotary_k", "wv"),
    "packed": ("wqkv",),
    "latent": ("kv_a_norm", "rotary_k"),
    "indexer": ("kv_a_norm", "rotary_k", "index.rotary_k"),
}


@pytest.mark.parametrize("name", CACHED)
def test_what_a_cache_has(name: str) -> None:
    graph = build_graph(model(*MIXERS[name]), GraphOptions())
    assert cached_names(graph, "layer") == tuple(f"layer.attn.{each}" for each in CACHED[name])


REFUSED: Mapping[str, tuple[Card, dict[str, Any], int, str]] = {
    "fewer keys": (card("llama"), {"workflow": "forward-only"}, 4, "so that SK is at least S"),
    "training": (card("llama"), {}, 9, r"not possible in training.*--workflow forward-only"),
    "a ring": (card("llama"), {"workflow": "forward-only", "cp_kind": "ring-p2p"}, 9, "attn.core.*: a ring deals"),
    "calls by part": (
        card("llama"),
        {"workflow": "forward-only", "cp_kind": "allgather-kv", "recipe": "megatron"},
        9,
        "attn.core: each part",
    ),
    "blocks of keys": (with_shared_keys("heavy"), {"workflow": "forward-only"}, 9, "blocks: blocks of keys are made"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lengths_that_a_graph_cannot_have_are_refused(name: str) -> None:
    of, options, keys, reason = REFUSED[name]
    graph = build_graph(of, GraphOptions(**options))
    on_one_rank(graph, 1, 8)
    with pytest.raises(UsageError, match=reason):
        on_one_rank(graph, 1, 8, keys)


def test_a_block_with_a_backward_is_not_run_with_more_keys() -> None:
    graph = build_graph(card("llama"), GraphOptions())
    with pytest.raises(UsageError, match="9 keys of a sequence is not possible in training"):
        run_block(graph, {"B": 1, "S": 8, "SK": 9}, "layer", {}, {})


def test_a_run_over_earlier_keys_has_all_of_them_and_no_others() -> None:
    graph, rng = forward(card("llama")), np.random.default_rng(2)
    weights, x = weights_of(graph, rng), rng.normal(size=(1, 2, 16))
    good = {name: rng.normal(size=(1, 3, 2, 4)) for name in cached_names(graph, "layer")}
    run_block(graph, {"B": 1, "S": 2, "SK": 5}, "layer", weights, {"layer.input": x}, before=good)
    key, value = good
    for before, reason in (
        ({key: good[key]}, f"the positions before of {value} are missing"),
        ({**good, "layer.input": x}, "no op reads 'layer.input' of positions before"),
        ({**good, key: good[key][:, :2]}, rf"positions before of {key} have shape \(1, 2, 2, 4\)"),
    ):
        with pytest.raises(UsageError, match=reason):
            run_block(graph, {"B": 1, "S": 2, "SK": 5}, "layer", weights, {"layer.input": x}, before=before)
