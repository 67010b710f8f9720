"""Statements that differ only by a label or a relationship of the schema: made from its table when they are loaded.

Their names are in folders next to those that someone wrote. They have headers, and are linted and planned like them.
`scripts/lint_cypher --show NAME` prints one.
"""

import functools
from collections.abc import Iterator, Mapping

from stagedb.store.dump_contents import EDGE_KINDS, NODE_KINDS
from stagedb.store.lifecycle_statements import lifecycle
from stagedb.store.listing_statements import listing_statements
from stagedb.store.schema import LABELS, OWNERS, RELATIONSHIPS, STORE, parent_of
from stagedb.store.schema_forms import Relationship
from stagedb.store.team_statements import marks, team


@functools.cache
def label_statements() -> Mapping[str, str]:
    """By name, such as `lifecycle/claim_graph`, the text with its header."""
    folders = {
        "lifecycle": lambda: (*lifecycle(), *marks()),
        "team": team,
        "build": _build,
        "around": _around,
        "known": _known,
        "joined": _joined,
        "check": _check,
        "dump": _dump,
    }
    made = {f"{folder}/{stem}": text for folder, parts in folders.items() for stem, text in parts()}
    return {**listing_statements(), **made}


def _build() -> Iterator[tuple[str, str]]:
    """Ops and tensors of a symbolic graph, and which tensors ops read and write: written, and read back."""
    for edge in RELATIONSHIPS:
        if edge.source == "Graph" and edge.owns:
            low = edge.type.removeprefix("HAS_").lower()
            values = {"low": low, "type": edge.type, "label": edge.target}
            yield f"{low}s", _WRITE_PARTS.format(**values)
            yield f"all_{low}s", _ALL_PARTS.format(**values)
        elif (edge.source, edge.target) == ("SymOp", "SymTensor"):
            low = edge.type.lower()
            values = {"one": low.removesuffix("s"), "each": low, "type": edge.type}
            yield low, _WRITE_SLOTS.format(**values)
            yield f"all_{low}", _ALL_SLOTS.format(**values)


_WRITE_PARTS = """\
// Write {low}s of a symbolic graph.
//
// mode: writes
// param graph: string — the graph's id
// param rows: map[] — the properties of each {low}, id first
MATCH (g:Graph {{id: $graph}})
UNWIND $rows AS row
MERGE (n:{label} {{id: row.id}})
SET n += row
MERGE (n)<-[:{type}]-(g)
"""

_ALL_PARTS = """\
// The {low}s of a graph with all their properties, in the graph's order.
//
// mode: reads
// param id: string — the graph's id
// column {low}: map — its properties
MATCH (:Graph {{id: $id}})-[:{type}]->(n:{label})
WITH properties(n) AS {low}
RETURN {low}
ORDER BY {low}.number
"""

_WRITE_SLOTS = """\
// Connect symbolic ops to the tensors that they {one}. An op may {one} a tensor twice, in two slots.
//
// mode: writes
// param rows: map[] — op and tensor: their ids; slot
UNWIND $rows AS row
MATCH (o:SymOp {{id: row.op}})
MATCH (t:SymTensor {{id: row.tensor}})
MERGE (t)<-[:{type} {{slot: row.slot}}]-(o)
"""

_ALL_SLOTS = """\
// The tensors that each op of a graph {each}, by slot.
//
// mode: reads
// param id: string — the graph's id
// column op: string — the op's name
// column tensors: string[] — names of tensors
MATCH (:Graph {{id: $id}})-[:HAS_OP]->(o:SymOp)-[r:{type}]->(t:SymTensor)
WITH o.name AS op, r.slot AS slot, t.name AS tensor
ORDER BY op, slot
RETURN op, collect(tensor) AS tensors
"""


def _around() -> Iterator[tuple[str, str]]:
    """A node of each label that users see, with its neighbours."""
    for label in LABELS:
        if label is not STORE and label.unique == "id":
            state = ", state: 'ready'" if label.name in OWNERS else ""
            yield label.name.lower(), _AROUND.format(label=label.name, state=state)


_AROUND = """\
// A {label} node and its neighbours: how many there are of each kind, and the first ones by id.
// No row if there is no such node, or if it is not complete.
//
// mode: reads
// param id: string — the node's id
// param limit: integer — at most so many neighbours of each kind
// column node: map — the node's properties
// column node_labels: string[] — its labels
// column type: string? — kind of edge; null for a node without neighbours
// column out: boolean? — the edge leads from the node to the neighbour
// column labels: string[]? — labels of these neighbours
// column count: integer — how many there are
// column members: map[] — properties of the first ones, and of their edges
MATCH (n:{label} {{id: $id{state}}})
OPTIONAL MATCH (n)-[r]-(m)
WHERE coalesce(m.state, 'ready') = 'ready'
WITH n, r, m
ORDER BY m.id
WITH n, type(r) AS type, startNode(r) = n AS out, labels(m) AS labels, count(m) AS count,
  collect({{node: m, edge: r}})[..$limit] AS some
RETURN properties(n) AS node, labels(n) AS node_labels, type, out, labels, count,
  [each IN some | {{properties: properties(each.node), edge: properties(each.edge)}}] AS members
ORDER BY type, out, labels
"""


def _known() -> Iterator[tuple[str, str]]:
    """Nodes of each label that users see, by their ids."""
    for label in LABELS:
        if label is not STORE and label.unique == "id":
            state = ", state: 'ready'" if label.name in OWNERS else ""
            yield label.name.lower(), _KNOWN.format(label=label.name, state=state)


_KNOWN = """\
// Some {label} nodes by their ids. Those that are not there, or not complete, have no row.
//
// mode: reads
// param ids: string[] — the nodes' ids
// column node: map — the node's properties
// column labels: string[] — its labels
UNWIND $ids AS id
MATCH (n:{label} {{id: id{state}}})
RETURN properties(n) AS node, labels(n) AS labels
"""


def _joined() -> Iterator[tuple[str, str]]:
    """Relationships between known nodes, from the side that has few of them: a member has one owner, which may have
    very many members.
    """
    for label in LABELS:
        if label is STORE or label.unique != "id":
            continue
        out = {edge.type: None for edge in RELATIONSHIPS if edge.source == label.name and not edge.owns}
        into = {edge.type: None for edge in RELATIONSHIPS if edge.target == label.name and edge.owns}
        for way, types, start, end in (("out", out, "-", "->"), ("in", into, "<-", "-")):
            if types:
                pattern = f"(n){start}[r:{'|'.join(types)}]{end}(m)"
                yield f"{label.name.lower()}_{way}", _JOINED.format(label=label.name, pattern=pattern)


_JOINED = """\
// Relationships between some {label} nodes and other nodes, all of which the caller knows: {pattern}.
//
// mode: reads
// param ids: string[] — ids of the {label} nodes
// param others: string[] — ids of the nodes at the other end, which may be of any label
// column id: string — id of the {label} node
// column type: string — type of the relationship
// column labels: string[] — labels of the other node
// column other: string — its id
// column edge: map — properties of the relationship
UNWIND $ids AS id
MATCH (n:{label} {{id: id}})
MATCH {pattern}
WHERE m.id IN $others
RETURN n.id AS id, type(r) AS type, labels(m) AS labels, m.id AS other, properties(r) AS edge
"""


def _check() -> Iterator[tuple[str, str]]:
    """The statements that find and remove nodes that belong to nothing, with their names."""
    for name, (label, end) in orphans().items():
        finished = " AND n.state = 'ready'" if label in OWNERS else ""
        values = {"label": label, "end": end, "finished": finished}
        yield f"lost_{name}", _LOST.format(**values)
        yield f"remove_{name}", _REMOVE_LOST.format(**values)


def orphans() -> dict[str, tuple[str, str]]:
    """By name of a label what its nodes belong to: the pattern that leads from a node `n` to `p`.

    Ranks are joined by a property, and have statements of their own.
    """
    found = {
        kind.label.lower(): (kind.label, f"(n)<-[:{kind.path[-1].type}]-(p:{kind.path[-1].source})")
        for kind in NODE_KINDS
        if kind.path
    }
    parents = ((owner, parent_of(owner)) for owner in OWNERS)
    found |= {owner.lower(): (owner, f"(n)-[:OF]->(p:{parent})") for owner, parent in parents if parent}
    for label, type_ in (("Name", "NAMES"), ("Note", "ABOUT")):
        targets = [edge.target for edge in RELATIONSHIPS if (edge.type, edge.source) == (type_, label)]
        found[label.lower()] = label, f"(n)-[:{type_}]->(p:{'|'.join(targets)})"
    return found


_LOST = """\
// The {label} nodes that belong to nothing: a relationship of theirs is missing. What is unfinished is left out.
//
// mode: reads
// column id: string — its id
MATCH (n:{label})
OPTIONAL MATCH {end}
WITH n, p
WHERE p IS NULL{finished}
RETURN n.id AS id
ORDER BY id
"""

_REMOVE_LOST = """\
// Delete {label} nodes that still belong to nothing.
//
// mode: writes
// param rows: map[] — id
// column removed: integer — how many
UNWIND $rows AS row
MATCH (n:{label} {{id: row.id}})
OPTIONAL MATCH {end}
WITH n, p
WHERE p IS NULL{finished}
DETACH DELETE n
RETURN count(*) AS removed
"""


def _dump() -> Iterator[tuple[str, str]]:
    """Each label and relationship, read and written."""
    by_name = {label.name: label for label in LABELS}
    for kind in NODE_KINDS:
        low, label = kind.owner.lower(), kind.label
        if label == kind.owner:
            start, parent = f"(n:{label} {{id: $id}})", "null"
        elif kind.path:
            start, parent = _below(kind.owner, kind.path, "n", "p"), "p.id"
        else:
            form = by_name[label]
            start = f"(n:{label} {{{form.member_by}: $id}})\nWHERE n.`{form.indexes[0][-1]}` >= 0"
            parent = f"n.{form.member_by}"
        yield f"nodes_{label.lower()}", _NODES.format(label=label, low=low, start=start, parent=parent)
        if label != kind.owner:
            for also in by_name[label].also or ("",):
                stem = f"make_{label.lower()}" + (f"_{also.lower()}" if also else "")
                match, create = (
                    ("", "")
                    if not kind.path
                    else (f"MATCH (p:{kind.path[-1].source} {{id: row.parent}})\n", f"(p)-[:{kind.path[-1].type}]->")
                )
                labels = f"{label}:{also}" if also else label
                yield stem, _MAKE.format(label=labels, match=match, create=create)
    for each in EDGE_KINDS:
        edge = each.edge
        start = _below(each.owner, each.path, "a", "") if each.path else f"(a:{edge.source} {{id: $id}})"
        values = {"type": edge.type, "source": edge.source, "target": edge.target, "low": each.owner.lower()}
        yield f"edges_{each.stem}", _EDGES.format(start=start, **values)
        yield f"join_{each.stem}", _JOIN.format(**values)


def _below(owner: str, path: tuple[Relationship, ...], last: str, before: str) -> str:
    """The pattern of a label below its owner. last, before: variables of its node and of the node above it."""
    steps = [f"({before if len(path) == 1 else ''}:{owner} {{id: $id}})"]
    for number, edge in enumerate(path, 1):
        name = last if number == len(path) else before if number == len(path) - 1 else ""
        steps.append(f"-[:{edge.type}]->({name}:{edge.target})")
    return "".join(steps)


_NODES = """\
// The {label} nodes of one {low}.
//
// mode: reads
// param id: string — the {low}'s id
// column also: string[] — all labels of the node
// column parent: string? — the id of the node that it belongs to
// column values: map — its properties
MATCH {start}
RETURN labels(n) AS also, {parent} AS parent, properties(n) AS values
"""

_MAKE = """\
// Write {label} nodes, each joined to the node that it belongs to.
//
// mode: writes
// param rows: map[] — id; parent: the id of that node; values: all properties
UNWIND $rows AS row
{match}CREATE {create}(n:{label} {{id: row.id}})
SET n += row.values
"""

_EDGES = """\
// The {type} relationships from {source} to {target} nodes of one {low}.
//
// mode: reads
// param id: string — the {low}'s id
// column source: string — the id where it begins
// column target: string — the id where it ends
// column values: map — its properties
MATCH {start}
MATCH (a)-[r:{type}]->(b:{target})
RETURN a.id AS source, b.id AS target, properties(r) AS values
"""

_JOIN = """\
// Write {type} relationships from {source} to {target} nodes.
//
// mode: writes
// param rows: map[] — source, target: ids; values: properties
UNWIND $rows AS row
MATCH (a:{source} {{id: row.source}})
MATCH (b:{target} {{id: row.target}})
CREATE (a)-[r:{type}]->(b)
SET r += row.values
"""
