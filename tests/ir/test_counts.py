"""What a graph holds against closed forms: collectives a layer, FLOPs, the order of parameters, gradient buckets."""

import dataclasses
from collections import Counter

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir import OpType, SymGraph, SymOp
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions
from tests.ir.environments import BATCH, SEQ, environment
from tests.ir.tiny import card
from tests.symbolic_rows import compute, flops, parameter

TOKENS = BATCH * SEQ


def collectives(graph: SymGraph, block: str, phase: str, axis: str = "tp") -> Counter[str]:
    return Counter(
        op.kind
        for op in graph.ops
        if op.type is OpType.COLLECTIVE and (op.block, op.phase, op.axis) == (block, phase, axis)
    )


def total(graph: SymGraph, phase: str, tp: int, dp: int) -> int:
    """FLOPs of a model's step on one rank, all layers."""
    env = environment(graph, dp, tp)
    layers = {"layer": graph.sizes["L"]}
    return sum(evaluate(flops(op), env) * layers.get(op.block, 1) for op in graph.ops if op.phase == phase)


# A layer's collectives over tp, forward and backward (torch: the recorded plans; megatron: its three forms).
LAYER = {
    (GraphOptions(), "forward"): {"all_reduce": 2},
    (GraphOptions(), "backward"): {"all_reduce": 2},
    (GraphOptions(sp=True), "forward"): {"all_gather": 2, "reduce_scatter": 2},
    (GraphOptions(sp=True), "backward"): {"all_gather": 2, "reduce_scatter": 2},
    (GraphOptions(shared_input=False), "forward"): {"all_reduce": 2},
    (GraphOptions(shared_input=False), "backward"): {"all_reduce": 5},
    (GraphOptions(sp=True, shared_input=False), "forward"): {"all_gather": 5, "reduce_scatter": 2},
    (GraphOptions(sp=True, shared_input=False), "backward"): {"all_gather": 2, "reduce_scatter": 5},
    (GraphOptions(recipe="megatron", sp=True), "forward"): {"all_gather": 2, "reduce_scatter": 2},
    (GraphOptions(recipe="megatron", sp=True), "backward"): {"all_gather": 4, "reduce_scatter": 2},
    (GraphOptions(recipe="megatron"), "backward"): {"all_reduce": 2},
}


@pytest.mark.parametrize(("options", "phase"), LAYER, ids=[f"{o}-{p}" for o, p in LAYER])
def test_collectives_of_a_layer(options: GraphOptions, phase: str) -> None:
    graph = build_graph(card("llama"), options)
    assert collectives(graph, "layer", phase) == LAYER[options, phase]


@pytest.mark.parametrize("style", ["llama", "gpt"])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("attention", ["fused", "math"])
def test_flops_are_the_closed_form(style: str, tp: int, dp: int, attention: str) -> None:
    model = card(style, kv_heads=4)
    graph = build_graph(model, GraphOptions(attention=attention))  # type: ignore[arg-type]
    h, f, width = model.hidden, model.ffn, model.head_dim
    matrices = 3 if model.mlp == "gated" else 2
    linear = 2 * TOKENS * h * ((2 * model.heads + 2 * model.kv_heads) * width + matrices * f) // (tp * dp)
    pairs = 4 * BATCH * model.heads * SEQ**2 * width // (tp * dp)
    head = 2 * TOKENS * h * model.vocab // (tp * dp)
    assert total(graph, "forward", tp, dp) == model.layers * (linear + pairs) + head
    recomputed = 2.5 if attention == "fused" else 2  # flash computes the scores once more
    assert total(graph, "backward", tp, dp) == model.layers * (2 * linear + recomputed * pairs) + 2 * head


def test_parameters_are_registered_in_torch_s_order() -> None:
    graph = build_graph(card("llama"), GraphOptions())
    rows = sorted(
        (t for t in graph.tensors if t.role == "weight" and t.block == "layer"), key=lambda t: parameter(t).order
    )
    names = ["attn_norm", "attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn_norm", "ffn.w1", "ffn.w3", "ffn.w2"]
    assert [row.name for row in rows] == [f"layer.{name}.weight" for name in names]


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_only_gradients_between_tensor_parallel_regions_are_partial_over_tp(recipe: str) -> None:
    graph = build_graph(card("gpt"), GraphOptions(recipe=recipe, sp=True))
    reduced = {
        name.removesuffix(".all_reduce.tp").rsplit(".", 1)[0]
        for name in (op.name for op in graph.ops if op.phase == "optimizer" and op.axis == "tp" and op.block == "layer")
    }
    bucketed = {
        t.name
        for t in graph.tensors
        if t.parameter and "bucket.gradients.tp" in t.parameter.buckets and t.block == "layer"
    }
    norms = {f"layer.{norm}_norm.{part}" for norm in ("attn", "ffn") for part in ("weight", "bias")}
    if recipe == "torch":
        # DTensor adds a row-parallel bias to partial results, so its gradient is taken from the gathered one.
        assert (reduced, bucketed) == ({"layer.attn_norm", "layer.ffn_norm"}, set())
    else:
        assert (reduced, bucketed) == (set(), norms | {"layer.attn.wo.bias", "layer.ffn.w2.bias"})


def test_a_bucket_waits_for_the_whole_backward_of_a_linear() -> None:
    graph = build_graph(card("llama"), GraphOptions())
    weight = next(t for t in graph.tensors if t.name == "layer.ffn.w2.weight")
    assert parameter(weight).grads == ("layer.ffn.w2.weight_gradient", "layer.ffn.w2.input_gradient")
    assert parameter(weight).buckets == ("bucket.gradients.dp",)


def test_replicated_heads_reduce_their_gradients_over_the_ranks_that_share_one() -> None:
    graph = build_graph(card("llama", kv_heads=1), GraphOptions())
    (bucket,) = [op for op in graph.ops if op.axis == "kv"]
    present = {tp: evaluate(bucket.present or "", environment(graph, tp=tp)) for tp in (1, 2, 4)}
    assert present == {1: 0, 2: 1, 4: 3}
    members = {t.name for t in graph.tensors if t.parameter and bucket.name in t.parameter.buckets}
    assert members == {"layer.attn.wk.weight", "layer.attn.wv.weight"}


def test_the_matmuls_of_a_linear_have_torch_s_dimensions() -> None:
    graph = build_graph(card("llama"), GraphOptions())
    env = environment(graph)

    def dims(name: str) -> list[int]:
        op: SymOp = next(op for op in graph.ops if op.name == name)
        return [evaluate(d, env) for d in compute(op).dims]

    assert dims("layer.ffn.w1") == [TOKENS, 24, 16]
    assert dims("layer.ffn.w1.weight_gradient") == [24, 16, TOKENS]
    assert dims("layer.ffn.w1.input_gradient") == [TOKENS, 16, 24]
    assert dims("layer.attn.core") == [BATCH, 4, 2, SEQ, SEQ, 4]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_look_up_reads_its_rows_and_its_gradient_is_the_whole_table(style: str, tp: int) -> None:
    # More positions than a sequence has tokens.
    graph = build_graph(dataclasses.replace(card(style, kv_heads=4), max_positions=4 * SEQ), GraphOptions())
    env = environment(graph, tp=tp) | {"e_param": 4}
    ops = {op.name: op for op in graph.ops}
    hidden, rows, ids = graph.sizes["H"], graph.sizes["V"], 8 * TOKENS
    word = compute(ops["embedding.word"])
    assert evaluate(word.bytes_read, env) == ids + 4 * TOKENS * hidden
    assert evaluate(word.bytes_written, env) == 2 * TOKENS * hidden
    # torch makes the gradient of a table that ranks of tp share whole, and cuts it in the step.
    back = compute(ops["embedding.word.weight_gradient"])
    assert evaluate(back.bytes_read, env) == ids + 2 * TOKENS * hidden
    assert evaluate(back.bytes_written, env) == 2 * rows * hidden
    if style == "gpt":
        learned, table = compute(ops["embedding.position"]), graph.sizes["P"]
        assert evaluate(learned.bytes_read, env) == 4 * SEQ * hidden
        assert evaluate(learned.bytes_written, env) == 2 * SEQ * hidden
        assert evaluate(compute(ops["embedding.position.weight_gradient"]).bytes_written, env) == 2 * table * hidden
