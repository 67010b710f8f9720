"""Graphs with more keys than queries: a step of decoding or a chunk of a prefill, whose queries are the last ones."""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.ir.operators import load
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.mentions import Word

NO_SEMANTICS = "{}"
"""The semantics of ops without an operator: buckets, and messages that are passed on."""


def check_lengths(graph: SymGraph, env: Mapping[str, int]) -> None:
    """Raise UsageError if a graph cannot have the queries (S) and the keys (SK) of a sequence in `env`.

    Each query has a key, so that there are no fewer keys. There are as many where a graph has a backward, and where an
    operator needs the queries and keys of the same positions.
    """
    queries, keys = env["S"], env["SK"]
    if keys == queries:
        return
    about = f"{graph.name} with {queries:,} queries and {keys:,} keys of a sequence"
    if keys < queries:
        raise UsageError(f"{about} is not possible: each query has a key of its own, so that SK is at least S")
    if any(op.template.differentiates for op in graph.ops):
        raise UsageError(
            f"{about} is not possible in training, where each position has a query and a key: build the graph with "
            f"{Word('workflow', 'forward-only')}, or leave SK out"
        )
    for op in graph.ops:
        reason = "" if op.semantics == NO_SEMANTICS else load(op.semantics).alike
        if reason:
            raise UsageError(f"{about} is not possible, because of {op.name}: {reason}")
