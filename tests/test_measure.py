"""`scripts/measure` goes on where it was interrupted. It runs here with a stand-in for torch."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts._measure import RUNS, SUBJECTS, WARM, Row, Subject, measure
from stagedb.systems.tables.measured_table import SHAPES

TORCH = SimpleNamespace(float32="float32", OutOfMemoryError=MemoryError)


def test_rows_are_measured_once(tmp_path: Path) -> None:
    runs: list[Row] = []

    def rows(quick: bool) -> Iterator[Row]:
        assert quick
        return iter([(1, 2, 3), (4, 5, 6), (7, 8, 9)])

    def prepare(torch: Any, device: str, dtype: Any, *row: int) -> Callable[[], Any]:
        assert (torch, device, dtype) == (TORCH, "cpu", "float32")
        if row == (7, 8, 9):
            raise MemoryError
        return lambda: runs.append(row)

    options = Namespace(out=tmp_path, dtype="fp32", quick=True, device="cpu")
    subject, path = Subject("matmul", ("m", "n", "k"), rows, prepare), tmp_path / "matmul-fp32.csv"
    path.write_text("m,n,k,us\n1,2,3,50.5\n4,5,6,7")  # interrupted within its last line
    measure(TORCH, subject, options, True)
    assert runs == [(4, 5, 6)] * (WARM + RUNS)
    lines = path.read_text().splitlines()
    assert (lines[:2], lines[2].rpartition(",")[0], len(lines)) == (["m,n,k,us", "1,2,3,50.5"], "4,5,6", 3)
    measure(TORCH, subject, options, True)
    assert path.read_text().splitlines() == lines
    path.write_text("colour,us\n1,2\n")
    with pytest.raises(SystemExit, match="has other columns than m, n, k, us"):
        measure(TORCH, subject, options, True)


@pytest.mark.parametrize("subject", [each for each in SUBJECTS if each.name in SHAPES], ids=lambda each: each.name)
def test_its_tables_have_the_columns_of_a_system(subject: Subject) -> None:
    shape = SHAPES[subject.name]
    assert {*shape.columns} <= {*subject.columns} <= {*shape.columns, *shape.optional}
    assert all(len(row) == len(subject.columns) for row in subject.rows(False))
