"""How graphs, instances, profiles, searches and runs are built under a lease, shown, and deleted: a statement for each.

Their names are `lifecycle/claim_graph` and the like. `label_statements` has those of other subjects.
"""

from collections.abc import Iterator

from stagedb.store.schema import NAMED, OWNERS, members, parent_of, part_of
from stagedb.store.schema_forms import Label, Relationship, words_of


def lifecycle() -> Iterator[tuple[str, str]]:
    """The last part of each name, and its text."""
    for owner in OWNERS:
        parent = parent_of(owner)
        values = {
            **words_of(owner),
            "claim_parent": "" if parent is None else _CLAIM_PARENT.format(label=parent, low=parent.lower()),
            "claim_of": "" if parent is None else "\nMERGE (n)-[:OF]->(of)",
            "with_of": "" if parent is None else ", of",
            "names": _REMOVE_NAMES if owner in NAMED else "",
            "with_names": ", names" if owner in NAMED else "",
            "clear_names": "\nFOREACH (x IN names | DETACH DELETE x)" if owner in NAMED else "",
            "parent_note": "" if parent is None else f" No row if its {parent.lower()} is gone or being deleted.",
            "finish_note": "" if parent is None else f", or its {parent.lower()} is gone or being deleted",
            **_version_values(owner),
            "finish_parent": "" if parent is None else _FINISH_PARENT[owner],
            "retire_parts": _RETIRE_PARTS if owner == OWNERS[0] else "",
            "retire_note": ", or complete instances need it" if owner == OWNERS[0] else "",
        }
        for verb, template in _OWNER_TEMPLATES.items():
            yield f"{verb}_{owner.lower()}", template.format(**values)
        if (part := part_of(owner)) is not None:
            yield f"parts_{owner.lower()}", _PARTS.format(**words_of(owner), part_label=part, part=part.lower())
        for label, path in members(owner):
            yield f"clear_{label.name.lower()}", _clear(owner, label, path)


def _version_values(owner: str) -> dict[str, str]:
    """The parts of `version`: an owner and all that it is made from, each with a variable."""
    chain = [owner]
    while (parent := parent_of(chain[-1])) is not None:
        chain.append(parent)
    names = ["n", "of", "base"][: len(chain)]
    links = [
        f"\nOPTIONAL MATCH ({a})-[:OF]->({b}:{label})" for a, b, label in zip(names, names[1:], chain[1:], strict=False)
    ]
    above = " and ".join(label.lower() for label in chain[1:])
    return {
        "version_note": f", or its {above}" if above else "",
        "version_columns": "state and builder of each",
        "version_of": "".join(links),
        "version_list": ", ".join(f"{name}.{what}" for name in names for what in ("state", "builder")),
    }


def _clear(owner: str, label: Label, path: tuple[Relationship, ...]) -> str:
    if path:
        steps = [f"-[:{edge.type}]->(:{edge.target})" for edge in path[:-1]]
        pattern = f"(:{owner} {{id: $id}}){''.join(steps)}-[:{path[-1].type}]->(n:{label.name})"
    else:
        # A composite index serves a search only if the search restricts each of its properties.
        last = label.indexes[0][-1]
        pattern = f"(n:{label.name} {{{label.member_by}: $id}})\nWHERE n.`{last}` >= 0"
    return _CLEAR.format(**{**words_of(owner), "label": label.name}, pattern=pattern)


_CLEAR = """\
// Delete some {label} nodes of one {low}, with their edges.
//
// mode: writes
// param id: string — the {low}'s id
// param limit: integer — at most so many
// column deleted: integer — how many; 0 when none is left
MATCH {pattern}
WITH n LIMIT $limit
DETACH DELETE n
RETURN count(*) AS deleted
"""

_PARTS = """\
// What is made from the {low} with this id, also what is unfinished.
//
// mode: reads
// param id: string — the {low}'s id
// column id: string — id of the {part}
// column state: string — ready, building or deleting
MATCH (:{label} {{id: $id}})<-[:OF]-(n:{part_label})
RETURN n.id AS id, n.state AS state
ORDER BY id
"""

_FINISH_PARENT = {
    # Setting a property locks the graph's node. So the later one of this write and a removal of the graph sees the
    # other.
    "Instance": "\nMATCH (n)-[:OF]->(of:Graph)\nSET of.claim = $owner\nWITH n, of\nWHERE of.state = 'ready'",
    # Whoever retires an instance deletes its profiles afterwards.
    "Profile": "\nMATCH (n)-[:OF]->(:Instance {state: 'ready'})",
}

_RETIRE_PARTS = """
OPTIONAL MATCH (i:Instance)-[:OF]->(n)
WHERE i.state = 'ready'
WITH n, count(i) AS needed
WHERE n.state <> 'ready' OR needed = 0
WITH n"""

_CLAIM_PARENT = """MATCH (of:{label} {{id: $properties.{low}, state: 'ready'}})
"""

_OWNER_TEMPLATES = {
    "claim": """\
// Begin to build {a} {low}, or take over from a builder that died. The first SET takes the write lock, so that
// the second of two simultaneous claims sees the result of the first one.{parent_note}
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who claims it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param properties: map — the properties that it gets
// column owner: string — who has it now
// column taken: boolean — another process began it before
{claim_parent}MERGE (n:{label} {{id: $id}})
ON CREATE SET n.state = 'building', n.owner = $owner, n.lease = 0, n.created = timestamp()
SET n.claim = $owner
WITH n{with_of}, n.owner AS former,
  n.state <> 'ready' AND (n.owner = $owner OR n.owner = $dead OR n.lease < timestamp()) AS free
FOREACH (x IN CASE WHEN free THEN [1] ELSE [] END |
  SET n += $properties
  SET n.state = 'building', n.owner = $owner, n.builder = $owner, n.lease = timestamp() + $lease
){claim_of}
RETURN n.owner AS owner, former <> $owner AS taken
""",
    "renew": """\
// Show that the builder of {a} {low} is alive. No row if another process has it now.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who builds it
// param lease: integer [ms] — for how long the builder counts as alive, from now
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner
SET n.lease = timestamp() + $lease
RETURN n.id AS id
""",
    "set": """\
// Give {a} {low} further properties while it is built. No row if another process has it now.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who builds it
// param properties: map — the properties, with their values
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner
SET n += $properties
RETURN n.id AS id
""",
    "finish": """\
// Make {a} {low} visible: it is complete. No row if another process has it now{finish_note}.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who built it
// param user: string — the user
// param event: map — who made it, when and how: the properties of `Event`
// param inputs: map[] — what it was made from: id, kind, name
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner){finish_parent}
SET n.state = 'ready'
REMOVE n.owner, n.lease
MERGE (u:User {{id: $user}})
MERGE (e:Event {{id: $event.id}})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
MERGE (e)-[:MADE]->(n)
FOREACH (row IN $inputs |
  MERGE (x:Input {{id: row.id}})
  ON CREATE SET x.kind = row.kind, x.name = row.name
  MERGE (e)-[:USED]->(x)
)
RETURN n.id AS id
""",
    "retire": """\
// Make {a} {low} invisible and begin to delete it. No row if a living process has it{retire_note}.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// param unnamed: boolean — only if it has no name and no tag
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
SET n.claim = $owner
WITH n
OPTIONAL MATCH (a:Name|Tag)-[:NAMES|TAGS]->(n)
WITH n, count(a) AS named
WHERE NOT ($unnamed AND named > 0)
WITH n{retire_parts}
WHERE n.state = 'ready' OR n.owner = $owner OR n.owner = $dead OR n.lease < timestamp()
SET n.state = 'deleting', n.owner = $owner, n.lease = timestamp() + $lease
RETURN n.id AS id
""",
    "remove": """\
// Delete the node of {a} {low} whose members are gone, with its names and notes.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who deletes it
// param user: string — the user
// param events: map[] — the event of its removal, the properties of `Event`; none for one that was never complete
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner{names}
OPTIONAL MATCH (note:Note)-[:ABOUT]->(n)
WITH n{with_names}, collect(note) AS notes{clear_names}
FOREACH (x IN notes | DETACH DELETE x)
FOREACH (row IN $events |
  MERGE (u:User {{id: $user}})
  MERGE (e:Event {{id: row.id}})
  SET e += row
  MERGE (e)-[:DONE_BY]->(u)
)
DETACH DELETE n
""",
    "state": """\
// The state of the {low} with this id; no row if there is none. No other statement finds unfinished ones by id.
//
// mode: reads
// param id: string — the {low}'s id
// column state: string — ready, building or deleting
// column owner: string? — the process that builds or deletes it
// column expired: boolean — its lease has run out
MATCH (n:{label} {{id: $id}})
RETURN n.state AS state, n.owner AS owner, coalesce(n.lease < timestamp(), false) AS expired
""",
    "version": """\
// What changes when the {low} with this id is deleted or made again{version_note}.
// No row if there is none.
//
// mode: reads
// param id: string — the {low}'s id
// column state: string? — ready, building or deleting
// column made: string[] — {version_columns}
MATCH (n:{label} {{id: $id}}){version_of}
RETURN n.state AS state, [{version_list}] AS made
""",
}

_REMOVE_NAMES = """
OPTIONAL MATCH (a:Name)-[:NAMES]->(n)
WITH n, collect(a) AS names"""
