"""A feed-forward and experts in parallel, whole and on ranks of dp, tp, sp, cp and ep."""

import dataclasses
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same
from tests.semantics.variants import variant

NAME = "a feed-forward and experts"

MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "ep": ({"zero": 1}, {"dp": 2, "ep": 2}),
    "ep, tp, sp": ({"sp": True, "zero": 2}, {"dp": 2, "tp": 2, "ep": 2}),
    "ep, tp, zero 3, recomputed": ({"zero": 3, "recompute": "full"}, {"dp": 2, "tp": 2, "ep": 2}),
    "whole experts over tp": ({"sp": True, "expert_tp": False}, {"dp": 2, "tp": 2, "ep": 4}),
    "ep over cp": ({"cp_kind": "ulysses", "zero": 1}, {"cp": 2, "ep": 2}),
    "megatron": ({"recipe": "megatron", "sp": True, "zero": 1}, {"dp": 2, "tp": 2, "ep": 2}),
    "eager, math": ({"kernels": "eager", "attention": "math"}, {"tp": 2, "dp": 2, "ep": 2}),
}


@pytest.mark.parametrize("words", MESHES)
def test_ranks_compute_what_one_computes(words: str) -> None:
    options, degrees = MESHES[words]
    model = variant(NAME)
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(model, GraphOptions(**plain)), microbatches=2)
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(**options)))
    assert_same(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_tp_must_divide_the_feed_forward_too() -> None:
    model = dataclasses.replace(variant(NAME), ffn=18)
    sizes = build_graph(model, GraphOptions()).sizes
    assert sizes["FD"] == 18
    with pytest.raises(UsageError, match="tp 4 does not divide the feed-forward size 18"):
        plan_for({"tp": 4, "seq_len": 8}, sizes)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"shared_ffn": 4}, "no shared_ffn next to its own ffn"),
        ({"norm": "layernorm"}, "with norm: rmsnorm"),
    ],
)
def test_models_that_it_does_not_suit_are_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        dataclasses.replace(variant(NAME), **fields)
