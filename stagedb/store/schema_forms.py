"""What the schema's table is made of: properties, labels, relationships."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Property:
    """A property: its type (`string integer float boolean`, `[]` for a list, `?` where it may be absent), its unit."""

    name: str
    type: str
    description: str
    unit: str | None = None


@dataclass(frozen=True)
class Label:
    """A kind of node.

    unique: the property that identifies a node; None where an index of `indexes` serves alone. indexes: further
    look-ups. also: labels that a node has besides. member_by: the property that holds its owner's id, where no
    relationship leads to it from there.
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
    return Property("id", "string", description)


OWNED = (
    Property("state", "string", "`ready` once whole; readers do not see `building`, `deleting` or `outdated` ones"),
    Property("owner", "string?", "the process that builds it; absent when ready"),
    Property("lease", "integer?", "until when its builder is believed to live; absent when ready", "ms since 1970"),
    Property("created", "integer", "when its building began", "ms since 1970"),
    Property("claim", "string?", "who asked last to build or delete it; written to take the node's lock"),
    Property("builder", "string?", "the process that made it"),
    Property("schema", "integer", "version of the schema that it was written with"),
)
"""Properties of whatever is built under a lease: see `stagedb.store.leases`."""

INSTANCE = Property("instance", "string", "id of the instance that it belongs to")
