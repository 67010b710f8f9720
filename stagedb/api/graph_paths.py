"""The shortest path between two nodes of the store: asked as a free query, which people can read, change and run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.store import LABELS, RELATIONSHIPS, Store
from stagedb.store.answer_parts import FoundGraph

FARTHEST = 60
"""Relationships of a path over one type, at most."""
FAR = 8
"""The same over all types: almost everything in a store is joined within some more."""

_LABELS = frozenset(label.name for label in LABELS)


@dataclass(frozen=True)
class ShortestPath:
    """A shortest path.

    text, params: the query whose answer it is. graph: its nodes and relationships; empty if there is no path as long as
    the query allows. over: the type of its relationships; None for all types.
    """

    text: str
    params: Mapping[str, str]
    graph: FoundGraph
    over: str | None


def types_between(source: str, target: str) -> tuple[str, ...]:
    """Types of relationships that lead from label to label, so that a path can follow one of them alone.

    source, target: labels. Returns no types for different labels.
    """
    if source != target:
        return ()
    return tuple(dict.fromkeys(edge.type for edge in RELATIONSHIPS if (edge.source, edge.target) == (source, target)))


def shortest_path(store: Store, source: str, target: str, over: str | None, timeout: float) -> ShortestPath:
    """A path between two nodes, by their keys, such as `Op/…`.

    over: the type of all its relationships; their direction counts if there is such a path, in either direction. None:
    all types, and the direction does not count. timeout: seconds for each of the queries. source, target: keys of the
    nodes. Raises UsageError for a key that is none, for an unknown type, and for a path from a node to itself.
    """
    params = {"from": _id(source), "to": _id(target)}
    if source == target:
        raise UsageError("a path needs two nodes: choose another end")
    if over is not None and over not in {edge.type for edge in RELATIONSHIPS}:
        raise UsageError(f"no relationship has the type {shown(over)}: docs/data-model.md lists them")
    found = ShortestPath("", params, FoundGraph(), over)
    for text in _texts(source.partition("/")[0], target.partition("/")[0], over):
        answer = store.query(text, params, timeout=timeout, most=1, ranks=False, graph=True)
        found = ShortestPath(text, params, answer.graph or FoundGraph(), over)
        if found.graph.nodes:
            break
    return found


def _id(key: str) -> str:
    label, _, id_ = key.partition("/")
    if label not in _LABELS or not id_:
        raise UsageError(f"{shown(key)} names no node: a label and an id are needed, such as Instance/72846b91ed30")
    return id_


def _texts(source: str, target: str, over: str | None) -> Iterator[str]:
    """The queries to try in turn. Labels and types are those of the schema."""
    start = f"MATCH (a:{source} {{id: $from}})\nMATCH (b:{target} {{id: $to}})\nMATCH p = shortestPath("
    if over is None:
        yield f"{start}(a)-[*..{FAR}]-(b))\nRETURN p"
        return
    for before, after in (("-", "->"), ("<-", "-"), ("-", "-")):
        yield f"{start}(a){before}[:{over}*..{FARTHEST}]{after}(b))\nRETURN p"
