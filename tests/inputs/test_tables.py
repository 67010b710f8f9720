"""Tables that people bring: two columns of one name, and files that expand to more than they may."""

import io
import tracemalloc
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stagedb.errors import UsageError
from stagedb.files.tabular_files import MOST_EXPANDED, FileTable, csv_table, parquet_table

MOST = 1_000_000


def parquet(columns: dict[str, Any] | pa.Table, **how: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), file, **how)
    return file.getvalue()


def read(data: bytes) -> FileTable:
    return parquet_table(data, "the file", MOST)


def test_cells_are_plain_values_in_their_order() -> None:
    table = read(parquet({"name": ["a", None, "a", "b"], "ns": [1, 2, None, 4], "raw": [b"x", b"", None, b"x"]}))
    assert table.columns == ("name", "ns", "raw")
    assert [*table.rows] == [
        (1, ("a", 1, b"x")),
        (2, (None, 2, b"")),
        (3, ("a", None, None)),
        (4, ("b", 4, b"x")),
    ]


def test_many_batches_are_one_table() -> None:
    count = 10_000
    table = read(parquet({"name": [f"n{n}" for n in range(count)]}, row_group_size=3_000))
    assert [*table.rows] == [(n + 1, (f"n{n}",)) for n in range(count)]


def test_two_columns_of_one_name_are_refused_in_every_format() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["ns", "ns"])
    with pytest.raises(UsageError, match="two columns have the same name"):
        read(parquet(twice))
    with pytest.raises(UsageError, match="two columns have the same name"):
        csv_table("ns,ns\n1,2\n", "the file")


def test_a_small_file_that_expands_to_gigabytes_is_refused() -> None:
    rows = 200_000
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 20_000]))
    data = parquet({"name": column})
    assert len(data) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"512 MiB when they are unpacked \(at row 26,844\)"):
            [*read(data).rows]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary(100_000)]
)
def test_a_text_of_any_kind_expands_to_no_more_than_the_bound(kind: Any) -> None:
    """Each row has one cell of 100 kB, which the file has once: 600 MB of rows, and little of it in memory."""
    cell = "x" * 100_000
    schema, file = pa.schema([("name", kind)]), io.BytesIO()
    with pq.ParquetWriter(file, schema) as writer:
        for _ in range(12):
            values = [cell if kind in (pa.string(), pa.large_string(), pa.string_view()) else cell.encode()] * 500
            writer.write_table(pa.table({"name": pa.array(values, kind)}, schema=schema))
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(UsageError, match="512 MiB when they are unpacked"):
            [*read(file.getvalue()).rows]
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 128 << 20


def test_columns_that_state_gigabytes_are_refused_before_they_are_unpacked() -> None:
    count = MOST_EXPANDED // 10_000 + 1_000
    data = parquet({"name": ["x" * 10_000] * count}, use_dictionary=False, compression="zstd")
    assert len(data) < 8 << 20
    with pytest.raises(UsageError, match="as it states"):
        read(data)


@pytest.mark.parametrize("cell", [[1, 2], {"a": 1}])
def test_nested_columns_are_refused(cell: Any) -> None:
    with pytest.raises(UsageError, match="'name' is nested"):
        read(parquet({"name": [cell]}))
