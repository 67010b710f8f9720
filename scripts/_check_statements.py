"""The statements of cypher/check: what belongs to nothing, found and removed, from the schema's table."""

from collections.abc import Iterator

from stagedb.store.dump_contents import NODE_KINDS
from stagedb.store.schema import OWNERS, RELATIONSHIPS, parent_of

FOLDER = "check"


def statements() -> Iterator[tuple[str, str]]:
    """Name and text of every statement."""
    yield from _OTHERS.items()
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

_OTHERS = {
    "lost_rank": """\
// The instances that are not there, and of which there are ranks.
//
// mode: reads
// column id: string — the id of the instance
MATCH (n:Rank)
WITH DISTINCT n.instance AS id
OPTIONAL MATCH (p:Instance {id: id})
WITH id, p
WHERE p IS NULL
RETURN id
ORDER BY id
""",
    "remove_rank": """\
// Delete the ranks of instances that are still not there.
//
// mode: writes
// param rows: map[] — id: that of the instance
// column removed: integer — how many
UNWIND $rows AS row
OPTIONAL MATCH (p:Instance {id: row.id})
WITH row, p
WHERE p IS NULL
MATCH (n:Rank {instance: row.id})
WHERE n.`rank` >= 0
DETACH DELETE n
RETURN count(*) AS removed
""",
    "things": """\
// All complete graphs, instances and profiles, each with what it is made from.
//
// mode: reads
// column kind: string — Graph, Instance or Profile
// column id: string — its id
// column parents: string[] — the ids of the graphs or instances that it is made from; there must be one, or none
MATCH (n:Graph|Instance|Profile {state: 'ready'})
OPTIONAL MATCH (n)-[:OF]->(p:Graph|Instance)
WITH n, collect(p.id) AS parents
RETURN CASE WHEN n:Graph THEN 'Graph' WHEN n:Instance THEN 'Instance' ELSE 'Profile' END AS kind, n.id AS id, parents
ORDER BY kind, id
""",
}
