"""Nodes of the store and their neighbours, to click from one to the next: bounded, one statement for each node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.store import LABELS, Label, Store, names

MOST_OPEN = 12
"""Nodes of a sub-graph whose neighbours are shown."""
FEW = 10
"""Neighbours of each kind that an open node shows at first."""
MANY = 60
"""Neighbours of a kind that it shows if more are wanted."""

_LABELS: Mapping[str, Label] = {label.name: label for label in LABELS}


@dataclass(frozen=True)
class GraphNode:
    """A node: its label in the schema, its further labels, and its properties."""

    label: str
    also: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Label and id: what names the node in the whole store."""
        return f"{self.label}/{self.properties.get('id')}"

    @property
    def caption(self) -> str:
        """A short text for it: a property that the schema names."""
        found = self.properties.get(_LABELS[self.label].style[1])
        return self.label if found is None else str(found)

    @property
    def colour(self) -> str:
        """Its colour in drawings."""
        return _LABELS[self.label].style[0]


@dataclass(frozen=True)
class GraphEdge:
    """An edge between two nodes, by their keys."""

    type: str
    source: str
    target: str
    properties: Mapping[str, Any]


@dataclass(frozen=True)
class NeighbourKind:
    """Neighbours of one kind: the kind of edge, whether it leads to them, their labels and number, and those shown."""

    type: str
    out: bool
    labels: tuple[str, ...]
    count: int
    shown: tuple[str, ...]

    @property
    def name(self) -> str:
        """Text by which an address names it."""
        return f"{self.type}.{'out' if self.out else 'in'}.{'.'.join(self.labels)}"


@dataclass(frozen=True)
class SubGraph:
    """A part of the store: its nodes by key, and the kinds of neighbours of each open node, in the request's order."""

    nodes: Mapping[str, GraphNode]
    edges: tuple[GraphEdge, ...]
    kinds: Mapping[str, tuple[NeighbourKind, ...]]


def sub_graph(store: Store, opened: Sequence[str], more: Sequence[tuple[str, str]] = ()) -> SubGraph:
    """Open nodes with their neighbours. opened: keys such as `Instance/72846b91ed30244dec2f`.

    more: keys of open nodes with a kind (`NeighbourKind.name`) of which more are shown. Raises UsageError for a node
    that is not there, and for more than `MOST_OPEN` of them.
    """
    if len(opened) > MOST_OPEN:
        raise UsageError(f"a sub-graph has at most {MOST_OPEN} open nodes: begin again at one of them")
    nodes: dict[str, GraphNode] = {}
    edges: dict[tuple[str, str, str], GraphEdge] = {}
    kinds: dict[str, tuple[NeighbourKind, ...]] = {}
    for key in dict.fromkeys(opened):
        node, found = _around(store, key, {name for of, name in more if of == key})
        nodes[node.key] = node
        kinds[node.key] = tuple(kind for kind, _ in found)
        for kind, members in found:
            for other, properties in members:
                nodes.setdefault(other.key, other)
                ends = (node.key, other.key) if kind.out else (other.key, node.key)
                edges[kind.type, *ends] = GraphEdge(kind.type, *ends, properties)
    return SubGraph(nodes, tuple(edges.values()), kinds)


_Members = list[tuple[GraphNode, Mapping[str, Any]]]


def _around(store: Store, key: str, more: set[str]) -> tuple[GraphNode, list[tuple[NeighbourKind, _Members]]]:
    """A node, and its neighbours by kind."""
    label, _, id = key.partition("/")
    statement = f"around/{label.lower()}"
    if label not in _LABELS or statement not in names() or not id:
        raise UsageError(f"{shown(key)} names no node: a label and an id are needed, such as Instance/72846b91ed30")
    rows = store.read(statement, id=id, limit=MANY if more else FEW)
    if not rows:
        raise UsageError(f"the store has no complete {label} {shown(id)}: it may have been removed")
    node = GraphNode(label, _others(rows[0]["node_labels"], label), rows[0]["node"])
    found = []
    for row in rows:
        if not row["count"]:
            continue
        other = next((name for name in row["labels"] if name in _LABELS), None)
        if other is None:
            continue  # of another program
        kind = NeighbourKind(row["type"], row["out"], (other, *_others(row["labels"], other)), row["count"], ())
        limit = MANY if kind.name in more else FEW
        members = [
            (GraphNode(other, kind.labels[1:], each["properties"]), each["edge"] or {})
            for each in row["members"][:limit]
        ]
        keys = tuple(member.key for member, _ in members)
        found.append((NeighbourKind(kind.type, kind.out, kind.labels, kind.count, keys), members))
    return node, found


def _others(labels: Sequence[str], label: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in labels if name != label))
