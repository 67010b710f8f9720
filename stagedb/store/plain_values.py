"""Values of a free query as plain data: values of JSON in place of the database's own types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import neo4j.graph

if TYPE_CHECKING:
    from stagedb.store.answer_parts import FoundGraph, QueryPlan


@dataclass(frozen=True)
class Table:
    """The answer to a query. Nodes, relationships and paths are dicts. Times and points are text.

    cut: the query has more rows than the caller wanted.
    unwritten: ranks that the query could reach, and that have no nodes yet.
    graph: the nodes and relationships in the rows, if they were wanted. plan: that of a query with EXPLAIN or PROFILE.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool = False
    unwritten: int = 0
    graph: "FoundGraph | None" = None
    plan: "QueryPlan | None" = None


def plain(value: Any) -> Any:
    """A driver's value as numbers, text, booleans, None, lists and dicts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, neo4j.graph.Node):
        return {"labels": sorted(value.labels), "properties": plain(dict(value.items()))}
    if isinstance(value, neo4j.graph.Relationship):
        return {"type": value.type, "properties": plain(dict(value.items()))}
    if isinstance(value, neo4j.graph.Path):
        return {
            "nodes": [plain(node) for node in value.nodes],
            "relationships": [plain(r) for r in value.relationships],
        }
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return value.iso_format() if hasattr(value, "iso_format") else str(value)
