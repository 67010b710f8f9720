"""A loss in parts of the tokens: it and every gradient are those of all tokens at once, on every mesh."""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.interpreter import gradient_names, run_block
from stagedb.plans import GraphOptions
from tests.ir.environments import BATCH, SEQ
from tests.ir.tiny import card
from tests.semantics.running import Example, check_slopes, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_partitioned import agree

WORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sp": {"sp": True},
    "gathered logits": {"loss_parallel": False},
    "no shared input": {"shared_input": False, "sp": True},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2, "sp": True},
    "zero 3": {"zero": 3},
    "zero 3, full": {"zero": 3, "sp": True, "recompute": "full"},
    "eager, fp8": {"kernels": "eager", "attention": "math", "matmul_dtype": "fp8"},
    "clipped": {"clip_norm": True},
}


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions, tied: bool = False) -> tuple[Example, Run]:
    """The graph, and what one without parts computes whole, with the same weights."""
    model = card(style, kv_heads=4, tied=tied)
    made = example(build_graph(model, options))
    plain = dataclasses.replace(options, loss_chunks=1, zero=0, recompute="none", cp_kind="none", cp_chunks="none")
    whole = dataclasses.replace(example(build_graph(model, plain)), weights=made.weights).run()
    return made, whole


@pytest.mark.parametrize("words", list(WORDS))
@pytest.mark.parametrize(("style", "chunks", "tied"), [("llama", 2, False), ("gpt", 4, True), ("llama", 4, True)])
def test_parts_compute_what_all_tokens_do(style: str, chunks: int, tied: bool, words: str) -> None:
    made, whole = case(style, GraphOptions(loss_chunks=chunks, **WORDS[words]), tied)
    for dp, tp in ((1, 1), (2, 1), (1, 2), (2, 2)):
        agree(made.run(dp, tp), whole)


@pytest.mark.parametrize("kind", ["allgather-kv", "ring-alltoall", "ulysses"])
def test_ranks_that_share_a_sequence_take_parts_of_their_own_tokens(kind: Any) -> None:
    made, whole = case("llama", GraphOptions(loss_chunks=4, sp=True, cp_kind=kind))
    agree(made.run(2, 2, cp=2), whole)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("words", [{"zero": 3}, {"sp": True, "zero": 2}, {"zero": 0}])
@pytest.mark.parametrize("tied", [False, True])
def test_the_last_stage_hands_the_gradient_back(tied: bool, words: dict[str, Any], schedule: str) -> None:
    options = GraphOptions(loss_chunks=2, **words)
    model = card("llama", kv_heads=4, layers=4, tied=tied)
    graph = build_graph(model, options)
    made = example(graph, microbatches=4)
    found = made.run_pipelined(pipeline(graph, schedule, (1, 3), 4), dp=2, tp=2)
    agree(found, dataclasses.replace(made, graph=build_graph(model, GraphOptions())).run_whole())


@pytest.mark.parametrize(
    "words",
    [{"lora": ("all",)}, {"frozen": ("head",)}, {"frozen": ("embedding", "attn_norm", "attn", "ffn_norm", "ffn")}],
)
def test_frozen_heads_and_layers_have_no_gradients(words: dict[str, Any]) -> None:
    made, whole = case("llama", GraphOptions(loss_chunks=2, **words))
    agree(made.run(2, 2), whole)
    names = {op.name.removeprefix("head.chunk_1.") for op in made.graph.ops}
    assert ("out.weight_gradient" in names) == ("lora" not in words and words.get("frozen") != ("head",))


def test_gradients_are_slopes() -> None:
    made, whole = case("gpt", GraphOptions(loss_chunks=4))
    gradients = made.run().gradients
    check_slopes(made, {key: gradients[key] for key in whole.gradients})


def test_one_block_runs_alone() -> None:
    """The same results of `run_block`; the gradient of a loss whose gradients the forward makes is 1."""
    found = []
    for chunks in (1, 2):
        graph = build_graph(card("llama"), GraphOptions(loss_chunks=chunks))
        made = example(graph)
        weights = {name: value for (name, _), value in made.weights.items() if name.startswith("head.")}
        state = np.random.default_rng(3).normal(size=(BATCH, SEQ, graph.sizes["H"]))
        inputs = {"head.input": state, "head.labels": made.labels}
        run = functools.partial(run_block, graph, {"B": BATCH, "S": SEQ}, "head", weights, inputs)
        values = run(np.asarray(1.0))
        found.append([values["head.loss"], *(values[name] for name in gradient_names(graph, "head").values())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)
    with pytest.raises(UsageError, match="the gradient of that is 1"):
        run(np.asarray(2.0))


def matmuls(graph: SymGraph, name: str) -> int:
    return sum(op.kind == "matmul" and op.block == "head" and op.name.endswith(f".{name}") for op in graph.ops)


def test_parts_are_operators_of_the_forward_one_after_another() -> None:
    graph = build_graph(card("llama"), GraphOptions(loss_chunks=4))
    head = [op for op in graph.ops if op.block == "head"]
    parts = [[op for op in head if op.name.startswith(f"head.chunk_{place}.")] for place in (1, 2, 3, 4)]
    assert all(op.template.name == "forward" for part in parts for op in part)
    ends = [(min(op.order for op in part), max(op.order for op in part)) for part in parts]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert [op.name for op in head if op.kind == "hand_over"] == ["head.out.weight_gradient", "head.out.input_gradient"]
    storages = {tensor.name: tensor.storage for tensor in graph.tensors}
    assert storages["head.out.input_gradient"] == "head.chunk_4.out.input_gradient.put"
    for name in ("out", "out.weight_gradient", "out.input_gradient"):
        assert matmuls(graph, name) == 4
    sent = [op for op in head if op.kind == "all_reduce" and op.axis == "tp"]
    assert len([op for op in sent if op.name.startswith("head.chunk_")]) == 3 * 4  # maximum, sum, the label's
    assert len([op for op in sent if "input_gradient" in op.name]) == 1  # of all tokens, in the backward


def test_one_part_is_the_loss_of_all_tokens() -> None:
    one, usual = (build_graph(card("llama"), options) for options in (GraphOptions(loss_chunks=1), GraphOptions()))
    assert (one.ops, one.tensors, one.edges) == (usual.ops, usual.tensors, usual.edges)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            {"recipe": "megatron"},
            "the logits of all tokens at once: --loss-chunks 2 needs --recipe torch",
        ),
        ({"workflow": "forward-only"}, "the workflow forward-only has no gradients, which --loss-chunks is for"),
        ({"workflow": "decode"}, "the workflow decode has no gradients, which --loss-chunks is for"),
    ],
)
def test_what_has_no_parts_is_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        GraphOptions(loss_chunks=2, **words)


def test_models_that_predict_further_tokens_are_refused() -> None:
    model = dataclasses.replace(card("llama"), multi_token_prediction=1)
    with pytest.raises(UsageError, match="needs a card with multi_token_prediction: 0, or leave it out"):
        build_graph(model, GraphOptions(loss_chunks=2))
