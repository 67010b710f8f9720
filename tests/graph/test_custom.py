"""Whatever rules a user gives, the partitioned graph computes what the whole graph computes."""

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graph.interpreter import Run
from stagedb.parallel import GraphOptions
from stagedb.parallel.build import build_graph
from stagedb.parallel.custom import AXES
from stagedb.parallel.options import RecipeName
from tests.graph.running import Example, example
from tests.graph.test_partitioned import agree
from tests.graph.tiny import card

TP_AXES = {
    "between": ("seq",),
    "attention": ("heads",),
    "ffn": ("seq", "ffn"),
    "head": ("seq", "vocab"),
    "loss": ("seq", "vocab"),
}
KEPT = {"attention": ("hidden",), "ffn": ("ffn", "hidden"), "head": ("vocab", "hidden")}


@st.composite
def strategies(draw: st.DrawFn) -> str:
    """Rules for some regions, and weights of some that are kept in parts."""
    regions: dict[str, dict[str, list[str]]] = {}
    for region in draw(st.sets(st.sampled_from(sorted(TP_AXES)))):
        over = draw(st.sampled_from([None, *TP_AXES[region]]))
        rules = {"batch": ["dp"]}
        if over is not None:
            rules[over] = ["tp"]
            if over == "heads":
                rules["kv_heads"] = ["tp"]
        regions[region] = rules
    weights = {
        region: {draw(st.sampled_from(KEPT[region])): ["tp"]} for region in draw(st.sets(st.sampled_from(sorted(KEPT))))
    }
    return json.dumps({name: table for name, table in (("regions", regions), ("weights", weights)) if table})


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions) -> tuple[Example, Run]:
    plain = GraphOptions(recipe=options.recipe)
    model = card(style, kv_heads=4)
    return example(build_graph(model, options)), example(build_graph(model, plain)).run()


@settings(max_examples=60, deadline=None)
@given(
    strategy=strategies(),
    style=st.sampled_from(["llama", "gpt"]),
    recipe=st.sampled_from(["torch", "megatron"]),
    sp=st.booleans(),
    zero=st.sampled_from([0, 3]),
    dp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2, 4]),
)
def test_loss_and_gradients_do_not_depend_on_the_rules(
    strategy: str, style: str, recipe: RecipeName, sp: bool, zero: int, dp: int, tp: int
) -> None:
    text = "" if strategy == "{}" else strategy
    made, whole = case(style, GraphOptions(recipe=recipe, sp=sp, zero=zero, strategy=text))
    agree(made.run(dp, tp), whole)


@pytest.mark.parametrize("region", sorted(AXES))
def test_every_axis_that_rules_may_name_is_one_of_the_region(region: str) -> None:
    names = {axis for t in build_graph(card("gpt"), GraphOptions()).tensors for axis in t.axes}
    assert set(AXES[region]) <= names
