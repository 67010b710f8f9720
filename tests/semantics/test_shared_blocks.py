"""Layers that share blocks of weights (Zamba 2): gradients, partitioned runs, counts, serving, and what is refused."""

import dataclasses
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
from tests.semantics.test_scans import ALONE, SCAN, STYLES
from tests.semantics.test_serving import CHUNKS, TOKENS, Serving, agree, whole
from tests.symbolic_rows import flops

BLOCK = {**SCAN, "mixer": "shared_block", "channel_mixer": "none", "residual": "mixer_of_stream", "adapter_rank": 3}
FULL = {"attention_adapters": True, "ffn_bias": "all", "scan_bias": True, "shared_blocks": 2}

MODELS: Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "one block": ({}, {}, ("scan", "hybrid", "scan", "hybrid")),
    "two blocks in turn": ({"shared_blocks": 2}, {"positions": "none"}, ("hybrid", "hybrid", "scan", "hybrid")),
    "adapters of attention, biases": (FULL, {"tied": True}, ("hybrid", "scan", "hybrid", "hybrid")),
    "as many blocks as layers": ({"shared_blocks": 2}, {}, ("hybrid", "hybrid")),
}
"""By name: words of hybrid layers, fields of the card, the kind of each layer."""


def model(name: str, **more: Any) -> Card:
    words, fields, pattern = MODELS[name]
    kinds: Any = {"scan": ALONE, "hybrid": {**BLOCK, **words}}
    used: Any = {each: kinds[each] for each in dict.fromkeys(pattern)}
    changes: dict[str, Any] = {"kv_heads": 4, "layers": len(pattern), "layer_kinds": used, "pattern": pattern}
    return dataclasses.replace(card("llama"), **{**changes, **fields, **more})


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
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "zero 1, the core again": ({"zero": 1, "recompute": "core", "attention": "math"}, {"dp": 4}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 4}),
    "norms again": ({"recompute": "modules", "recompute_modules": ("layernorm",), "recipe": "megatron"}, {"tp": 2}),
    "feed-forwards again": ({"recompute": "modules", "recompute_modules": ("mlp",), "recipe": "megatron"}, {"tp": 2}),
    "the scan again": ({"recompute": "operators", "recompute_operators": ("scan.attn.scan",)}, {"tp": 2}),
    "megatron": ({"recipe": "megatron", "zero": 1}, {"tp": 2, "dp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True, "zero": 3}, {"tp": 2, "dp": 2}),
    "sp, cp, recomputed": ({"sp": True, "cp_kind": "ulysses", "recompute": "full"}, {"tp": 2, "cp": 2}),
    "cp, zero 3": ({"cp_kind": "ulysses", "zero": 3}, {"cp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("name", ["two blocks in turn", "adapters of attention, biases"])
def test_partitioned_layers_compute_the_same(name: str, words: str) -> None:
    options, degrees = MESHES[words]
    mesh: Any = degrees
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model(name), GraphOptions(**plain)))
    some = dataclasses.replace(whole, graph=build_graph(model(name), GraphOptions(**options)))
    assert_same(some.run(**mesh), whole.run())


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", MODELS)
def test_a_prefill_and_tokens_one_by_one_are_one_forward(name: str, attention: Any) -> None:
    """Each layer has a cache of its own, also where it shares the weights that make keys."""
    graph = build_graph(model(name, max_positions=64), GraphOptions(workflow="decode", attention=attention))
    agree(Serving(graph).run(TOKENS), whole(graph, TOKENS))
    hybrids = MODELS[name][2].count("hybrid")
    assert sum(each.name.endswith("attn.wk.adapted.cache") for each in graph.tensors) in (0, hybrids)
    assert sum(each.name.endswith("attn.scan.cache") for each in graph.tensors) == len(MODELS[name][2])


@pytest.mark.parametrize("cp", [1, 3])
@pytest.mark.parametrize("options", [{}, {"sp": True}], ids=["tp", "sp"])
def test_ranks_share_heads_requests_and_caches_in_serving(options: dict[str, Any], cp: int) -> None:
    options = {**options, "cp_kind": "allgather-lse" if cp > 1 else "none"}
    own = model("adapters of attention, biases", max_positions=64)
    graph = build_graph(own, GraphOptions(workflow="prefill", **options))
    steps = CHUNKS if "sp" in options else TOKENS
    agree(Serving(graph, tp=2, dp=2, cp=cp).run(steps), whole(graph, steps))


def test_a_shared_weight_is_one_parameter_with_one_gradient_and_one_update() -> None:
    graph = build_graph(model("one block"), GraphOptions())
    shared = [each.name for each in graph.tensors if each.role == "weight" and ".block_" in each.name]
    assert sorted(shared) == [
        *(f"stack.block_0.attn.w{word}.weight" for word in "koqv"),
        "stack.block_0.ffn.w13.weight",
        "stack.block_0.ffn.w2.weight",
        "stack.block_0.ffn_norm.weight",
        "stack.block_0.joined_norm.weight",
    ]
    for name in shared:
        made = [op.name for op in graph.ops if any(name in each for each in op.writes) and "gradient" in op.name]
        assert made[-1] == f"{name}.gradient_sum.0"
    (update,) = [op for op in graph.ops if op.name == "stack.optimizer"]
    assert all(update.reads.count(name) == 1 for name in shared)


def test_flops_of_a_shared_block() -> None:
    """The matmuls of a block of each use, over twice the hidden size."""
    graph = build_graph(model("one block"), GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    tokens, hidden, inner = env["B"] * env["S"], env["H"], env["F"]
    for layer in ("stack.layer_1", "stack.layer_3"):
        assert found[f"{layer}.attn.wq"] == 2 * tokens * 2 * hidden * env["A"] * env["D"]
        assert found[f"{layer}.ffn.w13"] == 2 * tokens * hidden * 2 * inner
        assert found[f"{layer}.ffn.w13.down"] == 2 * tokens * hidden * 3
        assert found[f"{layer}.ffn.w13.up"] == 2 * tokens * 3 * 2 * inner
        assert found[f"{layer}.behind"] == 2 * tokens * hidden**2


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "pp": ({"pp": 2}, "4 layers read more than the stream.*one stage.*pp 1"),
    "cp": ({"cp": 2, "cp_kind": "allgather-kv"}, "which pass values from token to token.*: take .*cp-kind ulysses"),
    "lora": ({"lora": ("attn.wq",)}, "layers with shared blocks, which stagedb trains with all others: leave .*lora"),
    "frozen": (
        {"frozen": ("embedding",)},
        "layers with shared blocks, which stagedb trains with all others: leave .*frozen",
    ),
    "inputs on the host": (
        {"recompute": "full", "offload": "activations"},
        "alone would be on the host: leave .*offload",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused(name: str) -> None:
    words, why = REFUSED[name]
    made = model("one block")
    with pytest.raises(UsageError, match=why):
        build_graph(made, plan_for(words, model_sizes(made, find_framework("torch"))).options)


CARDS: Mapping[str, tuple[dict[str, Any], str]] = {
    "further tokens": ({"multi_token_prediction": 1}, "leave multi_token_prediction and hyper_connections out"),
    "without a feed-forward": ({"ffn": 0}, "shared blocks have a feed-forward"),
    "plain": ({"mlp": "plain"}, "mlp: gated, norm: rmsnorm"),
}


@pytest.mark.parametrize("name", CARDS)
def test_cards_with_no_meaning_are_refused(name: str) -> None:
    fields, why = CARDS[name]
    with pytest.raises(UsageError, match=why):
        model("one block", **fields)


def test_layer_kinds_with_no_meaning_are_refused() -> None:
    usual = dataclasses.replace(card("llama"), kv_heads=4)
    for kinds, why in (
        ({"one": BLOCK, "two": {**BLOCK, "adapter_rank": 4}}, "one and two share blocks"),
        (
            {"layer": {**BLOCK, "residual": "mixer_alone"}},
            "mixer: shared_block, which goes with residual: mixer_of_stream",
        ),
        ({"layer": {**BLOCK, "channel_mixer": "feed_forward", "residual": "serial"}}, "alone in its layers"),
        (
            {"layer": {**SCAN, "channel_mixer": "none", "residual": "mixer_of_stream"}},
            "goes with residual: mixer_alone",
        ),
        ({"one": BLOCK, "two": {"heads": 8}}, "leave heads, kv_heads and value_dim out"),
    ):
        given: Any = kinds
        with pytest.raises(UsageError, match=why):
            dataclasses.replace(usual, layer_kinds=given, pattern=tuple(given))


def test_memory_holds_a_shared_weight_its_gradient_and_its_state_once() -> None:
    made = dataclasses.replace(model("two blocks in turn"), vocab_multiple=1)
    lowered = program(made, seq_len=8)
    (held,) = memory_of(lowered)
    widths, count = lowered.plan.dtypes.widths(), made.count_parameters()
    found = dict(held.ends())
    assert found["start"]["parameters"] == count * widths["e_param"]
    assert found["backward_end"]["gradients"] == count * widths["e_grad"]
    weights = sum(each.role == "weight" for each in build_graph(made, GraphOptions()).tensors)
    counters = 4 * weights  # the steps that each weight has had
    assert found["start"]["optimizer_state"] == count * 2 * widths["e_opt"] + counters
