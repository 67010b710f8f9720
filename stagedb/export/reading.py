"""Reading a trace file back into columns, whoever wrote it: fields in any order, known or not, packed or not."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from stagedb.errors import StagedbError
from stagedb.export import chakra_pb2 as pb
from stagedb.export.wire import Bytes, Ints, spread

Bools = npt.NDArray[np.bool_]

VALUE_NAMES: Mapping[int, str] = {
    field.number: field.name for field in pb.AttributeProto.DESCRIPTOR.fields if field.containing_oneof
}
"""Fields of an attribute that hold its value, by number: the name tells the type."""

_VALUE_NUMBERS = np.array(sorted(VALUE_NAMES), np.int64)
_PAST_THE_END = 16


class TraceError(StagedbError):
    """A file that is no trace: says where it stops making sense."""


@dataclass(frozen=True)
class Attribute:
    """One attribute over all nodes. `field` is the number of AttributeProto's field that holds the value (0: absent).

    `value` is a number's value, `text` a string's row in the trace's `texts` (-1: none).
    """

    field: Ints
    value: Ints
    text: Ints

    @property
    def present(self) -> Bools:
        """Which nodes have it."""
        return self.field > 0


@dataclass(frozen=True)
class TraceColumns:
    """A trace, one row a node in the order of the file. `name` is a row of `texts`.

    `dep_node` (a row) waits for the node with id `dep_id`; `dep_ctrl` tells control from data dependencies.
    """

    path: Path
    version: str
    metadata: Mapping[str, int | str | float | bool]
    id: Ints
    type: Ints
    name: Ints
    duration: Ints
    dep_node: Ints
    dep_id: Ints
    dep_ctrl: Bools
    texts: tuple[str, ...]
    attribute_node: Ints
    attribute_name: Ints
    attribute_field: Ints
    attribute_value: Ints
    attribute_text: Ints

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def text_rows(self) -> Mapping[str, int]:
        """The row of each text."""
        return {text: row for row, text in enumerate(self.texts)}

    def node_name(self, row: int) -> str:
        """The name of a node."""
        return self.texts[self.name[row]]

    def attribute(self, name: str) -> Attribute:
        """An attribute by name, of every node."""
        chosen = self.attribute_name == self.text_rows.get(name, -2)
        rows = self.attribute_node[chosen]
        out = [np.zeros(len(self), np.int64), np.zeros(len(self), np.int64), np.full(len(self), -1, np.int64)]
        columns = (self.attribute_field, self.attribute_value, self.attribute_text)
        for column, values in zip(out, columns, strict=True):
            column[rows] = values[chosen]
        return Attribute(*out)

    def strings(self, name: str) -> list[str]:
        """A string attribute of every node, "" where it has none."""
        return ["" if row < 0 else self.texts[row] for row in self.attribute(name).text.tolist()]


def read_trace(path: Path) -> TraceColumns:
    """Read a trace file, plain or compressed by gzip. Raises TraceError for what is none."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    return parse_trace(raw, path)


def parse_trace(raw: bytes, path: Path = Path("trace")) -> TraceColumns:
    """The trace in these bytes."""
    starts, ends = _messages(raw, path)
    if not len(starts):
        raise TraceError(f"{path}: is empty: a trace begins with a GlobalMetadata message")
    try:
        metadata = pb.GlobalMetadata.FromString(raw[starts[0] : ends[0]])
    except DecodeError as error:
        raise TraceError(f"{path}: does not begin with a GlobalMetadata message: {error}") from error
    said = {each.name: getattr(each, each.WhichOneof("value") or "doc_string") for each in metadata.attr}
    data = np.frombuffer(raw + bytes(_PAST_THE_END), np.uint8)
    return _Parser(data, starts[1:], ends[1:], path).run(
        metadata.version, {name: value for name, value in said.items() if isinstance(value, (int, str, float))}
    )


def _messages(raw: bytes, path: Path) -> tuple[Ints, Ints]:
    """Where each length-prefixed message begins and ends."""
    starts, ends, at, end = [], [], 0, len(raw)
    while at < end:
        size, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            if at >= end or shift > 63:
                raise TraceError(f"{path}: the stream of messages breaks off at byte {at}")
            byte = raw[at]
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        if at + size > end:
            raise TraceError(f"{path}: a message of {size} bytes at byte {at} goes beyond the end of the file ({end})")
        starts.append(at)
        at += size
        ends.append(at)
    return np.array(starts, np.int64), np.array(ends, np.int64)


@dataclass(frozen=True)
class _Field:
    """The next field of some messages: its number, wire type, value if it is a number, and where its bytes are."""

    rows: Ints
    number: Ints
    wire: Ints
    value: Ints
    begin: Ints
    end: Ints

    def where(self, chosen: Bools) -> "_Field":
        return _Field(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


class _Parser:
    """Walks all messages in step, field by field."""

    def __init__(self, data: Bytes, starts: Ints, ends: Ints, path: Path) -> None:
        self.data, self.starts, self.ends, self.path = data, starts, ends, path

    def run(self, version: str, metadata: Mapping[str, int | str | float | bool]) -> TraceColumns:
        count = len(self.starts)
        ids, types, durations = (np.zeros(count, np.int64) for _ in range(3))
        name_begin, name_end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        deps: list[tuple[Ints, Ints, Bools]] = []
        attributes: list[_Field] = []
        for field in self._fields(self.starts, self.ends):
            for number, out in ((1, ids), (3, types), (7, durations)):
                one = field.where((field.number == number) & (field.wire == 0))
                out[one.rows] = one.value
            named = field.where((field.number == 2) & (field.wire == 2))
            name_begin[named.rows], name_end[named.rows] = named.begin, named.end
            for number in (4, 5):
                deps += self._dependencies(field.where(field.number == number), number == 4)
            attributes.append(field.where((field.number == 10) & (field.wire == 2)))
        found = _concatenate(attributes)
        order = np.argsort(found.rows, kind="stable")
        found = found.where(order)  # type: ignore[arg-type]
        names, fields, values, text_begin, text_end = self._attributes(found)
        # Every text of the file, once.
        begins = np.concatenate([name_begin, names[0], text_begin])
        ends = np.concatenate([name_end, names[1], text_end])
        codes, texts = self._texts(begins, ends)
        attribute_names, attribute_texts = codes[count : count + len(found.rows)], codes[count + len(found.rows) :]
        node, ident, ctrl = (
            np.concatenate([each[i] for each in deps]) if deps else np.zeros(0, np.int64) for i in range(3)
        )
        by_node = np.argsort(node, kind="stable")
        return TraceColumns(
            path=self.path,
            version=version,
            metadata=metadata,
            id=ids,
            type=types,
            name=codes[:count],
            duration=durations,
            dep_node=node[by_node],
            dep_id=ident[by_node],
            dep_ctrl=ctrl[by_node].astype(bool),
            texts=texts,
            attribute_node=found.rows,
            attribute_name=attribute_names,
            attribute_field=fields,
            attribute_value=values,
            attribute_text=np.where(fields == _STRING, attribute_texts, -1),
        )

    def _dependencies(self, field: _Field, ctrl: bool) -> Iterator[tuple[Ints, Ints, Bools]]:
        single, packed = field.where(field.wire == 0), field.where(field.wire == 2)
        if len(single.rows):
            yield single.rows, single.value, np.full(len(single.rows), ctrl)
        sizes = packed.end - packed.begin
        packed, sizes = packed.where(sizes > 0), sizes[sizes > 0]
        if not len(packed.rows):
            return
        raw = self.data[spread(packed.begin, sizes)]
        finals = np.flatnonzero(raw < 0x80)
        if not (self.data[packed.end - 1] < 0x80).all():
            raise TraceError(f"{self.path}: a packed dependency breaks off")
        begins = np.concatenate([[0], finals[:-1] + 1])
        values = np.zeros(len(finals), np.uint64)
        widths = finals - begins + 1
        for byte in range(min(10, int(widths.max()))):
            more = np.flatnonzero(widths > byte)
            values[more] |= (raw[begins[more] + byte] & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
        owners = np.repeat(packed.rows, sizes)[finals]
        yield owners, values.view(np.int64), np.full(len(finals), ctrl)

    def _attributes(self, found: _Field) -> tuple[tuple[Ints, Ints], Ints, Ints, Ints, Ints]:
        count = len(found.rows)
        name_begin, name_end, numbers, values, begin, end = (np.zeros(count, np.int64) for _ in range(6))
        for field in self._fields(found.begin, found.end):
            named = field.where((field.number == 1) & (field.wire == 2))
            name_begin[named.rows], name_end[named.rows] = named.begin, named.end
            one = field.where(np.isin(field.number, _VALUE_NUMBERS))
            numbers[one.rows], values[one.rows] = one.number, one.value
            begin[one.rows], end[one.rows] = one.begin, one.end
        text = numbers == _STRING
        # int32 is written as a 64-bit varint; the others that the rules read are as they stand.
        return (name_begin, name_end), numbers, values, np.where(text, begin, 0), np.where(text, end, 0)

    def _fields(self, starts: Ints, ends: Ints) -> Iterator[_Field]:
        at = starts.copy()
        rows = np.flatnonzero(at < ends)
        while len(rows):
            key, cursor = self._varints(at[rows])
            number, wire = key >> 3, key & 7
            value, after = self._varints(cursor)
            begin, end = cursor, after
            sized = wire == 2
            begin, end = np.where(sized, after, begin), np.where(sized, after + value, end)
            end = np.where(wire == 1, cursor + 8, np.where(wire == 5, cursor + 4, end))
            bad = (number < 1) | ~np.isin(wire, (0, 1, 2, 5)) | (end > ends[rows]) | (sized & (value < 0))
            if bad.any():
                where = int(cursor[np.flatnonzero(bad)[0]])
                raise TraceError(f"{self.path}: byte {where} is no field of a protobuf message")
            yield _Field(rows, number, wire, np.where(wire == 0, value, 0), begin, end)
            at[rows] = end
            rows = rows[end < ends[rows]]

    def _varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Values of the varints at these positions, and where they end."""
        byte = self.data[np.minimum(at, len(self.data) - 1)]
        values = (byte & 0x7F).astype(np.uint64)
        width = np.ones(len(at), np.int64)
        more = np.flatnonzero(byte >= 0x80)
        for step in range(1, 10):
            if not len(more):
                break
            byte = self.data[np.minimum(at[more] + step, len(self.data) - 1)]
            values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * step)
            width[more] += 1
            more = more[byte >= 0x80]
        return values.view(np.int64), at + width

    def _texts(self, begins: Ints, ends: Ints) -> tuple[Ints, tuple[str, ...]]:
        """A number for each text, equal where the texts are; and the texts by number."""
        sizes = ends - begins
        hashes = sizes.astype(np.uint64)
        left = np.flatnonzero(sizes > 0)
        step = 0
        while len(left):
            hashes[left] = (hashes[left] ^ self.data[begins[left] + step]) * np.uint64(0x100000001B3)
            hashes[left] ^= hashes[left] >> np.uint64(29)
            step += 1
            left = left[sizes[left] > step]
        _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
        whole = self.data.tobytes()
        texts = [whole[begins[row] : ends[row]].decode(errors="replace") for row in first]
        return codes.reshape(-1).astype(np.int64), tuple(texts)


_STRING = pb.AttributeProto.DESCRIPTOR.fields_by_name["string_val"].number


def _concatenate(parts: list[_Field]) -> _Field:
    if not parts:
        return _Field(*(np.zeros(0, np.int64) for _ in range(6)))
    return _Field(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Field.__dataclass_fields__))
