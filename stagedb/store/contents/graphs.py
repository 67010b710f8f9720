"""Symbolic graphs, written to a store and read back equal."""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.ir.symbolic_graph import FORMAT, SymGraph
from stagedb.lazy_names import deferred
from stagedb.mentions import call
from stagedb.store.connection import Store
from stagedb.store.events import Input
from stagedb.store.leases import building, read_whole
from stagedb.store.typed_properties import graph_properties

if TYPE_CHECKING:
    from stagedb.graphs import graph_rows
else:
    # It imports all operators; an export reads no more of a graph than its format.
    (graph_rows,) = deferred("stagedb.graphs.graph_rows")


def write_graph(store: Store, graph: SymGraph, inputs: Sequence[Input] = ()) -> bool:
    """Write a graph to the store, unless it exists. True if it was written. inputs: what else it was made from.

    The graph is invisible until it is complete. If two processes write the same graph, one waits for the other.
    """
    properties = {
        **graph_properties(graph.options, graph.sizes),
        "name": graph.name,
        "recipe": graph.recipe,
        "options": graph.options,
        "sizes": json.dumps(graph.sizes, sort_keys=True),
        "blocks": json.dumps([graph_rows.block_row(block) for block in graph.blocks]),
        "format": FORMAT,
        "content": graph_rows.graph_digest(graph),
    }
    with building(store, "Graph", graph.key, properties, (*inputs, Input.of("options", graph.options))) as lease:
        if lease is None:
            return False
        for name, rows in graph_rows.graph_rows(graph).items():
            store.write_rows(f"build/{name}", rows, **({"graph": graph.key} if name in _OF_GRAPH else {}))
            lease.renew()
    return True


def read_graph(store: Store, id: str) -> SymGraph:
    """The graph with this id, equal to the one that was written. Raises UsageError if there is none."""
    return read_whole(store, "Graph", id, partial(_read, store, id))


def _read(store: Store, id: str) -> SymGraph:
    (row,) = store.read("build/graph", id=id)
    check_form(id, row["format"])
    return graph_rows.graph_of(
        {**row, "id": id},
        [each["tensor"] for each in store.read("build/all_tensors", id=id)],
        [each["op"] for each in store.read("build/all_ops", id=id)],
        store.read("build/all_edges", id=id),
        _ends(store, "reads", id),
        _ends(store, "writes", id),
    )


def check_form(id: str, found: int) -> None:
    """Raise UsageError for a stored graph of another format. id: the graph's. found: its format."""
    if found != FORMAT:
        way = f"remove it with {call('rm', id)} and build it again" if found < FORMAT else "upgrade stagedb"
        raise UsageError(f"graph {id} has format {found}, and this stagedb reads format {FORMAT}: {way}")


_OF_GRAPH = ("tensors", "ops")
"""Statements that connect the nodes they write to their graph."""


def _ends(store: Store, name: str, id: str) -> dict[str, tuple[str, ...]]:
    return {row["op"]: tuple(row["tensors"]) for row in store.read(f"build/all_{name}", id=id)}
