"""Symbolic graphs in the store: written once, read back equal."""

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
