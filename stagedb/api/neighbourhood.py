"""Nodes of the store, their neighbours and the shortest paths between them: bounded in number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.store import LABELS, RELATIONSHIPS, Label, Store, names
from stagedb.store.answer_parts import FoundGraph

MOST_OPEN = 12
"""Nodes of a sub-graph whose neighbours are shown."""
FEW = 10
"""Neighbours of each kind that an open node shows at first."""
MANY = 60
"""Neighbours of a kind that it shows if more are wanted."""
MOST_FOUND = 300
"""Nodes of answers, and nodes by their keys, that a sub-graph has."""

_LABELS: Mapping[str, Label] = {label.name: label for label in LABELS}


@dataclass(frozen=True)
class GraphNode:
    """A node: its label in the schema, its further labels, and its properties."""

    label: str
    also: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Label and id of the node, which name it in the whole store."""
        return f"{self.label}/{self.properties.get('id')}"

    @property
    def caption(self) -> str:
        """A short text for the node: the value of a property that the schema names."""
        found = self.properties.get(_LABELS[self.label].style[1])
        return self.label if found is None else str(found)

    @property
    def colour(self) -> str:
        """The colour of the node in drawings."""
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
        """The text by which an address names this kind."""
        return f"{self.type}.{'out' if self.out else 'in'}.{'.'.join(self.labels)}"


@dataclass(frozen=True)
class SubGraph:
    """A part of the store: its nodes by key, and the kinds of neighbours of each open node, in the request's order.

    left_out: nodes of answers for which it has no room. unknown: nodes of answers that no label of the schema has.
    """

    nodes: Mapping[str, GraphNode]
    edges: tuple[GraphEdge, ...]
    kinds: Mapping[str, tuple[NeighbourKind, ...]]
    left_out: int = 0
    unknown: int = 0


@dataclass
class _Parts:
    """A sub-graph that is being read."""

    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], GraphEdge] = field(default_factory=dict)
    kinds: dict[str, tuple[NeighbourKind, ...]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    unknown: int = 0

    def add_edge(self, type_: str, ends: tuple[str, str], properties: Mapping[str, Any]) -> None:
        self.edges.setdefault((type_, *ends), GraphEdge(type_, *ends, properties))


def sub_graph(
    store: Store,
    opened: Sequence[str],
    more: Sequence[tuple[str, str]] = (),
    known: Sequence[str] = (),
    answers: Sequence[FoundGraph] = (),
    asked: str | None = None,
) -> SubGraph:
    """Open nodes with their neighbours, other nodes, and all relationships between them.

    opened: keys such as `Instance/72846b91ed30244dec2f`. more: keys with a kind (`NeighbourKind.name`) of which more
    are shown; of a node that is not open, these kinds alone. known: keys of nodes without their neighbours. answers:
    nodes and relationships of answers to queries, `MOST_FOUND` at most. asked: the key of a node whose kinds of
    neighbours are wanted. Raises UsageError for a node that is not there, and for more open nodes than `MOST_OPEN`.
    """
    wanted = dict.fromkeys((*opened, *(key for key, _ in more)))
    if len(wanted) > MOST_OPEN:
        raise UsageError(f"a sub-graph has at most {MOST_OPEN} open nodes: begin again at one of them")
    if len(known) > MOST_FOUND:
        raise UsageError(f"a sub-graph has at most {MOST_FOUND} nodes by their keys: begin again at one of them")
    parts = _Parts()
    for key in wanted:
        kinds = {name for of, name in more if of == key}
        node, found = _around(store, key, kinds)
        parts.nodes[node.key] = node
        parts.kinds[node.key] = tuple(kind for kind, _ in found)
        for kind, members in found:
            if key in opened or kind.name in kinds:
                _add_members(parts, node, kind, members)
    for answer in answers:
        _add_answer(parts, answer)
    for node in _known(store, [key for key in known if key not in parts.nodes]):
        parts.nodes[node.key] = node
    if asked is not None and asked not in parts.kinds:
        node, found = _around(store, asked, set())
        parts.nodes.setdefault(node.key, node)
        parts.kinds[node.key] = tuple(kind for kind, _ in found)
    _join(store, parts)
    return SubGraph(parts.nodes, tuple(parts.edges.values()), parts.kinds, len(parts.left_out), parts.unknown)


def can_open(key: str) -> bool:
    """Whether a node's neighbours can be shown: those of ranks are joined by properties.

    key: label and id of the node.
    """
    return f"around/{key.partition('/')[0].lower()}" in names()


def _add_members(parts: _Parts, node: GraphNode, kind: NeighbourKind, members: "_Members") -> None:
    for other, properties in members:
        parts.nodes.setdefault(other.key, other)
        ends = (node.key, other.key) if kind.out else (other.key, node.key)
        parts.add_edge(kind.type, ends, properties)


def parts_of(answer: FoundGraph) -> tuple[dict[str, GraphNode], list[GraphEdge], int]:
    """The nodes of an answer by key, the relationships between them, and the number of nodes of other programs."""
    nodes: dict[str, GraphNode] = {}
    keys: dict[str, str] = {}
    for id_, found in answer.nodes.items():
        label = next((name for name in found.labels if name in _LABELS), None)
        if label is not None and found.properties.get("id") is not None:
            node = GraphNode(label, _others(found.labels, label), found.properties)
            nodes[node.key] = node
            keys[id_] = node.key
    edges = [
        GraphEdge(edge.type, keys[edge.source], keys[edge.target], edge.properties)
        for edge in answer.edges.values()
        if edge.source in keys and edge.target in keys
    ]
    return nodes, edges, len(answer.nodes) - len(keys)


def _add_answer(parts: _Parts, answer: FoundGraph) -> None:
    """Add the nodes of an answer for which there is room, and the relationships between them."""
    nodes, edges, unknown = parts_of(answer)
    parts.unknown += unknown
    for key, node in nodes.items():
        if key in parts.nodes or len(parts.nodes) < MOST_FOUND:
            parts.nodes.setdefault(key, node)
        else:
            parts.left_out.add(key)
    for edge in edges:
        if edge.source in parts.nodes and edge.target in parts.nodes:
            parts.add_edge(edge.type, (edge.source, edge.target), edge.properties)


def _known(store: Store, keys: Sequence[str]) -> Iterator[GraphNode]:
    """Nodes by their keys. Those that were removed meanwhile are left out."""
    for label, ids in _by_label(keys).items():
        statement = f"known/{label.lower()}"
        if label not in _LABELS or statement not in names():
            raise UsageError(f"{shown(f'{label}/{ids[0]}')} names no node: a label and an id are needed")
        for row in store.read(statement, ids=ids):
            yield GraphNode(label, _others(row["labels"], label), row["node"])


def _join(store: Store, parts: _Parts) -> None:
    """Add the relationships between the nodes that are there."""
    ids, there = [key.partition("/")[2] for key in parts.nodes], frozenset(names())
    for label, own in _by_label(list(parts.nodes)).items():
        for way in ("out", "in"):
            statement = f"joined/{label.lower()}_{way}"
            if statement not in there:
                continue
            for row in store.read(statement, ids=own, others=ids):
                other = next((f"{name}/{row['other']}" for name in row["labels"] if name in _LABELS), None)
                if other in parts.nodes:
                    ends = (f"{label}/{row['id']}", other)
                    parts.add_edge(row["type"], ends if way == "out" else (ends[1], ends[0]), row["edge"] or {})


def _by_label(keys: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(keys):
        label, _, id_ = key.partition("/")
        found.setdefault(label, []).append(id_)
    return found


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
            continue  # a node without a label of the schema: another program made it
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


# The shortest path between two nodes of the store: asked as a free query, which people can read, change and run.

FARTHEST = 60
"""Relationships of a path over one type, at most."""
FAR = 8
"""The same over all types: almost everything in a store is joined within some more."""

_LABEL_NAMES = frozenset(label.name for label in LABELS)


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
    if label not in _LABEL_NAMES or not id_:
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
