"""Layers that alternate compute on a mesh what they compute whole, in products of pipelines, sharding and experts."""

import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.schedules import SCHEDULES
from tests.ir.tiny import card
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_experts import assert_same

LAYERS = 4
PATTERNS: dict[str, tuple[str, Any]] = {
    "every second with experts": ("moe", {"every": 2, "kind": "layer", "others": "dense"}),
    "every third dense, shared experts": ("deepseek", ["layer", "layer", "dense"]),
    "a list": ("moe", ["layer", "dense", "dense", "layer"]),
}


def model(name: str) -> Card:
    style, pattern = PATTERNS[name]
    return dataclasses.replace(card(style, layers=LAYERS), dense_layers=0, pattern=pattern)


@functools.lru_cache(maxsize=64)
def case(name: str, options: GraphOptions) -> tuple[Example, Example, Run]:
    plain = dataclasses.replace(options, zero=0, recompute="none", sp=False, cp_kind="none", expert_tp=True)
    whole = example(build_graph(model(name), plain), microbatches=2)
    return example(build_graph(model(name), options), microbatches=2), whole, whole.run_whole()


@settings(max_examples=examples(24), deadline=None)
@given(
    name=st.sampled_from(sorted(PATTERNS)),
    recipe=st.sampled_from(["torch", "megatron"]),
    sp=st.booleans(),
    expert_tp=st.booleans(),
    zero=st.sampled_from([0, 1, 3, 3]),
    recompute=st.sampled_from(["none", "full"]),
    degrees=st.sampled_from([(2, 1, 1, 2), (2, 2, 1, 2), (4, 1, 1, 4), (2, 1, 2, 2), (2, 2, 1, 1)]),
    schedule=st.sampled_from(["none", *(name for name, each in SCHEDULES.items() if not each.fewest)]),
    first=st.sampled_from([1, 2, 3]),
)
def test_alternating_layers_compute_the_same_in_every_product(
    name: str,
    recipe: Any,
    sp: bool,
    expert_tp: bool,
    zero: Any,
    recompute: Any,
    degrees: tuple[int, int, int, int],
    schedule: str,
    first: int,
) -> None:
    dp, tp, cp, ep = degrees
    kind: Any = "allgather-kv" if cp > 1 else "none"
    options = GraphOptions(recipe=recipe, sp=sp, expert_tp=expert_tp, zero=zero, recompute=recompute, cp_kind=kind)
    some, plain, whole = case(name, options)
    if schedule == "none":
        some = dataclasses.replace(some, tokens=some.tokens[:4], labels=some.labels[:4])
        whole = dataclasses.replace(plain, tokens=some.tokens, labels=some.labels).run_whole()
        assert_same(some.run(dp=dp, cp=cp, tp=tp, ep=ep), whole)
        return
    chunks = 2 if SCHEDULES[schedule].several_chunks else 1
    layers = (1,) * LAYERS if chunks == 2 else (first, LAYERS - first)
    plan = pipeline(some.graph, schedule, layers, 2, chunks)
    assert_same(some.run_pipelined(plan, dp=dp, cp=cp, tp=tp, ep=ep), whole)


def test_every_second_layer_of_any_kind_is_recomputed() -> None:
    options = GraphOptions(recompute="full", zero=3)
    some, whole = (example(build_graph(model("a list"), each)) for each in (options, GraphOptions()))
    assert_same(some.run(dp=2, ep=2, every=2), whole.run())


def test_the_graph_numbers_the_layers_of_each_kind() -> None:
    graph = build_graph(model("every second with experts"), GraphOptions())
    assert [(block.name, block.repeat, block.layers) for block in graph.blocks] == [
        ("embedding", "1", None),
        ("dense", "2", (0, 2)),
        ("layer", "2", (1, 3)),
        ("head", "1", None),
    ]
    assert graph.sizes["LD"] == 2


def test_kinds_that_never_meet_share_no_edge() -> None:
    """Only neighbours hand values on: two layers with experts never follow each other here."""
    graph = build_graph(model("every second with experts"), GraphOptions())
    blocks = {op.name: op.block for op in graph.ops}
    met = {(blocks[e.source], blocks[e.target]) for e in graph.edges if e.hop == "previous"}
    assert {("dense", "layer"), ("layer", "dense"), ("embedding", "dense"), ("layer", "head")} <= met
    assert not {("layer", "layer"), ("dense", "dense"), ("embedding", "layer"), ("dense", "head")} & met


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_weights_are_the_parameters(name: str) -> None:
    chosen = model(name)
    made = example(build_graph(chosen, GraphOptions()))
    assert sum(weight.size for weight in made.weights.values()) == chosen.count_parameters()
