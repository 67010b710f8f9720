"""The store's schema as one table. Constraints, indexes, clean-up, drawings and the docs page come from it.

It uses only what Neo4j's Community Edition has: uniqueness constraints and range indexes. Queries reach labels along
relationships, except `Rank`: a relationship for each rank costs too much (docs/data-model.md has the figures).
"""

from collections.abc import Iterator
from itertools import chain

from stagedb.store.plan_labels import (
    GRAPH_LABELS,
    GRAPH_RELATIONSHIPS,
    INSTANCE_LABELS,
    INSTANCE_RELATIONSHIPS,
    MEMORY_LABELS,
    MEMORY_RELATIONSHIPS,
    PROFILE_LABELS,
    PROFILE_RELATIONSHIPS,
    SEARCH_LABELS,
    SEARCH_RELATIONSHIPS,
)
from stagedb.store.run_labels import MATCH_LABELS, MATCH_RELATIONSHIPS, RUN_LABELS, RUN_RELATIONSHIPS
from stagedb.store.schema_forms import OWNED, Label, Property, Relationship, id_of
from stagedb.store.team_labels import TEAM_LABELS, TEAM_RELATIONSHIPS

STORE = Label(
    "Store",
    "The database itself: one node, written by the migrations.",
    (
        id_of("`stagedb`"),
        Property("version", "integer", "the oldest schema whose programs can use the store"),
        Property("applied", "integer?", "number of the newest migration applied; absent: it is `version`"),
        Property("created", "integer", "when the first migration was applied", "ms since 1970"),
        Property("owner", "string?", "the process that migrates it; absent when none does"),
        Property("lease", "integer?", "until when that process counts as alive", "ms since 1970"),
        Property("claim", "string?", "the process that last asked to migrate it; it is written to take the lock"),
        Property("probe", "string?", "a text that shows whether another connection leads to the same store"),
    ),
)

LABELS = (
    STORE,
    *GRAPH_LABELS,
    *INSTANCE_LABELS,
    *MEMORY_LABELS,
    *PROFILE_LABELS,
    *SEARCH_LABELS,
    *RUN_LABELS,
    *MATCH_LABELS,
    *TEAM_LABELS,
)
RELATIONSHIPS = (
    *GRAPH_RELATIONSHIPS,
    *INSTANCE_RELATIONSHIPS,
    *MEMORY_RELATIONSHIPS,
    *PROFILE_RELATIONSHIPS,
    *SEARCH_RELATIONSHIPS,
    *RUN_RELATIONSHIPS,
    *MATCH_RELATIONSHIPS,
    *TEAM_RELATIONSHIPS,
)

OWNERS = tuple(label.name for label in LABELS if set(OWNED) <= set(label.properties))
"""Labels that become visible only when they are complete: `Graph`, `Instance`, `Profile`, `Search`, `Run`."""


NAMED = tuple(edge.target for edge in RELATIONSHIPS if (edge.type, edge.source) == ("NAMES", "Name"))
"""Labels whose nodes users can give names to."""


def parent_of(owner: str) -> str | None:
    """The label that an owner is made from: a graph for an instance, an instance for a profile; None for others."""
    found = [edge.target for edge in RELATIONSHIPS if (edge.source, edge.type) == (owner, "OF")]
    return found[0] if found else None


def part_of(owner: str) -> str | None:
    """The label that is made from an owner: an instance from a graph, a profile from an instance; None for others."""
    found = [label for label in OWNERS if parent_of(label) == owner]
    return found[0] if found else None


def ancestors(owner: str) -> tuple[str, ...]:
    """The labels that an owner is made from, directly or not: Graph, then Instance, for a profile."""
    parent = parent_of(owner)
    return () if parent is None else (*ancestors(parent), parent)


def members(owner: str) -> tuple[tuple[Label, tuple[Relationship, ...]], ...]:
    """What is deleted with an owner: each label with the relationships that lead to it, the most distant label first.

    A label without relationships has the id of its owner in the property `member_by`.
    """
    found = list(_members(owner, ()))
    found += [(label, ()) for label in LABELS if label.member_by == owner.lower()]
    return tuple(sorted(found, key=lambda each: -len(each[1])))


def _members(source: str, path: tuple[Relationship, ...]) -> Iterator[tuple[Label, tuple[Relationship, ...]]]:
    by_name = {label.name: label for label in LABELS}
    for edge in RELATIONSHIPS:
        if edge.source == source and edge.owns:
            yield by_name[edge.target], (*path, edge)
            yield from _members(edge.target, (*path, edge))


def definitions(labels: tuple[Label, ...] = LABELS) -> tuple[str, ...]:
    """The statements that make the constraints and indexes of labels. Each is safe to repeat."""
    return tuple(chain.from_iterable(_definitions(label) for label in labels))


def _definitions(label: Label) -> tuple[str, ...]:
    low, keys = label.name.lower(), () if label.unique is None else (label.unique,)
    return (
        *(
            f"CREATE CONSTRAINT {low}_{key} IF NOT EXISTS FOR (n:{label.name}) REQUIRE n.{key} IS UNIQUE"
            for key in keys
        ),
        *(
            f"CREATE INDEX {low}_{'_'.join(names)} IF NOT EXISTS FOR (n:{label.name}) "
            f"ON ({', '.join(f'n.{name}' for name in names)})"
            for names in label.indexes
        ),
    )


def page() -> str:
    """The data model as Markdown: a table for each label, a section for each relationship."""
    lines: list[str] = []
    for label in LABELS:
        keys = [] if label.unique is None else [f"`{label.unique}` (unique)"]
        keys += [f"`{', '.join(names)}`" for names in label.indexes]
        lines += [f"## :{label.name}", "", label.description, ""]
        if label.also:
            lines += [f"Also labelled one of {', '.join(f'`:{name}`' for name in label.also)}.", ""]
        lines += [f"Indexed: {'; '.join(keys)}.", "", *_table(label.properties), ""]
    lines += ["## Relationships", ""]
    for edge in RELATIONSHIPS:
        lines += [f"### (:{edge.source})-[:{edge.type}]->(:{edge.target})", "", edge.description, ""]
        lines += [*_table(edge.properties), ""] if edge.properties else []
    return "\n".join(lines).rstrip() + "\n"


def _table(properties: tuple[Property, ...]) -> list[str]:
    return [
        "| property | type | unit | meaning |",
        "|---|---|---|---|",
        *(f"| `{row.name}` | {row.type} | {row.unit or ''} | {row.description} |" for row in properties),
    ]
