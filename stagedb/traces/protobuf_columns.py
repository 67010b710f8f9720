"""Protobuf's wire format over whole columns: rows of bytes of different lengths, built and joined by numpy.

A `ByteRows` holds one byte string a row, all in one flat array. Messages are made by joining columns of rows; nothing
here loops over rows in Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

VARINT, LENGTH = 0, 2
"""Wire types that the traces use."""


@dataclass(frozen=True)
class ByteRows:
    """One byte string a row: row i is the next `lengths[i]` bytes of `data`."""

    data: Bytes
    lengths: Ints

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> Ints:
        """Where each row begins in `data`."""
        ends: Ints = np.cumsum(self.lengths)
        return ends - self.lengths

    def take(self, index: npt.NDArray[np.integer]) -> "ByteRows":
        """The rows at these indexes, in that order. index: their numbers, from 0."""
        lengths = self.lengths[index]
        return ByteRows(self.data[spread(self.starts[index], lengths)], lengths)

    def where(self, keep: npt.NDArray[np.bool_]) -> "ByteRows":
        """The rows, where those that `keep` leaves out are empty."""
        return ByteRows(self.data[np.repeat(keep, self.lengths)], np.where(keep, self.lengths, 0))

    def row(self, index: int) -> bytes:
        """The bytes of one row. index: of the row, from 0."""
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()


def spread(starts: Ints, lengths: Ints) -> Ints:
    """The positions `start, start + 1, … start + length - 1` of every row, concatenated.

    starts, lengths: a number of bytes for each row.
    """
    total = int(lengths.sum())
    ends: Ints = np.cumsum(lengths)
    shifts: Ints = np.repeat(starts - (ends - lengths), lengths)
    return np.arange(total, dtype=np.int64) + shifts


def constant(value: bytes, count: int) -> ByteRows:
    """`count` rows with the same bytes. value: the bytes."""
    return ByteRows(np.tile(np.frombuffer(value, np.uint8), count), np.full(count, len(value), np.int64))


def texts(values: Sequence[str]) -> ByteRows:
    """One text a row, as UTF-8."""
    encoded = [value.encode() for value in values]
    return ByteRows(np.frombuffer(b"".join(encoded), np.uint8), np.fromiter(map(len, encoded), np.int64, len(encoded)))


def varint_sizes(values: Ints) -> Ints:
    """The number of bytes that each value takes as a varint. values: 0 or more."""
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 63, 7):
        sizes += values >= (1 << bits)
    return sizes


def varint_size(value: int) -> int:
    """The number of bytes that a value takes as a varint."""
    return max(1, -(-value.bit_length() // 7))


def varints(values: Ints) -> ByteRows:
    """Every value (not negative) as the shortest varint. values: integers."""
    sizes = varint_sizes(values)
    wide = padded(values, int(sizes.max(initial=1)))
    column = np.arange(wide.shape[1])
    last = column[None, :] == sizes[:, None] - 1
    return ByteRows((wide & np.where(last, 0x7F, 0xFF).astype(np.uint8))[column[None, :] < sizes[:, None]], sizes)


def padded(values: Ints, width: int) -> Bytes:
    """Every value (not negative) as a varint of exactly `width` bytes: a matrix with a row for each value.

    values: below 2 to the power of 7 · `width`.
    """
    shifts = np.arange(width, dtype=np.int64) * 7
    out = ((values[:, None] >> shifts) & 0x7F).astype(np.uint8)
    out[:, :-1] |= 0x80
    return out


def put_padded(buffer: Bytes, positions: Ints, values: Ints, width: int) -> None:
    """Write varints of `width` bytes at these positions of a buffer.

    positions: of the first byte of each. values: 0 or more.
    """
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        buffer[positions + byte] = ((values >> (7 * byte)) & 0x7F).astype(np.uint8) | more


def tag(field: int, wire_type: int) -> bytes:
    """The protobuf tag of a field: the bytes before its value.

    wire_type: how the value is encoded, such as `VARINT`.
    """
    return varints(np.array([field << 3 | wire_type], np.int64)).row(0)


def number_fields(field: int, values: Ints) -> ByteRows:
    """For each value, one varint field with this number. values: 0 or more."""
    return join(constant(tag(field, VARINT), len(values)), varints(values))[0]


def bytes_fields(field: int, values: ByteRows) -> ByteRows:
    """A field of text, bytes or a message, one a row."""
    return join(constant(tag(field, LENGTH), len(values)), varints(values.lengths), values)[0]


def join(*columns: ByteRows) -> tuple[ByteRows, list[Ints]]:
    """Each row's bytes of all columns, concatenated; and the start of each column's rows in the result."""
    lengths: Ints = np.stack([column.lengths for column in columns]).sum(axis=0)
    out = np.empty(int(lengths.sum()), np.uint8)
    at = np.cumsum(lengths) - lengths
    begins = []
    for column in columns:
        begins.append(at)
        out[spread(at, column.lengths)] = column.data
        at = at + column.lengths
    return ByteRows(out, lengths), begins
