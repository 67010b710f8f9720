"""Trace files read back into columns, for validation, replay and the check against records."""

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from stagedb.errors import StagedbError, UsageError
from stagedb.files import read_bytes
from stagedb.traces import chakra_pb2 as pb

ATTRIBUTE_FIELDS: Mapping[str, str] = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "comm_priority": "int32_val",
    "pg_name": "string_val",
    "phase": "string_val",
    "kind": "string_val",
    "axis": "string_val",
    "dtype": "string_val",
    "duration_ns": "int64_val",
}
"""The attributes that stagedb knows, and the field of `AttributeProto` that holds each one's value."""


class TraceError(StagedbError):
    """A file that is no stream of Chakra messages."""


@dataclass(frozen=True)
class TraceColumns:
    """The nodes of one rank's trace in file order, column by column.

    path: of the file. version: of Chakra's schema. ids, names, types: of the nodes. data_deps, ctrl_deps: ids that each
    node waits for. attributes: for each known attribute one value a node, None if the node lacks it (or has it in
    another type). mistyped: (index of the node, attribute, field that holds its value) if the type is not the one that
    readers expect. repeated: index and attribute where a node has one twice. micros: durations [µs], 0 for a node
    without one.
    """

    path: Path
    version: str
    ids: list[int]
    names: list[str]
    types: list[int]
    data_deps: list[tuple[int, ...]]
    ctrl_deps: list[tuple[int, ...]]
    attributes: Mapping[str, list[Any]]
    mistyped: list[tuple[int, str, str]]
    repeated: list[tuple[int, str]]
    micros: list[int]

    def __len__(self) -> int:
        return len(self.ids)


def read_trace(path: Path) -> TraceColumns:
    """One rank's trace (`.et`, also gzipped). TraceError, with the offset, if the file is not one."""
    return parse_trace(path, _bytes(path))


def parse_trace(path: Path, data: bytes) -> TraceColumns:
    """The trace of these bytes. `path` is for errors, which are those of `read_trace`.

    data: messages of Chakra, each with its length before it.
    """
    metadata, messages = _opened(path, data)
    trace = TraceColumns(
        path, metadata.version, [], [], [], [], [], {name: [] for name in ATTRIBUTE_FIELDS}, [], [], []
    )
    node = pb.Node()
    for index, data in enumerate(messages):
        _parse(node, data, path, index + 1)
        trace.ids.append(node.id)
        trace.names.append(node.name)
        trace.types.append(node.type)
        trace.data_deps.append(tuple(node.data_deps))
        trace.ctrl_deps.append(tuple(node.ctrl_deps))
        trace.micros.append(node.duration_micros)
        _attributes(trace, index, node)
    return trace


@dataclass(frozen=True)
class NodeTime:
    """How long a node of a trace takes.

    type: in Chakra's schema. micros: microseconds, 0 if unknown. ns: exact; None if the node has none. recorded: its
    attributes among `RECORDED`. rank: of the file, None if the file does not contain it.
    """

    name: str
    type: int
    micros: int
    ns: int | None
    recorded: Mapping[str, Any]
    rank: int | None


RECORDED = ("kind", "num_ops", "tensor_size", "comm_size")


def node_times(path: Path) -> Iterator[NodeTime]:
    """The durations of a trace's nodes. TraceError as in `read_trace`."""
    metadata, messages = _opened(path, _bytes(path))
    rank = next((attribute.int32_val for attribute in metadata.attr if attribute.name == "rank"), None)
    node = pb.Node()
    for index, data in enumerate(messages):
        _parse(node, data, path, index + 1)
        recorded = {
            attribute.name: getattr(attribute, field)
            for attribute in node.attr
            if attribute.HasField(field := ATTRIBUTE_FIELDS.get(attribute.name, "int64_val"))
        }
        ns = recorded.get("duration_ns")
        yield NodeTime(
            node.name,
            node.type,
            node.duration_micros,
            ns,
            {name: recorded[name] for name in RECORDED if name in recorded},
            rank,
        )


def _opened(path: Path, data: bytes) -> tuple[pb.GlobalMetadata, Iterator[bytes]]:
    """A trace's metadata, and the messages of its nodes."""
    messages = _messages(path, data)
    first = next(messages, None)
    if first is None:
        raise TraceError(f"{path} is empty: a trace begins with its metadata")
    metadata = pb.GlobalMetadata()
    _parse(metadata, first, path, 0)
    return metadata, messages


def _attributes(trace: TraceColumns, index: int, node: pb.Node) -> None:
    values: dict[str, Any] = {}
    for attribute in node.attr:
        name = attribute.name
        wanted = ATTRIBUTE_FIELDS.get(name)
        if wanted is None:
            continue
        if name in values:
            trace.repeated.append((index, name))
        field = attribute.WhichOneof("value")
        if field == wanted:
            values[name] = getattr(attribute, wanted)
        else:
            trace.mistyped.append((index, name, field or "no value"))
    for name, column in trace.attributes.items():
        column.append(values.get(name))


def _parse(message: pb.Node | pb.GlobalMetadata, data: bytes, path: Path, place: int) -> None:
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: message {place} is not a {message.DESCRIPTOR.name}: {error}") from None


_LARGEST = 384 << 20
"""Bytes of the largest trace of one rank, decompressed: some millions of nodes."""


def _bytes(path: Path) -> bytes:
    """A file's bytes, decompressed."""
    try:
        data = read_bytes(path, "trace", _LARGEST)
    except UsageError as error:
        raise TraceError(f"{error}") from None
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            data = stream.read(_LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} is damaged: {error}") from None
    if len(data) > _LARGEST:
        raise TraceError(f"{path} has more than {_LARGEST >> 20} MiB when decompressed, the limit for a trace")
    return data


def _messages(path: Path, data: bytes) -> Iterator[bytes]:
    """The length-prefixed messages of a file."""
    stream = io.BytesIO(data)
    while (start := stream.tell()) < len(data):
        size = _varint(stream, path, start)
        if size == 0:
            raise TraceError(f"{path} has an empty message at byte {start}")
        message = stream.read(size)
        if len(message) < size:
            if start == 0:
                raise TraceError(
                    f"{path} ends inside its first message: it is no Chakra trace (protobuf messages, each after its "
                    "length), or it is cut"
                )
            raise TraceError(f"{path} ends inside the message at byte {start}")
        yield message


def _varint(stream: io.BytesIO, path: Path, start: int) -> int:
    value = 0
    for shift in range(0, 35, 7):
        byte = stream.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise TraceError(f"{path}: no message length at byte {start}")
