"""Orders in which forwards and backwards run together in pairs."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.schedules import Task, V, order_text, pairs, replay, stage_orders
from stagedb.workflows.training import STEP_TASK
from tests.schedules.test_schedules import PAIRED, B, F, halves


@PAIRED
def test_pairs_of_dual_pipe_v_are_those_of_torch(row: Mapping[str, Any]) -> None:
    """What its runtime runs as one action (`OVERLAP_F_B`): two tasks of a word, joined by a plus."""
    found = stage_orders(row["schedule"], row["stages"], row["microbatches"], row["chunks"], paired=True)
    assert found == stage_orders(row["schedule"], row["stages"], row["microbatches"], row["chunks"])
    for order, words in zip(found, row["orders"], strict=True):
        together = [order_text(order[each[0] : each[-1] + 1]) for each in pairs(order)]
        assert together == [" ".join(halves(word)) for word in words.split() if "+" in word]
    replay(found, placement=V)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(2, 4), st.integers(1, 4))
def test_interleaved_pairs_are_those_of_megatron(p: int, v: int, groups: int) -> None:
    """Each steady forward with the backward that follows, of another micro-batch or chunk, after one more warm-up."""
    orders = stage_orders("interleaved", p, groups * p, v, paired=True) if p > 1 else ()
    alone = (*stage_orders("1f1b", 1, groups + 1, paired=True),)
    plain = (*stage_orders("interleaved", p, groups * p, v), *stage_orders("1f1b", 1, groups + 1))
    for stage, order in enumerate((*orders, *alone)):
        chunks, total = (v, groups * p * v) if stage < len(orders) else (1, groups + 1)
        warm_up = min(2 * (p - stage - 1) + (v - 1) * p + 1 if chunks > 1 else 1, total)
        found = list(pairs(order))
        assert [task.kind for task in order[:warm_up]] == [F] * warm_up
        assert len(found) == total - warm_up
        for each in found:
            forward, backward = (order[at] for at in each)
            assert (forward.kind, backward.kind) == (F, B)
            assert (forward.microbatch, forward.chunk) != (backward.microbatch, backward.chunk)
        before = next(row for row in plain if set(row) == set(order))
        assert [task for task in order if task.kind is B] == [task for task in before if task.kind is B]
    if orders:
        replay(orders)
    replay(alone)


def test_a_backward_cannot_run_together_with_its_own_forward() -> None:
    with pytest.raises(UsageError, match="stage 0 waits to run forward of micro-batch 0"):
        replay([(Task(F, 0), Task(B, 0, joined=True), Task(STEP_TASK))])


@pytest.mark.parametrize(("joined", "start"), [(False, 4), (True, 7)])
def test_what_runs_together_begins_and_ends_as_one(joined: bool, start: int) -> None:
    """The pair begins when the next stage has sent its backward at 4, and takes 3: only then is its forward there."""
    first = (Task(F, 0), Task(F, 1), Task(B, 0, joined=joined), Task(B, 1))
    second = (Task(F, 0), Task(B, 0), Task(F, 1), Task(B, 1))
    _, spans = replay([first, second])
    assert [int(span.start) for span in spans] == [1, 2, start, start + 1]
