"""CRC-32 of the files of a set, in the form of an SFV file, which other tools (cksfv, rhash) check too.

The files of a class differ in few bytes, and a CRC is linear: the CRCs of two buffers of one length differ by the CRC
of their difference. So the checksum of every rank follows from that of the first one, without its file (`rank_crcs`).
The arithmetic is that of polynomials over GF(2), as in zlib's `crc32_combine`.
"""

import re
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stagedb.errors import UsageError
from stagedb.files import open_regular, read_text
from stagedb.traces.encoded_class import EncodedClass, RankBytes, rank_files
from stagedb.traces.formats import RankFiles
from stagedb.traces.trace_set import TraceSet

CHECKSUMS = "checksums.sfv"
"""Name of the file of checksums in a set."""

Crcs = npt.NDArray[np.uint32]

_POLYNOMIAL = np.uint32(0xEDB88320)
_ONE = np.uint32(1 << 31)
"""The polynomial 1: bits are in reverse order."""

_STEP = 1 << 12
_BLOCK = 1 << 20
_LARGEST = 64 << 20
_LINE = re.compile(r"(?P<name>[^/\\]+) (?P<crc>[0-9A-F]{8})")


def rank_crcs(encoded: EncodedClass, ranks: RankBytes) -> Crcs:
    """The CRC-32 of each rank's file, in the order of `ranks`."""
    if not len(ranks.ranks):
        return np.zeros(0, np.uint32)
    _, first = next(rank_files(encoded, ranks))
    shared_crc = np.uint32(zlib.crc32(first.data))
    positions, sources = encoded.patched()
    weights = np.zeros(ranks.values.shape[1], np.uint32)
    np.bitwise_xor.at(weights, sources, _shifts(len(first) - 1 - positions))
    table = _multiply(weights[:, None], _byte_crcs()[None, :])
    own = np.bitwise_xor.reduce(table[np.arange(len(weights)), ranks.values], axis=1)
    crcs: Crcs = shared_crc ^ own ^ own[0]
    return crcs


def set_crcs(traces: TraceSet, files: RankFiles) -> dict[str, int] | None:
    """The checksum of each trace by the name of its file; None for files of another form than traces have."""
    if not files.plain:
        return None
    return {
        files.file(traces.name, rank): crc
        for of_class in traces.classes
        for rank, crc in zip(
            of_class.ranks.ranks.tolist(), rank_crcs(of_class.encoded, of_class.ranks).tolist(), strict=True
        )
    }


def file_crc(path: Path) -> int:
    """The CRC-32 of a regular file. Raises OSError as `open_regular` does."""
    crc = 0
    with open_regular(path) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def checksums_text(crcs: Mapping[str, int]) -> str:
    """The text of the file of checksums.

    crcs: by name of a file, its CRC-32.
    """
    lines = (f"{name} {crc:08X}\n" for name, crc in crcs.items())
    return "".join(lines)


def read_checksums(path: Path) -> dict[str, int]:
    """The checksums by name of the file. UsageError for a file of another form."""
    crc_of = {}
    for number, line in enumerate(read_text(path, "file of checksums", _LARGEST).splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match["name"] in crc_of:
            raise UsageError(f"{path}, line {number}: not a name and its CRC-32")
        crc_of[match["name"]] = int(match["crc"], 16)
    return crc_of


def _shifts(zeros: npt.NDArray[np.int64]) -> Crcs:
    """x^(8 n) for each number n of bytes that follow."""
    low, high = zeros % _STEP, zeros // _STEP
    # Two tables of powers, of small and of large steps: their product has any number of bytes.
    return _multiply(_powers(_power(8), _STEP)[low], _powers(_power(8 * _STEP), int(high.max(initial=0)) + 1)[high])


def _power(exponent: int) -> np.uint32:
    """x^exponent."""
    power, square = np.array([_ONE]), np.array([_ONE >> np.uint32(1)])
    while exponent:
        if exponent & 1:
            power = _multiply(power, square)
        square = _multiply(square, square)
        exponent >>= 1
    return np.uint32(power[0])


def _powers(base: np.uint32, count: int) -> Crcs:
    """base^0, base^1 … base^(count - 1)."""
    powers, step = np.array([_ONE], np.uint32), np.array([base], np.uint32)
    while len(powers) < count:
        powers = np.concatenate([powers, _multiply(powers, step)])
        step = _multiply(step, step)
    return powers[:count]


def _byte_crcs() -> Crcs:
    """For each value of a byte, the CRC of that byte alone: the table of the usual byte-wise algorithm."""
    crcs = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crcs = (crcs >> np.uint32(1)) ^ np.where(crcs & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return crcs


def _multiply(one: Crcs, other: Crcs) -> Crcs:
    """The products of polynomials, modulo that of CRC-32; arrays are broadcast."""
    one, other = np.broadcast_arrays(one, other)
    product, shifted = np.zeros(one.shape, np.uint32), other.copy()
    for bit in range(31, -1, -1):
        product ^= np.where((one >> np.uint32(bit)) & np.uint32(1), shifted, np.uint32(0))
        shifted = (shifted >> np.uint32(1)) ^ np.where(shifted & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return product
