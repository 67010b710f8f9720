"""A partitioned graph on a simulated mesh computes what the whole graph computes: layouts and matcher are right."""

import dataclasses
import functools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graph.interpreter import Run
from stagedb.graph.operators import RMSNorm, dump
from stagedb.graph.symbolic import SymOp
from stagedb.parallel import GraphOptions
from stagedb.parallel.build import build_graph
from stagedb.parallel.options import CP_KINDS, CpKind, RecipeName
from stagedb.symbols import evaluate
from tests.graph.running import Example, environment, example
from tests.graph.tiny import card


@functools.lru_cache(maxsize=64)
def case(style: str, kv_heads: int, tied: bool, options: GraphOptions) -> tuple[Example, Run]:
    """The graph, and what one with nothing sharded computes whole."""
    model = card(style, kv_heads=kv_heads, tied=tied)
    plain = dataclasses.replace(options, zero=0, reshard=None, grad_sync=None, cp_kind="none")
    return example(build_graph(model, options)), example(build_graph(model, plain)).run()


@st.composite
def options(draw: st.DrawFn) -> GraphOptions:
    recipe: RecipeName = draw(st.sampled_from(RECIPE_NAMES))
    attention: Literal["fused", "math"] = draw(st.sampled_from(ATTENTIONS))
    recompute = draw(st.sampled_from(RECOMPUTES if attention == "math" else RECOMPUTES[1:]))
    names = st.sets(st.sampled_from(["attn_norm", "attn", "attn.wo", "ffn", "ffn.w2"]), min_size=1)
    rings = recipe == "torch" and attention == "fused"
    zero = draw(st.sampled_from([0, 1, 2, 3] if recipe == "torch" else [0, 1, 3]))
    return GraphOptions(
        recipe=recipe,
        recompute=recompute,
        recompute_operators=tuple(sorted({"ffn_norm", *draw(names)})) if recompute == "operators" else (),
        early_stop=draw(st.sampled_from([None, False, True])),
        sp=draw(st.booleans()),
        attention=attention,
        matmul_dtype=draw(st.sampled_from(["same", "fp8"])),
        dropout=draw(st.sampled_from([0.0, 0.2])),
        kernels=draw(st.sampled_from(["fused", "eager"])),
        shared_input=recipe == "megatron" or draw(st.booleans()),
        loss_parallel=draw(st.booleans()),
        zero=zero,
        reshard=draw(st.sampled_from([None, True, False])) if zero == 3 else None,
        grad_sync=None if zero == 1 else draw(st.sampled_from([None, True, False])),
        cp_kind=draw(st.sampled_from([kind for kind in CP_KINDS if rings or not kind.startswith("ring")])),
    )


RECIPE_NAMES: tuple[RecipeName, ...] = ("torch", "megatron")
RECOMPUTES: tuple[Literal["core", "none", "full", "pointwise", "operators"], ...] = (
    "core",
    "none",
    "full",
    "pointwise",
    "operators",
)
ATTENTIONS: tuple[Literal["fused", "math"], ...] = ("fused", "math")


def agree(part: Run, whole: Run) -> None:
    assert part.loss == pytest.approx(whole.loss, rel=1e-9)
    assert set(part.gradients) == set(whole.gradients)
    for key, gradient in whole.gradients.items():
        np.testing.assert_allclose(part.gradients[key], gradient, rtol=1e-7, atol=1e-10, err_msg=str(key))


@settings(max_examples=60, deadline=None)
@given(
    style=st.sampled_from(["llama", "gpt", "qwen3"]),
    kv_heads=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    chosen=options(),
    dp=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 4]),
    hsdp=st.sampled_from([1, 2, 4]),
    every=st.sampled_from([1, 2, 3]),
    cp=st.sampled_from([2, 4]),
)
def test_loss_and_gradients_do_not_depend_on_the_mesh(
    style: str, kv_heads: int, tied: bool, chosen: GraphOptions, dp: int, tp: int, hsdp: int, every: int, cp: int
) -> None:
    if style == "gpt" or chosen.recipe == "megatron":
        kv_heads = 4  # a packed projection cannot repeat its K/V heads
    made, whole = case(style, kv_heads, tied, chosen)
    hsdp = min(hsdp, dp) if chosen.zero > (chosen.recipe == "torch") else 1
    if chosen.cp_kind == "none":
        cp = 1
    elif chosen.cp_kind == "ulysses":
        cp = min(cp, max(kv_heads // tp, 1))
    tp = min(tp, 8 // cp)  # the sequence has 8 tokens
    agree(made.run(dp, tp, hsdp=hsdp, every=every, cp=cp), whole)


@pytest.mark.parametrize("recompute", ["full", "pointwise"])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_a_layer_that_does_not_recompute_reads_what_its_forward_made(recipe: RecipeName, recompute: str) -> None:
    """With every operator that recomputes made wrong, only a run of layers that do not recompute is still right."""
    options = GraphOptions(recipe=recipe, sp=True, recompute=recompute)  # type: ignore[arg-type]
    graph = build_graph(card("llama", kv_heads=4), options)
    made = example(graph)
    whole = made.run()
    again = [op for op in graph.ops if op.phase == "recompute" and op.name.startswith("layer.attn_norm")]
    assert again
    wrong = dump(RMSNorm(eps=1.0))
    ops = tuple(dataclasses.replace(op, semantics=wrong) if op is again[0] else op for op in graph.ops)
    broken = Example(dataclasses.replace(graph, ops=ops), made.weights, made.tokens, made.labels)
    agree(broken.run(1, 2, every=3), whole)  # of two layers every third is none
    with pytest.raises(AssertionError):
        agree(broken.run(1, 2, every=2), whole)
    tensors = tuple(dataclasses.replace(tensor, repeats=None) for tensor in graph.tensors)
    lost = Example(dataclasses.replace(graph, tensors=tensors), made.weights, made.tokens, made.labels)
    agree(lost.run(1, 2), whole)
    with pytest.raises(KeyError):
        lost.run(1, 2, every=2)


@pytest.mark.parametrize("zero", [2, 3])
def test_a_missing_gather_or_scatter_is_seen(zero: int) -> None:
    graph = build_graph(card("llama", kv_heads=4), GraphOptions(zero=zero))
    made = example(graph)
    whole = made.run()
    agree(made.run(4, hsdp=2), whole)
    for broken in [op for op in graph.ops if op.block == "bucket" and op.axis in ("dp", "dp_replicate")]:
        ops = tuple(_local(op) if op is broken else op for op in graph.ops)
        changed = dataclasses.replace(graph, ops=ops)
        if evaluate(broken.present or "1", environment(graph, 4, hsdp=2)) <= 0:
            continue
        with pytest.raises((AssertionError, KeyError)):
            agree(Example(changed, made.weights, made.tokens, made.labels).run(4, hsdp=2), whole)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_missing_collective_is_seen(style: str, recipe: str, sp: bool) -> None:
    """The check can fail: with any one collective over tp turned into a local operation, the results differ."""
    graph = build_graph(card(style, kv_heads=4), GraphOptions(recipe=recipe, sp=sp))  # type: ignore[arg-type]
    made = example(graph)
    whole = made.run()
    reductions = [op for op in graph.ops if op.kind == "all_reduce" and op.axis == "tp" and op.block != "bucket"]
    for broken in reductions:
        ops = tuple(_local(op) if op is broken else op for op in graph.ops)
        changed = type(graph)(**{**vars(graph), "ops": ops})
        with pytest.raises(AssertionError):
            agree(Example(changed, made.weights, made.tokens, made.labels).run(1, 2), whole)


@pytest.mark.parametrize("kind", [kind for kind in CP_KINDS if kind != "none"])
def test_a_missing_exchange_of_context_parallelism_is_seen(kind: CpKind) -> None:
    """Without any one collective over cp the run fails or differs."""
    graph = build_graph(card("llama", kv_heads=4), GraphOptions(cp_kind=kind))
    made, whole = example(graph), example(build_graph(card("llama", kv_heads=4), GraphOptions())).run()
    agree(made.run(cp=2), whole)
    moves = [op for op in graph.ops if op.axis == "cp"]
    assert moves
    for broken in moves:
        ops = tuple(_local(op) if op is broken else op for op in graph.ops)
        with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
            agree(Example(dataclasses.replace(graph, ops=ops), made.weights, made.tokens, made.labels).run(cp=2), whole)


def _local(op: SymOp) -> SymOp:
    return dataclasses.replace(op, present="0")
