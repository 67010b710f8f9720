"""A graph without anything in it, which tensors can be written to."""

from stagedb.store import Store, building


def bare_graph(store: Store, id: str = "x") -> str:
    """The id of a graph that is in the store, whole and empty."""
    with building(store, "Graph", id, {"name": "bare"}):
        pass
    return id
