"""Perfetto's protobuf: tracks, and events on them in columns, since a trace has many small messages.

Field numbers are those of Perfetto's `trace_packet.proto`, `track_event.proto` and `track_descriptor.proto`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stagedb.traces.protobuf_columns import ByteRows, Ints, bytes_fields, constant, join, number_fields, tag

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
_EXPLICIT, _BYTES = 3, 3
_FIXED64 = 1


class InternedNames:
    """Texts that are written once. Other messages use their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def of(self, values: Sequence[str]) -> Ints:
        """The number of each text, which is new for a text that was not interned yet."""
        return np.array([self[value] for value in values], np.int64)


@dataclass(frozen=True)
class TrackEvents:
    """Events in the order of their tracks, as columns.

    time: ns. name: the number of an interned text, 0 for an end. more: further fields of each event.
    """

    kind: Ints
    track: Ints
    time: Ints
    name: Ints
    more: ByteRows


@dataclass
class PerfettoFile:
    """A trace while it is made. names, keys, values: texts that are written once. slices: how many there are."""

    names: InternedNames = field(default_factory=InternedNames)
    keys: InternedNames = field(default_factory=InternedNames)
    values: InternedNames = field(default_factory=InternedNames)
    tracks: list[bytes] = field(default_factory=list)
    events: list[TrackEvents] = field(default_factory=list)
    slices: int = 0

    def track(self, parent: int, name: str, rank: int, *, ordered: bool = False, counts_bytes: bool = False) -> int:
        """Add a track, which is a row of the view. Returns its id.

        parent: the id of the track that it is under; 0: none. name: as the view shows it. rank: its place among its
        siblings. ordered: whether its children are in the order of their `rank`. counts_bytes: it is a counter of
        bytes; else it has slices.
        """
        number = len(self.tracks) + 1
        about = f"Written by stagedb: {name}" if parent == 0 else ""
        self.tracks.append(
            number_field(1, number)
            + text_field(2, name)
            + (number_field(5, parent) if parent else b"")
            + (text_field(8, number_field(3, _BYTES)) if counts_bytes else b"")
            + (number_field(11, _EXPLICIT) if ordered else b"")
            + number_field(12, rank)
            + (text_field(14, about) if about else b"")
        )
        return number

    def arg(self, key: str, values: Ints) -> ByteRows:
        """An argument that is a whole number, one for each row. key: one of `keys`. values: a column."""
        name = constant(number_field(1, self.keys[key]), len(values))
        return bytes_fields(4, join(name, number_fields(3, values))[0])

    def text_arg(self, key: str, values: Sequence[str]) -> ByteRows:
        """An argument that is a text, one for each row. An empty text has no argument.

        key: one of `keys`. values: a column.
        """
        name = constant(number_field(1, self.keys[key]), len(values))
        found = bytes_fields(4, join(name, number_fields(17, self.values.of(values)))[0])
        return found.where(np.array([bool(value) for value in values], bool))

    def content(self) -> bytes:
        """The whole trace."""
        kind, track, time, name = (
            np.concatenate([getattr(each, field) for each in self.events])
            for field in ("kind", "track", "time", "name")
        )
        more = stack(*(each.more for each in self.events))
        event = join(number_fields(9, kind), number_fields(11, track), number_fields(10, name).where(name > 0), more)[0]
        count = len(kind)
        packets = join(
            number_fields(8, time), constant(number_field(10, 1) + number_field(13, 2), count), bytes_fields(11, event)
        )[0]
        first = b"".join(text_field(1, number_field(10, 1) + text_field(60, each)) for each in self.tracks)
        interned = [
            (2, self.names),
            (3, self.keys),
            (29, self.values),
        ]
        words = b"".join(
            text_field(field, number_field(1, number) + text_field(2, text))
            for field, names in interned
            for text, number in names.numbers.items()
        )
        first += text_field(1, number_field(10, 1) + number_field(13, 1) + text_field(12, words))
        return first + bytes_fields(1, packets).data.tobytes()


def stack(*parts: ByteRows) -> ByteRows:
    """The rows of all parts, one part after the other."""
    return ByteRows(np.concatenate([each.data for each in parts]), np.concatenate([each.lengths for each in parts]))


def flow_field(field: int, numbers: Ints) -> ByteRows:
    """The protobuf field of a flow, the arrow between two slices. It has eight bytes; number 0 has no field.

    field: its number. numbers: of the flows.
    """
    value = numbers.astype("<i8").view(np.uint8).reshape(len(numbers), 8)
    head = np.tile(np.frombuffer(tag(field, _FIXED64), np.uint8), (len(numbers), 1))
    rows = np.concatenate([head, value], axis=1)
    return ByteRows(rows.reshape(-1), np.full(len(numbers), rows.shape[1], np.int64)).where(numbers > 0)


def number_field(field: int, value: int) -> bytes:
    """A protobuf field whose value is a whole number."""
    return number_fields(field, np.array([value], np.int64)).data.tobytes()


def text_field(field: int, value: str | bytes) -> bytes:
    """A field that is a text, or a message. field: its number. value: the text, or the message's bytes."""
    data = value.encode() if isinstance(value, str) else value
    return bytes_fields(field, ByteRows(np.frombuffer(data, np.uint8), np.array([len(data)], np.int64))).data.tobytes()
