"""Measured durations, which replace modelled ones. A table has a row for each measurement.

The columns `name`, `kind`, `flops`, `bytes` and `message` choose the operators that a row times. An empty cell matches
anything; a name without numbers matches all layers. The row with the most cells wins. `duration_ns` or `duration_us` is
the time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import path_text, read_bytes, read_text, shown
from stagedb.files.tabular_files import csv_table, parquet_table
from stagedb.mentions import Word
from stagedb.systems.cost_model import Timed
from stagedb.systems.system_files import exact

MEASURED = "measured"
"""The rule of a duration that was measured."""

TEXTS = ("name", "kind")
NUMBERS = ("flops", "bytes", "message")
MATCHED = (*TEXTS, *NUMBERS)
"""Columns that choose operators. `bytes`: what an operator reads and writes. `message`: what is communicated."""

UNITS: Mapping[str, int] = {"duration_ns": 1, "duration_us": 1000}
"""Columns of the time, each with its unit in ns."""

FIELDS = (*MATCHED, "rank")
"""All fields of a row. `rank` comes from traces, where a duration can differ between ranks. A table has no ranks."""

_LARGEST = 256 << 20
"""Bytes of the largest table."""

_MOST_ROWS = 10_000_000

Key = tuple[str | int | None, ...]


@dataclass(frozen=True)
class Subject:
    """An operator, collective or send that may have a measured duration.

    name: in the graph. kind: such as matmul. flops: FLOPs of one run. bytes: that it reads and writes. message: bytes
    of the operand of a collective. rank: the rank that runs it.
    """

    name: str
    kind: str
    flops: int | None = None
    bytes: int | None = None
    message: int | None = None
    rank: int | None = None

    @property
    def of_any_layer(self) -> "Subject":
        """The operator under the name that it has in all layers: without numbers."""
        return replace(self, name=".".join(part for part in self.name.split(".") if not part.isdecimal()))


@dataclass(frozen=True)
class Measured:
    """A row: what it matches (None: anything), and its ns. where: its place, for errors."""

    where: str
    ns: Fraction
    name: str | None = None
    kind: str | None = None
    flops: int | None = None
    bytes: int | None = None
    message: int | None = None
    rank: int | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields by which the row matches."""
        return tuple(each for each in FIELDS if getattr(self, each) is not None)


class Durations:
    """A table of measured durations.

    Raises UsageError for no rows, for a row that matches everything, and for two rows that match the same.
    """

    def __init__(self, rows: Iterable[Measured]) -> None:
        self.rows = tuple(rows)
        self._tables: dict[tuple[str, ...], dict[Key, Measured]] = {}
        for row in self.rows:
            if not row.fields:
                raise UsageError(f"{row.where} does not name what it measures: give one of {', '.join(MATCHED)}")
            table = self._tables.setdefault(row.fields, {})
            twin = table.setdefault(_key(row, row.fields), row)
            if twin is not row:
                raise UsageError(
                    f"{twin.where} and {row.where} measure the same ({described(row)}): "
                    "keep one row, such as their mean"
                )
        if not self.rows:
            raise UsageError("a table of measured durations has no rows")
        self.ranks = frozenset(row.rank for row in self.rows if row.rank is not None)
        self._known: dict[Subject, Measured | None] = {}

    def find(self, subject: Subject) -> Measured | None:
        """The row with the most fields among those that match a subject; None if none matches.

        UsageError, which names both, if two rows with equally many fields match.
        """
        if subject not in self._known:
            self._known[subject] = self._find(subject)
        return self._known[subject]

    def time(self, subject: Subject, modelled: Timed) -> Timed:
        """The measured time, with the rule `measured`; the modelled time if no row matches.

        A measured time does not change the traffic: that stays the model's.
        """
        row = self.find(subject)
        if row is None:
            return modelled
        return replace(modelled, ns=math.floor(row.ns + Fraction(1, 2)), rule=MEASURED)

    def _find(self, subject: Subject) -> Measured | None:
        names = (subject, subject.of_any_layer)
        pairs = ((table.get(_key(each, fields))) for fields, table in self._tables.items() for each in names)
        found = dict.fromkeys(row for row in pairs if row is not None)
        # The name of one layer is more precise than the name that all layers have.
        much = {row: (len(row.fields), row.name == subject.name) for row in found}
        most = max(much.values(), default=None)
        best = [row for row in found if much[row] == most]
        if len(best) > 1:
            raise UsageError(
                f"{' and '.join(f'{row.where} ({described(row)})' for row in best)} both match {subject.name or 'one'} "
                f"({subject.kind}): fill in another column of one row, so that it wins"
            )
        return best[0] if best else None


@dataclass(frozen=True)
class Coverage:
    """How much of a step was measured.

    ops, measured_ops: runs of operators. ns, measured_ns: the time that the model gives them.
    """

    ops: int = 0
    measured_ops: int = 0
    ns: int = 0
    measured_ns: int = 0

    @classmethod
    def of(cls, pairs: Iterable[tuple[Timed, Timed, int]]) -> "Coverage":
        """The coverage of a step.

        pairs: for each op the modelled time, the time that is used, and how often it runs.
        """
        ops = measured_ops = ns = measured_ns = 0
        for modelled, taken, times in pairs:
            ops += times
            ns += modelled.ns * times
            if taken.rule == MEASURED:
                measured_ops += times
                measured_ns += modelled.ns * times
        return cls(ops, measured_ops, ns, measured_ns)

    @property
    def share_of_ops(self) -> float:
        """The share of the runs of operators that were measured, from 0 to 1."""
        return self.measured_ops / self.ops if self.ops else 0.0

    @property
    def share_of_time(self) -> float:
        """The share of the modelled time that was measured, from 0 to 1."""
        return self.measured_ns / self.ns if self.ns else 0.0


def read_durations(path: Path) -> Durations:
    """The table of a CSV or Parquet file. UsageError, with file, row and column, for other content."""
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"{path_text(path)}: measured durations are read from .csv or .parquet files")
    if path.suffix == ".csv":
        table = csv_table(read_text(path, "durations", _LARGEST, str(Word("durations"))), str(path))
    else:
        table = parquet_table(read_bytes(path, "durations", _LARGEST, str(Word("durations"))), str(path), _MOST_ROWS)
    _check_columns(path, table.columns)
    return Durations(
        _measured(_Row(f"{path}, {table.unit} {number}", dict(zip(table.columns, map(_text, cells), strict=True))))
        for number, cells in table.rows
    )


@dataclass(frozen=True)
class _Row:
    """A row of a file as texts. An empty text is no value."""

    where: str
    cells: Mapping[str, str]


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    names = [*columns]
    known = (*MATCHED, *UNITS)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"{path}: unknown column {shown(unknown[0])}; a table may have {', '.join(known)}")
    times = [name for name in names if name in UNITS]
    if len(times) != 1:
        raise UsageError(f"{path} has {' and '.join(times) or 'no duration'}: give exactly one of {', '.join(UNITS)}")
    if not any(name in MATCHED for name in names):
        raise UsageError(f"{path} does not name what its rows measure: add a column of {', '.join(MATCHED)}")


def _measured(row: _Row) -> Measured:
    unit = next(name for name in row.cells if name in UNITS)
    flops, bytes_, message = (int(_number(row, name, whole=True)) if row.cells.get(name) else None for name in NUMBERS)
    name, kind = (row.cells.get(name) or None for name in TEXTS)
    return Measured(row.where, _number(row, unit) * UNITS[unit], name, kind, flops, bytes_, message)


def _number(row: _Row, column: str, *, whole: bool = False) -> Fraction:
    value = exact(row.cells[column])
    if value is None or value < 0 or (whole and value != int(value)):
        takes = "a whole number" if whole else "a number"
        found = repr(row.cells[column][:60]) if row.cells[column] else "empty"
        raise UsageError(f"{row.where}, column {column} is {found}: it takes {takes}, 0 or more")
    return value


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value)


def _key(row: Measured | Subject, fields: Iterable[str]) -> Key:
    return tuple(getattr(row, name) for name in fields)


def described(row: Measured) -> str:
    """What a row matches, in words."""
    return ", ".join(f"{name} {getattr(row, name)}" for name in row.fields)
