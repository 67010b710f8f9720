"""Own blocks compute on a mesh what they compute whole, in products of degrees, sharding and recomputation."""

import dataclasses
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.graphs.model_graph import build_graph
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.models.own_blocks import MIXES, NAMES, content, with_block
from tests.sampling import examples
from tests.semantics.running import Example, example, pipeline
from tests.semantics.step import ALONE, Pipeline, Run
from tests.semantics.test_experts import assert_same


@functools.lru_cache(maxsize=64)
def case(name: str, options: GraphOptions) -> tuple[Example, Example, Run]:
    plain = dataclasses.replace(options, zero=0, recompute="none", sp=False, cp_kind="none")
    whole = example(build_graph(with_block(name), plain), microbatches=2)
    return example(build_graph(with_block(name), options), microbatches=2), whole, whole.run_whole()


@settings(max_examples=examples(24), deadline=None)
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


@pytest.mark.parametrize("name", ["low_rank", "crossed"])
@pytest.mark.parametrize(
    ("recipe", "kind", "cp", "cpa"),
    [
        ("torch", "ulysses", 2, 1),
        ("torch", "ring-allgather", 2, 1),
        ("megatron", "ring-p2p", 2, 1),
        ("megatron", "ulysses-ring", 4, 2),
    ],
)
def test_own_blocks_follow_every_kind_of_context_parallelism(
    name: str, recipe: Any, kind: Any, cp: int, cpa: int
) -> None:
    options = GraphOptions(recipe=recipe, cp_kind=kind, sp=True, zero=3)
    whole = example(build_graph(with_block(name), GraphOptions(recipe=recipe)))
    assert_same(example(build_graph(with_block(name), options)).run(dp=2, cp=cp, cpa=cpa, tp=2), whole.run())


def with_experts(name: str) -> Card:
    """Experts in every second layer, and the block in the others or, as a mixer, in all."""
    usual = dataclasses.replace(card("deepseek", layers=4, kv_heads=4), dense_layers=0)
    slot = "mixer" if name in MIXES else "channel_mixer"
    kinds: Any = {"own": {"channel_mixer": "feed_forward", slot: "mine"}}
    if name in MIXES:
        kinds["layer"] = {slot: "mine"}
    pattern: Any = ["own", "layer"]
    return dataclasses.replace(usual, layer_kinds=kinds, pattern=pattern, blocks={"mine": content(name)})  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [{"sp": True, "zero": 3}, {"recipe": "megatron", "sp": True, "zero": 1}, {}], ids=str)
@pytest.mark.parametrize("name", ["low_rank", "heads"])
def test_own_blocks_and_experts_meet_in_a_model(name: str, words: Any) -> None:
    model = with_experts(name)
    whole = example(build_graph(model, GraphOptions()))
    made = example(build_graph(model, GraphOptions(**words)))
    if "recipe" in words:
        whole = example(build_graph(model, GraphOptions(recipe="megatron")))
    assert_same(made.run(dp=2, tp=2, ep=2), whole.run())


@pytest.mark.parametrize("name", ["two_gates", "crossed", "heads"])
@pytest.mark.parametrize("residual", ["parallel", "post_norm", "sandwich", "after_sum"])
def test_own_blocks_have_every_residual_and_predict_further_tokens(name: str, residual: str) -> None:
    slot = "mixer" if name in MIXES else "channel_mixer"
    model = with_block(name, layer_kinds={"layer": {slot: "mine", "residual": residual}}, multi_token_prediction=1)
    whole = example(build_graph(model, GraphOptions()))
    assert sum(weight.size for weight in whole.weights.values()) == model.count_parameters()
    made = example(build_graph(model, GraphOptions(sp=True, zero=3, recompute="full")))
    assert_same(made.run(dp=2, tp=2), whole.run())


@pytest.mark.parametrize("name", NAMES)
def test_own_blocks_are_recomputed_by_their_names(name: str) -> None:
    options = GraphOptions(recompute="operators", recompute_operators=("mine",), sp=True)
    made = example(build_graph(with_block(name), options))
    assert any(op.phase == "recompute" and ".mine." in op.name for op in made.graph.ops)
    assert_same(made.run(dp=2, tp=2), example(build_graph(with_block(name), GraphOptions())).run())


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_of_tensor_parallelism_that_shares_nothing(name: str) -> None:
    made = example(build_graph(with_block(name), GraphOptions(shared_input=False, sp=True)))
    assert_same(made.run(dp=2, tp=2), example(build_graph(with_block(name), GraphOptions())).run())


STRATEGY = '{"regions":{"between":{"batch":["dp"],"seq":["cp","tp"]}},"weights":{"attention":{"hidden":["tp"]}}}'


@pytest.mark.parametrize("name", ["gated", "crossed"])
def test_a_strategy_of_a_user_leaves_own_blocks_right(name: str) -> None:
    made = example(build_graph(with_block(name), GraphOptions(strategy=STRATEGY)))
    assert_same(made.run(dp=2, tp=2), example(build_graph(with_block(name), GraphOptions())).run())


@pytest.mark.parametrize("name", NAMES)
def test_forwards_alone_have_the_loss_of_training(name: str) -> None:
    whole = example(build_graph(with_block(name), GraphOptions()), microbatches=2)
    made = example(build_graph(with_block(name), GraphOptions(workflow="forward-only", sp=True)), microbatches=2)
    stages = pipeline(made.graph, "1f1b", (1, 1), 2)
    orders = [[task for task in order if task[0] == ALONE[0][0]] for order in stages.orders]
    found = made.run_pipelined(Pipeline(stages.positions, orders), dp=2, tp=2)
    assert found.loss == pytest.approx(whole.run_whole().loss, rel=1e-9)
