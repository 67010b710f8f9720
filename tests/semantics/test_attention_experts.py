"""Experts of attention: divided runs, FLOPs and messages by hand, steps of serving, and what is refused."""

import dataclasses
from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Route
from stagedb.ir.symbolic_graph import Collective
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from stagedb.validation.model_check import cache_bytes
from tests.ir.environments import environment
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same, changed
from tests.semantics.test_serving import CHUNKS, TOKENS, Serving, agree, by_position, whole
from tests.semantics.variants import variant
from tests.symbolic_rows import communication, flops

NAMES = ("experts of attention", "experts of attention, with factors")

PLANS: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ep": ({}, {"dp": 2, "ep": 2}),
    "ep, zero 1": ({"zero": 1}, {"dp": 4, "ep": 2}),
    "ep, zero 2": ({"zero": 2}, {"dp": 4, "ep": 2}),
    "ep, zero 3, recomputed": ({"zero": 3, "recompute": "full"}, {"dp": 4, "ep": 2}),
    "tp": ({}, {"tp": 4}),
    "tp, zero 3": ({"zero": 3}, {"dp": 2, "tp": 2}),
    "ep, tp": ({}, {"dp": 2, "ep": 2, "tp": 2}),
    "ep, tp, sp": ({"sp": True}, {"dp": 2, "ep": 2, "tp": 2}),
    "ep, tp, sp, zero 3": ({"sp": True, "zero": 3}, {"dp": 2, "ep": 2, "tp": 2}),
    "whole experts over tp, sp": ({"sp": True, "expert_tp": False}, {"dp": 2, "ep": 4, "tp": 2}),
    "whole experts over tp, sp, zero 2, recomputed": (
        {"sp": True, "zero": 2, "expert_tp": False, "recompute": "full"},
        {"dp": 2, "ep": 2, "tp": 2},
    ),
    "whole experts over tp": ({"expert_tp": False}, {"dp": 2, "ep": 2, "tp": 2}),
    "cp, gathered": ({"cp_kind": "allgather-kv"}, {"cp": 4}),
    "cp, rotated, tp": ({"cp_kind": "ring-alltoall", "cp_chunks": "contiguous"}, {"cp": 2, "tp": 2}),
    "cp, ulysses, sp": ({"cp_kind": "ulysses", "sp": True}, {"cp": 2, "tp": 2}),
    "ep over cp, zero 3": ({"cp_kind": "allgather-kv", "zero": 3}, {"dp": 2, "cp": 2, "ep": 4}),
    "ep over cp, tp, sp": ({"cp_kind": "ulysses", "sp": True}, {"cp": 2, "tp": 2, "ep": 2}),
    "pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 2, "ep": 2}),
    "eager, math": ({"kernels": "eager", "attention": "math"}, {"dp": 2, "tp": 2, "ep": 2}),
    "megatron, zero 1": ({"recipe": "megatron", "sp": True, "zero": 1}, {"dp": 2, "ep": 2, "tp": 2}),
    "megatron, ring, zero 3": (
        {"recipe": "megatron", "cp_kind": "ring-p2p", "zero": 3},
        {"dp": 2, "cp": 2, "ep": 2},
    ),
    "megatron, discarded outputs": (
        {"recipe": "megatron", "sp": True, "recompute": "modules", "recompute_modules": ("layernorm", "moe_act")},
        {"dp": 2, "ep": 2, "tp": 2},
    ),
    "megatron, modules again": (
        {"recipe": "megatron", "sp": True, "recompute": "modules", "recompute_modules": ("moe",)},
        {"dp": 2, "ep": 2, "tp": 2},
    ),
}


# Halves of a sequence that are not next to each other have no whole turns of three choices.
@pytest.mark.parametrize(
    ("name", "plan"), [each for each in product(NAMES, PLANS) if each != (NAMES[1], "cp, gathered")]
)
def test_ranks_compute_what_one_computes(name: str, plan: str) -> None:
    """On two stages, with two micro-batches."""
    options, degrees = PLANS[plan]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    model = variant(name)
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(**options)))
    assert_same(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("load", [(2, 1, 1, 0), (0, 0, 2, 2)])
def test_an_uneven_load_computes_the_same(load: tuple[int, ...]) -> None:
    """Both routers of a layer deal tokens so."""
    whole = dataclasses.replace(example(build_graph(variant(NAMES[0]), GraphOptions())), load=load)
    assert_same(whole.run(dp=2, ep=2), whole.run_whole())


def test_an_exchange_left_out_is_seen() -> None:
    some = example(build_graph(variant(NAMES[0]), GraphOptions()))
    for name in ("layer.attn.experts.wq.all_to_all.ep", "layer.attn.dispatch_contexts.all_to_all.ep"):
        wrong = dataclasses.replace(some, graph=changed(some.graph, name, present="0"))
        with pytest.raises((ValueError, IndexError, AssertionError)):
            assert_same(wrong.run(dp=2, ep=2), some.run())


def _layer(**options: Any) -> tuple[Card, dict[str, int], dict[str, int]]:
    """A model, FLOPs of its layer's forward by operator, and bytes of its exchanges over ep."""
    model = variant(NAMES[0], layers=1)
    graph = build_graph(model, GraphOptions(**options))
    env = environment(graph, dp=2, ep=2)
    ops = [op for op in graph.ops if op.phase == "forward" and ".attn." in op.name]
    sent = {op.name: communication(op) for op in ops if op.name.endswith(".ep")}
    found = {op.name: evaluate(flops(op), env) for op in ops}
    return (
        model,
        {name: each for name, each in found.items() if each},
        {name: evaluate(each.comm_bytes, env) for name, each in sent.items() if isinstance(each, Collective)},
    )


def test_flops_and_messages_are_those_by_hand() -> None:
    """A rank has half of the sequences. Each token goes to two experts, twice: as itself and with results of heads."""
    model, found, sent = _layer()
    tokens, seq, wide = 2 * 8, 8, model.kv_heads * model.head_dim
    expected = {
        "router": 2 * tokens * model.hidden * model.experts,
        "experts.wq": 2 * (model.top_k * tokens) * model.hidden * wide,
        "wkv": 2 * tokens * model.hidden * 2 * wide,
        "core": 4 * tokens * seq * model.heads * model.head_dim,
        "experts.wo": 2 * (model.top_k * tokens) * model.hidden * wide,
    }
    assert found == {f"layer.attn.{name}": each for name, each in expected.items()}
    hidden, queries = (2 * model.top_k * tokens * size for size in (model.hidden, wide))
    assert sent == {
        "layer.attn.dispatch.all_to_all.ep": hidden,
        "layer.attn.experts.wq.all_to_all.ep": queries,
        "layer.attn.dispatch_contexts.all_to_all.ep": queries,
        "layer.attn.experts.wo.all_to_all.ep": hidden,
    }


def test_active_parameters_have_two_experts_of_each_part() -> None:
    model = variant(NAMES[0])
    each = 2 * model.hidden * model.kv_heads * model.head_dim + 3 * model.hidden * model.expert_ffn
    assert model.count_parameters() - model.count_active() == model.layers * 2 * each


SERVED: Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "one rank": ({}, {}, ()),
    "tp": ({}, {"tp": 4}, ()),
    "ep, tp": ({}, {"ep": 2, "dp": 2, "tp": 2}, ()),
    "whole experts over tp": ({"expert_tp": False}, {"ep": 2, "dp": 2, "tp": 2}, ()),
    "ep, sp": ({"sp": True}, {"ep": 2, "dp": 2, "tp": 2}, ()),
    "stages": ({}, {"tp": 2, "pp": 2}, (2,)),
    "shared caches": ({"cp_kind": "allgather-lse"}, {"cp": 2}, ()),
    "shared caches, ep, tp": ({"cp_kind": "allgather-lse"}, {"cp": 2, "ep": 2, "tp": 2}, ()),
}


@pytest.mark.parametrize("name", SERVED)
def test_steps_of_serving_make_what_one_forward_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    options, degrees, begins = SERVED[name]
    model = variant(NAMES[0], max_positions=64)
    reference, graph = (build_graph(model, GraphOptions(workflow="prefill", **words)) for words in ({}, options))
    steps = CHUNKS if "sp" in options else TOKENS
    agree(Serving(graph, begins, **degrees).run(steps), whole(reference, steps))


def test_a_cache_has_the_keys_and_values_of_one_expert() -> None:
    model = variant(NAMES[0], max_positions=64)
    graph = build_graph(model, GraphOptions(workflow="decode"))
    for tokens in (5, 40):
        kept = 3 * tokens * 2 * model.kv_heads * model.head_dim * 2
        assert cache_bytes(graph, on_one_rank(graph, 3, 1, tokens)) == model.layers * kept


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "once a rank": ({"dp": 2, "ep": 2, "dispatch": "ranks"}, "has experts of attention, .*dispatch copies"),
    "in turns": (
        {"dp": 2, "ep": 2, "overlap_experts": True, "workflow": "prefill", "micro_batch_size": 1},
        "exchanges of tokens before and after their attention, .*overlap.experts",
    ),
    "units": ({"dp": 2, "zero": 3, "expert_unit": True}, "two modules of experts in a layer.*leave .*unit out"),
    "4 bits": ({"workflow": "prefill", "weight_dtype": "int4"}, "no checkpoint in 4 bits is known"),
    "tp above heads": ({"tp": 8}, "tp 8 does not divide the 4 queries of an expert of attention"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_plans_that_are_not_known_are_refused(name: str) -> None:
    words, why = REFUSED[name]
    model = variant(NAMES[0], max_positions=64)
    words = {"seq_len": 8, "global_batch_size": 8, **words}
    with pytest.raises(UsageError, match=why):
        build_graph(model, plan_for(words, model_sizes(model, find_framework("torch"))).options)


def test_cards_without_meaning_are_refused() -> None:
    with pytest.raises(UsageError, match=r"for each of kv_heads=4: heads must be 8, not 4"):
        variant(NAMES[0], heads=4)
    for words in ({"channel_mixer": "feed_forward"}, {"channel_mixer": "none", "residual": "mixer_alone"}):
        with pytest.raises(UsageError, match="set channel_mixer to experts"):
            variant(NAMES[0], layer_kinds={"layer": {"mixer": "attention_experts", **words}})
