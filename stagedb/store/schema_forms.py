"""The parts of the schema's table: properties, labels, relationships."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Property:
    """A property of a node or relationship.

    type: `string integer float boolean`, with `[]` for a list and `?` if it may be absent. unit: None for counts and
    names.
    """

    name: str
    type: str
    description: str
    unit: str | None = None


@dataclass(frozen=True)
class Label:
    """A kind of node.

    unique: the property that identifies a node; None if only an index of `indexes` serves. indexes: further look-ups.
    also: other labels that a node may have. member_by: the property with the id of its owner, if no relationship leads
    from the owner to it.
    style: a node's colour in drawings and in the Neo4j Browser, and the property that is its caption.
    """

    name: str
    description: str
    properties: tuple[Property, ...]
    unique: str | None = "id"
    indexes: tuple[tuple[str, ...], ...] = ()
    also: tuple[str, ...] = ()
    member_by: str | None = None
    style: tuple[str, str] = ("#c9c5bd", "id")


@dataclass(frozen=True)
class Relationship:
    """A kind of edge between two labels. owns: the target is deleted with the source."""

    type: str
    source: str
    target: str
    description: str
    properties: tuple[Property, ...] = ()
    owns: bool = False


def id_of(description: str) -> Property:
    """The property `id` of a label. description: what identifies a node of that label."""
    return Property("id", "string", description)


def words_of(label: str) -> dict[str, str]:
    """A label as templates of statements take it: itself, and in sentences. label: its name."""
    low = label.lower()
    return {
        "label": label,
        "low": low,
        "a": "an" if label[0] in "AEIOU" else "a",
        "plural": f"{low}es" if low.endswith("ch") else f"{low}s",
    }


OWNED = (
    Property("state", "string", "`ready` once complete; readers do not see `building` or `deleting` ones"),
    Property("owner", "string?", "the process that builds it; absent when ready"),
    Property("lease", "integer?", "until when its builder counts as alive; absent when ready", "ms since 1970"),
    Property("created", "integer", "when its building began, or when it was last asked for", "ms since 1970"),
    Property("claim", "string?", "the process that last asked to build or delete it; it is written to take the lock"),
    Property("builder", "string?", "the process that made it"),
    Property("schema", "integer", "version of the schema that it was written with"),
)
"""Properties of all that is built under a lease: see `stagedb.store.leases`."""

INSTANCE = Property("instance", "string", "id of the instance that it belongs to")
