"""A sample of the table of plans; `scripts/check_plans` runs all of them."""

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
    degrees = [row.get("dp", 1) * row.get("tp", 1) * row.get("pp", 1) for row in rows]
    assert max(degrees) == 64
    assert {row.get("zero", 0) for row in rows} == {0, 1, 2, 3}


@pytest.mark.parametrize("plan", plans()[4::EVERY], ids=title)
def test_a_plan_runs(embedded_store: Store, plan: dict[str, object]) -> None:
    report = check(Stagedb(embedded_store), plan)
    assert report.faults == ()
    assert report.replayed
