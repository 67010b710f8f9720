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
    """A kind of node. `unique` identifies one; `indexes` are further look-ups. `also`: labels besides."""

    name: str
    description: str
    properties: tuple[Property, ...]
    unique: str = "id"
    indexes: tuple[tuple[str, ...], ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relationship:
    """A kind of edge between two labels."""

    type: str
    source: str
    target: str
    description: str
    properties: tuple[Property, ...] = ()


def id_of(description: str) -> Property:
    return Property("id", "string", description)


OWNED = (
    Property("state", "string", "`ready` once it is whole; `building` and `deleting` are invisible to readers"),
    Property("owner", "string?", "the process that builds it; absent when ready"),
    Property("lease", "integer?", "until when its builder is believed to live; absent when ready", "ms since 1970"),
    Property("created", "integer", "when its building began", "ms since 1970"),
    Property("claim", "string?", "who asked last to build or delete it; written to take the node's lock"),
    Property("builder", "string?", "the process that made it"),
)
"""Of whatever comes into being whole: see `stagedb.store.leases`."""

INSTANCE = Property("instance", "string", "id of the instance it belongs to")
