"""Experts on a simulated mesh compute what one rank computes; their derived gradients are the slopes of the loss."""

import dataclasses
import functools
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.expressions import evaluate
from stagedb.plans import GraphOptions, Plan
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import Example, check_slopes, example, pipeline
from tests.semantics.step import Run, run
from tests.symbolic_rows import flops

OPTIONS = {
    "torch": GraphOptions(),
    "torch sp": GraphOptions(sp=True),
    "torch separate": GraphOptions(sp=True, shared_input=False),
    "torch eager": GraphOptions(kernels="eager", recompute="full"),
    "torch whole experts": GraphOptions(sp=True, expert_tp=False),
    "torch copies of experts": GraphOptions(expert_tp=False),
    "torch fp8": GraphOptions(sp=True, matmul_dtype="fp8"),
    "torch zero 1": GraphOptions(zero=1),
    "torch zero 2": GraphOptions(zero=2, sp=True),
    "torch zero 3": GraphOptions(zero=3),
    "torch zero 3 sp": GraphOptions(zero=3, sp=True, recompute="full"),
    "torch units of experts": GraphOptions(zero=3, expert_unit=True, recompute="full"),
    "torch units of whole experts": GraphOptions(zero=3, sp=True, expert_tp=False, expert_unit=True),
    "torch zero 2, units of experts": GraphOptions(zero=2, sp=True, expert_unit=True, recompute="pointwise"),
    "megatron": GraphOptions(recipe="megatron"),
    "megatron sp": GraphOptions(recipe="megatron", sp=True),
    "megatron fp8": GraphOptions(recipe="megatron", sp=True, matmul_dtype="fp8"),
    "megatron discarded outputs": GraphOptions(
        recipe="megatron", sp=True, recompute="modules", recompute_modules=("layernorm", "moe_act")
    ),
    "megatron fp8, discarded outputs": GraphOptions(
        recipe="megatron", sp=True, matmul_dtype="fp8", recompute="modules", recompute_modules=("layernorm", "moe_act")
    ),
    "megatron experts again": GraphOptions(
        recipe="megatron", sp=True, expert_tp=False, recompute="modules", recompute_modules=("layernorm", "moe")
    ),
    "megatron zero 1": GraphOptions(recipe="megatron", sp=True, zero=1),
    "megatron zero 3": GraphOptions(recipe="megatron", sp=True, zero=3, expert_tp=False),
}
MESHES = [(2, 1, 2), (4, 1, 2), (4, 1, 4), (1, 2, 1), (2, 2, 2), (4, 2, 2), (4, 2, 1)]
"""Degrees dp, tp, ep."""


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions) -> tuple[Example, Run]:
    model = card(style, layers=3 if style == "deepseek" else 2)
    plain = dataclasses.replace(options, zero=0, expert_unit=False, recompute="none", recompute_modules=())
    return example(build_graph(model, options)), example(build_graph(model, plain)).run()


def assert_same(found: Run, whole: Run) -> None:
    assert found.loss == pytest.approx(whole.loss, rel=1e-9)
    assert found.gradients.keys() == whole.gradients.keys()
    for key, gradient in whole.gradients.items():
        np.testing.assert_allclose(found.gradients[key], gradient, rtol=1e-7, atol=1e-10, err_msg=str(key))


@pytest.mark.parametrize(("dp", "tp", "ep"), MESHES)
@pytest.mark.parametrize("words", list(OPTIONS))
@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_partitioned_experts_compute_the_same(style: str, words: str, dp: int, tp: int, ep: int) -> None:
    some, whole = case(style, OPTIONS[words])
    assert_same(some.run(dp=dp, tp=tp, ep=ep), whole)


@pytest.mark.parametrize("style", ["moe", "deepseek"])
def test_gradients_are_the_slopes_of_the_loss(style: str) -> None:
    some, whole = case(style, GraphOptions())
    check_slopes(some, {key: whole.gradients[key] for key in some.weights})


@pytest.mark.parametrize("stages", [(1, 3), (2, 1, 1)])
@pytest.mark.parametrize("words", ["torch sp", "torch zero 3", "torch units of experts", "megatron zero 1"])
def test_a_pipeline_of_dense_and_sparse_layers_computes_the_same(words: str, stages: tuple[int, ...]) -> None:
    """A stage boundary between the dense layer and the others, or inside either."""
    model = dataclasses.replace(card("deepseek", layers=4), dense_layers=sum(stages) - 3 if stages[0] == 1 else 2)
    graph = build_graph(model, OPTIONS[words])
    some = example(graph, microbatches=2)
    alone = dataclasses.replace(OPTIONS[words], zero=0, expert_unit=False)
    plain = example(build_graph(model, alone), microbatches=2)
    found = some.run_pipelined(pipeline(graph, "1f1b", stages, 2), dp=4, tp=2, ep=2)
    assert_same(found, plain.run_whole())


def changed(graph: SymGraph, name: str, **fields: object) -> SymGraph:
    ops = tuple(dataclasses.replace(op, **fields) if op.name == name else op for op in graph.ops)  # type: ignore[arg-type]
    assert ops != graph.ops
    return dataclasses.replace(graph, ops=ops)


def test_an_exchange_left_out_is_seen() -> None:
    some, whole = case("moe", GraphOptions())
    name = "layer.ffn.experts.w2.all_to_all.ep"
    wrong = dataclasses.replace(some, graph=changed(some.graph, name, present="0"))
    with pytest.raises((ValueError, IndexError, AssertionError)):
        assert_same(wrong.run(dp=2, ep=2), whole)


def test_a_sum_of_shares_left_out_is_seen() -> None:
    """Ranks of tp hold parts of each expert: what these give, and the gradients before them, are shares."""
    some, whole = case("moe", GraphOptions(sp=True))
    for name in ("layer.ffn.sum.reduce_scatter.tp", "layer.ffn_norm.gradient_sum.0.reduce_scatter.tp"):
        wrong = dataclasses.replace(some, graph=changed(some.graph, name, present="0"))
        with pytest.raises((ValueError, IndexError, AssertionError)):
            assert_same(wrong.run(dp=2, tp=2, ep=2), whole)


@pytest.mark.parametrize("name", ["bucket.gradients.dp.experts", "bucket.gradients.dp.dense"])
def test_a_missing_gradient_bucket_is_seen(name: str) -> None:
    """Experts' gradients are summed among those who hold the same, the others' over all: each is needed."""
    some, whole = case("moe", GraphOptions())
    wrong = dataclasses.replace(some, graph=changed(some.graph, name, present="0"))
    with pytest.raises(AssertionError):
        assert_same(wrong.run(dp=4, ep=2), whole)


@pytest.mark.parametrize(("ep", "word"), [(2, "experts"), (1, "experts.whole")])
@pytest.mark.parametrize("name", ["parameters.gather", "gradients.scatter"])
def test_a_missing_bucket_of_a_unit_of_experts_is_seen(name: str, ep: int, word: str) -> None:
    some, whole = case("moe", GraphOptions(zero=3, expert_unit=True))
    assert_same(some.run(dp=4, ep=ep), whole)
    wrong = dataclasses.replace(some, graph=changed(some.graph, f"bucket.{name}.{word}", present="0"))
    with pytest.raises((AssertionError, KeyError, ValueError)):
        assert_same(wrong.run(dp=4, ep=ep), whole)


@pytest.mark.parametrize("factor", [Fraction(3, 2), Fraction(1, 2)])
def test_capacity_pads_or_drops(factor: Fraction) -> None:
    """Empty slots change nothing; what is dropped leaves the loss another one. Ranks of ep agree on both."""
    some, whole = case("moe", GraphOptions())
    env = environment(some.graph, dp=2, ep=2) | {"capacity": factor.numerator, "per": factor.denominator}
    found = run(some.graph, env, some.weights, some.tokens, some.labels)
    if factor > 1:
        assert_same(found, whole)
    else:
        assert found.loss != pytest.approx(whole.loss, rel=1e-9)


def totals(graph: SymGraph, dp: int = 1, tp: int = 1, ep: int = 1) -> Counter[str]:
    """FLOPs on one rank of a layer, by `experts` and the rest; bytes of weights likewise."""
    env = environment(graph, dp, tp, ep=ep)
    found: Counter[str] = Counter()
    for op in graph.ops:
        word = "experts" if ".experts." in op.name else "rest"
        found[f"flops {word}"] += evaluate(flops(op), env)
    for tensor in graph.tensors:
        if tensor.role == "weight":
            found["bytes experts" if ".experts." in tensor.name else "bytes rest"] += evaluate(tensor.bytes, env)
    return found


def test_only_experts_weights_depend_on_ep() -> None:
    graph = build_graph(card("moe"), GraphOptions())
    one, four = totals(graph, dp=4), totals(graph, dp=4, ep=4)
    assert one["bytes experts"] == 4 * four["bytes experts"]
    assert {word: one[word] for word in one if word != "bytes experts"} == {
        word: four[word] for word in four if word != "bytes experts"
    }


@pytest.mark.parametrize(("dp", "tp", "ep"), MESHES)
def test_experts_work_is_that_of_all_routed_tokens(dp: int, tp: int, ep: int) -> None:
    """Forward and twice as much backward: three matrices of h x f for each choice of each token."""
    graph = build_graph(card("moe"), GraphOptions(sp=True))
    env = environment(graph)
    routed = env["B"] * env["S"] * env["K"]
    ranks = totals(graph, dp=dp, tp=tp, ep=ep)["flops experts"] * dp * tp
    assert ranks == 3 * routed * 2 * 3 * env["H"] * env["FE"]


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_norms_are_reduced_only_if_gradients_are_clipped(zero: int) -> None:
    def norms(clip: bool) -> list[str]:
        graph = build_graph(card("moe"), GraphOptions(zero=zero, clip_norm=clip))
        return [op.name for op in graph.ops if op.name.startswith("bucket.norms.")]

    assert norms(clip=False) == []
    assert norms(clip=True) != []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"dp": 6, "ep": 4}, r"ep 4 does not divide dp x cp = 6.*: the nearest is --ep 3 or --ep 6"),
        ({"dp": 6, "ep": 3}, r"ep 3 does not divide the 4 experts: the nearest is --ep 2$"),
        ({"dp": 8, "ep": 8}, r"ep 8 does not divide the 4 experts: the nearest is --ep 4$"),
        (
            {"dp": 4, "ep": 4, "hsdp": 2, "options": GraphOptions(zero=3)},
            "ep 4 does not divide the 4 ranks with experts / hsdp 2 = 2.*: the nearest is --ep 2, or leave --hsdp out",
        ),
        (
            {
                "dp": 4,
                "tp": 2,
                "hsdp": 2,
                "rank_order": ("dp", "tp", "cp", "pp"),
                "options": GraphOptions(zero=3, sp=True, expert_tp=False),
            },
            "dp,tp,cp,pp puts dp inside of tp.*: take --rank-order tp,cp,dp,pp, or leave --hsdp out, or leave --no-exp",
        ),
        (
            {"dp": 12, "ep": 4, "options": GraphOptions(zero=3)},
            "3 ranks share 1 of the experts, .* does not divide by 3: the nearest is --dp 4, or .*--zero 1",
        ),
        ({"capacity_factor": 0.0}, "--capacity-factor takes a number above 0"),
        ({"options": GraphOptions(ep_sync=False)}, "with ep 1 nothing is reduced over ep"),
        ({"tp": 16}, "tp 16 does not divide"),
    ],
)
def test_a_plan_that_experts_do_not_suit_is_refused_with_the_nearest(words: dict[str, Any], reason: str) -> None:
    sizes = build_graph(card("moe"), GraphOptions()).sizes
    Plan(dp=4, ep=4, seq_len=8).check(sizes)
    Plan(dp=4, ep=2, seq_len=7, capacity_factor=1.25).check(sizes)
    with pytest.raises(UsageError, match=reason):
        Plan(**{"seq_len": 8, **words}).check(sizes)


@pytest.mark.parametrize("words", [{"dp": 2, "ep": 2}, {"capacity_factor": 1.5}])
def test_a_dense_model_takes_nothing_that_is_for_experts(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is for a model with experts"):
        Plan(seq_len=8, **words).check(build_graph(card("llama"), GraphOptions()).sizes)
