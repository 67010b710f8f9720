"""The table of plans, lowered in memory; `scripts/check_plans` runs all of them through a store."""

import math

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.traces import Report
from tests.plans.checking import check, check_lowered, plans, title

EVERY = 60
"""One row in so many goes through a store here."""


def test_the_table_is_broad() -> None:
    rows = plans()
    assert len({title(row) for row in rows}) == len(rows) >= 40
    assert len({row["model"] for row in rows}) >= 6
    ranks = [math.prod(int(row.get(axis, 1)) for axis in ("dp", "tp", "pp", "cp")) for row in rows]
    assert max(ranks) == 128
    assert {row.get("zero", 0) for row in rows} == {0, 1, 2, 3}
    # Plans with context parallelism, experts and the schedules of large jobs, and with their products.
    further = [row for row in rows if {"cp", "ep", "virtual_stages", "task_order"} & row.keys() or "zb" in str(row)]
    assert len(further) >= 60
    assert len({row["model"] for row in further}) >= 8


def assert_runs(report: Report) -> None:
    assert report.faults == ()
    assert report.replayed


@pytest.mark.parametrize("plan", plans(), ids=title)
def test_a_plan_runs(plan: dict[str, object]) -> None:
    assert_runs(check_lowered(plan))


@pytest.mark.parametrize("plan", plans()[4::EVERY], ids=title)
def test_a_plan_of_a_store_runs(store: Store, plan: dict[str, object]) -> None:
    assert_runs(check(Stagedb(store), plan))
