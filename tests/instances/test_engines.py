"""Both engines hold the same rows, and an instance's edges agree with its issue order, for real models' graphs."""

import dataclasses
import json
from typing import Any

import pytest

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.plans import GraphOptions, Plan
from stagedb.store import Store, write_graph
from stagedb.store.contents.instances import instantiate
from tests.ir.tiny import card

NODES = ("RankClass", "Op", "Task", "Rank", "Group")
EDGES = (("Op", "DEP"), ("Task", "NEXT"), ("Task", "FEEDS"))
EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=8, global_batch_size=8)
OPTIONS = (GraphOptions(), GraphOptions(sp=True), GraphOptions(recipe="megatron", sp=True))


def example(style: str, options: GraphOptions) -> tuple[SymGraph, Plan]:
    """The graph of a tiny model with tied embeddings, and a plan for it on eight ranks."""
    plan = dataclasses.replace(EIGHT, options=options)
    return build_graph(card(style, layers=4, tied=True), options), plan


def rows(store: Store, instance: str) -> dict[str, list[str]]:
    """All nodes and edges of an instance as sorted JSON."""

    def ask(query: str) -> list[str]:
        return sorted(json.dumps(row, sort_keys=True) for row in store.query(query, {"instance": instance}).rows)

    found = {label: ask(f"MATCH (n:{label} {{instance: $instance}}) RETURN properties(n) AS p") for label in NODES}
    for label, kind in EDGES:
        found[kind] = ask(
            f"MATCH (a:{label} {{instance: $instance}})-[d:{kind}]->(b:{label}) "
            "RETURN a.id AS a, b.id AS b, properties(d) AS p"
        )
    return found


@pytest.mark.parametrize("store", ["neo4j"], indirect=True)
def test_engines_hold_the_same_rows(store: Store, embedded_store: Store) -> None:
    graph, plan = example("llama", OPTIONS[1])
    both = []
    for each in (store, embedded_store):
        write_graph(each, graph)
        both.append(rows(each, instantiate(each, graph.key, plan)))
    assert both[0] == both[1]
    assert all(both[0].values())


@pytest.mark.parametrize("style", ["llama", "gpt"])
@pytest.mark.parametrize("options", OPTIONS, ids=["torch", "torch-sp", "megatron"])
def test_edges_agree_with_the_issue_order(embedded_store: Store, style: str, options: GraphOptions) -> None:
    """In a task every edge goes from a smaller number to a larger one, and no two ops share one:
    otherwise a trace in issue order would name a dependency that comes later."""
    graph, plan = example(style, options)
    write_graph(embedded_store, graph)
    instance = instantiate(embedded_store, graph.key, plan)
    tasks = {"forward": 0, "input_gradient": 1, "weight_gradient": 1, "step": 2}
    ops: list[tuple[Any, ...]] = list(
        embedded_store.query(
            "MATCH (o:Op {instance: $instance}) RETURN o.id AS id, o.class AS class, o.template AS t, o.`order` AS at",
            {"instance": instance},
        ).rows
    )
    at = {id: (number, tasks[template], order) for id, number, template, order in ops}
    assert len(set(at.values())) == len(at)
    deps = embedded_store.query(
        "MATCH (a:Op {instance: $instance})-[:DEP]->(b:Op) RETURN a.id AS a, b.id AS b", {"instance": instance}
    ).rows
    assert [(a, b) for a, b in deps if at[a][0] != at[b][0] or at[a] >= at[b]] == []
    assert len(deps) > len(ops)
