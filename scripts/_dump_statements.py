"""The statements of cypher/dump: each label and relationship, read and written, from the schema's table."""

from collections.abc import Iterator

from stagedb.store.dump_contents import EDGE_KINDS, NODE_KINDS
from stagedb.store.schema import LABELS
from stagedb.store.schema_forms import Relationship

FOLDER = "dump"


def statements() -> Iterator[tuple[str, str]]:
    """Name and text of every statement."""
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
