"""What operators and tensors are to their model, in a store: as written, changed, and in graphs of an older form."""

from collections.abc import Mapping
from typing import Any

import pytest

from stagedb.build.model_graph import build_graph
from stagedb.errors import StagedbError, UsageError
from stagedb.ir.facts import Casts, InExperts, OpFacts
from stagedb.plans import Plan
from stagedb.store import Store, read_graph, write_graph
from stagedb.store.contents.instance_reading import read_workload
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.memory import analyse
from tests.ir.tiny import card

WORDS: Mapping[str, Any] = {"dp": 4, "ep": 2, "zero": 3, "expert_unit": True}
PLAN = Plan.from_mapping(WORDS)
FORM_5 = (
    "MATCH (g:Graph) SET g.format = 5",
    "MATCH (o:SymOp) REMOVE o.origin, o.part, o.module, o.depth, o.experts, o.casts, o.ring",
    "MATCH (t:SymTensor) REMOVE t.depth, t.experts, t.joined, t.owner, t.word",
)
"""How a store before has a graph: without facts."""


def change(store: Store, *texts: str) -> None:
    with store._session("WRITE") as session:
        for text in texts:
            session.run(text).consume()


def made(store: Store) -> str:
    """An instance with units of experts."""
    graph = build_graph(card("moe"), PLAN.options)
    write_graph(store, graph)
    assert read_graph(store, graph.key) == graph
    assert {each.facts.experts for each in graph.ops} == {None, *InExperts}
    return instantiate(store, graph.key, PLAN)


def facts(store: Store, instance: str) -> Mapping[str, OpFacts]:
    return {
        name: each
        for columns in read_workload(store, instance).classes
        for name, each in zip(columns.ops.name, columns.ops.facts, strict=True)
    }


def peaks(store: Store, instance: str) -> list[object]:
    return [{**dict(each.peaks()), **dict(each.ends())} for each in analyse(store, instance)]


def test_a_graph_of_the_form_before_gives_the_same(store: Store) -> None:
    instance = made(store)
    known, held = facts(store, instance), peaks(store, instance)
    assert any(each.experts is InExperts.RETURN for each in known.values())
    change(store, *FORM_5)
    assert facts(store, instance) == known
    assert peaks(store, instance) == held
    graph = read_workload(store, instance).graph
    other = Plan.from_mapping({**WORDS, "dp": 8})
    assert facts(store, instantiate(store, graph, other))


def test_a_fact_that_is_changed_in_the_store_is_what_readers_see(store: Store) -> None:
    instance = made(store)
    graph, repeating = read_workload(store, instance).graph, Plan.from_mapping({**WORDS, "tp": 4})
    change(store, "MATCH (t:SymTensor {name: 'layer.attn.wq.weight'}) SET t.joined = true")
    with pytest.raises(UsageError, match="cannot repeat a head"):
        instantiate(store, graph, repeating)
    change(store, "MATCH (t:SymTensor) REMOVE t.joined", "MATCH (o:SymOp) SET o.casts = 'input'")
    assert instantiate(store, graph, repeating)
    assert {each.casts for each in facts(store, instance).values()} == {Casts.INPUT}


def test_an_instance_whose_graph_lacks_an_operator_is_damaged(store: Store) -> None:
    instance = made(store)
    change(store, "MATCH (o:SymOp {name: 'layer.attn.wq'}) DETACH DELETE o")
    with pytest.raises(StagedbError, match=r"lacks 1 of its operators, such as 'layer\.attn\.wq'"):
        facts(store, instance)
