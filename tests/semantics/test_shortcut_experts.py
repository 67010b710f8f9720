"""Layers of LongCat-Flash: gradients, partitioned runs, FLOPs by hand, steps of serving, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Route
from stagedb.models import Card, from_hugging_face
from stagedb.models.named_facts import op_facts
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from stagedb.validation.model_check import cache_bytes
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.models.test_model_steps import STEPS
from tests.semantics.running import check_slopes, example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.test_serving import CHUNKS, TOKENS, Serving, agree, by_position, whole
from tests.symbolic_rows import flops

LAYER: Mapping[str, Any] = {
    "mixer": "shortcut_experts",
    "channel_mixer": "none",
    "residual": "mixer_makes_stream",
    "q_rank": 7,
    "kv_rank": 6,
    "nope_dim": 4,
    "rope_dim": 2,
    "value_dim": 5,
    "query_scale": 1.3,
    "latent_scale": 1.7,
    "scores": "softmax",
    "normalised": False,
    "routing_scale": 1.9,
    "zero_experts": 2,
}
"""Four experts with weights and two zero ones: two of a token's three choices are of the first."""


def model(words: Mapping[str, Any] | None = None, **fields: Any) -> Card:
    kinds: Any = {"layer": {**LAYER, **(words or {})}}
    return dataclasses.replace(card("moe"), kv_heads=4, head_dim=6, layer_kinds=kinds, **fields)


STYLES = {
    "torch": GraphOptions(),
    "eager": GraphOptions(kernels="eager", attention="math"),
    "megatron": GraphOptions(recipe="megatron"),
}


@pytest.mark.parametrize("words", STYLES)
def test_gradients_are_the_slopes_of_the_loss(words: str) -> None:
    made = model()
    case = example(build_graph(made, STYLES[words]))
    assert sum(value.size for value in case.weights.values()) == made.count_parameters()
    gradients = case.run().gradients
    assert set(gradients) == set(case.weights)
    check_slopes(case, gradients)


@pytest.mark.parametrize("zero", [0, 2, 4])
def test_gradients_with_so_many_zero_experts_are_slopes(zero: int) -> None:
    case = example(build_graph(model({"zero_experts": zero}), GraphOptions()))
    check_slopes(case, case.run().gradients)


MESHES: Mapping[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ep": ({"zero": 1}, {"dp": 2, "ep": 2}),
    "tp": ({}, {"tp": 4}),
    "ep, tp, sp": ({"sp": True, "zero": 2}, {"dp": 2, "tp": 2, "ep": 2}),
    "ep, tp, zero 3, recomputed": ({"zero": 3, "recompute": "full"}, {"dp": 2, "tp": 2, "ep": 2}),
    "pointwise": ({"zero": 2, "recompute": "pointwise"}, {"dp": 2, "ep": 2}),
    "the second core again": (
        {"recompute": "operators", "recompute_operators": ("second.attn.core", "ffn.experts")},
        {"dp": 2, "tp": 2, "ep": 2},
    ),
    "whole experts over tp, sp": ({"sp": True, "expert_tp": False}, {"dp": 2, "tp": 2, "ep": 4}),
    "whole experts over tp": ({"expert_tp": False}, {"dp": 2, "tp": 2, "ep": 2}),
    "ep over cp": ({"cp_kind": "ulysses", "zero": 1}, {"cp": 2, "ep": 2}),
    "megatron": ({"recipe": "megatron", "sp": True, "zero": 1}, {"dp": 2, "tp": 2, "ep": 2}),
    "eager, math": ({"kernels": "eager", "attention": "math"}, {"tp": 2, "dp": 2, "ep": 2}),
}


@pytest.mark.parametrize("words", MESHES)
def test_ranks_compute_what_one_computes(words: str) -> None:
    """On two stages, with two micro-batches."""
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model(), GraphOptions(**plain)), microbatches=2)
    some = dataclasses.replace(whole, graph=build_graph(model(), GraphOptions(**options)))
    assert_same(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_flops_of_a_layer_are_those_by_hand() -> None:
    """Two attentions and two feed-forwards; of three choices of a token two are computed, and the router has six."""
    made = model(layers=1)
    graph = build_graph(made, GraphOptions())
    env = environment(graph)
    found = {op.name: evaluate(flops(op), env) for op in graph.ops}
    tokens, seq, hidden, heads = env["B"] * env["S"], env["S"], env["H"], env["A"]
    projections = hidden * 7 + 7 * heads * 6 + hidden * (6 + 2) + 6 * heads * (4 + 5) + heads * 5 * hidden
    scores = heads * seq * (6 + 5)
    for half in ("layer", "layer.second"):
        parts = [f"{half}.attn.{word}" for word in ("wq_a", "wq", "wkv_a", "wkv_b", "wo")]
        assert sum(found[name] for name in parts) == 2 * tokens * projections
        assert found[f"{half}.attn.core"] == 2 * tokens * scores
        assert sum(found[f"{half}.ffn.w{at}"] for at in (1, 2, 3)) == 2 * tokens * 3 * hidden * made.ffn
    assert found["layer.ffn.router"] == 2 * tokens * hidden * 6
    experts = sum(found[f"layer.ffn.experts.w{at}"] for at in (1, 2, 3))
    assert experts == 2 * (2 * tokens) * 3 * hidden * made.expert_ffn


def test_a_rank_gets_the_tokens_of_experts_with_weights_alone() -> None:
    """Slots are for two choices of a token, as without zero experts; one of a third is added where the token is."""
    graph, without = (build_graph(model({"zero_experts": zero}), GraphOptions()) for zero in (2, 0))
    found, usual = ({each.name: each for each in of.tensors} for of in (graph, without))
    assert found["layer.ffn.dispatch"].shape == usual["layer.ffn.dispatch"].shape
    sizes = {name: [evaluate(each, environment(graph)) for each in found[name].shape] for name in found}
    assert sizes["layer.ffn.weights"][-1] == 3
    assert sizes["layer.ffn.weights.zero"][-1] == 1
    assert sizes["layer.ffn.zero"] == sizes["layer.ffn_norm"]


def test_modules_of_both_halves_are_known_by_their_names() -> None:
    first, second = (op_facts(f"layer.{half}attn.wq.input_gradient") for half in ("", "second."))
    assert (first.part, first.module) == ("attn", "layer.attn.wq")
    assert (second.part, second.module) == ("second.attn", "layer.second.attn.wq")
    assert op_facts("layer.second.ffn.add").module is None


def test_active_parameters_have_two_experts_of_a_token() -> None:
    made = model()
    assert made.count_parameters() - made.count_active() == made.layers * 2 * 3 * made.hidden * made.expert_ffn


def test_tp_must_divide_the_feed_forwards_too() -> None:
    sizes = build_graph(model(ffn=18), GraphOptions()).sizes
    with pytest.raises(UsageError, match="tp 4 does not divide the feed-forward size 18"):
        plan_for({"tp": 4, "seq_len": 8}, sizes)


PLANS: Mapping[str, tuple[dict[str, Any], str]] = {
    "once a rank": ({"dp": 2, "ep": 2, "dispatch": "ranks"}, "has zero_experts, so that the number .*dispatch copies"),
    "capacity": ({"dp": 2, "ep": 2, "capacity_factor": 1.5}, "zero experts, .*leave .*capacity.factor out"),
    "routing": ({"routing": ("0 1", "2 3"), "dispatch": "copies"}, "zero experts, .*routing out"),
    "in turns": (
        {
            "dp": 2,
            "ep": 2,
            "overlap_experts": True,
            "workflow": "prefill",
            "micro_batch_size": 1,
            "global_batch_size": 4,
        },
        "2 attentions next to one exchange",
    ),
    "mlp again": ({"recipe": "megatron", "recompute": "modules", "recompute_modules": ("mlp",)}, "shortcut_experts"),
    "norms again": (
        {"recipe": "megatron", "recompute": "modules", "recompute_modules": ("layernorm",)},
        "shortcut_experts",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_with_no_known_counts_are_refused(name: str) -> None:
    words, why = PLANS[name]
    made = model()
    with pytest.raises(UsageError, match=why):
        build_graph(made, plan_for({"seq_len": 8, **words}, model_sizes(made, find_framework("torch"))).options)


CARDS: Mapping[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shared experts": ({}, {"shared_ffn": 4}, "no shared_ffn next to its own ffn"),
    "no whole number": ({"zero_experts": 3}, {}, r"6/4 of zero_experts=3 in the mean, which is no whole number"),
    "scores of the chosen": (
        {"scores": "", "normalised": True, "routing_scale": 0.0},
        {},
        "scores of all experts: set scores to softmax or sigmoid",
    ),
    "groups": ({"expert_groups": 2, "chosen_groups": 1}, {}, "zero_experts are not with expert_groups"),
    "scaled inputs": ({"scale_inputs": True}, {}, "zero_experts are not with scale_inputs"),
    "an indexer": ({"index_heads": 2}, {}, "unknown key"),
    "another residual": ({"residual": "mixer_of_stream"}, {}, "goes with residual: mixer_makes_stream"),
    "no feed-forward": ({}, {"ffn": 0}, "ffn must be positive"),
}


@pytest.mark.parametrize("name", CARDS)
def test_cards_with_no_meaning_are_refused(name: str) -> None:
    words, fields, why = CARDS[name]
    with pytest.raises(UsageError, match=why):
        model(words, **fields)


def test_a_layer_that_makes_no_stream_is_not_with_that_residual() -> None:
    kinds: Any = {"layer": {"channel_mixer": "none", "residual": "mixer_makes_stream"}}
    with pytest.raises(UsageError, match="goes with residual: mixer_alone"):
        dataclasses.replace(card("llama"), layer_kinds=kinds)


SERVED: Mapping[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "one rank": ({}, {}, ()),
    "absorbed": ({"latents": "absorbed"}, {}, ()),
    "ep, tp": ({}, {"ep": 2, "dp": 2, "tp": 2}, ()),
    "absorbed, ep, sp": ({"latents": "absorbed", "sp": True}, {"ep": 2, "dp": 2, "tp": 2}, ()),
    "stages": ({"latents": "absorbed"}, {"tp": 2, "pp": 2}, (2,)),
    "shared caches": ({"cp_kind": "allgather-lse"}, {"cp": 2, "tp": 2}, ()),
    "shared caches, absorbed, ep": ({"latents": "absorbed", "cp_kind": "allgather-lse"}, {"cp": 2, "ep": 2}, ()),
}


@pytest.mark.parametrize("name", SERVED)
def test_steps_of_serving_make_what_one_forward_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half of a layer has a cache of latents of its own."""
    monkeypatch.setattr(Route, "run", by_position)
    options, degrees, begins = SERVED[name]
    made = model(max_positions=64)
    reference, graph = (build_graph(made, GraphOptions(workflow="prefill", **words)) for words in ({}, options))
    caches = [each.name for each in graph.tensors if each.role == "cache"]
    assert len(caches) == 2 * len([each for each in caches if ".second." in each]) > 0
    steps = CHUNKS if "sp" in options else TOKENS
    agree(Serving(graph, begins, **degrees).run(steps), whole(reference, steps))


def test_a_cache_has_the_latents_of_two_attentions_a_layer() -> None:
    made = model(max_positions=64)
    graph = build_graph(made, GraphOptions(workflow="decode"))
    for tokens in (5, 40):
        assert cache_bytes(graph, on_one_rank(graph, 3, 1, tokens)) == 3 * tokens * 2 * made.layers * (6 + 2) * 2


def test_a_name_without_second_is_that_of_both_halves() -> None:
    """What runs again, what is trained, and what has adapters; `second.` names the second half alone."""

    def again(*names: str) -> list[str]:
        graph = build_graph(model(), GraphOptions(recompute="operators", recompute_operators=names))
        return sorted(op.name for op in graph.ops if op.phase == "recompute" and op.kind == "attention")

    assert len(again("attn.core")) == 2
    assert len(again("second.attn.core")) == 1
    frozen = example(build_graph(model(), GraphOptions(frozen=("attn.wq",))))
    assert not [name for name, _ in frozen.run().gradients if name.endswith("attn.wq.weight")]
    adapted = example(build_graph(model(), GraphOptions(lora=("q_proj", "ffn.w2")))).run().gradients
    assert {name.partition(".")[2].partition(".lora")[0] for name, _ in adapted} == {
        f"{half}{part}" for half in ("", "second.") for part in ("attn.wq", "ffn.w2")
    }


def test_a_forward_has_the_flops_and_the_cache_of_the_models_own_code() -> None:
    """Those that torch's FlopCounterMode counts for four sequences of eight tokens, whose experts are dealt as for
    `steps.json`, and the elements of the cache behind them (transformers 5.24, torch on a CPU)."""
    made = dataclasses.replace(from_hugging_face(STEPS["LongcatFlash"]["config"], name="recorded"), vocab_multiple=1)
    graph = build_graph(made, GraphOptions())
    env = on_one_rank(graph, 4, 8)
    repeats = {block.name: evaluate(block.repeat, env) for block in graph.blocks}
    forward = [op for op in graph.ops if op.phase == "forward" and op.block in repeats]
    assert sum(evaluate(flops(op), env) * repeats[op.block] for op in forward) == 1_884_160
    served = build_graph(made, GraphOptions(workflow="decode"))
    assert cache_bytes(served, on_one_rank(served, 4, 1, 8)) == 2 * 1_536
