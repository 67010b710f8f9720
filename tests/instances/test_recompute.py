"""Recomputation in some layers, every K-th one or the first of each chunk: those layers are copied as if all
recomputed, the others as if none did."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.lowering.program import CopiedRows
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store
from tests import lowered
from tests.instances.test_instantiate import ask
from tests.ir.tiny import card

MODEL = card("llama", layers=6, kv_heads=4)
OPS = ("name", "template", "type", "phase", "flops", "bytes_read", "bytes", "size", "order")
"""What is compared of an op."""

CASES: dict[str, tuple[GraphOptions, dict[str, Any]]] = {
    "full, sequence parallel, pipelined": (GraphOptions(sp=True, recompute="full"), {"tp": 2, "pp": 2}),
    "full, one rank of tp": (GraphOptions(sp=True, recompute="full"), {}),
    "pointwise, sharded": (GraphOptions(recompute="pointwise", zero=3), {"dp": 2}),
    "megatron, whole parts": (GraphOptions(recipe="megatron", sp=True, recompute="full"), {"tp": 2, "pp": 2}),
    "core": (GraphOptions(attention="math", recompute="core"), {"tp": 2}),
    "operators": (
        GraphOptions(sp=True, recompute="operators", recompute_operators=("attn_norm", "ffn.gate")),
        {"tp": 2, "pp": 2},
    ),
}


def made(options: GraphOptions, every: int, degrees: dict[str, Any], first: int | None = None) -> CopiedRows:
    which = {"recompute_every": every} if first is None else {"recompute_first": first}
    return lowered.copied_rows(MODEL, **{**options.to_dict(), "seq_len": 8, **which, **degrees})


def ops_of(copied: CopiedRows, number: int, layer: int) -> list[tuple[Any, ...]]:
    """The ops of a layer in their order, which others between them leave out of account."""
    found = [op for op in copied.ops[number].values() if op["layer"] == layer]
    found.sort(key=lambda op: (op["order"], op["name"]))
    return [tuple(op[column] for column in OPS if column != "order") for op in found]


def edges_of(copied: CopiedRows, number: int, layer: int) -> set[tuple[str, str, str]]:
    """The edges inside a layer, and those that lead to it from the one before."""
    ops = copied.ops[number]
    return {
        (ops[source]["name"], ops[target]["name"], kind)
        for source, target, kind in copied.edges[number]
        if source in ops and ops[target]["layer"] == layer and ops[source]["layer"] in (layer, layer - 1)
    }


@pytest.mark.parametrize("case", list(CASES))
def test_layers_are_those_of_all_or_of_none(case: str) -> None:
    options, degrees = CASES[case]
    plain = dataclasses.replace(options, recompute="none", recompute_operators=())
    none, all_, some = made(plain, 1, degrees), made(options, 1, degrees), made(options, 3, degrees)
    for number in range(degrees.get("pp", 1)):
        for layer in range(6 // degrees.get("pp", 1)):
            like = all_ if layer % 3 == 2 else none
            assert ops_of(some, number, layer) == ops_of(like, number, layer) != []
            assert edges_of(some, number, layer) == edges_of(like, number, layer) != set()


IN_CHUNKS: dict[str, Any] = {"pp": 2, "virtual_stages": 2, "layers_per_chunk": (2, 1, 1, 2), "global_batch_size": 4}
PRODUCTS: dict[str, tuple[GraphOptions, dict[str, Any]]] = {
    **CASES,
    "chunks": (GraphOptions(sp=True, recompute="full"), {"tp": 2, **IN_CHUNKS}),
    "sharded, chunks": (GraphOptions(recompute="full", zero=3), {"dp": 2, **IN_CHUNKS, "global_batch_size": 8}),
    "ring": (GraphOptions(recompute="full", cp_kind="ring-p2p"), {"cp": 2, "pp": 2}),
    "megatron, chunks, a ring": (
        GraphOptions(recipe="megatron", zero=1, sp=True, recompute="full", cp_kind="ring-p2p"),
        {"tp": 2, "cp": 2, "dp": 2, **IN_CHUNKS, "global_batch_size": 8},
    ),
}


@pytest.mark.parametrize("case", list(PRODUCTS))
def test_the_first_layers_of_each_chunk_are_those_of_all(case: str) -> None:
    options, degrees = PRODUCTS[case]
    plain = dataclasses.replace(options, recompute="none", recompute_operators=())
    none, all_, some = made(plain, 1, degrees), made(options, 1, degrees), made(options, 1, degrees, first=1)
    # By stage, the layers that are the first of a chunk: chunks 0 and 2 are on stage 0, in this order.
    begins = [{0, 2}, {0, 1}] if "virtual_stages" in degrees else [{0}] * degrees.get("pp", 1)
    for number in some.ops:
        first = begins[number % len(begins)]  # those of a rank of cp follow each other
        for layer in range(6 // degrees.get("pp", 1)):
            like = all_ if layer in first else none
            assert ops_of(some, number, layer) == ops_of(like, number, layer) != []
            assert edges_of(some, number, layer) == edges_of(like, number, layer) != set()


def recomputed(copied: CopiedRows) -> list[Any]:
    return [op for of in copied.ops.values() for op in of.values() if op["phase"] == "recompute"]


@pytest.mark.parametrize(("options", "degrees"), CASES.values(), ids=list(CASES))
def test_half_of_the_layers_do_half_of_the_work(options: GraphOptions, degrees: dict[str, Any]) -> None:
    degrees = {word: 1 if word == "pp" else degree for word, degree in degrees.items()}
    whole, half = (recomputed(made(options, every, degrees)) for every in (1, 2))
    assert len(whole) == 2 * len(half) > 0
    for column in ("flops", "bytes_read"):
        assert sum(op[column] for op in whole) == 2 * sum(op[column] for op in half)


def test_each_stage_counts_its_own_layers(store: Store) -> None:
    words: dict[str, Any] = {"recompute": "full", "recompute_every": 2, "pp": 2, "layers_per_stage": (3, 3)}
    instance = Stagedb(store).instantiate(MODEL, seq_len=8, **words)
    rows = ask(
        store,
        "MATCH (o:Op {instance: $instance, phase: 'recompute'}) RETURN DISTINCT o.class AS class, o.layer AS layer "
        "ORDER BY class",
        instance=instance.id,
    )
    assert [(row["class"], row["layer"]) for row in rows] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"recompute_first": 1}, {0: {0, 2}, 1: {0, 1}}),
        ({"recompute_first": 2}, {0: {0, 1, 2}, 1: {0, 1, 2}}),
        ({"recompute_every": 2}, {0: {1}, 1: {1}}),
    ],
    ids=str,
)
def test_each_chunk_counts_its_own_layers(store: Store, words: dict[str, Any], expected: dict[int, set[int]]) -> None:
    instance = Stagedb(store).instantiate(MODEL, seq_len=8, recompute="full", **IN_CHUNKS, **words)
    rows = ask(
        store,
        "MATCH (o:Op {instance: $instance, phase: 'recompute'}) RETURN DISTINCT o.class AS class, o.layer AS layer",
        instance=instance.id,
    )
    found: dict[int, set[int]] = {}
    for row in rows:
        found.setdefault(row["class"], set()).add(row["layer"])
    assert found == expected


def test_plans_that_would_recompute_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="no stage has more than 3 layers"):
        made(GraphOptions(recompute="full"), 4, {"pp": 2})
    with pytest.raises(UsageError, match="--recompute-every 2 has nothing to recompute"):
        Plan(recompute_every=2)
