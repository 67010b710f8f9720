"""Writes the statements of cypher/lifecycle and cypher/around, which differ only by a label, from the schema's table.

They are files like all others: read, linted and planned. `--check` compares them with the table.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts import _around_statements
from stagedb.store.schema import OWNERS, RELATIONSHIPS, members
from stagedb.store.schema_forms import Label, Relationship
from stagedb.store.statements import directory

FOLDER = "lifecycle"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/label_statements", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs from the schema")
    check = parser.parse_args().check
    written = {FOLDER: dict(statements()), _around_statements.FOLDER: dict(_around_statements.statements())}
    return max([_update(folder, wanted, check) for folder, wanted in written.items()])


def _update(name: str, wanted: Mapping[str, str], check: bool) -> int:
    """Write the statements of a folder, or only compare them. The exit status."""
    folder = directory() / name
    folder.mkdir(exist_ok=True)
    there = {path.stem: path for path in folder.glob("*.cypher")}
    wrong = [each for each, text in wanted.items() if each not in there or _read(there[each]) != text]
    extra = sorted(there.keys() - wanted.keys())
    if check:
        for each in sorted([*wrong, *extra]):
            print(f"cypher/{name}/{each}.cypher differs from the schema: run scripts/label_statements")
        return 1 if wrong or extra else 0
    for each in wrong:
        (folder / f"{each}.cypher").write_text(wanted[each], encoding="utf-8")
    for each in extra:
        there[each].unlink()
    print(f"cypher/{name}: {len(wanted)} statements, {len(wrong)} written, {len(extra)} removed")
    return 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def statements() -> Iterator[tuple[str, str]]:
    """Name and text of every statement."""
    for owner in OWNERS:
        parent = parent_of(owner)
        values = {
            "low": owner.lower(),
            "label": owner,
            "a": "an" if owner[0] in "AEIOU" else "a",
            "claim_parent": "" if parent is None else _CLAIM_PARENT.format(label=parent, low=parent.lower()),
            "claim_of": "" if parent is None else "\nMERGE (n)-[:OF]->(of)",
            "with_of": "" if parent is None else ", of",
            "parent_note": "" if parent is None else f" No row if its {parent.lower()} is gone or being deleted.",
            "finish_note": "" if parent is None else f", or its {parent.lower()} is gone or being deleted",
            **_version_values(owner),
            "finish_parent": "" if parent is None else f"\nMATCH (n)-[:OF]->(:{parent} {{state: 'ready'}})",
        }
        for verb, template in _OWNER_TEMPLATES.items():
            yield f"{verb}_{owner.lower()}", template.format(**values)
        for label, path in members(owner):
            yield f"clear_{label.name.lower()}", _clear(owner, label, path)


def parent_of(owner: str) -> str | None:
    """The label that an owner is made from: a graph for an instance, an instance for a profile."""
    found = [edge.target for edge in RELATIONSHIPS if (edge.source, edge.type) == (owner, "OF")]
    return found[0] if found else None


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
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner OR (n.state = 'ready' AND n.builder = $owner){finish_parent}
SET n.state = 'ready'
REMOVE n.owner, n.lease
RETURN n.id AS id
""",
    "retire": """\
// Make {a} {low} invisible and begin to delete it. No row if a living process has it.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who deletes it
// param lease: integer [ms] — for how long, from now
// param dead: string — an owner that is known to have died; empty if none is
// column id: string — the {low}'s id
MATCH (n:{label} {{id: $id}})
SET n.claim = $owner
WITH n
WHERE n.state = 'ready' OR n.owner = $owner OR n.owner = $dead OR n.lease < timestamp()
SET n.state = 'deleting', n.owner = $owner, n.lease = timestamp() + $lease
RETURN n.id AS id
""",
    "remove": """\
// Delete the node of {a} {low} whose members are gone.
//
// mode: writes
// param id: string — the {low}'s id
// param owner: string — who deletes it
MATCH (n:{label} {{id: $id}})
WHERE n.owner = $owner
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
// column state: string? — ready, building, deleting or outdated
// column made: string[] — {version_columns}
MATCH (n:{label} {{id: $id}}){version_of}
RETURN n.state AS state, [{version_list}] AS made
""",
}

if __name__ == "__main__":
    sys.exit(main())
