"""A partitioned graph on a simulated mesh computes what the whole graph computes: layouts and matcher are right."""

import dataclasses
import functools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import RMSNorm, dump
from stagedb.ir.symbolic_graph import Collective, SymOp
from stagedb.plans import GraphOptions
from stagedb.plans.graph_options import CP_CHUNKS, CP_KINDS, RINGS, CpChunks, CpKind
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import Example, example
from tests.semantics.step import Run
from tests.symbolic_rows import communication, flops, peer


@functools.lru_cache(maxsize=64)
def case(style: str, kv_heads: int, tied: bool, options: GraphOptions) -> tuple[Example, Run]:
    """The graph, and what one with nothing sharded computes whole."""
    model = card(style, kv_heads=kv_heads, tied=tied)
    plain = dataclasses.replace(options, zero=0, reshard=None, grad_sync=None, cp_kind="none", cp_chunks="none")
    return example(build_graph(model, options)), example(build_graph(model, plain)).run()


@st.composite
def options(draw: st.DrawFn) -> GraphOptions:
    recipe: str = draw(st.sampled_from(RECIPE_NAMES))
    attention: Literal["fused", "math"] = draw(st.sampled_from(ATTENTIONS))
    every = RECOMPUTES if recipe == "megatron" else RECOMPUTES[:-1]
    recompute = draw(st.sampled_from(every if attention == "math" else every[1:]))
    modules = st.sets(st.sampled_from(["layernorm", "mlp", "core_attn"][: 3 if attention == "math" else 2]), min_size=1)
    names = st.sets(st.sampled_from(["attn_norm", "attn", "attn.wo", "ffn", "ffn.w2"]), min_size=1)
    kinds = [kind for kind in CP_KINDS if attention == "fused" or kind not in RINGS]
    kinds = [kind for kind in kinds if recipe == "torch" or kind not in ("ring-allgather", "ring-alltoall")]
    kind: CpKind = draw(st.sampled_from(kinds))
    # What can be balanced can be contiguous, too.
    free = kind in RINGS or (kind == "allgather-kv" and recipe == "megatron" and attention == "fused")
    zero = draw(st.sampled_from([0, 1, 2, 3] if recipe == "torch" else [0, 1, 3]))
    return GraphOptions(
        recipe=recipe,
        recompute=recompute,
        recompute_operators=tuple(sorted({"ffn_norm", *draw(names)})) if recompute == "operators" else (),
        recompute_modules=tuple(draw(modules)) if recompute == "modules" else (),
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
        cp_kind=kind,
        cp_chunks=draw(st.sampled_from(CP_CHUNKS)) if free else "none",
    )


RECIPE_NAMES: tuple[str, ...] = ("torch", "megatron")
RECOMPUTES: tuple[Literal["core", "none", "full", "pointwise", "operators", "modules"], ...] = (
    "core",
    "none",
    "full",
    "pointwise",
    "operators",
    "modules",
)
ATTENTIONS: tuple[Literal["fused", "math"], ...] = ("fused", "math")


def agree(part: Run, whole: Run) -> None:
    assert part.loss == pytest.approx(whole.loss, rel=1e-9)
    assert set(part.gradients) == set(whole.gradients)
    for key, gradient in whole.gradients.items():
        np.testing.assert_allclose(part.gradients[key], gradient, rtol=1e-7, atol=1e-10, err_msg=str(key))


def context(chosen: GraphOptions, kv_heads: int, cp: int, tp: int) -> tuple[int, int, int]:
    """The degrees near these, of cp, of neighbours that exchange heads, and of tp, that 8 tokens and the heads take."""
    cpa = 1
    if chosen.cp_kind == "none":
        cp = 1
    elif chosen.cp_kind == "ulysses":
        # PyTorch's takes as many ranks as query heads: it sends copies of key/value heads.
        cp = min(cp, max((4 if chosen.recipe == "torch" else kv_heads) // tp, 1))
    elif chosen.cp_kind == "ulysses-ring":
        # A head that cannot be dealt leaves a ring alone.
        cp, cpa, tp = 4, min(kv_heads, 2), min(tp, max(kv_heads // 2, 1))
    return cp, cpa, min(tp, 8 // cp)


@settings(max_examples=examples(60), deadline=None)
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
    cp, cpa, tp = context(chosen, kv_heads, cp, tp)
    agree(made.run(dp, tp, hsdp=hsdp, every=every, cp=cp, cpa=cpa), whole)


KINDS: list[tuple[str, CpKind, CpChunks]] = [
    ("torch", "allgather-kv", "contiguous"),
    ("torch", "ring-allgather", "balanced"),
    ("torch", "ring-allgather", "contiguous"),
    ("torch", "ring-alltoall", "balanced"),
    ("torch", "ring-alltoall", "contiguous"),
    ("megatron", "allgather-kv", "balanced"),
    ("megatron", "allgather-kv", "contiguous"),
    ("megatron", "ring-p2p", "balanced"),
    ("megatron", "ring-p2p", "contiguous"),
    ("megatron", "ulysses", "contiguous"),
    ("megatron", "ulysses-ring", "balanced"),
    ("megatron", "ulysses-ring", "contiguous"),
]


@pytest.mark.parametrize(("recipe", "kind", "chunks"), KINDS)
def test_ranks_that_share_a_sequence_compute_what_one_does(recipe: str, kind: CpKind, chunks: CpChunks) -> None:
    """Every kind of context parallelism in each way of dealing the sequence, alone and with others."""
    for zero, recompute in ((0, "none"), (3, "full")):
        words = GraphOptions(recipe=recipe, sp=True, zero=zero, recompute=recompute)  # type: ignore[arg-type]
        chosen = dataclasses.replace(words, cp_kind=kind, cp_chunks=chunks)
        made, whole = case("llama", 4, False, chosen)
        for near, tp in ((2, 2), (4, 1)):
            cp, cpa, tp = context(chosen, 4, near, tp)
            agree(made.run(2, tp, every=2, cp=cp, cpa=cpa), whole)


@pytest.mark.parametrize("recompute", ["full", "pointwise"])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_a_layer_that_does_not_recompute_reads_what_its_forward_made(recipe: str, recompute: str) -> None:
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


@pytest.mark.parametrize(("dp", "hsdp", "cp", "near"), [(4, 1, 1, 2), (2, 1, 2, 2), (4, 1, 2, 4), (4, 2, 2, 2)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_neighbours_that_keep_parameters_are_enough(
    recompute: Literal["none", "full"], dp: int, hsdp: int, cp: int, near: int
) -> None:
    kind: CpKind = "none" if cp == 1 else "allgather-kv"
    graph = build_graph(
        card("llama", kv_heads=4), GraphOptions(zero=3, reshard_to=near, recompute=recompute, cp_kind=kind)
    )
    made = example(graph)
    whole = made.run()
    agree(made.run(dp, hsdp=hsdp, cp=cp), whole)
    (again,) = (op for op in graph.ops if op.axis == "dp_reshard")
    assert isinstance(again.work, Collective)
    wide = dataclasses.replace(again, work=dataclasses.replace(again.work, axis="dp"))
    ops = tuple(wide if op is again else op for op in graph.ops)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        # All ranks together have each part of neighbours several times.
        changed = dataclasses.replace(graph, ops=ops)
        agree(Example(changed, made.weights, made.tokens, made.labels).run(dp, hsdp=hsdp, cp=cp), whole)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_a_missing_collective_is_seen(style: str, recipe: str, sp: bool) -> None:
    """The check can fail: with any one collective over tp turned into a local operation, the results differ."""
    graph = build_graph(card(style, kv_heads=4), GraphOptions(recipe=recipe, sp=sp))
    made = example(graph)
    whole = made.run()
    reductions = [op for op in graph.ops if op.kind == "all_reduce" and op.axis == "tp" and op.block != "bucket"]
    for broken in reductions:
        ops = tuple(_local(op) if op is broken else op for op in graph.ops)
        changed = type(graph)(**{**vars(graph), "ops": ops})
        with pytest.raises(AssertionError):
            agree(Example(changed, made.weights, made.tokens, made.labels).run(1, 2), whole)


@pytest.mark.parametrize("chunks", ["none", "contiguous"])
@pytest.mark.parametrize("kind", [kind for kind in CP_KINDS if kind != "none"])
def test_a_missing_exchange_of_context_parallelism_is_seen(kind: CpKind, chunks: CpChunks) -> None:
    """Without any one collective or message over cp the run fails or differs."""
    graph = build_graph(card("llama", kv_heads=4), GraphOptions(cp_kind=kind, cp_chunks=chunks))
    made, whole = example(graph), example(build_graph(card("llama", kv_heads=4), GraphOptions())).run()
    cp, cpa = (4, 2) if kind == "ulysses-ring" else (2, 1)
    agree(made.run(cp=cp, cpa=cpa), whole)
    moves = [op for op in graph.ops if op.axis in ("cp", "cpa")]
    assert moves
    for broken in moves:
        ops = tuple(_local(op) if op is broken else op for op in graph.ops)
        changed = Example(dataclasses.replace(graph, ops=ops), made.weights, made.tokens, made.labels)
        with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
            agree(changed.run(cp=cp, cpa=cpa), whole)


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("chunks", ["balanced", "contiguous"])
@pytest.mark.parametrize("kind", ["ring-p2p", "ulysses-ring"])
def test_what_a_ring_of_sends_puts_on_the_wire(kind: CpKind, chunks: CpChunks, recipe: str) -> None:
    """Forward each turn but the last sends keys and values, 2·B·S/c·KV·D/tp elements; backward c turns send twice that,
    but for the first, which has no gradients to send, and the last, which has no keys."""
    model = card("llama", kv_heads=4)
    graph = build_graph(model, GraphOptions(recipe=recipe, cp_kind=kind, cp_chunks=chunks))
    cpa, cp, tp = (2, 8, 2) if kind == "ulysses-ring" else (1, 4, 2)
    env = {**environment(graph, 1, tp, cp=cp, cpa=cpa), "S": 64, "SK": 64}
    places = cp // cpa
    one = 2 * env["B"] * (64 // places) * 4 // (tp * cpa) * env["D"] * 2
    sends = [op for op in graph.ops if op.kind == "send" and op.axis in ("cp", "cpr")]
    receives = [op for op in graph.ops if op.kind == "recv" and op.axis in ("cp", "cpr")]
    assert [op.phase for op in sends] == [op.phase for op in receives] == ["forward", "backward"]
    for end, sign in ((sends, 1), (receives, -1)):
        assert [evaluate(peer(op), env) for op in end] == [sign * cpa, -sign * cpa]
        forward, backward = (
            [evaluate(communication(op).comm_bytes, {**env, "step": i + 1}) for i in range(places)] for op in end
        )
        there = [evaluate(end[0].present or "1", {**env, "step": i + 1}) > 0 for i in range(places)]
        assert there == [True] * (places - 1) + [False] and end[1].present is None
        assert forward[:-1] == [one] * (places - 1)
        assert backward == [one, *[2 * one] * (places - 2), one]


@pytest.mark.parametrize("kind", ["ring-allgather", "ring-alltoall", "ring-p2p", "allgather-kv"])
@pytest.mark.parametrize("chunks", ["balanced", "contiguous"])
def test_work_of_the_ranks_of_a_context(kind: CpKind, chunks: CpChunks) -> None:
    """Balanced: alike on all ranks. Contiguous: rank r sees r + 1 parts of the keys, its own counted whole."""
    recipe: str = "torch" if kind.startswith("ring-a") else "megatron"
    graph = build_graph(card("llama", kv_heads=4), GraphOptions(recipe=recipe, cp_kind=kind, cp_chunks=chunks))
    cp, base = 4, {**environment(graph, cp=4), "S": 64, "SK": 64}
    pairs = 4 * base["B"] * 16 * 16 * base["A"] * base["D"]  # of one part's queries and keys
    for phase, times in (("forward", 1), ("backward", 2.5)):
        found = []
        for rank in range(cp):
            total = 0
            for op in graph.ops:
                for step in range(1 if op.loop is None else evaluate(op.loop.times, base)):
                    env = {**base, "cp_rank": rank + 1, "step": step + 1}
                    there = op.present is None or evaluate(op.present, env) > 0
                    if op.kind == "attention" and op.phase == phase and there:
                        total += evaluate(flops(op), env)
            found.append(total / (pairs * times))
        if chunks == "contiguous":
            assert found == [1, 2, 3, 4]
        else:
            # A ring counts its own part whole and half of others'; calls by part count each chunk's keys to its end.
            assert found == [(2 * cp + 1) / 4 if kind == "allgather-kv" else (cp + 1) / 2] * cp


def _local(op: SymOp) -> SymOp:
    return dataclasses.replace(op, present="0")
