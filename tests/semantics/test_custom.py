"""For any rules of a user, the partitioned graph computes what the whole graph computes, or they are refused."""

import dataclasses
import functools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import SymOp
from stagedb.lowering.issue_order import sequence
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.models import load_card
from stagedb.plans import GraphOptions, Plan, groups
from stagedb.plans.graph_options import CpKind
from stagedb.plans.strategy_files import AXES, MESH, WHOLE
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_partitioned import agree
from tests.symbolic_rows import communication, parameter

KEPT = {
    "embedding": ("vocab", "hidden"),
    "between": ("hidden",),
    "attention": ("heads", "head_dim", "hidden"),
    "ffn": ("ffn", "hidden"),
    "head": ("vocab", "hidden"),
}
"""The axes that weights of a region have in every model."""

SHORT = ("batch", "heads", "head_dim")
"""Axes of four, which three mesh axes of two do not cut."""

KINDS: dict[str, tuple[CpKind, ...]] = {
    "torch": ("allgather-kv", "ring-allgather", "ulysses"),
    "megatron": ("allgather-kv", "ring-p2p", "ulysses"),
}


def rules(draw: st.DrawFn, axes: tuple[str, ...]) -> dict[str, list[str]]:
    """Some of the mesh axes, each with the logical axis that it partitions."""
    found: dict[str, list[str]] = {}
    for mesh_axis in MESH:
        axis = draw(st.sampled_from([None, *axes]))
        if axis is not None and not (axis in SHORT and len(found.get(axis, ())) == 2):
            found.setdefault(axis, []).append(mesh_axis)
    return {**found, "kv_heads": found["heads"]} if "heads" in found else found


@st.composite
def strategies(draw: st.DrawFn) -> str:
    """Rules for some regions, and weights of some that are kept in parts."""
    free = {region: tuple(a for a in axes if a not in ("positions", "kv_heads")) for region, axes in AXES.items()}
    free = {region: tuple(a for a in axes if a not in WHOLE.get(region, {})) for region, axes in free.items()}
    regions = {region: rules(draw, free[region]) for region in sorted(draw(st.sets(st.sampled_from(sorted(free)))))}
    weights = {region: rules(draw, KEPT[region]) for region in sorted(draw(st.sets(st.sampled_from(sorted(KEPT)))))}
    return json.dumps({name: table for name, table in (("regions", regions), ("weights", weights)) if table})


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions) -> tuple[Example, Run]:
    plain = GraphOptions(recipe=options.recipe)
    model = card(style, kv_heads=4)
    return example(build_graph(model, options)), example(build_graph(model, plain)).run()


@settings(max_examples=examples(70), deadline=None)
@given(
    strategy=strategies(),
    style=st.sampled_from(["llama", "gpt"]),
    recipe=st.sampled_from(["torch", "megatron"]),
    sp=st.booleans(),
    zero=st.sampled_from([0, 1, 3]),
    kind=st.integers(0, 2),
    dp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2]),
    again=st.booleans(),
)
def test_loss_and_gradients_do_not_depend_on_the_rules(
    strategy: str,
    style: str,
    recipe: str,
    sp: bool,
    zero: int,
    kind: int,
    dp: int,
    cp: int,
    tp: int,
    again: bool,
) -> None:
    text = "" if strategy == "{}" else strategy
    cp_kind = KINDS[recipe][kind] if cp > 1 else "none"
    options = GraphOptions(
        recipe=recipe, sp=sp, zero=zero, cp_kind=cp_kind, recompute="full" if again else "none", strategy=text
    )
    made, whole = case(style, options)
    agree(made.run(dp, tp, cp=cp), whole)


APART: dict[str, dict[str, Any]] = {
    "weights over dp": {"weights": {"ffn": {"ffn": ["dp"]}}},
    "weights over cp": {"weights": {"ffn": {"ffn": ["cp"]}}},
    "weights over dp and tp": {
        "weights": {"ffn": {"ffn": ["dp", "tp"]}, "embedding": {"vocab": ["tp"], "hidden": ["dp"]}}
    },
    "each rank of cp the whole sequence": {"regions": {"ffn": {"batch": ["dp"], "ffn": ["tp"]}}},
    "each rank of dp the whole batch": {"regions": {"ffn": {"seq": ["cp"], "ffn": ["tp"]}}},
    "an embedding of its own": {"regions": {"embedding": {"seq": ["dp"], "vocab": ["cp"], "hidden": ["tp"]}}},
    "as documented": {"regions": {"ffn": {"batch": ["dp"], "seq": ["cp", "tp"]}}, "weights": {"ffn": {"ffn": ["tp"]}}},
}


def options_of(strategy: str, **words: Any) -> GraphOptions:
    return GraphOptions(strategy=json.dumps(APART[strategy]), **{"cp_kind": "allgather-kv", **words})


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("strategy", APART)
def test_dp_and_cp_are_two_axes(strategy: str, recipe: str, zero: int) -> None:
    made, whole = case("llama", options_of(strategy, recipe=recipe, zero=zero))
    for dp, cp, tp in ((2, 2, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)):
        agree(made.run(dp, tp, cp=cp), whole)


@pytest.mark.parametrize(("recipe", "zero"), [("torch", 3), ("megatron", 1), ("megatron", 3)])
@pytest.mark.parametrize("strategy", ["weights over dp", "each rank of cp the whole sequence"])
def test_copies_of_what_is_sharded_are_no_parts_of_a_strategy_s(strategy: str, recipe: str, zero: int) -> None:
    made, whole = case("llama", options_of(strategy, recipe=recipe, zero=zero))
    agree(made.run(4, cp=2, hsdp=2), whole)


@pytest.mark.parametrize("strategy", ["weights over cp", "each rank of cp the whole sequence"])
def test_the_two_axes_of_a_ring_of_neighbours_are_cp(strategy: str) -> None:
    made, whole = case("llama", options_of(strategy, cp_kind="ulysses-ring"))
    agree(made.run(2, cp=4, cpa=2), whole)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_stages_and_micro_batches_leave_the_rules_alone(recipe: str, zero: int) -> None:
    strategy = {
        "regions": {"between": {"batch": ["dp"]}, "ffn": {"ffn": ["dp"]}},
        "weights": {"ffn": {"hidden": ["cp"]}},
    }
    options = GraphOptions(recipe=recipe, zero=zero, cp_kind="allgather-kv", strategy=json.dumps(strategy))
    graph = build_graph(card("llama", kv_heads=4), options)
    made = example(graph, microbatches=2)
    agree(made.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), 2, 2, cp=2), made.run_whole())


@pytest.mark.parametrize(("recipe", "zero"), [("torch", 2), ("torch", 3), ("megatron", 3)])
@pytest.mark.parametrize("pp", [1, 2])
def test_gradients_are_summed_over_tp_before_they_are_summed_over_dp_alone(pp: int, recipe: str, zero: int) -> None:
    """A pipeline of torch leaves both sums for the end of its last backward: no node waits for a later one."""
    strategy = json.dumps({"regions": {"attention": {"batch": ["dp", "tp"]}}})
    options = GraphOptions(recipe=recipe, zero=zero, cp_kind="allgather-kv", strategy=strategy)
    graph = build_graph(card("llama", kv_heads=4), options)
    plan = Plan(options, tp=2, cp=2, dp=2, pp=pp, seq_len=16, global_batch_size=8, micro_batch_size=2)
    workload = lower(IndexedGraph.of(graph), plan).workload
    assert all(sequence(columns).nodes for columns in workload.classes)
    if pp > 1:
        made = example(graph, microbatches=2)
        agree(made.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), 2, 2, cp=2), made.run_whole())


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(
    "strategy", ["weights over dp", "weights over cp", "each rank of dp the whole batch", "as documented"]
)
def test_rules_of_a_feed_forward_are_those_of_shared_experts(strategy: str, zero: int) -> None:
    made, whole = case("deepseek", options_of(strategy, zero=zero))
    agree(made.run(2, 2, cp=2, ep=2), whole)
    kept = APART[strategy].get("weights", {}).get("ffn", {}).get("ffn", ["tp"])
    graph = made.graph
    layout = {t.name: t.layout for t in graph.tensors if t.role == "weight"}
    assert layout["layer.ffn.shared.w1.weight"] == tuple(f"{axis}:partitioned(shared_ffn)" for axis in kept)
    moved = [
        op.kind for op in graph.ops if op.name.startswith("layer.ffn.shared.w1.weight.") and op.type == "collective"
    ]
    assert ("all_gather" in moved) == (kept != ["tp"] or strategy == "as documented")


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("strategy", ["none", "weights over dp", "each rank of dp the whole batch", "as documented"])
def test_gradients_that_are_not_reduced_over_ep_are_a_part_of_the_sum(strategy: str, recipe: str) -> None:
    """Ranks of ep get equal sequences, so that their unreduced sums are equal: one part of the whole for each.

    Experts are summed as always. A weight in parts over dp is on no other rank of ep, and one whose operators have the
    whole batch has its whole gradient: nothing of theirs is left out.
    """
    text = "" if strategy == "none" else json.dumps(APART[strategy])
    made = example(build_graph(card("deepseek"), GraphOptions(recipe=recipe, ep_sync=False, strategy=text)))
    twice = [0, 0, 1, 1]
    made = dataclasses.replace(made, tokens=made.tokens[twice], labels=made.labels[twice])
    whole = dataclasses.replace(made, graph=build_graph(card("deepseek"), GraphOptions(recipe=recipe))).run()
    found = made.run(4, 2, ep=2)
    apart = strategy in ("weights over dp", "each rank of dp the whole batch")
    for (name, place), gradient in whole.gradients.items():
        synced = ".experts." in name or (apart and (".shared." in name or name.startswith("dense.ffn.")))
        times = 1 if synced else 2
        np.testing.assert_allclose(found.gradients[name, place] * times, gradient, rtol=1e-7, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("strategy", "only"),
    [("weights over cp", "dp"), ("each rank of cp the whole sequence", "dp"), ("weights over dp", "cp")],
)
def test_gradients_of_only_one_of_dp_and_cp_are_not_taken_apart(strategy: str, only: str) -> None:
    """Their groups have ranks of ep among others; groups of the others alone do not exist."""
    with pytest.raises(UsageError, match=rf"reduced only over {only}, and --no-ep-sync .*leave --no-ep-sync or --"):
        build_graph(card("deepseek"), options_of(strategy, ep_sync=False))
    build_graph(card("deepseek"), options_of("as documented", ep_sync=False))


def collectives(graph: SymGraph) -> list[SymOp]:
    return [op for op in graph.ops if op.type == "collective" and op.kind in ("all_gather", "reduce_scatter")]


@pytest.mark.parametrize("kind", ["allgather-kv", "ulysses-ring"])
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("strategy", APART)
def test_a_message_is_as_large_as_its_group(strategy: str, zero: int, kind: CpKind) -> None:
    """What a gather brings together, and a scatter deals, is one part of each member of the group that it runs in."""
    near = 2 if kind == "ulysses-ring" else 1
    plan = Plan(
        options_of(strategy, recipe="megatron", zero=zero, cp_kind=kind), dp=2, cp=4, tp=2, seq_len=16, ulysses=near
    )
    graph = build_graph(card("llama", kv_heads=4), plan.options)
    found = [op for op in collectives(graph) if op.bucket is None]
    members = {made.axis: made.members for made in groups(plan, 4, {op.axis or "" for op in found})}
    env = plan.env(graph.sizes)
    for op in found:
        small, large = sorted(
            evaluate(each, env) for each in (communication(op).comm_bytes, communication(op).comm_out_bytes)
        )
        assert large == small * members[op.axis or ""], op.name
        assert evaluate(op.present or "", env) > 0


@pytest.mark.parametrize(
    ("recipe", "zero"), [("torch", 1), ("torch", 2), ("torch", 3), ("megatron", 1), ("megatron", 3)]
)
def test_weights_in_parts_over_dp_are_not_sharded_once_more(recipe: str, zero: int) -> None:
    graph = build_graph(card("llama"), options_of("weights over dp", recipe=recipe, zero=zero))
    rows = {t.name: t for t in graph.tensors}
    kept, plain = rows["layer.ffn.w2.weight"], rows["layer.attn.wo.weight"]
    env = environment(graph, dp=4)
    assert evaluate(parameter(kept).shard or "", env) == evaluate(parameter(kept).elements or "", env) == 16 * 24 // 4
    assert evaluate(parameter(plain).shard or "", env) == evaluate(parameter(plain).elements or "", env) // 4
    turns = ("", ".last") if recipe == "torch" and zero >= 2 else ("",)
    assert (parameter(kept).gathers, parameter(kept).buckets) == ((), tuple(f"bucket.gradients.cp{t}" for t in turns))
    assert parameter(plain).gathers
    assert not any("cp" in name for name in parameter(plain).buckets)


def test_no_rank_gathers_a_weight_whole_to_cut_it_on_the_same_axis() -> None:
    """Kept over dp, wanted over tp, both on ffn: parts of hidden are gathered over dp, then exchanged over tp."""
    graph = build_graph(card("llama"), options_of("weights over dp"))
    env = environment(graph, dp=2, tp=4)
    whole = 16 * 24 * 2
    found = {}
    for name in ("layer.ffn.w1.weight.", "layer.ffn.w1.weight_gradient."):
        ops = sorted(
            (op for op in graph.ops if op.name.startswith(name) and op.type == "collective"), key=lambda o: o.order
        )
        sizes = [(communication(op).comm_bytes, communication(op).comm_out_bytes) for op in ops]
        found[name] = [
            (op.kind, op.axis, evaluate(operand, env), evaluate(result, env))
            for op, (operand, result) in zip(ops, sizes, strict=True)
        ]
    there = [("all_gather", "data", whole // 8, whole // 4), ("all_to_all", "tp", whole // 4, whole // 4)]
    assert found["layer.ffn.w1.weight."] == there * 2  # in the forward, and again in the backward
    assert found["layer.ffn.w1.weight_gradient."] == [
        ("all_to_all", "tp", whole // 4, whole // 4),
        ("reduce_scatter", "data", whole // 4, whole // 8),
        ("all_gather", "tp", whole // 8, whole // 2),
    ]


@pytest.mark.parametrize(
    ("style", "tied", "strategy", "reason"),
    [
        ("moe", False, {"weights": {"ffn": {"ffn": ["tp"]}}}, "weights name 'ffn', of which tiny-moe has no operator"),
        ("moe", False, {"regions": {"ffn": {"seq": ["tp"]}}}, "it has embedding, between, attention, head, loss"),
        ("moe", False, {"regions": {"between": {"batch": ["dp"]}}}, "set it to {batch: [dp], seq: [cp]}"),
        ("llama", False, {"weights": {"loss": {"vocab": ["tp"]}}}, "there are none"),
        ("llama", False, {"weights": {"ffn": {"seq": ["tp"]}}}, "they have ffn, hidden"),
        ("llama", True, {"weights": {"head": {"hidden": ["tp"]}}}, "are one weight"),
    ],
)
def test_rules_that_a_model_cannot_follow_are_refused(style: str, tied: bool, strategy: Any, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        build_graph(card(style, tied=tied), GraphOptions(strategy=json.dumps(strategy)))
    assert reason in str(refused.value)


def test_a_tied_weight_s_ends_may_be_kept_otherwise_together() -> None:
    strategy = {"weights": {"head": {"hidden": ["dp"]}, "embedding": {"hidden": ["dp"]}}}
    graph = build_graph(
        card("llama", kv_heads=4, tied=True),
        GraphOptions(zero=1, cp_kind="allgather-kv", strategy=json.dumps(strategy)),
    )
    made = example(graph, microbatches=2)
    agree(made.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), 2, 2, cp=2), made.run_whole())


@pytest.mark.parametrize("rule", [{"seq": ["cp"], "vocab": ["tp"]}, {"batch": ["dp"], "seq": ["tp"]}])
@pytest.mark.parametrize("region", ["head", "embedding"])
def test_both_ends_of_a_tied_weight_are_summed_over_the_same_ranks(region: str, rule: dict[str, list[str]]) -> None:
    """One stage adds the two gradients before their bucket, so that this must be right for both."""
    strategy = {"regions": {region: rule}, "weights": {name: {"vocab": ["tp"]} for name in ("head", "embedding")}}
    options = GraphOptions(cp_kind="allgather-kv", strategy=json.dumps(strategy))
    graph = build_graph(card("llama", kv_heads=4, tied=True), options)
    rows = {t.name: t for t in graph.tensors}
    first, second = rows["embedding.word.weight"], rows["head.out.weight"]
    assert parameter(first).buckets == parameter(second).buckets != ()
    made = example(graph, microbatches=2)
    agree(made.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), 2, 2, cp=2), made.run_whole())
    plain = example(build_graph(card("llama", kv_heads=4, tied=True), GraphOptions()))
    agree(example(graph).run(2, 2, cp=2), plain.run())


@pytest.mark.parametrize("region", sorted(AXES))
def test_every_axis_that_rules_may_name_is_one_of_the_region(region: str) -> None:
    names = {axis for t in build_graph(card("gpt"), GraphOptions()).tensors for axis in t.axes}
    assert set(AXES[region]) <= names


def test_parts_to_which_no_moves_lead_are_refused() -> None:
    rules = {"regions": {"ffn": {"ffn": ["dp", "cp"]}}, "weights": {"ffn": {"ffn": ["cp", "tp"]}}}
    plan = Plan.from_mapping({"recipe": "megatron", "cp": 2, "dp": 2, "zero": 3, "strategy": json.dumps(rules)})
    with pytest.raises(UsageError, match=r"no moves lead the gradient of layer\.ffn\.w1\.weight to the parts"):
        build_graph(load_card("gpt2"), plan.options)
