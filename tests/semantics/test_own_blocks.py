"""Own blocks compute on a mesh what they compute whole, in products of degrees, sharding and recomputation."""

import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.build.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.models.own_blocks import MIXES, NAMES, with_block
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_experts import assert_same


@functools.lru_cache(maxsize=64)
def case(name: str, options: GraphOptions) -> tuple[Example, Example, Run]:
    plain = dataclasses.replace(options, zero=0, recompute="none", sp=False, cp_kind="none")
    whole = example(build_graph(with_block(name), plain), microbatches=2)
    return example(build_graph(with_block(name), options), microbatches=2), whole, whole.run_whole()


@settings(max_examples=examples(40), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    recipe=st.sampled_from(["torch", "megatron"]),
    sp=st.booleans(),
    zero=st.sampled_from([0, 1, 3, 3]),
    recompute=st.sampled_from(["none", "full"]),
    degrees=st.sampled_from([(2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (2, 2, 2)]),
    piped=st.booleans(),
)
def test_own_blocks_compute_the_same_in_every_product(
    name: str, recipe: Any, sp: bool, zero: Any, recompute: Any, degrees: tuple[int, int, int], piped: bool
) -> None:
    dp, tp, cp = degrees
    cp = 1 if name in MIXES else cp
    options = GraphOptions(
        recipe=recipe, sp=sp, zero=zero, recompute=recompute, cp_kind="allgather-kv" if cp > 1 else "none"
    )
    some, plain, whole = case(name, options)
    if piped:
        plan = pipeline(some.graph, "1f1b", (1, 1), 2)
        assert_same(some.run_pipelined(plan, dp=dp, tp=tp, cp=cp), whole)
        return
    some = dataclasses.replace(some, tokens=some.tokens[:4], labels=some.labels[:4])
    whole = dataclasses.replace(plain, tokens=some.tokens, labels=some.labels).run_whole()
    assert_same(some.run(dp=dp, tp=tp, cp=cp), whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "words", [{"kernels": "eager"}, {"dropout": 0.2}, {"matmul_dtype": "fp8"}, {"clip_norm": True}]
)
def test_own_blocks_follow_the_other_options(name: str, words: dict[str, Any]) -> None:
    made = example(build_graph(with_block(name), GraphOptions(sp=True, zero=3, **words)))
    whole = example(build_graph(with_block(name), GraphOptions(**{**words, "clip_norm": False})))
    assert_same(dataclasses.replace(made.run(dp=2, tp=2), norms=()), whole.run())


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_of_the_graph_are_the_parameters_of_the_card(name: str) -> None:
    made = example(build_graph(with_block(name), GraphOptions()))
    assert sum(weight.size for weight in made.weights.values()) == with_block(name).count_parameters()
