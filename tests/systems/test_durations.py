"""Measured durations: the row with most cells wins, and a wrong table is refused with the place of its fault."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

from stagedb.errors import UsageError
from stagedb.systems import Coverage, Durations, Measured, Subject, Timed, read_durations

TABLE = """\
name,kind,flops,bytes,message,duration_us
,matmul,,,,10
,matmul,1000,,,20.5
attention.qk,matmul,1000,,,30
,all_reduce,,,4096,7.0004
,norm,,64,,0
"""
MODELLED = Timed(99, "roofline:compute")


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "run.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


Write = Callable[[str], Path]


def test_the_row_with_most_cells_wins(table: Write) -> None:
    durations = read_durations(table(TABLE))
    assert durations.time(Subject("a", "matmul", 7), MODELLED) == Timed(10_000, "measured")
    assert durations.time(Subject("a", "matmul", 1000, 5), MODELLED) == Timed(20_500, "measured")
    assert durations.time(Subject("attention.qk", "matmul", 1000), MODELLED) == Timed(30_000, "measured")
    assert durations.time(Subject("b", "norm", 0, 64), MODELLED).ns == 0
    assert durations.time(Subject("b", "norm", 0, 65), MODELLED) is MODELLED
    found = durations.time(Subject("c", "all_reduce", message=4096), Timed(1, "ring", "inside"))
    assert found == Timed(7000, "measured", "inside")


def test_parquet_has_the_same_rows(tmp_path: Path, table: Write) -> None:
    pd.read_csv(table(TABLE)).to_parquet(tmp_path / "run.parquet")
    read = read_durations(tmp_path / "run.parquet")
    assert [(row.ns, row.fields) for row in read.rows] == [
        (row.ns, row.fields) for row in read_durations(table(TABLE)).rows
    ]
    assert read.rows[0].where.endswith("run.parquet, row 1")
    assert (read.rows[3].message, read.rows[3].name) == (4096, None)


def test_two_rows_with_equally_many_cells_are_refused(table: Write) -> None:
    durations = read_durations(table("kind,flops,bytes,duration_ns\nmatmul,8,,1\nmatmul,,9,2\n"))
    with pytest.raises(UsageError, match=r"line 2 \(kind matmul, flops 8\) and .*line 3 \(kind matmul, bytes 9\)"):
        durations.find(Subject("a", "matmul", 8, 9))
    assert durations.time(Subject("a", "matmul", 8, 1), MODELLED).ns == 1


def test_coverage_is_of_operators_and_of_modelled_time() -> None:
    long, short = Timed(900, "ring"), Timed(50, "ring")
    coverage = Coverage.of([(long, Timed(1, "measured"), 1), (short, short, 2)])
    assert (coverage.ops, coverage.measured_ops, coverage.ns, coverage.measured_ns) == (3, 1, 1000, 900)
    assert (coverage.share_of_ops, coverage.share_of_time) == (1 / 3, 0.9)
    assert (Coverage().share_of_ops, Coverage().share_of_time) == (0, 0)


WRONG = {
    "an unknown column": ("kind,flop,duration_ns\nm,1,1\n", "unknown column 'flop'; a table may have name, kind"),
    "no duration": ("kind,flops\nm,1\n", "run.csv has no duration: give exactly one of duration_ns, duration_us"),
    "two durations": ("kind,duration_ns,duration_us\nm,1,1\n", "run.csv has duration_ns and duration_us"),
    "nothing to match": ("duration_ns\n1\n", "does not name what its rows measure"),
    "a row of nothing": ("kind,duration_ns\n,1\n", "line 2 does not name what it measures: give one of name"),
    "a column twice": ("kind,kind,duration_ns\nm,m,1\n", "two columns have the same name"),
    "a duration of words": ("kind,duration_ns\nm,1\nn,fast\n", "line 3, column duration_ns is 'fast': .*a number, 0"),
    "no duration in a row": ("kind,duration_ns\nm,\n", "line 2, column duration_ns is empty"),
    "a negative duration": ("kind,duration_ns\nm,-1\n", "line 2, column duration_ns is '-1'"),
    "half a FLOP": ("flops,duration_ns\n1.5,1\n", "line 2, column flops is '1.5': it takes a whole number"),
    "an infinite duration": ("kind,duration_ns\nm,inf\n", "column duration_ns is 'inf'"),
    "a cell more": ("kind,duration_ns\nm,1,2\n", "line 2: 3 cells under 2 columns"),
    "the same twice": ("kind,duration_ns\nm,1\nm,2\n", r"line 2 and .*line 3 measure the same \(kind m\)"),
    "no rows": ("kind,duration_ns\n", "has no rows"),
    "an empty file": ("", "no line of column names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_table_that_cannot_be_right_is_refused(table: Write, case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        read_durations(table(text))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"are read from .csv or .parquet files"):
        read_durations(tmp_path / "run.txt")
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(UsageError, match=f"cannot read the durations .*{name}"):
            read_durations(tmp_path / name)
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"bad.parquet is not Parquet"):
        read_durations(tmp_path / "bad.parquet")
    (tmp_path / "bad.csv").write_bytes(b"kind,duration_ns\n\xff,1\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_durations(tmp_path / "bad.csv")


def test_a_half_is_rounded_up() -> None:
    durations = Durations([Measured("row 1", Fraction(5, 2), kind="norm")])
    assert durations.time(Subject("", "norm"), MODELLED).ns == 3
