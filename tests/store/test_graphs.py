"""Symbolic graphs in the store: written once, read back equal."""

from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import GraphOptions
from stagedb.store import Store, read_graph, write_graph
from tests.instances.small_graph import small_graph


def test_a_graph_is_read_back_as_it_was_written(store: Store) -> None:
    graph = small_graph()
    assert write_graph(store, graph)
    assert read_graph(store, graph.key) == graph


def test_a_graph_written_twice_is_one(store: Store) -> None:
    graph = small_graph()
    assert write_graph(store, graph)
    assert not write_graph(store, graph)
    assert [row["id"] for row in store.read("catalog/graphs")] == [graph.key]
    assert read_graph(store, graph.key) == graph


def test_a_graph_of_thousands_of_tensors_is_written(embedded_store: Store) -> None:
    """It is written sooner than its lease is renewed, which changes the node that all tensors are joined to."""
    graph = build_graph(load_card("gemma-4-e2b-text"), GraphOptions())
    assert len(graph.tensors) > 4_000
    assert write_graph(embedded_store, graph)
    assert read_graph(embedded_store, graph.key) == graph
