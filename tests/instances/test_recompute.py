"""Recomputation in every K-th layer: those layers are copied as if all recomputed, the others as if none did."""

import dataclasses
from typing import Any

import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import UsageError
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from tests.instances.test_instantiate import ask
from tests.ir.tiny import card

MODEL = card("llama", layers=6, kv_heads=4)
OPS = (
    "MATCH (o:Op {instance: $instance, class: $class, layer: $layer}) "
    "RETURN o.name AS name, o.template AS template, o.type AS type, o.phase AS phase, o.flops AS flops, "
    "o.bytes_read AS bytes_read, o.bytes_written AS bytes_written, o.comm_bytes AS comm_bytes ORDER BY o.`order`, name"
)
EDGES = (
    "MATCH (a:Op {instance: $instance, class: $class})-[d:DEP]->(b:Op) "
    "WHERE a.layer = $layer AND b.layer = $layer OR a.layer = $layer - 1 AND b.layer = $layer "
    "RETURN DISTINCT a.name AS source, b.name AS target, d.kind AS kind ORDER BY source, target, kind"
)
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


def made(store: Store, options: GraphOptions, every: int, degrees: dict[str, Any]) -> str:
    graph = build_graph(MODEL, options)
    write_graph(store, graph)
    return instantiate(store, graph.key, Plan(options=options, seq_len=8, recompute_every=every, **degrees))


@pytest.mark.parametrize("case", list(CASES))
def test_layers_are_those_of_all_or_of_none(store: Store, case: str) -> None:
    options, degrees = CASES[case]
    plain = dataclasses.replace(options, recompute="none", recompute_operators=())
    none, all_, some = (
        made(store, plain, 1, degrees),
        made(store, options, 1, degrees),
        made(store, options, 3, degrees),
    )
    for number in range(degrees.get("pp", 1)):
        for layer in range(6 // degrees.get("pp", 1)):
            where = {"class": number, "layer": layer}
            like = all_ if layer % 3 == 2 else none
            assert ask(store, OPS, instance=some, **where) == ask(store, OPS, instance=like, **where)
            assert ask(store, EDGES, instance=some, **where) == ask(store, EDGES, instance=like, **where)


@pytest.mark.parametrize(("options", "degrees"), CASES.values(), ids=list(CASES))
def test_half_of_the_layers_do_half_of_the_work(
    embedded_store: Store, options: GraphOptions, degrees: dict[str, Any]
) -> None:
    query = (
        "MATCH (o:Op {instance: $instance, phase: 'recompute'}) "
        "RETURN count(*) AS ops, sum(o.flops) AS flops, sum(o.bytes_read) AS bytes"
    )
    degrees = {word: 1 if word == "pp" else degree for word, degree in degrees.items()}
    (whole,), (half,) = (
        ask(embedded_store, query, instance=made(embedded_store, options, every, degrees)) for every in (1, 2)
    )
    assert whole["ops"] > 0
    assert {name: 2 * count for name, count in half.items()} == whole


def test_each_stage_counts_its_own_layers(embedded_store: Store) -> None:
    options = GraphOptions(recompute="full")
    instance = made(embedded_store, options, 2, {"pp": 2, "layers_per_stage": (3, 3)})
    rows = ask(
        embedded_store,
        "MATCH (o:Op {instance: $instance, phase: 'recompute'}) RETURN DISTINCT o.class AS class, o.layer AS layer "
        "ORDER BY class",
        instance=instance,
    )
    assert [(row["class"], row["layer"]) for row in rows] == [(0, 1), (1, 1)]


def test_plans_that_would_recompute_nothing_are_refused(embedded_store: Store) -> None:
    with pytest.raises(UsageError, match="no stage has more than 3 layers"):
        made(embedded_store, GraphOptions(recompute="full"), 4, {"pp": 2})
    with pytest.raises(UsageError, match="--recompute-every 2 has nothing to recompute"):
        Plan(recompute_every=2)
