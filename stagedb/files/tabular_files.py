"""Tables in files that people bring: CSV and Parquet, read with bounds, as columns and rows of plain cells."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.files.texts import shown

MOST_EXPANDED = 512 << 20
"""Bytes of a table's cells, and characters of its texts, when nothing repeats any more. A file is much smaller: one
text in a dictionary can be the cell of every row."""

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4096, 16 << 20


@dataclass(frozen=True)
class FileTable:
    """The columns of a file, and its rows, which are read as they are asked for.

    Each row has its number and a cell for each column: a text without outer spaces in CSV, a value of Python in
    Parquet. unit: what the numbers count, `line` or `row`.
    """

    columns: tuple[str, ...]
    unit: str
    rows: Iterator[tuple[int, tuple[Any, ...]]]


def csv_table(text: str, where: str) -> FileTable:
    """The table of a CSV text with a line of column names. Empty lines are left out.

    `where` names the file in errors. Raises UsageError here for columns that are missing or repeat, and on reading a
    row that is no CSV or has another number of cells.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = tuple(name.strip() for name in next(reader, []))
    except csv.Error as error:
        raise UsageError(f"{where} is not CSV: {error}") from None
    if not any(columns):
        raise UsageError(f"{where} has no line of column names")
    _check_names(columns, where)
    return FileTable(columns, "line", _csv_rows(reader, columns, where))


def _csv_rows(reader: Any, columns: tuple[str, ...], where: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    try:
        for cells in reader:
            if any(cells):
                line = reader.line_num
                if len(cells) != len(columns):
                    raise UsageError(f"{where}, line {line}: {len(cells)} cells under {len(columns)} columns")
                yield line, tuple(cell.strip() for cell in cells)
    except csv.Error as error:
        raise UsageError(f"{where} is not CSV: {error}") from None


def parquet_table(data: bytes, where: str, most_rows: int) -> FileTable:
    """The table of a Parquet file. where: names the file in errors. most_rows: a limit.

    data: the bytes of the file. Raises UsageError here for another format, for more rows, for columns that are nested
    or share a name, and for a stated size beyond the bound. A row that expands beyond the bound raises UsageError when
    it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        schema, stated = file.schema_arrow, file.metadata
        # A few kilobytes can state billions of rows.
        if stated.num_rows > most_rows:
            raise UsageError(f"{where} has {stated.num_rows:,} rows, and may have at most {most_rows:,}")
        _check_names(schema.names, where)
        nested = next((field.name for field in schema if pa.types.is_nested(field.type)), None)
        if nested is not None:
            raise UsageError(f"{where}: the column {shown(nested)} is nested: each cell must be one value")
        groups = [stated.row_group(place) for place in range(stated.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > MOST_EXPANDED:
            raise _expands(where, "as it states")
        # Repeated texts stay one text. Otherwise a small file could fill the memory here already. Those of a fixed size
        # cannot, so that few of them are read at once.
        columns = [file.schema.column(place) for place in range(len(file.schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        width = sum(column.length for column in columns if column.physical_type == "FIXED_LEN_BYTE_ARRAY")
        file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _no_parquet(where, error) from None
    return FileTable(tuple(schema.names), "row", enumerate(_parquet_rows(file, where, width), 1))


def _parquet_rows(file: Any, where: str, width: int) -> Iterator[tuple[Any, ...]]:
    """The rows. width: bytes of a row's cells of a fixed size."""
    import pyarrow as pa

    left, row = MOST_EXPANDED, 0
    try:
        for batch in file.iter_batches(max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, width)))):
            for cells in zip(*map(_cells, batch.columns), strict=True):
                row += 1
                left -= sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
                if left < 0:
                    raise _expands(where, f"at row {row:,}")
                yield cells
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _no_parquet(where, error) from None


def _cells(column: Any) -> list[Any]:
    """The cells of a column. Equal texts of a dictionary are one object."""
    import pyarrow as pa

    if not isinstance(column, pa.DictionaryArray):
        found: list[Any] = column.to_pylist()
        return found
    values = column.dictionary.to_pylist()
    return [None if place is None else values[place] for place in column.indices.to_pylist()]


def _check_names(names: Sequence[str], where: str) -> None:
    if len({*names}) < len(names):
        raise UsageError(f"{where}: two columns have the same name: {shown(', '.join(names))}")


def _expands(where: str, place: str) -> UsageError:
    return UsageError(
        f"{where}: its cells have more than {MOST_EXPANDED >> 20} MiB when they are unpacked ({place}), the limit for "
        "a table: leave out columns that are not needed, or write shorter texts"
    )


def _no_parquet(where: str, error: Exception) -> UsageError:
    return UsageError(f"{where} is not Parquet: {' '.join(str(error).split())[:200]}")
