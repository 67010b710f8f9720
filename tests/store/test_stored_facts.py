"""What operators and tensors are to their model, in a store: as written, changed, and in graphs of another form."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from stagedb.errors import StagedbError, UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.facts import Casts, InExperts, OpFacts
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.plans import Plan
from stagedb.store import Store, read_graph, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.stored_programs import read_workload
from tests.ir.tiny import card

WORDS: Mapping[str, Any] = {"dp": 4, "ep": 2, "zero": 3, "expert_unit": True}
PLAN = Plan.from_mapping(WORDS)


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


def test_a_graph_of_another_form_is_refused_by_all_that_read_it(store: Store) -> None:
    instance = made(store)
    graph = read_workload(store, instance).graph
    change(store, f"MATCH (g:Graph) SET g.format = {FORMAT - 1}")
    readers: Mapping[str, Callable[[], object]] = {
        "graph": lambda: read_graph(store, graph),
        "another instance": lambda: instantiate(store, graph, Plan.from_mapping({**WORDS, "dp": 8})),
        "workload": lambda: read_workload(store, instance),
        "memory": lambda: analyse(store, instance),
    }
    for name, read in readers.items():
        with pytest.raises(UsageError, match=rf"format {FORMAT - 1}, and this stagedb reads format {FORMAT}: remove"):
            read()
            raise AssertionError(name)


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
