"""Schedules: every micro-batch once each way, every dependency met, published bubbles and live micro-batches."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.parallel.schedule import (
    SCHEDULES,
    Task,
    TaskKind,
    bubble,
    first_and_last,
    receiver,
    replay,
    stage_orders,
)

F, B, STEP = TaskKind.FORWARD, TaskKind.BACKWARD, Task(TaskKind.STEP)
schedules = st.sampled_from(sorted(SCHEDULES))
stage_counts = st.integers(1, 9)
batches = st.integers(1, 24)


def live(order: tuple[Task, ...]) -> int:
    """The most micro-batches whose forward has run and whose backward has not ended."""
    counts, now = [0], 0
    for task in order:
        now += {F: 1, B: -1}.get(task.kind, 0)
        counts.append(now)
    return max(counts)


@given(schedules, stage_counts, batches)
def test_each_microbatch_runs_once_each_way_and_the_step_is_last(name: str, p: int, m: int) -> None:
    for order in stage_orders(name, p, m):
        assert sorted(order) == sorted([Task(kind, mb) for kind in (F, B) for mb in range(m)] + [STEP])
        assert order[-1] == STEP


@given(schedules, stage_counts, batches)
def test_replay_ends_and_meets_every_dependency(name: str, p: int, m: int) -> None:
    spans = replay(stage_orders(name, p, m))
    at = {(stage, span.task): span for stage, row in enumerate(spans) for span in row}
    assert len(at) == p * (2 * m + 1)
    for (stage, task), span in at.items():
        if task.kind is F and stage > 0:
            assert span.start >= at[stage - 1, task].end
        if task.kind is B:
            assert span.start >= at[stage, Task(F, task.microbatch)].end
            if stage < p - 1:
                assert span.start >= at[stage + 1, task].end


@given(schedules, stage_counts, batches)
def test_bubble_is_the_published_one(name: str, p: int, m: int) -> None:
    assert bubble(stage_orders(name, p, m)) == Fraction(p - 1, m + p - 1)


@given(stage_counts, batches)
def test_live_microbatches(p: int, m: int) -> None:
    assert [live(order) for order in stage_orders("1f1b", p, m)] == [min(p - stage, m) for stage in range(p)]
    assert [live(order) for order in stage_orders("gpipe", p, m)] == [m] * p


def test_one_f_one_b_of_the_first_of_three_stages() -> None:
    order = stage_orders("1f1b", 3, 4)[0]
    assert " ".join(f"{task.kind[0]}{task.microbatch}" for task in order) == "f0 f1 f2 b0 f3 b1 b2 b3 s0"


def test_first_and_last_of_each_kind() -> None:
    order = stage_orders("1f1b", 2, 3)[0]
    marks = dict(zip(order, first_and_last(order), strict=True))
    assert marks == {
        Task(F, 0): (True, False),
        Task(F, 1): (False, False),
        Task(F, 2): (False, True),
        Task(B, 0): (True, False),
        Task(B, 1): (False, False),
        Task(B, 2): (False, True),
        STEP: (True, True),
    }


def test_receivers() -> None:
    assert receiver(Task(F, 1), 0, 3) == (1, Task(F, 1))
    assert receiver(Task(F, 1), 2, 3) is None
    assert receiver(Task(B, 1), 2, 3) == (1, Task(B, 1))
    assert receiver(Task(B, 1), 0, 3) is None
    assert receiver(Task(TaskKind.INPUT_GRADIENT, 1), 1, 3) == (0, Task(TaskKind.INPUT_GRADIENT, 1))
    assert receiver(Task(TaskKind.WEIGHT_GRADIENT, 1), 1, 3) is None
    assert receiver(STEP, 1, 3) is None
    assert receiver(Task(F, 1, chunk=0), 1, 2, chunks=2) == (0, Task(F, 1, chunk=1))
    assert receiver(Task(B, 1, chunk=1), 0, 2, chunks=2) == (1, Task(B, 1, chunk=0))


def test_replay_crosses_chunks() -> None:
    """Two stages with two chunks each: one micro-batch passes through all four in turn and back."""
    order = [Task(F, 0, 0), Task(F, 0, 1), Task(B, 0, 1), Task(B, 0, 0), STEP]
    first, second = replay([order, order])
    assert [(int(span.start), int(span.end)) for span in first] == [(0, 1), (2, 3), (6, 8), (10, 12), (12, 12)]
    assert [(int(span.start), int(span.end)) for span in second] == [(1, 2), (3, 4), (4, 6), (8, 10), (10, 10)]


def test_split_backward_waits_for_its_halves() -> None:
    order = [Task(F, 0), Task(TaskKind.WEIGHT_GRADIENT, 0), Task(TaskKind.INPUT_GRADIENT, 0)]
    with pytest.raises(UsageError, match="stage 0 waits to run weight_gradient of micro-batch 0"):
        replay([order])


def test_a_deadlock_names_the_waiting_tasks() -> None:
    """The second stage wants micro-batch 1 first, and the first stage will not send it before 0 comes back."""
    first = [Task(F, 0), Task(B, 0), Task(F, 1), Task(B, 1), STEP]
    second = [Task(F, 1), Task(F, 0), Task(B, 0), Task(B, 1), STEP]
    with pytest.raises(UsageError) as caught:
        replay([first, second])
    assert str(caught.value) == (
        "this schedule never ends: stage 0 waits to run backward of micro-batch 0; "
        "stage 1 waits to run forward of micro-batch 1"
    )
