"""Statements that differ only by a label or a relationship of the schema: made from its table when they are loaded.

They are in the folders `lifecycle`, `around`, `known`, `joined`, `check` and `dump` of names, next to those that
someone wrote, and have headers, are linted and planned like them. `scripts/lint_cypher --show NAME` prints one.
"""

import functools
from collections.abc import Iterator, Mapping

from stagedb.store.dump_contents import EDGE_KINDS, NODE_KINDS
from stagedb.store.schema import LABELS, NAMED, OWNERS, RELATIONSHIPS, STORE, members, parent_of
from stagedb.store.schema_forms import Label, Relationship


@functools.cache
def label_statements() -> Mapping[str, str]:
    """By name, such as `lifecycle/claim_graph`, the text with its header."""
    folders = {
        "lifecycle": _lifecycle,
        "around": _around,
        "known": _known,
        "joined": _joined,
        "check": _check,
        "dump": _dump,
    }
    return {f"{folder}/{stem}": text for folder, made in folders.items() for stem, text in made()}


def _lifecycle() -> Iterator[tuple[str, str]]:
    """Statements of everything that is built under a lease."""
    for owner in OWNERS:
        parent = parent_of(owner)
        values = {
            "low": owner.lower(),
            "label": owner,
            "a": "an" if owner[0] in "AEIOU" else "a",
            "claim_parent": "" if parent is None else _CLAIM_PARENT.format(label=parent, low=parent.lower()),
            "claim_of": "" if parent is None else "\nMERGE (n)-[:OF]->(of)",
            "with_of": "" if parent is None else ", of",
            "title": "g.name" if owner == "Instance" else "null",
            "title_of": "-[:OF]->(g:Graph)" if owner == "Instance" else "",
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
        named = _NAMED_TEMPLATES if owner in NAMED else {}
        for verb, template in {**_OWNER_TEMPLATES, **_TEAM_TEMPLATES, **named}.items():
            yield f"{verb}_{owner.lower()}", template.format(**values)
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
    return _CLEAR.format(label=label.name, low=owner.lower(), a="an" if owner[0] in "AEIOU" else "a", pattern=pattern)


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

_EVENT = """\
MERGE (u:User {{id: $user}})
MERGE (e:Event {{id: $event.id}})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
"""

_TEAM_TEMPLATES = {
    "tag": """\
// Tag {a} {low} with a word. No row if there is none.
//
// mode: writes
// param id: string — the {low}'s id
// param tag: string — the word
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id, state: 'ready'}})
MERGE (t:Tag {{id: $tag}})
MERGE (t)-[r:TAGS]->(n)
ON CREATE SET r.user = $user, r.time = timestamp()
SET r.origin = null
"""
    + _EVENT
    + """\
RETURN n.id AS id
""",
    "untag": """\
// Take a tag off {a} {low}. No row if it does not have it.
//
// mode: writes
// param id: string — the {low}'s id
// param tag: string — the word
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the {low}'s id
MATCH (:Tag {{id: $tag}})-[r:TAGS]->(n:{label} {{id: $id}})
DELETE r
"""
    + _EVENT
    + """\
RETURN n.id AS id
""",
    "note": """\
// Write a note about {a} {low}. No row if there is none.
//
// mode: writes
// param id: string — the {low}'s id
// param note: string — the note's id, unique in the store
// param text: string — the note
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id, state: 'ready'}})
"""
    + _EVENT
    + """\
MERGE (m:Note {{id: $note}})
SET m.text = $text, m.time = $event.time
MERGE (m)-[:ABOUT]->(n)
MERGE (m)-[:DONE_BY]->(u)
RETURN n.id AS id
""",
}
"""Statements of everything that is built under a lease."""

_NAMED_TEMPLATES = {
    "name": """\
// Let a name mean {a} {low}. Setting the name's properties takes its lock. No row if there is no such {low}.
//
// mode: writes
// param id: string — the {low}'s id
// param name: string — the name's id
// param properties: map — the properties of `Name`
// param user: string — the user
// param event: map — the properties of `Event`
// column moved: string? — the id of the {low} that it meant before
MATCH (n:{label} {{id: $id, state: 'ready'}})
MERGE (a:Name {{id: $name}})
SET a += $properties, a.origin = null
WITH n, a
OPTIONAL MATCH (a)-[old:NAMES]->(o:{label}){title_of}
WITH n, a, old, o, {title} AS title
FOREACH (x IN CASE WHEN o.name = $properties.name AND o.id <> n.id THEN [o] ELSE [] END | SET x.name = title)
FOREACH (x IN CASE WHEN old IS NULL THEN [] ELSE [old] END | DELETE x)
CREATE (a)-[:NAMES]->(n)
"""
    + _EVENT
    + """\
RETURN CASE WHEN o.id <> n.id THEN o.id END AS moved
""",
    "unname": """\
// Remove a name of {a} {low}. No row if it means another one by now.
//
// mode: writes
// param id: string — the {low}'s id
// param name: string — the name's id
// param user: string — the user
// param event: map — the properties of `Event`
// column id: string — the {low}'s id
MATCH (a:Name {{id: $name}})-[:NAMES]->(n:{label} {{id: $id}}){title_of}
SET n.name = CASE WHEN n.name = a.name THEN {title} ELSE n.name END
WITH n, a
DETACH DELETE a
"""
    + _EVENT
    + """\
RETURN n.id AS id
""",
    "asked": """\
// Whether {a} {low} is the newest of a user, made or asked for: then a request for it changes nothing.
//
// mode: reads
// param id: string — the {low}'s id
// param user: string — the user
// column newest: boolean — whether the user has no newer one
MATCH (n:{label} {{id: $id, state: 'ready'}})
OPTIONAL MATCH (:User {{id: $user}})-[a:ASKED_FOR]->(n)
WITH n, CASE
    WHEN (n.builder ENDS WITH ' ' + $user OR n.claim ENDS WITH ' ' + $user) AND n.created > coalesce(a.time, 0)
    THEN n.created
    ELSE coalesce(a.time, 0)
  END AS mine
OPTIONAL MATCH (o:{label} {{state: 'ready'}})
WHERE (o.claim ENDS WITH ' ' + $user OR o.builder ENDS WITH ' ' + $user) AND o.created >= mine AND o <> n
WITH n, mine, count(o) AS made
OPTIONAL MATCH (:User {{id: $user}})-[b:ASKED_FOR]->(x:{label} {{state: 'ready'}})
WHERE b.time >= mine AND x <> n
WITH mine, made, count(x) AS asked
RETURN mine > 0 AND made = 0 AND asked = 0 AS newest
""",
    "ask": """\
// Make an existing {low} the newest of a user.
//
// mode: writes
// param id: string — the {low}'s id
// param user: string — the user
MATCH (n:{label} {{id: $id, state: 'ready'}})
MERGE (u:User {{id: $user}})
MERGE (u)-[a:ASKED_FOR]->(n)
SET a.time = timestamp()
""",
}
"""Statements of what can have a name."""

_REMOVE_NAMES = """
OPTIONAL MATCH (a:Name)-[:NAMES]->(n)
WITH n, collect(a) AS names"""


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
