"""Values of a free query as plain data, the nodes and relationships in an answer, and the plan of the query."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import neo4j
import neo4j.graph

# Values of a free query as plain data: values of JSON in place of the database's own types.


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


@dataclass(frozen=True)
class FoundNode:
    """A node in an answer: its labels and its properties."""

    labels: tuple[str, ...]
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class FoundEdge:
    """A relationship in an answer. source, target: the engine's ids of its nodes, which may not be in the answer."""

    type: str
    source: str
    target: str
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class FoundGraph:
    """The nodes and relationships in an answer, in the order of the rows. nodes, edges: by the engine's ids."""

    nodes: dict[str, FoundNode] = field(default_factory=dict)
    edges: dict[str, FoundEdge] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Add the nodes and relationships in a value of the driver.

        value: a node, a relationship, a path, a list or map of these, or any other value.
        """
        if isinstance(value, neo4j.graph.Node):
            # The ends of a relationship come without labels and properties where only the relationship is returned.
            if value.labels or len(value):
                self.nodes[value.element_id] = FoundNode(tuple(sorted(value.labels)), plain(dict(value.items())))
        elif isinstance(value, neo4j.graph.Relationship):
            self._add_edge(value)
        elif isinstance(value, neo4j.graph.Path):
            for each in (*value.nodes, *value.relationships):
                self.add(each)
        elif isinstance(value, Mapping):
            for each in value.values():
                self.add(each)
        elif isinstance(value, list | tuple | set | frozenset):
            for each in value:
                self.add(each)

    def _add_edge(self, value: neo4j.graph.Relationship) -> None:
        source, target = value.nodes
        if source is not None and target is not None:
            self.edges[value.element_id] = FoundEdge(
                value.type, source.element_id, target.element_id, plain(dict(value.items()))
            )


@dataclass(frozen=True)
class PlanStep:
    """An operator of an execution plan.

    depth: how many operators take its rows on the way to the answer. operator, details: as the engine writes them.
    estimated: rows that the planner expects. rows, hits: rows and database accesses when the query ran; None if it did
    not run.
    """

    depth: int
    operator: str
    details: str
    estimated: float | None
    rows: int | None
    hits: int | None


@dataclass(frozen=True)
class QueryPlan:
    """How an engine answers a query. text: as the engine writes it. steps: its operators, the last one first; empty for
    an engine that gives the text alone. ran: the query was run, and the plan has what it took.
    """

    text: str
    steps: tuple[PlanStep, ...]
    ran: bool


def plan_of(summary: neo4j.ResultSummary) -> QueryPlan | None:
    """The plan of a query that asks for it with EXPLAIN or PROFILE; None for others.

    summary: the driver's, of the query's result.
    """
    found = summary.profile or summary.plan
    if not found:
        return None
    text = str(found.get("args", {}).get("string-representation", "")).strip()
    return QueryPlan(text, tuple(_steps(found, 0)) if found.get("children") else (), summary.profile is not None)


def _steps(found: Mapping[str, Any], depth: int) -> Iterator[PlanStep]:
    args = found.get("args", {})
    yield PlanStep(
        depth,
        str(found.get("operatorType", "")).partition("@")[0],
        str(args.get("Details", "")),
        args.get("EstimatedRows"),
        args.get("Rows"),
        args.get("DbHits"),
    )
    # The first input of an operator has its depth, the others one more, as in the plans that the engine writes.
    for number, child in enumerate(found.get("children", ())):
        yield from _steps(child, depth + (number > 0))
