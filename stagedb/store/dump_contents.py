"""What a dump may contain, by the schema, and the files of dumps: gzipped lines of JSON."""

import gzip
import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from stagedb.errors import UsageError
from stagedb.files import check_unicode, parse_json, shown
from stagedb.mentions import call
from stagedb.store.migrations import OLDEST_READABLE, VERSION
from stagedb.store.schema import LABELS, OWNERS, RELATIONSHIPS, ancestors, members
from stagedb.store.schema_forms import Property, Relationship

LONGEST_ID = 1_000
"""Characters of an id at most."""

_LABELS = {label.name: label for label in LABELS}


@dataclass(frozen=True)
class DumpedNode:
    """A label of content. owner: one of `OWNERS`. path: how it leads to the label; none: by a property."""

    owner: str
    label: str
    path: tuple[Relationship, ...] = ()

    @property
    def parent(self) -> str:
        """The label of what such a node belongs to: RankClass for an Op of an instance; for an owner its own label."""
        return self.path[-1].source if self.path else self.owner


@dataclass(frozen=True)
class DumpedEdge:
    """A type of relationship between content, apart from those by which nodes belong to their owner.

    owner: one of `OWNERS`. edge: its ends and its type. path: the relationships that lead from the owner to its source.
    """

    owner: str
    edge: Relationship
    path: tuple[Relationship, ...]

    @property
    def stem(self) -> str:
        """The beginning of the names of its statements: type, source and target in small letters."""
        return f"{self.edge.type}_{self.edge.source}_{self.edge.target}".lower()


def _node_kinds() -> Iterator[DumpedNode]:
    for owner in OWNERS:
        yield DumpedNode(owner, owner)
        # `members` has the most distant labels first: reversed, a node comes after the one that it belongs to.
        yield from (DumpedNode(owner, label.name, path) for label, path in reversed(members(owner)))


NODE_KINDS = tuple(_node_kinds())
_NODES = {kind.label: kind for kind in NODE_KINDS}

EDGE_KINDS = tuple(
    DumpedEdge(_NODES[edge.source].owner, edge, _NODES[edge.source].path)
    for edge in RELATIONSHIPS
    if not edge.owns
    and edge.source in _NODES
    and edge.target in _NODES
    and not (edge.source in OWNERS and edge.target in OWNERS)
    and _NODES[edge.target].owner in (_NODES[edge.source].owner, *ancestors(_NODES[edge.source].owner))
)
"""What leads to other content, as from a candidate of a search to its instance, follows from properties."""

_EDGES = {(kind.edge.type, kind.edge.source, kind.edge.target): kind for kind in EDGE_KINDS}

_UNFINISHED = ("owner", "lease", "claim")
"""Properties that only something unfinished has, or that count only in its own store."""

DERIVED = ("Rank", "Group")
"""Labels whose nodes follow from an instance that has a `class_table`."""

WRITTEN = ("ranks_written", "groups_written")
"""How many of these nodes are written: none in a dump."""

_TYPES: Mapping[str, type] = {"string": str, "integer": int, "float": float, "boolean": bool}


class DumpError(UsageError):
    """A dump cannot be loaded: it is damaged, of another version, or has what stagedb does not write."""


Row = tuple[Sequence[str], str | None, Mapping[str, Any]]
"""A node: its other labels, the id of the node that it belongs to, and its properties."""

End = tuple[str, str, Mapping[str, Any]]
"""A relationship: the ids of its source and its target, and its properties."""


@dataclass(frozen=True)
class DumpedThing:
    """The begin of a section: the records after it belong to this graph, instance, profile, search or run.

    kind: its label. id: its id.
    """

    kind: str
    id: str


@dataclass(frozen=True)
class NodeRows:
    """Nodes of one label. rows: the other labels, the id of the node that it belongs to, and the properties of each."""

    label: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class EdgeRows:
    """Relationships of one type between two labels.

    type: the relationship type. source, target: labels. rows: by relationship, the ids of source and target, and
    properties.
    """

    type: str
    source: str
    target: str
    rows: Sequence[End]


@dataclass(frozen=True)
class MarkRows:
    """Names, tags, notes or saved queries of users. label: Name, Tag, Note or SavedQuery. rows: properties of each."""

    label: str
    rows: Sequence[Mapping[str, Any]]


Record = DumpedThing | NodeRows | EdgeRows | MarkRows


@dataclass
class ThingContent:
    """All that one graph, instance, profile, search or run of a dump has so far.

    kind: its label. nodes: by label, the properties of each node by its id. edges: by type and the labels of both ends.
    checked: the content was compared with what it is made from. layout: ranks and groups follow from numbers of it.
    """

    kind: str
    id: str
    nodes: dict[str, dict[str, Row]] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], list[End]] = field(default_factory=dict)
    ops: Counter[str] = field(default_factory=Counter)
    """What classes miss: ops and tasks that they are to have, less those that are there."""
    checked: bool = False
    layout: bool = False
    """Whether ranks and groups follow from the instance."""

    def values(self, label: str) -> Iterator[Mapping[str, Any]]:
        """The properties of each node of a label."""
        return (values for _, _, values in self.nodes.get(label, {}).values())

    @property
    def own(self) -> Mapping[str, Any]:
        """The properties of the graph, the instance, the profile or the search itself."""
        return self.nodes[self.kind][self.id][2]


Proof = Callable[[Sequence[ThingContent]], str | None]
"""What is wrong with the content of the last section, which belongs to those before it; None if nothing is."""


CheckMark = Callable[[str, Mapping[str, Any], Collection[tuple[str, str]]], None]
"""Raises UsageError for a mark that cannot be written. Takes the label, the row, and the things that are there."""

MOST_MARKS = 200_000
"""Names, tags, notes and queries of a dump at most. They are in memory together."""


def _no_mark(label: str, row: Mapping[str, Any], things: Collection[tuple[str, str]]) -> None:
    raise DumpError(f"{shown(label)} has no place here")


class Contents:
    """Checks the records of a dump in their order, and counts them in `total`.

    proof: called for each graph, instance, profile and search when it is complete. above: what the first of them is
    made from, which was checked. check_mark: called for each mark; without it there may be none.
    """

    def __init__(self, proof: Proof, above: Sequence[ThingContent] = (), check_mark: CheckMark | None = None) -> None:
        self.total: Counter[str] = Counter()
        self.marks: list[MarkRows] = []
        """Names, tags, notes and saved queries, in their order."""
        self._proof = proof
        self._check_mark = check_mark or _no_mark
        self._open: list[ThingContent] = [*above]
        self._seen: set[tuple[str, str]] = set()

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """A context in which errors begin with a place in the dump. where: the place."""
        try:
            yield
        except DumpError as error:
            raise DumpError(f"{where}: {error}. Nothing was written; make the dump again") from None

    def add(self, record: Record) -> None:
        """Check the next record of the dump, and count it."""
        match record:
            case DumpedThing(kind, id):
                self.begin(kind, id)
            case NodeRows(label, rows):
                self.nodes(label, rows)
            case EdgeRows(type, source, target, rows):
                self.edges((type, source, target), rows)
            case MarkRows(label, rows):
                self.mark(label, rows)

    def begin(self, kind: str, id: str) -> None:
        """Begin the section of a graph, an instance, a profile, a search or a run. kind: its label.

        id: of the thing.
        """
        if self.marks:
            raise DumpError(f"{kind} {shown(id)} comes after names, tags and notes")
        if self._open:
            self._check_whole(self._open[-1])
        if kind not in OWNERS:
            raise DumpError(f"{shown(kind)} is none of {', '.join(OWNERS)}")
        _check_id(id)
        if (kind, id) in self._seen:
            raise DumpError(f"{kind} {shown(id)} is there twice")
        self._seen.add((kind, id))
        needs = ancestors(kind)
        before = self._open[: len(needs)]
        if [each.kind for each in before] != [*needs]:
            raise DumpError(f"{kind} {shown(id)} does not follow the {needs[-1]} that it belongs to")
        self._open = [*before, ThingContent(kind, id)]

    def nodes(self, label: str, rows: Sequence[Row]) -> None:
        """Take nodes of the section that has begun, after those that they belong to.

        label: of the nodes. rows: each with its other labels, its parent and its properties. DumpError for what cannot
        be there.
        """
        section, kind = self._section(), _NODES.get(label)
        if kind is None or kind.owner != section.kind:
            raise DumpError(f"label {shown(label)} is no part of a {section.kind}")
        if not section.nodes and (label != section.kind or len(rows) != 1):
            raise DumpError(f"{section.kind} {shown(section.id)} does not begin with its one node")
        if rows and label in DERIVED and section.layout:
            raise DumpError(f"{section.kind} {shown(section.id)} has {label} nodes, which follow from its class_table")
        form, ids = _LABELS[label], section.nodes.setdefault(label, {})
        for also, parent, properties in rows:
            _check_properties(form.properties, properties, label)
            id = properties["id"]
            _check_id(id)
            # The second label of a node is its type.
            if [*also] != ([str(properties["type"]).capitalize()] if form.also else []) or {*also} - {*form.also}:
                raise DumpError(f"{label} {shown(id)} has the other labels {shown(also)}")
            if id in ids:
                raise DumpError(f"{label} {shown(id)} is there twice")
            if label == section.kind:
                self._check_owner(section, parent, properties)
            elif parent not in section.nodes.get(kind.parent, ()):
                raise DumpError(f"{label} {shown(id)} belongs to {kind.parent} {shown(parent)}, which is not there")
            _check_membership(label, section, properties)
            ids[id] = (also, parent, properties)
            if label == "RankClass":
                section.ops.update({f"Op of {id}": properties["ops"], f"Task of {id}": properties["tasks"]})
            elif kind.parent == "RankClass" and label in ("Op", "Task"):
                section.ops[f"{label} of {parent}"] -= 1
        self.total[label] += len(rows)

    def edges(self, kind: tuple[str, str, str], rows: Sequence[End]) -> None:
        """Add relationships of the section, which begin at nodes of the section.

        kind: the labels and the type. rows: ids of both ends, and properties. A target is in the section too, or in the
        graph or instance that the section belongs to. Raises DumpError for other relationships.
        """
        section, known = self._section(), _EDGES.get(kind)
        if known is None:
            raise DumpError(f"{shown('-'.join(kind))} is no relationship of a dump")
        edge = known.edge
        targets = [part.nodes[edge.target] for part in self._open if edge.target in part.nodes]
        for source, target, properties in rows:
            _check_properties(edge.properties, properties, edge.type)
            if source not in section.nodes.get(edge.source, ()):
                raise DumpError(f"{edge.type} begins at {edge.source} {shown(source)}, which is not there")
            if not any(target in ids for ids in targets):
                raise DumpError(f"{edge.type} ends at {edge.target} {shown(target)}, which is not there")
        section.edges.setdefault(kind, []).extend(rows)
        self.total[edge.type] += len(rows)

    def mark(self, label: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Marks of things that were there, after all of these. Nothing follows them but marks.

        label: of the marks, such as that of names. rows: the properties of each.
        """
        if len(rows) + sum(len(each.rows) for each in self.marks) > MOST_MARKS:
            raise DumpError(f"it has more than {MOST_MARKS:,} names, tags, notes and queries")
        for row in rows:
            try:
                self._check_mark(label, row, self._seen)
            except UsageError as error:
                raise DumpError(f"{error}") from None
        self.marks.append(MarkRows(label, rows))
        self.total[label] += len(rows)

    def finish(self) -> Sequence[ThingContent]:
        """The dump is at its end. Returns the last sections."""
        if self._open:
            self._check_whole(self._open[-1])
        return self._open

    def _section(self) -> ThingContent:
        if not self._open:
            raise DumpError("nodes or relationships come before a graph begins")
        return self._open[-1]

    def _check_owner(self, section: ThingContent, parent: str | None, properties: Mapping[str, Any]) -> None:
        whose = f"{section.kind} {shown(section.id)}"
        if properties["id"] != section.id or parent is not None:
            raise DumpError(f"{whose} has a node with the id {shown(properties['id'])}")
        if properties["state"] != "ready" or any(name in properties for name in _UNFINISHED):
            raise DumpError(f"{whose} is unfinished")
        if not OLDEST_READABLE <= properties["schema"] <= VERSION:
            raise DumpError(
                f"{whose} has schema {properties['schema']}, and this stagedb reads {OLDEST_READABLE} to {VERSION}"
            )
        section.layout = properties.get("class_table") is not None
        if section.layout and [properties.get(name) for name in WRITTEN] != [0, 0]:
            raise DumpError(f"{whose} counts nodes of ranks or groups, which a dump does not have")
        above = self._open[-2] if len(self._open) > 1 else None
        if above is not None and properties[above.kind.lower()] != above.id:
            raise DumpError(f"{whose} belongs to another {above.kind} than the one before it")

    def _check_whole(self, section: ThingContent) -> None:
        if section.checked:
            return
        section.checked = True
        whose = f"{section.kind} {shown(section.id)}"
        if section.id not in section.nodes.get(section.kind, ()):
            raise DumpError(f"{whose} has no node")
        for what, missing in section.ops.items():
            if missing:
                raise DumpError(f"{whose}: the number of nodes {shown(what)} is wrong by {missing}")
        if wrong := self._proof(self._open):
            raise DumpError(f"{whose}: {wrong}")


def _check_membership(label: str, section: ThingContent, properties: Mapping[str, Any]) -> None:
    """Raise DumpError for a node whose property names another owner than the section."""
    whose = properties.get(section.kind.lower(), section.id)
    if label != section.kind and whose != section.id:
        raise DumpError(f"{label} {shown(properties['id'])} belongs to {section.kind} {shown(whose)}")


def _check_id(id: Any) -> None:
    if type(id) is not str or not 0 < len(id) <= LONGEST_ID or not id.isprintable():
        raise DumpError(f"{shown(id)} is not possible as an id")


def _check_properties(forms: Sequence[Property], found: Mapping[str, Any], what: str) -> None:
    """Raise DumpError unless a node or a relationship has the properties of the schema, with their types."""
    unknown = found.keys() - {form.name for form in forms}
    if unknown:
        raise DumpError(f"{what} has the unknown property {shown(min(unknown))}")
    for form in forms:
        value = found.get(form.name)
        if value is None:
            if not form.type.endswith("?") or form.name in found:
                raise DumpError(f"{form.name} of {what} is missing")
        elif not _is(value, form.type.rstrip("?")):
            raise DumpError(f"{form.name} of {what} is {shown(value)}, and not of type {form.type}")


def _is(value: Any, type_name: str) -> bool:
    if type_name.endswith("[]"):
        return type(value) is list and all(_is(each, type_name[:-2]) for each in value)
    if type(value) is not _TYPES[type_name]:
        return False
    if isinstance(value, str):
        try:
            check_unicode(value, "a text")
        except UsageError:
            return False
    return not isinstance(value, float) or math.isfinite(value)


# Dump files: graphs, instances, profiles, searches and runs outside a store, as gzipped lines of JSON.
#
#     {"format": "stagedb dump", "version": 2, "schema": 10}
#     {"begin": "Instance", "id": …}                 what follows belongs to it, until the next one begins
#     {"nodes": "Op", "rows": [[[other labels], id of the node that it belongs to, {properties}], …]}
#     {"edges": ["DEP", "Op", "Op"], "rows": [[source, target, {properties}], …]}
#     {"marks": "Name", "rows": [{…}, …]}            names, tags, notes, saved queries; after all else
#     {"end": {"nodes": {"Op": 12}, "edges": {"DEP": 12}}, "sha256": "…"}     numbers; checksum of all lines before
#
# An instance follows its graph, and a profile its instance. Labels, properties and relationships are those of the
# schema.

FORMAT = "stagedb dump"
FORMAT_VERSION = 2
READABLE = {"version": (FORMAT_VERSION, FORMAT_VERSION), "schema": (OLDEST_READABLE, VERSION)}
"""The oldest and the newest that is read."""

ROWS = 2_000
"""Rows of one line at most."""

LONGEST_LINE = 64 << 20
"""Bytes of one line at most."""

LARGEST = 64 << 30
"""Bytes of all lines together at most: a small file can unpack into a very large one."""


def write_records(file: BinaryIO, records: Iterable[Record]) -> Counter[str]:
    """Write a dump. Returns the numbers of nodes by label and of relationships by type. Holds one record at a time.

    file: open for writing. records: in the order of a dump.
    """
    digest, nodes, edges = hashlib.sha256(), Counter[str](), Counter[str]()
    # Without the time and the name of the file, equal content gives equal bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:

        def put(content: Mapping[str, Any]) -> None:
            line = json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            digest.update(line)
            packed.write(line)

        put({"format": FORMAT, "version": FORMAT_VERSION, "schema": VERSION})
        for record in records:
            match record:
                case DumpedThing(kind, id):
                    put({"begin": kind, "id": id})
                case NodeRows(label, rows):
                    nodes[label] += len(rows)
                    for some in _parts(rows):
                        put({"nodes": label, "rows": some})
                case MarkRows(label, rows):
                    for some in _parts(rows):
                        put({"marks": label, "rows": some})
                case EdgeRows(type, source, target, rows):
                    edges[type] += len(rows)
                    for some in _parts(rows):
                        put({"edges": [type, source, target], "rows": some})
        put({"end": {"nodes": dict(+nodes), "edges": dict(+edges)}, "sha256": digest.hexdigest()})
    return nodes + edges


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[start : start + ROWS] for start in range(0, len(rows), ROWS))


def check_dump(
    name: str, file: BinaryIO, proof: Proof, check_mark: CheckMark | None = None, *, largest: int = LARGEST
) -> Contents:
    """Read a whole dump from the beginning of its file and check all of it. Returns its numbers and its marks.

    name: of the file, for errors. proof: finds content that does not match. Memory is bounded by one graph, one
    instance of it and one profile of that. largest: bytes that a dump may have when it is unpacked. Raises DumpError,
    which names the line, for a file that is damaged, too large, of another version, or that has what stagedb does not
    write.
    """
    contents = Contents(proof, check_mark=check_mark)
    for number, record in _records(name, file, largest):
        with contents.at(f"{name}, line {number}"):
            contents.add(record)
    with contents.at(f"{name}, at its end"):
        contents.finish()
    return contents


def read_records(name: str, file: BinaryIO) -> Iterator[Record]:
    """The records of a dump, one at a time. `check_dump` must have accepted the file, which nobody else may replace in
    between because it remains open.

    name: of the file, for errors.
    """
    return (record for _, record in _records(name, file, LARGEST))


def _records(name: str, file: BinaryIO, largest: int) -> Iterator[tuple[int, Record]]:
    digest, nodes, edges, ended = hashlib.sha256(), Counter[str](), Counter[str](), False
    for number, line in _lines(name, file, largest):
        where = f"{name}, line {number}"
        if ended:
            raise DumpError(f"{where}: something follows the end of the dump. {_WAY_OUT}")
        content = _mapping(line, where)
        if number == 1:
            _check_header(content, where)
        elif set(content) == {"end", "sha256"}:
            if content["sha256"] != digest.hexdigest():
                raise DumpError(f"{where}: the checksum does not match the content. {_WAY_OUT}")
            if content["end"] != {"nodes": dict(nodes), "edges": dict(edges)}:
                raise DumpError(f"{where}: the numbers of nodes and relationships do not match. {_WAY_OUT}")
            ended = True
        else:
            record = _record(content, where)
            if isinstance(record, NodeRows):
                nodes[record.label] += len(record.rows)
            elif isinstance(record, EdgeRows):
                edges[record.type] += len(record.rows)
            yield number, record
        digest.update(line)
    if not ended:
        raise DumpError(f"{name} ends too early: a part of it is missing. {_WAY_OUT}")


_WAY_OUT = "Nothing was written; make the dump again, or copy it again"


def _lines(name: str, file: BinaryIO, largest: int) -> Iterator[tuple[int, bytes]]:
    number = size = 0
    try:
        file.seek(0)
        with gzip.GzipFile(fileobj=file, mode="rb") as packed:
            while line := packed.readline(LONGEST_LINE + 1):
                number, size = number + 1, size + len(line)
                if len(line) > LONGEST_LINE or size > largest:
                    raise DumpError(f"{name}, line {number}: the dump is larger than stagedb reads. {_WAY_OUT}")
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DumpError(f"{name} is no dump, or damaged after line {number} ({error}). {_WAY_OUT}") from None
    except OSError as error:
        raise UsageError(f"cannot read the dump {name}: {error.strerror}") from None


def _mapping(line: bytes, where: str) -> dict[str, Any]:
    try:
        content = parse_json(line.decode("utf-8"), where)
    except (UsageError, UnicodeDecodeError) as error:
        raise DumpError(f"{where}: {shown(str(error))}. {_WAY_OUT}") from None
    if not isinstance(content, dict):
        raise DumpError(f"{where}: {shown(content)} is no mapping. {_WAY_OUT}")
    return content


def _check_header(content: Mapping[str, Any], where: str) -> None:
    if set(content) != {"format", "version", "schema"} or content["format"] != FORMAT:
        raise DumpError(f"{where}: this is no dump of a stagedb store: {call('store dump')} makes one")
    for name, (oldest, newest) in READABLE.items():
        found = content[name]
        if type(found) is not int or found < 1:
            raise DumpError(f"{where}: the {name} {shown(found)} is not possible. {_WAY_OUT}")
        if not oldest <= found <= newest:
            way = (
                "upgrade stagedb"
                if found > newest
                else f"make its instances again from their models and plans ({call('instantiate')})"
            )
            reads = str(newest) if oldest == newest else f"{oldest} to {newest}"
            raise DumpError(f"{where}: the dump has {name} {found}, and this stagedb reads {reads}: {way}")


def _record(content: Mapping[str, Any], where: str) -> Record:
    match content:
        case {"begin": str(kind), "id": str(id), **rest} if not rest:
            return DumpedThing(kind, id)
        case {"nodes": str(label), "rows": list(rows), **rest} if not rest and _fit(rows, (list, str | None, dict)):
            return NodeRows(label, rows)
        case {"edges": [str(type_), str(source), str(target)], "rows": list(rows), **rest} if not rest and _fit(
            rows, (str, str, dict)
        ):
            return EdgeRows(type_, source, target, rows)
        case {"marks": str(label), "rows": list(rows), **rest} if not rest and len(rows) <= ROWS:
            if all(type(row) is dict for row in rows):
                return MarkRows(label, rows)
    raise DumpError(f"{where}: {shown(content)} is nothing that a dump has. {_WAY_OUT}")


def _fit(rows: Sequence[Any], types: tuple[Any, ...]) -> bool:
    return len(rows) <= ROWS and all(
        type(row) is list and len(row) == len(types) and all(map(isinstance, row, types)) for row in rows
    )
