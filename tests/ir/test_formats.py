"""What number formats do to a graph: fp8 operands, master copies, the loss's logits."""

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir import Compute, SymGraph, SymOp
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions, Plan
from tests.ir.environments import BATCH, SEQ, environment
from tests.ir.tiny import card
from tests.symbolic_rows import compute, parameter
from tests.symbolic_rows import flops as flops_of

RECIPES = [GraphOptions(), GraphOptions(sp=True), GraphOptions(recipe="megatron", sp=True)]
FP8 = [
    GraphOptions(matmul_dtype="fp8"),
    GraphOptions(matmul_dtype="fp8", sp=True),
    GraphOptions(matmul_dtype="fp8", recipe="megatron", sp=True),
]


def dtypes_read(graph: SymGraph, op: SymOp) -> list[str]:
    of = {tensor.name: tensor.dtype for tensor in graph.tensors}
    return [of[name] for name in op.reads]


def optimizer_bytes(graph: SymGraph, env: dict[str, int]) -> int:
    """What all optimizer operators of a model move, read and written."""
    layers = {"layer": graph.sizes["L"]}
    return sum(
        sum(evaluate(text, env) for text in (compute(op).bytes_read, compute(op).bytes_written))
        * layers.get(op.block, 1)
        for op in graph.ops
        if op.kind == "optimizer"
    )


@pytest.mark.parametrize("options", FP8, ids=str)
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_linear_layers_alone_read_fp8(style: str, options: GraphOptions) -> None:
    graph = build_graph(card(style, kv_heads=4), options)
    matmuls = [op for op in graph.ops if op.kind == "matmul" and op.block == "layer"]
    for op in matmuls:
        narrow = "fp8_e5m2" if op.phase == "backward" else "fp8_e4m3"
        assert dtypes_read(graph, op)[:2] == [narrow, "fp8_e4m3"], op.name
    assert len(matmuls) == 3 * sum(op.phase == "forward" for op in matmuls)
    others = [op for op in graph.ops if op.kind not in ("matmul", "cast") or op.block != "layer"]
    assert not {name for op in others for name in dtypes_read(graph, op)} & {"fp8_e4m3", "fp8_e5m2"}


@pytest.mark.parametrize(("plain", "options"), list(zip(RECIPES, FP8, strict=True)), ids=str)
def test_fp8_leaves_flops_messages_and_results_as_they_were(plain: GraphOptions, options: GraphOptions) -> None:
    graphs = [build_graph(card("gpt"), chosen) for chosen in (plain, options)]
    flops, sent, results = (
        [
            sorted(
                (op.name, what(op))
                for op in graph.ops
                if op.kind in ("matmul", "attention") or not isinstance(op.work, Compute)
            )
            for graph in graphs
        ]
        for what in (
            flops_of,
            lambda op: None if isinstance(op.work, Compute) else (op.work.comm_bytes, op.work.dtype),
            lambda op: op.work.bytes_written if isinstance(op.work, Compute) else None,
        )
    )
    assert flops[0] == flops[1]
    assert sent[0] == sent[1]
    assert results[0] == results[1]
    computed = {op.work.dtype for op in graphs[1].ops if op.kind == "matmul" and op.block == "layer"}
    assert computed == {"fp8_e4m3", "fp8_e5m2"}


def test_the_backward_keeps_the_narrow_input_and_makes_the_weight_s_copy_again() -> None:
    graph = build_graph(card("llama"), GraphOptions(matmul_dtype="fp8"))
    ops = {op.name: op for op in graph.ops}
    env = environment(graph)
    h, f = graph.sizes["H"], graph.sizes["F"]
    assert ops["layer.ffn.w1.weight_gradient"].reads == ("layer.ffn.w1.cast_gradient", "layer.ffn.w1.cast_input")
    assert evaluate(compute(ops["layer.ffn.w1.weight_gradient"]).bytes_read, env) == BATCH * SEQ * (f + h)
    assert ops["layer.ffn.w1.input_gradient"].reads[1] == "layer.ffn.w1.cast_weight.again"
    assert ops["layer.ffn.w1.cast_weight.again"].reads == ("layer.ffn.w1.weight",)
    cast = ops["layer.ffn.w1.cast_input"]
    assert [evaluate(text, env) for text in (compute(cast).bytes_read, compute(cast).bytes_written)] == [
        2 * BATCH * SEQ * h,
        BATCH * SEQ * h,
    ]


def test_what_the_backward_gathers_again_it_casts_again() -> None:
    graph = build_graph(card("llama"), GraphOptions(matmul_dtype="fp8", recipe="megatron", sp=True))
    ops = {op.name: op for op in graph.ops}
    (gathered,) = ops["layer.ffn.w13.cast_input.again"].reads
    assert (ops[gathered].kind, ops[gathered].phase, ops[gathered].work.dtype) == ("all_gather", "backward", "act")
    assert ops["layer.ffn.w13.weight_gradient"].reads[1] == "layer.ffn.w13.cast_input.again"


def test_megatron_holds_eighteen_bytes_a_parameter() -> None:
    """Its documentation of the distributed optimizer: bf16 parameters and fp32 gradients take 18 bytes a parameter."""
    graph = build_graph(card("llama"), GraphOptions(recipe="megatron"))
    env = Plan(options=GraphOptions(recipe="megatron"), seq_len=SEQ).env(graph.sizes)
    of = {tensor.name: tensor for tensor in graph.tensors}
    for weight in (tensor for tensor in graph.tensors if tensor.role == "weight"):
        elements = evaluate(parameter(weight).elements, env)
        states = [of[f"{weight.name}.{word}"] for word in ("exp_avg", "exp_avg_sq", "master")]
        held = sum(evaluate(tensor.bytes, env) for tensor in (weight, *states)) + env["e_grad"] * elements
        assert held == 18 * elements, weight.name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dp", [1, 4])
def test_the_optimizer_moves_what_it_has(tied: bool, dp: int) -> None:
    """With a master copy it reads that in place of the parameters, and writes both."""
    model = card("llama", tied=tied)
    graph = build_graph(model, GraphOptions(recipe="megatron", zero=0 if dp == 1 else 1))
    parameters = model.count_parameters() // dp
    env = environment(graph, dp)
    with_master = {**env, "e_grad": 4, "e_opt": 4, "copies": 2}
    assert optimizer_bytes(graph, with_master) == parameters * ((4 + 8 + 4) + (2 + 8 + 4))
    without = {**env, "e_grad": 4, "e_opt": 4, "copies": 1}
    assert optimizer_bytes(graph, without) == parameters * ((4 + 8 + 2) + (2 + 8))


def test_a_master_copy_is_where_the_plan_asks_for_it() -> None:
    graph = build_graph(card("gpt", tied=True), GraphOptions())
    conditions = {t.name: t.present for t in graph.tensors if t.name.endswith(".master")}
    weights = {f"{t.name}.master" for t in graph.tensors if t.role == "weight"}
    assert set(conditions) == weights
    for words, expected in (({}, set[str]()), ({"master_dtype": "fp32"}, weights - {"head.out.weight.master"})):
        env = Plan.from_mapping(words).env(graph.sizes)
        assert {name for name, present in conditions.items() if evaluate(present or "1", env) > 0} == expected


@pytest.mark.parametrize("loss_parallel", [False, True])
@pytest.mark.parametrize("width", [2, 4])
def test_the_loss_holds_logits_in_their_format(loss_parallel: bool, width: int) -> None:
    graph = build_graph(card("llama"), GraphOptions(loss_parallel=loss_parallel))
    env = {**environment(graph), "e_logits": width}
    logits = BATCH * SEQ * graph.sizes["V"]
    of = {t.name: t for t in graph.tensors}
    held = [name for name in of if name.startswith("head.loss") and "vocab" in of[name].axes]
    held += ["head.logits"]
    assert len(held) == (4 if loss_parallel else 3)
    assert {evaluate(of[name].bytes, env) for name in held} == {width * logits}
    assert of["head.loss.max" if loss_parallel else "head.loss.label"].dtype == "fp32"
    casts = [op for op in graph.ops if op.kind == "cast"]
    assert {op.name for op in casts} == {"head.logits", "head.logits.input_gradient"}
    assert {evaluate(op.present or "1", env) > 0 for op in casts} == {width == 4}


def test_casts_of_eager_kernels_are_left_out_where_all_is_fp32() -> None:
    graph = build_graph(card("llama"), GraphOptions(kernels="eager"))
    casts = [op for op in graph.ops if op.kind == "cast"]
    assert len(casts) > 6
    for dtype, there in (("bf16", True), ("fp32", False)):
        env = Plan.from_mapping({"dtype": dtype}).env(graph.sizes)
        assert {evaluate(op.present or "1", env) > 0 for op in casts} == {there}
