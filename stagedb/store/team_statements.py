"""How a team marks graphs, instances, profiles, searches and runs: names, tags, notes, and what nobody marked.

Those that set a mark of one thing are in the folder `lifecycle` of names, as `lifecycle/tag_graph`. Those that write
marks of a dump, and those that find what has none, are in `team`, as `team/keep_tags_graph` and `team/unnamed_graphs`.
"""

from collections.abc import Iterator

from stagedb.store.schema import NAMED, OWNERS, part_of
from stagedb.store.schema_forms import words_of


def marks() -> Iterator[tuple[str, str]]:
    """The statements that mark one thing: the last part of each name, and its text."""
    for owner in OWNERS:
        values = {
            **words_of(owner),
            "title": "g.name" if owner == "Instance" else "null",
            "title_of": "-[:OF]->(g:Graph)" if owner == "Instance" else "",
        }
        named = _NAMED_TEMPLATES if owner in NAMED else {}
        for verb, template in {**_LEASED_TEMPLATES, **named}.items():
            yield f"{verb}_{owner.lower()}", template.format(**values)


def team() -> Iterator[tuple[str, str]]:
    """The statements of marks of a dump, and of what has no mark: the last part of each name, and its text."""
    for owner in OWNERS:
        words = words_of(owner)
        kept = _KEEP_TEMPLATES if owner in NAMED else {what: _KEEP_TEMPLATES[what] for what in ("tags", "notes")}
        for what, template in kept.items():
            yield f"keep_{what}_{owner.lower()}", template.format(**words)
        yield f"unnamed_{words['plural']}", _unnamed(owner)


def _unnamed(owner: str) -> str:
    """What nobody named or tagged of an owner; a user asks only for what has names."""
    made = part_of(owner)
    words = words_of(owner)
    return _UNNAMED.format(
        **words,
        many=words["plural"].capitalize(),
        marked="named or tagged" if owner in NAMED else "tagged",
        used="made or asked for" if owner in NAMED else "made",
        called="name: string? — what it is called" if owner in NAMED else "name: string? — the model's name",
        name="model" if owner == "Search" else "name",
        mark="(a:Name|Tag)-[:NAMES|TAGS]" if owner in NAMED else "(a:Tag)-[:TAGS]",
        asked=_UNNAMED_ASKED if owner in NAMED else "",
        part_ids=f"ids of its {words_of(made)['plural']}, unfinished ones too" if made else "nothing is made from it",
        find_parts=_UNNAMED_PARTS.format(label=made) if made else "",
        parts="parts" if made else "[] AS parts",
    )


_EVENT = """\
MERGE (u:User {{id: $user}})
MERGE (e:Event {{id: $event.id}})
SET e += $event
MERGE (e)-[:DONE_BY]->(u)
"""

_LEASED_TEMPLATES = {
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
"""Statements of everything that is built under a lease, in the folder `lifecycle`."""

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
"""Statements of what can have a name, in the same folder."""

_KEPT_EVENT = _EVENT.replace("$event", "row.event")

_KEEP_TEMPLATES = {
    "names": """\
// Write names of {plural} that came from another store. A name that is there means what it meant.
//
// mode: writes
// param rows: map[] — name: id of the name; thing: id of the {low}; properties: of `Name`; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:{label} {{id: row.thing, state: 'ready'}})
MERGE (n:Name {{id: row.name}})
ON CREATE SET n += row.properties
WITH row, n, x
OPTIONAL MATCH (n)-[:NAMES]->(old)
WITH row, n, x, old WHERE old IS NULL
CREATE (n)-[:NAMES]->(x)
"""
    + _KEPT_EVENT,
    "tags": """\
// Write tags of {plural} that came from another store.
//
// mode: writes
// param rows: map[] — tag; thing: id of the {low}; values: properties of `TAGS`; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:{label} {{id: row.thing, state: 'ready'}})
MERGE (t:Tag {{id: row.tag}})
MERGE (t)-[r:TAGS]->(x)
ON CREATE SET r += row.values
"""
    + _KEPT_EVENT,
    "notes": """\
// Write notes about {plural} that came from another store.
//
// mode: writes
// param rows: map[] — of a note: id; thing: id of the {low}; text, time; author, by the dump; origin; event: of `Event`
// param user: string — the user who loads them
UNWIND $rows AS row
MATCH (x:{label} {{id: row.thing, state: 'ready'}})
MERGE (m:Note {{id: row.id}})
ON CREATE SET m.text = row.text, m.time = row.time, m.origin = row.origin
MERGE (m)-[:ABOUT]->(x)
MERGE (a:User {{id: row.author}})
MERGE (m)-[:DONE_BY]->(a)
"""
    + _KEPT_EVENT,
}
"""Marks that a dump had. A node of another store may be gone here, or not complete: it gets none."""

_UNNAMED = """\
// {many} that nobody {marked}, or {used} since a time.
//
// mode: reads
// param before: integer [ms since 1970] — the time
// column id: string — the {low}'s id
// column {called}
// column builder: string? — the process that made it
// column created: integer [ms since 1970] — when it was made
// column parts: string[] — {part_ids}
MATCH (n:{label} {{state: 'ready'}})
WHERE n.created < $before
OPTIONAL MATCH {mark}->(n)
WITH n, count(a) AS named
WHERE named = 0{asked}{find_parts}
RETURN n.id AS id, n.{name} AS name, n.builder AS builder, n.created AS created, {parts}
ORDER BY id
"""

_UNNAMED_ASKED = """
OPTIONAL MATCH (:User)-[r:ASKED_FOR]->(n)
WITH n, max(r.time) AS asked
WHERE coalesce(asked, 0) < $before"""

_UNNAMED_PARTS = """
OPTIONAL MATCH (p:{label})-[:OF]->(n)
WITH n, collect(p.id) AS parts"""
