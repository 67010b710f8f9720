"""Tokens sent once for each rank or node compute what tokens sent once for each expert do."""

import dataclasses
import functools

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.semantics.running import Example, example
from tests.semantics.step import Run
from tests.semantics.test_experts import assert_same
from tests.semantics.variants import variant

OPTIONS = {
    "torch": GraphOptions(),
    "torch sp": GraphOptions(sp=True),
    "torch eager": GraphOptions(kernels="eager", recompute="full"),
    "torch whole experts": GraphOptions(sp=True, expert_tp=False),
    "torch fp8": GraphOptions(sp=True, matmul_dtype="fp8"),
    "torch, sent in fp8": GraphOptions(dispatch_dtype="fp8"),
    "torch fp8, sent in fp8": GraphOptions(sp=True, matmul_dtype="fp8", dispatch_dtype="fp8"),
    "megatron, sent in fp8, again": GraphOptions(
        recipe="megatron",
        sp=True,
        dispatch_dtype="fp8",
        recompute="modules",
        recompute_modules=("layernorm", "moe_act"),
    ),
    "torch zero 3": GraphOptions(zero=3, sp=True, recompute="full"),
    "megatron": GraphOptions(recipe="megatron"),
    "megatron sp": GraphOptions(recipe="megatron", sp=True),
    "megatron discarded outputs": GraphOptions(
        recipe="megatron", sp=True, recompute="modules", recompute_modules=("layernorm", "moe_act")
    ),
    "megatron experts again": GraphOptions(
        recipe="megatron", sp=True, expert_tp=False, recompute="modules", recompute_modules=("layernorm", "moe")
    ),
}
STYLES = ("router's softmax", "biases of experts", "latent experts", "groups of experts", "a feed-forward and experts")
CASES = [
    (style, words)
    for style in STYLES
    for words in OPTIONS
    if (style, words) != ("a feed-forward and experts", "megatron experts again")  # refused
]
MESHES = [(2, 1, 2), (4, 1, 2), (4, 1, 4), (2, 2, 2), (4, 2, 4)]
"""Degrees dp, tp, ep."""


@functools.lru_cache(maxsize=64)
def whole(style: str, options: GraphOptions) -> Run:
    plain = dataclasses.replace(options, dispatch_dtype="same", zero=0, recompute="none", recompute_modules=())
    return example(build_graph(variant(style), plain)).run()


@functools.lru_cache(maxsize=64)
def sent_once(style: str, options: GraphOptions) -> Example:
    return example(build_graph(variant(style), options))


@pytest.mark.parametrize(("style", "words"), CASES)
@pytest.mark.parametrize(("dp", "tp", "ep"), MESHES)
def test_one_copy_for_each_rank_computes_the_same(style: str, words: str, dp: int, tp: int, ep: int) -> None:
    some = sent_once(style, dataclasses.replace(OPTIONS[words], dispatch="ranks"))
    assert_same(some.run(dp=dp, tp=tp, ep=ep), whole(style, OPTIONS[words]))


@pytest.mark.parametrize(("style", "words"), CASES)
@pytest.mark.parametrize(("dp", "tp"), [(4, 1), (4, 2)])
def test_one_copy_for_each_node_computes_the_same(style: str, words: str, dp: int, tp: int) -> None:
    some = sent_once(style, dataclasses.replace(OPTIONS[words], dispatch="nodes"))
    assert_same(some.run(dp=dp, tp=tp, ep=4, epr=2), whole(style, OPTIONS[words]))
