"""The table of the critical path."""

import re

import numpy as np
import pytest

from stagedb.reports import StepView, render
from stagedb.reports.report_page import path_rows_of
from stagedb.reports.step_view import place_of
from stagedb.store import Store
from tests.reports.jobs import PLANS, job


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("most", [1000, 6])
def test_rows_are_the_whole_path_in_order(embedded_store: Store, name: str, most: int) -> None:
    made = job(embedded_store, name)
    rows, legs = path_rows_of(made, most), made.times.path.legs()
    assert sum(row.ns for row in rows) == made.times.step
    assert [row.start for row in rows] == np.cumsum([0, *(row.ns for row in rows[:-1])]).tolist()
    assert [row.first for row in rows] == [0, *(row.last + 1 for row in rows[:-1])]
    assert rows[-1].last == len(legs.lane) - 1
    assert len(rows) == len(legs.lane) if len(legs.lane) <= most else len(rows) <= most + 1
    for row in rows:
        assert set(row.lanes) == set(legs.lane[row.first : row.last + 1].tolist())
        assert 0 < row.operator_ns <= row.ns


def longest(made: StepView, first: int, last: int) -> tuple[str, int]:
    """The operator with most time in some legs, counted node by node."""
    path, legs = made.times.path, made.times.path.legs()
    end = int(legs.first[last + 1]) if last + 1 < len(legs.first) else len(path)
    spent: dict[str, int] = {}
    for node in range(int(legs.first[first]), end):
        ops, op = made.times.network.columns[int(path.lane[node])].ops, int(path.op[node])
        kind = f"{ops.axis[op]} {ops.kind[op]}" if ops.axis[op] else ops.kind[op]
        name = f"{place_of(ops.name[op], ops.kind[op], ops.axis[op])} ({kind})"
        spent[name] = spent.get(name, 0) + int(path.finish[node] - path.start[node])
    name = max(spent, key=lambda each: spent[each])
    return name, spent[name]


def test_each_row_names_its_longest_operator_and_its_task(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline")
    rows = path_rows_of(made, 1000)
    for row in rows:
        assert (row.operator, row.operator_ns) == longest(made, row.first, row.last)
    assert rows[0].tasks == "forward of micro-batch 0"
    assert rows[-1].tasks == "step"
    assert rows[0].waited_for == "the beginning of the step"
    assert "a message" in {row.waited_for for row in rows}
    joined = path_rows_of(made, 6)
    assert any(re.fullmatch(r"\d forward, \d backward of micro-batches 0–\d", row.tasks) for row in joined)


def test_the_page_has_the_table(embedded_store: Store) -> None:
    made = job(embedded_store, "zb-h1")
    text = render(made)
    legs = len(made.times.path.legs().lane)
    rows = path_rows_of(made)
    assert len(rows) < legs
    assert f"Its {legs} legs, each inside one task, are joined into {len(rows)} rows" in text
    section = text.partition("<h2>The critical path</h2>")[2].partition("</section>")[0]
    assert section.count("<tr>") == len(rows) + 1
