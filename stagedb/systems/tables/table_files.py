"""Files of tables: rows that people measure (.csv, .parquet), and the compact form that stagedb writes (.npz).

A row has the columns of its operator (`measured_table.SHAPES`) and `ns` or `us`. The compact form has the grid of a
table: logarithms in steps of 1/256, so that a time is within 0.2 % of the table's own.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import path_text, read_bytes, shown
from stagedb.files.tabular_files import csv_table, parquet_table
from stagedb.mentions import Word
from stagedb.systems.tables.grids import Floats, Grid
from stagedb.systems.tables.measured_table import COLLECTIVES, SHAPES, WIDTHS, Columns, MeasuredTable, table_of

ENDINGS = (".csv", ".parquet", ".npz")
UNITS: Mapping[str, float] = {"ns": 1.0, "us": 1000.0}
"""Columns of the time, each with its unit in ns. A table has one of them."""

STEPS = 256
"""Steps of the compact form in a factor of e."""

_LARGEST = 256 << 20
_MOST_VALUES = 1 << 24
_FORMAT = 1


def shipped(name: str) -> Path:
    """The file of a table that stagedb carries. name: of the table."""
    return Path(str(files("stagedb.systems"))) / "presets" / "tables" / f"{name}.npz"


def located(file: str) -> Path:
    """The path of a table: a file of its own, or one that stagedb carries if it is a name without an ending."""
    return Path(file) if Path(file).suffix in ENDINGS else shipped(file)


def digest_of(file: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a table's file. UsageError if it cannot be read."""
    return sha256(read_bytes(located(file), "table", _LARGEST, str(Word("system")))).hexdigest()[:16]


@lru_cache(maxsize=64)
def load_table(file: str, operator: str, dtype: str, digest: str) -> MeasuredTable:
    """The table of a file. UsageError if it cannot be read, has other content, or is of another operator.

    file: as `located` takes it. operator: whose times it has. dtype: the format that its operators compute in.
    digest: the first 16 hexadecimal digits of its SHA-256.
    """
    path = located(file)
    data = read_bytes(path, "table", _LARGEST, str(Word("system")))
    where = path_text(path)
    if sha256(data).hexdigest()[:16] != digest:
        raise UsageError(f"{where} is not the table that the system was read with: its content changed since")
    try:
        if path.suffix == ".npz":
            table, found = unpacked(data), dtype
        else:
            rows, ns = rows_and_ns(_columns(path, data), operator)
            table, found = table_of(operator, dtype, rows, ns), dtype
    except (UsageError, ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{where}: {error}") from None
    if table.shape.name != operator or found != dtype:
        raise UsageError(f"{where} is a table of {table.shape.name}, and the system has it as one of {operator}")
    return table


def _columns(path: Path, data: bytes) -> dict[str, list[Any]]:
    if path.suffix == ".csv":
        try:
            table = csv_table(data.decode("utf-8"), "the file")
        except UnicodeDecodeError:
            raise UsageError("it is not text in UTF-8") from None
    else:
        table = parquet_table(data, "the file", _MOST_VALUES)
    rows = [cells for _, cells in table.rows]
    return {name: [cells[place] for cells in rows] for place, name in enumerate(table.columns)}


def rows_and_ns(columns: Mapping[str, list[Any]], operator: str) -> tuple[Columns, Floats]:
    """The rows of a table and their ns, from columns of numbers or texts.

    operator: one of those with tables. UsageError for a missing, unknown or repeated column, and for a value that is no
    number above 0.
    """
    shape = SHAPES[operator]
    known = (*shape.columns, *shape.optional)
    unknown = [name for name in columns if name not in (*known, *UNITS)]
    if unknown:
        raise UsageError(
            f"unknown column {shown(unknown[0])}; a table of {operator} may have {', '.join(known)}, ns, us"
        )
    times = [name for name in columns if name in UNITS]
    if len(times) != 1:
        raise UsageError(f"it has {' and '.join(times) or 'no time'}: give one of the columns ns and us")
    read = {name: _numbers(name, values) for name, values in columns.items() if name != "collective"}
    if "collective" in columns:
        read["collective"] = np.array([_collective(value) for value in columns["collective"]], np.float64)
    return {name: values for name, values in read.items() if name not in UNITS}, read[times[0]] * UNITS[times[0]]


def _numbers(name: str, values: list[Any]) -> Floats:
    try:
        found = np.array([float(value) for value in values], np.float64)
    except (TypeError, ValueError):
        wrong = next(value for value in values if not _is_number(value))
        raise UsageError(f"column {name} has {shown(str(wrong))}, which is no number") from None
    if not (np.isfinite(found) & (found > 0)).all():
        place = int(np.flatnonzero(~(np.isfinite(found) & (found > 0)))[0])
        raise UsageError(f"column {name} has {found[place]:g} in row {place + 1}: it takes numbers above 0")
    return found


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _collective(value: Any) -> int:
    if value not in COLLECTIVES:
        raise UsageError(f"column collective has {shown(str(value))}: it takes {', '.join(COLLECTIVES)}")
    return COLLECTIVES.index(value)


def packed(table: MeasuredTable) -> bytes:
    """The compact form of a table."""
    codes = np.rint(table.grid.values * STEPS).astype(np.int16)
    # Neighbours differ little, so that the upper bytes of differences are mostly 0.
    apart = np.diff(codes, axis=-1, prepend=np.int16(0)).astype("<i2")
    head = {
        "format": _FORMAT,
        "operator": table.shape.name,
        "wide": table.wide,
        "base": [table.floor, table.rate, table.bandwidth],
        "axes": [len(axis) for axis in table.grid.axes],
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        parts = {
            "head.json": json.dumps(head).encode(),
            "axes": np.concatenate(table.grid.axes).astype("<f8").tobytes(),
            "families": table.families.astype("<f8").tobytes(),
            "values": apart.reshape(-1).view(np.uint8).reshape(-1, 2).T.tobytes(),
        }
        for name, content in parts.items():
            # The same table makes the same bytes on any day.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def unpacked(data: bytes) -> MeasuredTable:
    """The table of a compact form. data: of the file. ValueError or KeyError for other content."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(each.file_size for each in archive.infolist()) > 4 * _MOST_VALUES:
            raise ValueError("it is larger than a table can be")
        head = json.loads(archive.read("head.json"))
        axes, families, values = (archive.read(name) for name in ("axes", "families", "values"))
    if head.get("format") != _FORMAT or head["operator"] not in SHAPES or head["wide"] not in WIDTHS.values():
        raise ValueError("not a table of this version of stagedb")
    lengths = [int(each) for each in head["axes"]]
    ends = np.cumsum(lengths)
    every = np.frombuffer(axes, "<f8")
    if len(every) != ends[-1] or len(values) != 2 * int(np.prod(lengths)):
        raise ValueError("its parts are not of the same size")
    codes = np.ascontiguousarray(np.frombuffer(values, np.uint8).reshape(2, -1).T).view("<i2").reshape(lengths)
    shape = SHAPES[head["operator"]]
    grid = Grid(tuple(np.split(every, ends[:-1])), np.cumsum(codes, axis=-1, dtype=np.int64) / STEPS)
    width = max(len(shape.families), 1)
    floor, rate, bandwidth = (float(each) for each in head["base"])
    kinds = np.frombuffer(families, "<f8").reshape(-1, width)
    return MeasuredTable(shape, float(head["wide"]), floor, rate, bandwidth, grid, kinds)
