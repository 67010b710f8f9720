"""Models whose kinds of layers have other heads: partitioned runs, copies of key/value heads, buffers, refusals."""

import dataclasses
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.models import Card
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from tests.ir.environments import environment
from tests.ir.tiny import card
from tests.semantics.running import example, pipeline
from tests.semantics.test_experts import assert_same

LOCAL = {"mixer": "sliding_window", "window": 3, "heads": 8, "kv_heads": 4, "head_dim": 6, "value_dim": 2}


def mixed(kv_heads: int = 2, **words: Any) -> Card:
    """Layers of the card's heads, of which key/value heads are `kv_heads`, in turn with others."""
    kinds: Any = {"local": {**LOCAL, **words}, "layer": {"value_dim": 6}}
    return dataclasses.replace(
        card("llama", kv_heads=kv_heads), layers=2, layer_kinds=kinds, pattern=("local", "layer")
    )


MESHES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "tp": ({}, {"tp": 2, "dp": 2}),
    "copies of the card's heads": ({"sp": True, "zero": 1}, {"tp": 4}),
    "zero 3, recomputed": ({"sp": True, "zero": 3, "recompute": "full"}, {"tp": 2, "dp": 2}),
    "eager, math": ({"kernels": "eager", "attention": "math"}, {"tp": 4}),
    "keys gathered": ({"cp_kind": "allgather-kv"}, {"cp": 2, "tp": 2}),
    "ulysses": ({"cp_kind": "ulysses"}, {"cp": 2}),
    "megatron": ({"recipe": "megatron", "sp": True}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("words", MESHES)
def test_layers_with_other_heads_compute_the_same(words: str) -> None:
    options, degrees = MESHES[words]
    plain = {word: value for word, value in options.items() if word == "recipe"}
    whole = example(build_graph(mixed(), GraphOptions(**plain)), microbatches=2)
    some = dataclasses.replace(whole, graph=build_graph(mixed(), GraphOptions(**options)))
    assert_same(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


@pytest.mark.parametrize("kind", ["ring-alltoall", "ring-allgather", "allgather-kv", "ulysses-ring"])
def test_rings_pass_heads_of_each_kind(kind: Any) -> None:
    """Rings compute whole causal attention with values of the size of keys, of any number and size of heads."""
    kinds: Any = {"local": {"heads": 8, "kv_heads": 4, "head_dim": 6}}
    model = dataclasses.replace(card("llama", kv_heads=2), layers=2, layer_kinds=kinds, pattern=("local", "layer"))
    whole = example(build_graph(model, GraphOptions()), microbatches=2)
    some = dataclasses.replace(whole, graph=build_graph(model, GraphOptions(cp_kind=kind)))
    degrees = {"cp": 4, "cpa": 2} if kind == "ulysses-ring" else {"cp": 2, "tp": 2}
    assert_same(some.run_pipelined(pipeline(some.graph, "1f1b", (1, 1), 2), **degrees), whole.run_whole())


def test_rings_refuse_values_of_another_size() -> None:
    kinds: Any = {"layer": {"value_dim": 6}}
    model = dataclasses.replace(card("llama"), layer_kinds=kinds)
    with pytest.raises(UsageError, match=r"values with a size of their own, and rings .* take --cp-kind ulysses"):
        build_graph(model, GraphOptions(cp_kind="ring-alltoall"))


def graph(model: Card, **options: Any) -> SymGraph:
    return build_graph(model, GraphOptions(**options))


def test_tp_must_suit_the_heads_of_each_kind() -> None:
    sizes = graph(mixed(kv_heads=1)).sizes
    assert {name: sizes[name] for name in ("A_local", "KV_local", "D_local", "DV_local", "DV_layer")} == {
        "A_local": 8, "KV_local": 4, "D_local": 6, "DV_local": 2, "DV_layer": 6,
    }  # fmt: skip
    plan_for({"tp": 4, "seq_len": 8}, sizes)
    with pytest.raises(UsageError, match="tp 8 does not divide the 4 attention heads"):
        plan_for({"tp": 8, "seq_len": 8}, sizes)
    with pytest.raises(UsageError, match=r"tp 4 does not divide the 2 key/value heads.*--tp 2"):
        plan_for({"tp": 4, "seq_len": 8}, graph(fewer(2)).sizes)


def fewer(kv_heads: int) -> Card:
    """Layers with fewer key/value heads than the card, of which no copies are held."""
    kinds: Any = {"local": {"kv_heads": kv_heads}}
    return dataclasses.replace(card("llama", kv_heads=4), layers=2, layer_kinds=kinds, pattern=("local", "layer"))


def test_ulysses_must_suit_the_heads_of_each_kind() -> None:
    with pytest.raises(UsageError, match="4 attention heads and 1 key/value heads over tp 1 x cp 2"):
        plan_for({"cp": 2, "cp_kind": "ulysses", "seq_len": 8}, graph(fewer(1), cp_kind="ulysses").sizes)


def test_each_size_of_heads_has_its_rotary_table() -> None:
    model = mixed()
    made = graph(model)
    env = environment(made, 1, 1)
    tables = {
        tensor.name: [evaluate(size, env) for size in tensor.shape][-1]
        for tensor in made.tensors
        if tensor.name.startswith("stage.rotary")
    }
    assert tables == {"stage.rotary": model.head_dim, "stage.rotary_6": 6}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"heads": 6, "kv_heads": 4}, "heads=6 is not divisible by kv_heads=4"),
        ({"head_dim": 5}, "even head_dim, not 5"),
        ({"head_dim": 4, "rotary_dim": 6}, "at most head_dim=4"),
        ({"gated": True}, "no value_dim"),
        ({"shared_values": True, "value_dim": 4}, "value_dim=4 must be left out"),
        ({"heads": -1}, "heads must be the number of heads"),
    ],
)
def test_heads_that_do_not_suit_each_other_are_refused(words: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        mixed(**words)


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_weights_of_the_graph_are_the_parameters(recipe: str) -> None:
    model = mixed()
    case = example(build_graph(model, GraphOptions(recipe=recipe)))
    assert sum(value.size for value in case.weights.values()) == model.count_parameters()
