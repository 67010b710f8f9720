"""A sample of the table of plans; `scripts/check_plans` runs all of them."""

import math

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.plans.checking import check, plans, title

EVERY = 7
"""One row in so many is run here."""


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


@pytest.mark.parametrize("plan", plans()[4::EVERY], ids=title)
def test_a_plan_runs(embedded_store: Store, plan: dict[str, object]) -> None:
    report = check(Stagedb(embedded_store), plan)
    assert report.faults == ()
    assert report.replayed
