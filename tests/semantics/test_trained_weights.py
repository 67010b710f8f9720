"""Adapters and frozen parts: what is trained has the gradients that it has in a graph where all is, on every mesh."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.semantics.running import Example, check_slopes, example, pipeline
from tests.semantics.step import Run
from tests.semantics.test_partitioned import agree

ALL = ("all",)
EVERY_LINEAR = ("attn", "ffn")

WORDS: dict[str, dict[str, Any]] = {
    "torch": {},
    "torch sp": {"sp": True},
    "torch zero 2": {"sp": True, "zero": 2},
    "torch zero 3": {"zero": 3},
    "torch zero 3, full": {"sp": True, "zero": 3, "recompute": "full"},
    "torch pointwise": {"recompute": "pointwise"},
    "torch fp8": {"sp": True, "matmul_dtype": "fp8"},
    "torch eager": {"kernels": "eager", "attention": "math"},
    "torch without a shared input": {"sp": True, "shared_input": False},
    "megatron": {"recipe": "megatron"},
    "megatron sp zero 1": {"recipe": "megatron", "sp": True, "zero": 1},
    "megatron full": {"recipe": "megatron", "sp": True, "recompute": "full"},
    "megatron modules": {"recipe": "megatron", "recompute": "modules", "recompute_modules": ("layernorm", "mlp")},
}


@functools.lru_cache(maxsize=64)
def case(style: str, options: GraphOptions, tied: bool = False) -> tuple[Example, Run]:
    """The graph, and what one with nothing sharded computes whole."""
    model = card(style, kv_heads=4 if options.recipe == "megatron" else 2, tied=tied, layers=3)
    made = example(build_graph(model, options))
    plain = dataclasses.replace(options, zero=0, recompute="none", recompute_modules=())
    whole = example(build_graph(model, plain))
    weights = {key: made.weights[renamed] for key in whole.weights if (renamed := _in(made, key))}
    found = dataclasses.replace(whole, weights=weights).run()
    return made, Run(found.loss, {_in(made, key): gradient for key, gradient in found.gradients.items()})


def _in(made: Example, key: tuple[str, int]) -> tuple[str, int]:
    """A weight of another graph of the model in this one: the block of its layer may have another name."""
    name, place = key
    block, _, rest = name.partition(".")
    others = (block.removeprefix("first_"), f"first_{block}", block)
    return next((f"{each}.{rest}", place) for each in others if (f"{each}.{rest}", place) in made.weights)


@pytest.mark.parametrize("words", list(WORDS))
@pytest.mark.parametrize("lora", [ALL, ("v_proj", "q_proj"), ("o_proj", "down_proj")])
def test_adapters_compute_the_same_on_every_mesh(words: str, lora: tuple[str, ...]) -> None:
    options = GraphOptions(lora=("attn.wqkv",) if "megatron" in words and "q_proj" in lora else lora, **WORDS[words])
    made, whole = case("llama", options)
    assert {key[0].rpartition(".lora_")[1] for key in whole.gradients} == {".lora_"}
    for dp, tp in ((2, 1), (1, 2), (2, 2), (1, 4)):
        if not (options.recipe == "megatron" and tp > 4):
            agree(made.run(dp, tp), whole)
    if "zero 3" in words:
        agree(made.run(4, 2, hsdp=2), whole)


@pytest.mark.parametrize("kind", ["allgather-kv", "ring-alltoall"])
def test_adapters_of_ranks_that_share_a_sequence(kind: Any) -> None:
    made, whole = case("llama", GraphOptions(lora=ALL, sp=True, cp_kind=kind))
    agree(made.run(2, 2, cp=2), whole)


@pytest.mark.parametrize("lora", [ALL, EVERY_LINEAR, ("ffn.experts",), ("attn.wo", "ffn.shared")])
@pytest.mark.parametrize("words", ["torch sp", "torch zero 3", "megatron sp zero 1"])
def test_adapters_in_layers_with_experts(words: str, lora: tuple[str, ...]) -> None:
    """The dense first layer has no backward where experts alone have adapters."""
    if lora == ("ffn.experts",) and WORDS[words].get("zero", 0) >= 2:
        lora = ("attn.wo", *lora)
    made, whole = case("deepseek", GraphOptions(lora=lora, **WORDS[words]))
    for dp, tp, ep in ((2, 1, 2), (2, 2, 2), (4, 1, 2)):
        agree(made.run(dp=dp, tp=tp, ep=ep), whole)


@pytest.mark.parametrize("style", ["llama", "gpt", "moe"])
def test_gradients_of_adapters_are_slopes(style: str) -> None:
    made, whole = case(style, GraphOptions(lora=EVERY_LINEAR))
    check_slopes(made, whole.gradients)


def test_adapters_that_add_nothing_leave_the_model_as_it_is() -> None:
    made, _ = case("llama", GraphOptions(lora=ALL))
    zero = {key: value * ("lora_b" not in key[0]) for key, value in made.weights.items()}
    plain = build_graph(card("llama", kv_heads=2, layers=3), GraphOptions())
    weights = {key: zero[_in(made, key)] for key in example(plain).weights}
    assert made.run(weights=zero).loss == pytest.approx(
        dataclasses.replace(made, graph=plain, weights=weights).run().loss
    )


FROZEN = [
    ("embedding",),
    ("head",),
    ("attn",),
    ("embedding", "attn_norm", "attn"),
    ("attn_norm", "ffn_norm", "attn.wo"),
    ("embedding", "attn_norm", "attn", "ffn_norm", "ffn"),
    ("embedding", "head", "attn.wo", "ffn"),
]


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("words", ["torch sp", "torch zero 3", "torch pointwise", "megatron sp zero 1", "torch eager"])
@pytest.mark.parametrize("style", ["llama", "gpt"])
def test_what_is_trained_has_the_gradients_that_it_has_where_all_is(
    style: str, words: str, frozen: tuple[str, ...]
) -> None:
    if {"ffn_norm", "ffn"} <= {*frozen} and words == "torch zero 3":
        words = "torch"  # whole layers without a backward are refused with it
    made, _ = case(style, GraphOptions(frozen=frozen, **WORDS[words]))
    model = card(style, kv_heads=4 if "megatron" in words else 2, layers=3)
    plain = dataclasses.replace(GraphOptions(**WORDS[words]), zero=0, recompute="none")
    usual = example(build_graph(model, plain))
    usual = dataclasses.replace(usual, weights={key: made.weights[_in(made, key)] for key in usual.weights})
    gradients = {_in(made, key): value for key, value in usual.run().gradients.items()}
    for dp, tp in ((1, 1), (2, 2)):
        run = made.run(dp, tp)
        assert run.gradients and not any(key[0].startswith(tuple(f"{f}." for f in frozen)) for key in run.gradients)
        for key, value in run.gradients.items():
            np.testing.assert_allclose(value, gradients[key], rtol=1e-7, atol=1e-10, err_msg=str(key))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("words", ["torch sp", "torch zero 3", "megatron sp zero 1"])
@pytest.mark.parametrize("chosen", [{"lora": ALL}, {"frozen": ("embedding", "ffn")}, {"frozen": ("head", "attn")}])
def test_stages_compute_the_same(chosen: dict[str, Any], words: str, schedule: str) -> None:
    options = GraphOptions(**chosen, **WORDS[words])
    model = card("llama", kv_heads=4, layers=4)
    graph = build_graph(model, options)
    made = example(graph, microbatches=4)
    found = made.run_pipelined(pipeline(graph, schedule, (1, 3), 4), dp=2, tp=2)
    plain = build_graph(model, dataclasses.replace(options, zero=0))
    agree(found, dataclasses.replace(made, graph=plain).run_whole())


@pytest.mark.parametrize(
    ("style", "words", "reason"),
    [
        ("llama", {"lora": ("all",), "frozen": ("head",)}, "leave --frozen out"),
        ("llama", {"lora": ("attn.qw",)}, "no linear layer that can have an adapter 'attn.qw': did you mean .*attn.wq"),
        ("llama", {"frozen": ("atn",)}, "no part with weights 'atn': did you mean attn"),
        ("llama", {"frozen": ("embedding", "head", "attn_norm", "attn", "ffn", "ffn_norm")}, "nothing .* is trained"),
        (
            "llama",
            {"frozen": ("embedding", "attn_norm", "attn", "ffn", "ffn_norm"), "zero": 3},
            "of whole layers needs --zero 0 or 1",
        ),
        ("llama", {"frozen": ("embedding.word",)}, "no part with weights 'embedding.word'"),
        (
            "llama",
            {"frozen": ("embedding",), "recipe": "megatron", "recompute": "full"},
            "leave embedding out of --frozen",
        ),
        ("llama", {"lora": ("all",), "workflow": "forward-only"}, "forward-only"),
    ],
)
def test_words_that_no_model_can_follow_are_refused(style: str, words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        build_graph(card(style), GraphOptions(**words))


def test_both_ends_of_a_tied_weight_are_frozen_or_none() -> None:
    with pytest.raises(UsageError, match="give both to --frozen, or neither"):
        build_graph(card("llama", tied=True), GraphOptions(frozen=("embedding",)))
    made, whole = case("llama", GraphOptions(frozen=("embedding", "head"), sp=True), tied=True)
    agree(made.run(2, 2), whole)
