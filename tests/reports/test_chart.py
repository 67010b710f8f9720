"""The chart of a terminal shows what lanes do, at any width."""

import re

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.reports import draw
from stagedb.reports.terminal_chart import Doing, shares, spans
from stagedb.store import Store
from tests.reports.jobs import PLANS, job


@pytest.mark.parametrize("name", PLANS)
def test_spans_are_disjoint_and_hold_what_a_lane_does(embedded_store: Store, name: str) -> None:
    made = job(embedded_store, name)
    for lane in made.lanes:
        found, times = spans(made, lane), made.times.lanes[lane.number]
        assert (found.start < found.finish).all()
        assert (found.finish[:-1] <= found.start[1:]).all()
        total = shares(found, made.times.step, 37)
        assert total.sum() == pytest.approx(made.times.step)
        # All compute and communication is in spans. The waiting time is at most that of the profile.
        assert total[:, : Doing.IDLE].sum() >= times.busy + times.exposed - 1
        assert total[:, Doing.IDLE].sum() <= times.bubble + times.idle + 1
        assert found.busy.sum() == times.busy
        assert (found.busy <= found.finish - found.start).all()
        drawn = set(found.task[found.task >= 0].tolist())
        assert drawn == set(np.unique(made.times.network.task[made.times.network.lane == lane.number]).tolist())


def test_each_kind_of_work_has_its_letter(embedded_store: Store) -> None:
    text = draw(job(embedded_store, "zb-h1"), 160).lower()
    rows = [line for line in text.splitlines() if line.startswith("stage")]
    assert len(rows) == 4
    assert {"f", "b", "w", "s", "."} <= set("".join(row.split(" ", 2)[2] for row in rows))
    assert "r" in draw(job(embedded_store, "one rank"), 160).lower().splitlines()[1].split(" ", 2)[2]


@pytest.mark.parametrize("width", [44, 60, 97, 240])
def test_a_chart_is_as_wide_as_it_may_be(embedded_store: Store, width: int) -> None:
    made = job(embedded_store, "pipeline")
    lines = draw(made, width).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("stage")]
    assert len({len(row) for row in rows}) == 1
    cells = [re.fullmatch(r"stage \d+ (\S+) +\d+% busy", row)[1] for row in rows]  # type: ignore[index]
    # One lane is on the critical path at a time.
    for column in zip(*cells, strict=True):
        assert sum(cell.isupper() or cell == "*" for cell in column) == 1


def test_colour_is_for_terminals_and_changes_no_letter(embedded_store: Store) -> None:
    made = job(embedded_store)
    plain, coloured = draw(made, 100), draw(made, 100, color=True)
    assert "\033" not in plain
    assert "\033" in coloured
    assert re.sub(r"\033\[[0-9;]*m", "", coloured) == plain


def test_a_chart_names_what_it_cannot_show(embedded_store: Store) -> None:
    made = job(embedded_store, "pipeline", global_batch_size=128)
    assert "A column is longer than most tasks" in draw(made, 60)
    assert "A column is longer" not in draw(job(embedded_store), 200)
    with pytest.raises(UsageError, match="--width"):
        draw(made, 30)
    assert len([line for line in draw(made, 80, [1]).splitlines() if line.startswith("stage")]) == 1
    with pytest.raises(UsageError, match="no stage 2"):
        draw(made, 80, [2])
