"""Layers with rows of their own of each token, and with keys of earlier layers (Gemma 4 E2B): gradients, partitioned
runs, counts, serving, memory, and what is refused."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.memory import memory_of
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.lowered import program
from tests.semantics.running import check_slopes, example
from tests.semantics.test_experts import assert_same
from tests.semantics.test_serving import CHUNKS, TOKENS, Serving, agree, whole
from tests.symbolic_rows import flops

USUAL = {"residual": "sandwich_scaled", "scale": 1.0, "qk_norm": "head"}
WINDOW = {**USUAL, "mixer": "sliding_window", "window": 3}
WIDE_HEADS = {"head_dim": 8, "rotary_dim": 4}
EARLIER = {"keys": "earlier", "ffn": 48}
KINDS: Mapping[str, dict[str, Any]] = {
    "local": {**WINDOW, "value_norm": True},
    "layer": {**USUAL, **WIDE_HEADS, "value_norm": True},
    "local_earlier": {**WINDOW, **EARLIER},
    "earlier": {**USUAL, **WIDE_HEADS, **EARLIER},
    "biased": {**WINDOW, "bias": "all", "ffn_bias": "all", "qk_norm": "all"},
    "biased_earlier": {**WINDOW, "bias": "all", "keys": "earlier", "qk_norm": "all", "gated": True, "sinks": True},
    "plain": {"qk_norm": "none"},
    "plain_earlier": {"qk_norm": "none", "keys": "earlier", "rotary_first": True},
    "values_of_keys": {**USUAL, **WIDE_HEADS, "shared_values": True},
}
GEMMA = ("local", "local", "layer", "local_earlier", "earlier", "local_earlier")
ROWS: Mapping[str, Any] = {"layer_input": 6, "layer_input_vocab": 512, "activation": "gelu_tanh"}
MODELS: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "both": (GEMMA, {**ROWS, "tied": True}),
    "rows alone": (("local", "layer"), {**ROWS, "layer_input_vocab": 1024}),
    "keys alone": (("biased", "biased", "biased_earlier", "biased_earlier"), {"qkv_bias": True}),
    "keys of one matmul": (("plain", "plain_earlier", "plain", "plain_earlier"), {}),
    "values of keys": (("values_of_keys", "earlier"), {**ROWS, "norm": "layernorm"}),
}
"""By name: the kind of each layer, and fields of the card."""


def model(name: str, **more: Any) -> Card:
    pattern, fields = MODELS[name]
    used: Any = {each: KINDS[each] for each in dict.fromkeys(pattern)}
    changes: dict[str, Any] = {"kv_heads": 4, "layers": len(pattern), "layer_kinds": used, "pattern": pattern}
    return dataclasses.replace(card("llama"), **{**changes, **fields, **more})


STYLES: Mapping[str, GraphOptions] = {
    "torch": GraphOptions(),
    "torch, written out": GraphOptions(attention="math", kernels="eager"),
    "megatron": GraphOptions(recipe="megatron"),
    "recomputed": GraphOptions(recompute="full"),
}


@pytest.mark.parametrize("words", STYLES)
@pytest.mark.parametrize("name", MODELS)
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
    "tp, sp": ({"sp": True}, {"tp": 4}),
    "cp, tp": ({"cp_kind": "ulysses"}, {"cp": 2, "tp": 2}),
    "cp": ({"cp_kind": "allgather-kv"}, {"cp": 2}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 1, the core again": ({"zero": 1, "recompute": "core", "attention": "math"}, {"dp": 4}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 4}),
    "norms again": ({"recompute": "modules", "recompute_modules": ("layernorm",), "recipe": "megatron"}, {"tp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    mesh: Any = degrees
    plain = {word: value for word, value in options.items() if word == "recipe"}
    alone = example(build_graph(model(name), GraphOptions(**plain)))
    some = dataclasses.replace(alone, graph=build_graph(model(name), GraphOptions(**options)))
    assert_same(some.run(**mesh), alone.run())


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prefill_and_tokens_one_by_one_are_one_forward(name: str, attention: Any) -> None:
    """Layers with keys of an earlier one have no cache of their own."""
    graph = build_graph(model(name, max_positions=64), GraphOptions(workflow="decode", attention=attention))
    agree(Serving(graph).run(TOKENS), whole(graph, TOKENS))
    owners = {each.name.rsplit(".attn.", 1)[0] for each in graph.tensors if each.role == "cache"}
    pattern = MODELS[name][0]
    assert owners == {f"stack.layer_{at}" for at, kind in enumerate(pattern) if not kind.endswith("earlier")}


@pytest.mark.parametrize("cp", [1, 3])
@pytest.mark.parametrize("options", [{}, {"sp": True}], ids=["tp", "sp"])
def test_ranks_share_heads_requests_and_caches_in_serving(options: dict[str, Any], cp: int) -> None:
    options = {**options, "cp_kind": "allgather-lse" if cp > 1 else "none"}
    graph = build_graph(model("both", max_positions=64), GraphOptions(workflow="prefill", **options))
    steps = CHUNKS if "sp" in options else TOKENS
    agree(Serving(graph, tp=2, dp=2, cp=cp).run(steps), whole(graph, steps))


def test_flops_of_rows_and_of_wide_layers() -> None:
    graph = build_graph(model("both"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    tokens, hidden, heads = env["B"] * env["S"], env["H"], env["A"]
    assert found["stack.layer_rows"] == 2 * tokens * hidden * 6 * 6
    assert found["stack.layer_3.input.gate"] == found["stack.layer_3.input.back"] == 2 * tokens * hidden * 6
    assert [found[f"stack.layer_{at}.attn.wq"] for at in (1, 2, 3, 4)] == [
        2 * tokens * hidden * heads * size for size in (4, 8, 4, 8)
    ]
    assert [found[f"stack.layer_{at}.ffn.w2"] for at in (2, 3)] == [2 * tokens * hidden * wide for wide in (24, 48)]
    # Queries, keys and values, two matmuls each, over three keys of a window or all eight.
    assert [found[f"stack.layer_{at}.attn.core"] for at in (2, 3, 4)] == [
        2 * env["B"] * heads * env["S"] * keys * 2 * size for keys, size in ((8, 8), (3, 4), (8, 8))
    ]
    assert "stack.layer_3.attn.wk" not in found


def test_gradients_of_shared_keys_are_added_before_their_matmul() -> None:
    graph = build_graph(model("both"), GraphOptions())
    ops = {op.name: op for op in graph.ops}
    sums = [name for name in ops if re.fullmatch(r"stack\.layer_1\.attn\.rotary_k\.gradient_sum\.\d", name)]
    assert len(sums) == 2  # three layers read them
    assert ops["stack.layer_1.attn.rotary_k.input_gradient"].reads[0].startswith(sums[-1])
    assert not any(name.startswith("stack.layer_0.attn.rotary_k.gradient_sum") for name in ops)


def test_memory_holds_keys_until_the_last_layer_that_reads_them() -> None:
    made = dataclasses.replace(model("both"), vocab_multiple=1)
    (held,) = memory_of(program(made, seq_len=8))
    (usual,) = memory_of(program(dataclasses.replace(made, layer_input=0, layer_input_vocab=0), seq_len=8))
    found, without = dict(held.ends()), dict(usual.ends())
    more = made.count_parameters() - dataclasses.replace(made, layer_input=0, layer_input_vocab=0).count_parameters()
    assert more == 512 * 6 * 6 + 16 * 6 * 6 + 6 + 6 * (2 * 16 * 6 + 16)
    assert found["start"]["parameters"] - without["start"]["parameters"] == 2 * more


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "pp": ({"pp": 2}, "6 layers read more than the stream.*one stage.*pp 1"),
    "lora": ({"lora": ("attn.wq",)}, "keys of earlier layers and rows of their own of each token.*leave .*lora"),
    "frozen": ({"frozen": ("embedding",)}, "which stagedb trains with all others: leave .*frozen"),
    "inputs on the host": (
        {"recompute": "full", "offload": "activations"},
        "alone would be on the host: leave .*offload",
    ),
    "tp": ({"tp": 3}, "tp 3 does not divide"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused(name: str) -> None:
    words, why = REFUSED[name]
    made = model("both")
    with pytest.raises(UsageError, match=why):
        build_graph(made, plan_for(words, model_sizes(made, find_framework("torch"))).options)


def test_a_tp_divides_the_tokens_that_have_rows_and_wide_layers() -> None:
    made = model("rows alone", layer_input_vocab=510, vocab=516, ffn=48)
    with pytest.raises(UsageError, match="does not divide the 510 tokens that have rows for each layer"):
        plan_for({"tp": 4}, model_sizes(made, find_framework("torch")))
    wide = {**model("both").kinds["local_earlier"].to_dict(), "ffn": 50}
    kinds: Any = {**KINDS, "local_earlier": wide}
    used: Any = {each: kinds[each] for each in dict.fromkeys(GEMMA)}
    with pytest.raises(UsageError, match="tp 4 does not divide the feed-forward size 50"):
        plan_for({"tp": 4}, model_sizes(model("both", layer_kinds=used), find_framework("torch")))


CARDS: Mapping[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "nobody before": ({}, ("earlier", "layer"), {}, "earlier has keys: earlier, and no layer before it makes keys"),
    "another window": ({}, ("layer", "local_earlier"), {}, "local_earlier has keys: earlier, and no layer before it"),
    "other heads": (
        {"earlier": {**USUAL, "keys": "earlier", "head_dim": 6}},
        ("layer", "earlier"),
        {},
        "kv_heads and head_dim",
    ),
    "numbers of heads": (
        {"earlier": {**KINDS["earlier"], "heads": 8}},
        ("layer", "earlier"),
        {},
        "leave heads, kv_heads and value_dim out",
    ),
    "norms of values that are not made": (
        {"earlier": {**KINDS["earlier"], "value_norm": True}},
        ("layer", "earlier"),
        {},
        "without keys and values of its own: leave value_norm out",
    ),
    "further tokens": ({}, ("layer", "earlier"), {"multi_token_prediction": 1}, "leave multi_token_prediction"),
    "another residual": ({}, ("plain", "plain"), dict(ROWS), "the residual of all is sandwich_scaled or"),
    "rows without tokens": ({}, ("local", "layer"), {"layer_input": 6}, "go together: set both, or neither"),
}


@pytest.mark.parametrize("name", CARDS)
def test_cards_with_no_meaning_are_refused(name: str) -> None:
    kinds, pattern, fields, why = CARDS[name]
    known = {**KINDS, **kinds}
    used: Any = {each: known[each] for each in dict.fromkeys(pattern)}
    with pytest.raises(UsageError, match=why):
        model("keys of one matmul", layers=len(pattern), layer_kinds=used, pattern=pattern, **fields)


WIDTHS: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "dp 2, tp 2, zero 3": ({"zero": 3}, {"dp": 2, "tp": 2}),
    "tp 4, sp": ({"sp": True}, {"tp": 4}),
}


@pytest.mark.parametrize("words", WIDTHS)
def test_layers_may_have_feed_forwards_of_their_own_width(words: str) -> None:
    """Blocks of layers that follow the stream alone have a width each."""
    kinds: Any = {"wide": {"ffn": 40}, "narrow": {"ffn": 8}, "layer": {}}
    changes: dict[str, Any] = {"layers": 3, "layer_kinds": kinds, "pattern": ("wide", "narrow", "layer")}
    made = dataclasses.replace(card("llama", kv_heads=4), **changes)
    alone = example(build_graph(made, GraphOptions()))
    assert sum(value.size for value in alone.weights.values()) == made.count_parameters()
    check_slopes(alone, alone.run().gradients)
    options, degrees = WIDTHS[words]
    mesh: Any = degrees
    some = dataclasses.replace(alone, graph=build_graph(made, GraphOptions(**options)))
    assert_same(some.run(**mesh), alone.run())
