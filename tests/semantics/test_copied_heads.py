"""Ulysses over more ranks than key/value heads: copies of heads on the wire, their gradients, and what is kept."""

import dataclasses
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import CopyGathered, dump
from stagedb.ir.symbolic_graph import Collective
from stagedb.memory import memory_of
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests import lowered
from tests.ir.environments import SEQ, environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.test_own_heads import fewer

MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "cp": ({}, {"cp": 4}),
    "copies over tp and cp": ({}, {"cp": 2, "tp": 2}),
    "sp, zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"cp": 2, "tp": 2, "dp": 2}),
    "zero 2, pointwise": ({"zero": 2, "recompute": "pointwise"}, {"cp": 4, "dp": 2}),
    "math, core again": ({"attention": "math", "recompute": "core"}, {"cp": 4}),
}


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("words", MESHES)
@pytest.mark.parametrize("style", ["llama", "qwen3"])
def test_ranks_with_copies_of_heads_compute_what_one_does(style: str, words: str, kv_heads: int) -> None:
    options, degrees = MESHES[words]
    model = card(style, kv_heads=kv_heads)
    whole = example(build_graph(model, GraphOptions()), microbatches=2)
    graph = build_graph(model, GraphOptions(cp_kind="ulysses", **options))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("style", ["llama", "moe"])
def test_copies_are_summed_in_the_half_of_a_backward_that_reads_the_sum(style: str) -> None:
    model = card(style, kv_heads=1)
    whole = example(build_graph(model, GraphOptions()), microbatches=2)
    graph = build_graph(model, GraphOptions(cp_kind="ulysses"))
    some = dataclasses.replace(whole, graph=graph)
    assert_same(some.run_pipelined(pipeline(graph, "zb-h1", (1, 1), 2), cp=4), whole.run_whole())


@pytest.mark.parametrize("tensor", ["k", "v"])
@pytest.mark.parametrize("end", ["copies", "sum"])
def test_copies_that_are_not_made_or_not_summed_are_seen(tensor: str, end: str) -> None:
    graph = build_graph(card("llama"), GraphOptions(cp_kind="ulysses"))
    made, whole = example(graph), example(build_graph(card("llama"), GraphOptions())).run_whole()
    assert_same(made.run(cp=4), whole)
    place = {"k": 1, "v": 2}[tensor]
    name = f"layer.attn.rotary_k.{end}" if (tensor, end) == ("k", "copies") else f"layer.attn.w{tensor}.{end}"
    name = name if end == "copies" else f"layer.attn.core.input_gradient.{place}.all_to_all.cp.sum"
    (broken,) = (op for op in graph.ops if op.name == name)
    ops = tuple(dataclasses.replace(op, semantics=dump(CopyGathered("cp"))) if op is broken else op for op in graph.ops)
    changed = dataclasses.replace(made, graph=dataclasses.replace(graph, ops=ops))
    with pytest.raises((AssertionError, ValueError)):
        assert_same(changed.run(cp=4), whole)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("tp", "cp"), [(1, 2), (1, 4), (2, 2), (4, 2), (2, 4)])
def test_the_wire_has_each_copy(kv_heads: int, tp: int, cp: int) -> None:
    """A rank sends its part of the sequence with max(KV/tp, 1) heads, or with cp copies if these are more, and gets
    the whole sequence of one head for each of them: `repeat_interleave` of DeepSpeed's `UlyssesSPAttentionHF`."""
    model = card("llama", kv_heads=kv_heads)
    graph = build_graph(model, GraphOptions(cp_kind="ulysses"))
    env = environment(graph, 1, tp, cp=cp)
    own = max(kv_heads // tp, 1)
    token = env["B"] * model.head_dim * 2
    of_keys = token * SEQ // cp * max(own, cp)
    of_queries = token * SEQ // cp * model.heads // tp
    moves = [op.work for op in graph.ops if op.axis == "cp" and op.block == "layer"]
    wanted = sorted([of_keys] * 4 + [of_queries] * 4)
    for move in moves:
        assert isinstance(move, Collective)
        assert evaluate(move.comm_bytes, env) == evaluate(move.comm_out_bytes, env)
    assert sorted(evaluate(move.comm_bytes, env) for move in moves if isinstance(move, Collective)) == wanted
    made = [op for op in graph.ops if op.name.endswith((".copies", ".sum")) and op.block == "layer"]
    assert len(made) == 4
    for op in made:
        assert op.present is not None
        assert (evaluate(op.present, env) > 0) == (cp > own)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("cp", [2, 4])
def test_a_rank_keeps_one_head_of_the_whole_sequence(kv_heads: int, cp: int) -> None:
    """A llama layer saves 14h + 6f + 4A + 8 bytes for each token of a rank in bf16 (the context on both sides of its
    exchange), and 4d for each key/value head of a rank and each token of the sequence; full recompute keeps 2h."""
    model, ends = dataclasses.replace(card("llama", kv_heads=kv_heads), layers=8), []
    for recompute in ("none", "full"):
        words = {"seq_len": SEQ, "cp": cp, "cp_kind": "ulysses", "recompute": recompute}
        (found,) = memory_of(lowered.program(model, **words))
        ends.append(dict(dict(found.ends())["forward_end"])["activations"])
    token = 12 * model.hidden + 6 * model.ffn + 4 * model.heads + 8
    assert ends[0] - ends[1] == 8 * (SEQ // cp * token + SEQ * 4 * model.head_dim * max(kv_heads // cp, 1))


def sizes(kv_heads: int, heads: int = 12, **options: Any) -> dict[str, int]:
    model = dataclasses.replace(card("llama"), heads=heads, kv_heads=kv_heads)
    return dict(build_graph(model, GraphOptions(**options)).sizes)


def test_each_head_must_have_as_many_ranks() -> None:
    words = {"cp_kind": "ulysses", "seq_len": 24}
    for cp, kv_heads in ((3, 1), (6, 2), (12, 4), (4, 12), (12, 12), (12, 6)):
        plan_for({**words, "cp": cp}, sizes(kv_heads))
    plan_for({**words, "cp": 3, "tp": 4}, sizes(2))
    with pytest.raises(UsageError, match=r"cp 6 = 6, which neither divides nor is a multiple of the 4: .* --cp 4"):
        plan_for({**words, "cp": 6}, sizes(4))
    with pytest.raises(UsageError, match=r"cp 3 = 6, which neither divides nor is a multiple of the 4: .* --cp 2"):
        plan_for({**words, "cp": 3, "tp": 2}, sizes(4))
    with pytest.raises(UsageError, match=r"cp 8 = 8, which does not divide both: .* --cp 6 or --cp 12"):
        plan_for({**words, "cp": 8}, sizes(2))
    megatron = {**words, "recipe": "megatron", "cp": 6}
    with pytest.raises(UsageError, match=r"does not divide both: the nearest is --cp 2, .*, or --recipe torch"):
        plan_for(megatron, sizes(2, recipe="megatron"))
    with pytest.raises(UsageError, match="which does not divide both"):
        plan_for({**words, "cp": 4, "seq_len": 8}, build_graph(fewer(2), GraphOptions()).sizes)
