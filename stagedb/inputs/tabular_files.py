"""Tables in files that people bring: CSV and Parquet, read with bounds, as columns and rows of plain cells."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stagedb.errors import UsageError
from stagedb.inputs.short_values import shown


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
    if len({*columns}) < len(columns):
        raise UsageError(f"{where}: two columns have the same name: {shown(', '.join(columns))}")
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
    """The table of a Parquet file. UsageError if it is none or has more rows; `where` names the file in errors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        # A few kilobytes can state billions of rows.
        if file.metadata.num_rows > most_rows:
            raise UsageError(f"{where} has {file.metadata.num_rows:,} rows, and may have at most {most_rows:,}")
        table = file.read()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UsageError(f"{where} is not Parquet: {' '.join(str(error).split())[:200]}") from None
    columns = (table.column(place).to_pylist() for place in range(table.num_columns))
    rows = zip(*columns, strict=True)
    return FileTable(tuple(table.column_names), "row", enumerate(rows, 1))
