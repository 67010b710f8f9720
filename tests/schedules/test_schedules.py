"""Schedules: every micro-batch once each way, every dependency met, published bubbles and live micro-batches."""

import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb import schedules as schedules_package
from stagedb.errors import UsageError
from stagedb.schedules import (
    PLACEMENTS,
    SCHEDULES,
    ChunkPlacement,
    PostedReceive,
    Task,
    TaskPosition,
    V,
    bubble,
    map_text,
    mapped,
    order_text,
    posted,
    receiver,
    replay,
    splits,
    stage_orders,
    stages_of,
    task_positions,
    whole_backwards,
)
from stagedb.workflows import TaskKind
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, INPUT_GRADIENT_TASK, STEP_TASK, WEIGHT_GRADIENT_TASK

F, B, STEP = FORWARD_TASK, BACKWARD_TASK, Task(STEP_TASK)
I, W = INPUT_GRADIENT_TASK, WEIGHT_GRADIENT_TASK  # noqa: E741
stage_counts = st.integers(1, 9)
batches = st.integers(1, 24)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A schedule's name, stages, micro-batches and chunks that go together."""
    name, p = draw(st.sampled_from(sorted(SCHEDULES))), draw(stage_counts)
    if SCHEDULES[name].fewest:
        return name, p, 2 * p + draw(st.integers(0, 9)), SCHEDULES[name].chunks or 2
    if SCHEDULES[name].several_chunks:
        return name, p, p * draw(st.integers(1, 5)), SCHEDULES[name].chunks or draw(st.integers(2, 5))
    return name, p, draw(batches), 1


def live(order: tuple[Task, ...], until: TaskKind = B) -> int:
    """The most micro-batches, those of each chunk counted, whose forward has run and whose `until` has not ended."""
    counts, now = [0], 0
    for task in order:
        now += {F: 1, until: -1}.get(task.kind, 0)
        counts.append(now)
    return max(counts)


@settings(deadline=None)
@given(schedules())
def test_each_microbatch_runs_once_each_way_and_the_step_is_last(chosen: tuple[str, int, int, int]) -> None:
    name, p, m, v = chosen
    for order in stage_orders(name, p, m, v):
        kinds = (F, I, W) if splits(order) else (F, B)
        tasks = [Task(kind, mb, chunk) for kind in kinds for mb in range(m) for chunk in range(v)]
        assert Counter(order) == Counter([*tasks, STEP])
        assert order[-1] == STEP
        assert splits(order) == SCHEDULES[name].halves


@settings(deadline=None)
@given(schedules())
def test_replay_ends_and_meets_every_dependency(chosen: tuple[str, int, int, int]) -> None:
    name, p, m, v = chosen
    orders, placement = stage_orders(name, p, m, v), SCHEDULES[name].placement
    spans = replay(orders, placement=placement)
    at = {
        (span.task.kind, span.task.microbatch, placement.position(stage, span.task.chunk, p)): span
        for stage, row in enumerate(spans)
        for span in row
        if span.task != STEP
    }
    backward = I if splits(orders[0]) else B
    for (kind, mb, number), span in at.items():
        if kind is F and number > 0:
            assert span.start >= at[F, mb, number - 1].end
        if kind is backward:
            assert span.start >= at[F, mb, number].end
            if number < p * v - 1:
                assert span.start >= at[backward, mb, number + 1].end
        if kind is W:
            assert span.start >= at[I, mb, number].end


BUBBLES = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": 1,
    "zb-h1": 3,
    "breadth-first": 1,
    "interleaved-zb": 3,
    "zb-v": 3,
    "dualpipev": 3,
}
"""By schedule, k of the published bubble (p - 1) / (k v m + p - 1).

The bubble of zb-h1 is (p - 1)(T_F + T_B - T_W) (Qi et al. 2023, table 1), one unit each. That of zb-v is only the time
until a stage's first forward (section 6): p - 1 units on the last one. Halves of a pair that run one after the other
give `dualpipev` the same.
"""


def enough(name: str, p: int) -> int:
    """From so many micro-batches on the published bubble holds."""
    return {"zb-h1": p, "breadth-first": p, "zb-v": 2 * p - 1}.get(name, 1)


@settings(deadline=None)
@given(schedules())
def test_bubble_is_the_published_one(chosen: tuple[str, int, int, int]) -> None:
    name, p, m, v = chosen
    found = bubble(stage_orders(name, p, m, v), SCHEDULES[name].placement)
    if m < enough(name, p):
        # No longer than that of 1F1B, for any number of chunks.
        assert found <= Fraction(p - 1, m + p - 1)
    else:
        assert found == Fraction(p - 1, BUBBLES[name] * v * m + p - 1)


@settings(deadline=None)
@given(stage_counts, batches)
def test_live_microbatches(p: int, m: int) -> None:
    assert [live(order) for order in stage_orders("1f1b", p, m)] == [min(p - stage, m) for stage in range(p)]
    assert [live(order) for order in stage_orders("gpipe", p, m)] == [m] * p


@settings(deadline=None)
@given(stage_counts, batches)
def test_live_microbatches_of_a_split_backward(p: int, m: int) -> None:
    """Activations as 1F1B; with what weight gradients wait for, on each stage what 1F1B holds on its first."""
    orders = stage_orders("zb-h1", p, m)
    assert [live(order, I) for order in orders] == [min(p - stage, m) for stage in range(p)]
    assert all(live(order, W) <= min(p, m) for order in orders)


@settings(deadline=None)
@given(stage_counts, st.integers(1, 5), st.integers(2, 5))
def test_live_microbatches_of_chunks(p: int, groups: int, v: int) -> None:
    """Megatron's warm-up, and the forward before the first backward."""
    orders = stage_orders("interleaved", p, groups * p, v)
    found = [min(2 * (p - stage - 1) + (v - 1) * p + 1, groups * p * v) for stage in range(p)]
    assert [live(order) for order in orders] == found


@settings(deadline=None)
@given(stage_counts, batches, st.integers(2, 5))
def test_breadth_first_holds_all_micro_batches_of_all_chunks(p: int, m: int, v: int) -> None:
    assert [live(order) for order in stage_orders("breadth-first", p, m, v)] == [v * m] * p


def test_breadth_first_runs_chunk_after_chunk() -> None:
    order = stage_orders("breadth-first", 2, 2, 2)[1]
    text = " ".join(f"{task.kind.name[0]}{task.microbatch}.{task.chunk}" for task in order)
    assert text == "f0.0 f1.0 f0.1 f1.1 b0.1 b1.1 b0.0 b1.0 s0.0"


def test_zero_bubble_of_the_second_of_three_stages() -> None:
    order = stage_orders("zb-h1", 3, 4)[1]
    text = " ".join(f"{task.kind.name[0]}{task.microbatch}" for task in order)
    assert text == "f0 f1 i0 f2 i1 w0 f3 i2 w1 i3 w2 w3 s0"


def test_interleaved_on_the_last_of_two_stages() -> None:
    order = stage_orders("interleaved", 2, 4, 2)[1]
    text = " ".join(f"{task.kind.name[0]}{task.microbatch}.{task.chunk}" for task in order)
    assert text == ("f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 f3.0 b1.0 f2.1 b2.1 f3.1 b3.1 b2.0 b3.0 s0.0")


def test_one_f_one_b_of_the_first_of_three_stages() -> None:
    order = stage_orders("1f1b", 3, 4)[0]
    assert " ".join(f"{task.kind.name[0]}{task.microbatch}" for task in order) == "f0 f1 f2 b0 f3 b1 b2 b3 s0"


def test_marks_of_each_task() -> None:
    order = stage_orders("1f1b", 2, 3)[0]
    assert dict(zip(order, task_positions(order), strict=True)) == {
        Task(F, 0): TaskPosition(True, False, False),
        Task(F, 1): TaskPosition(False, False, False),
        Task(B, 0): TaskPosition(True, False, False),
        Task(F, 2): TaskPosition(False, True, True),
        Task(B, 1): TaskPosition(False, False, False),
        Task(B, 2): TaskPosition(False, True, True),
        STEP: TaskPosition(True, True, True),
    }


def test_receivers() -> None:
    assert receiver(Task(F, 1), 0, 3) == (1, Task(F, 1))
    assert receiver(Task(F, 1), 2, 3) is None
    assert receiver(Task(B, 1), 2, 3) == (1, Task(B, 1))
    assert receiver(Task(B, 1), 0, 3) is None
    assert receiver(Task(INPUT_GRADIENT_TASK, 1), 1, 3) == (0, Task(INPUT_GRADIENT_TASK, 1))
    assert receiver(Task(WEIGHT_GRADIENT_TASK, 1), 1, 3) is None
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
    order = [Task(F, 0), Task(WEIGHT_GRADIENT_TASK, 0), Task(INPUT_GRADIENT_TASK, 0)]
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


@st.composite
def placements(draw: st.DrawFn) -> tuple[ChunkPlacement, int, int]:
    """A placement of so many stages and chunks: by name, or any map."""
    p, v = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    of = draw(st.permutations([stage for stage in range(p) for _ in range(v)]))
    return draw(st.sampled_from([*PLACEMENTS.values(), mapped(of)])), p, v


@given(placements())
def test_a_placement_numbers_all_chunks_of_all_stages(chosen: tuple[ChunkPlacement, int, int]) -> None:
    placement, p, v = chosen
    assert map_text(mapped(stages_of(map_text(placement, p, v))), p, v) == map_text(placement, p, v)
    numbers = [number for stage in range(p) for number in placement.chunks_of(stage, p, v)]
    assert sorted(numbers) == list(range(p * v))
    for number in numbers:
        stage, chunk = placement.located(number, p)
        assert placement.position(stage, chunk, p) == number
        assert placement.stage(number, p) == stage
    for number in range(1, p * v - 1):
        for towards in (-1, 1):
            way, (stage, chunk) = placement.route(number, towards, p), placement.located(number, p)
            assert placement.located(number + towards, p) == (stage + way.hop, chunk + way.step)


def test_receivers_are_where_the_placement_has_them() -> None:
    """Two chunks in a V: the last stage hands over to itself, and the first one has the first and the last number."""
    assert receiver(Task(F, 1, chunk=0), 0, 3, 2, V) == (1, Task(F, 1, chunk=0))
    assert receiver(Task(F, 1, chunk=0), 2, 3, 2, V) == (2, Task(F, 1, chunk=1))
    assert receiver(Task(F, 1, chunk=1), 2, 3, 2, V) == (1, Task(F, 1, chunk=1))
    assert receiver(Task(F, 1, chunk=1), 0, 3, 2, V) is None
    assert receiver(Task(B, 1, chunk=1), 0, 3, 2, V) == (1, Task(B, 1, chunk=1))


def test_replay_follows_the_placement() -> None:
    """The orders of `test_replay_crosses_chunks` in a V: the second stage runs both its chunks in a row."""
    order = [Task(F, 0, 0), Task(F, 0, 1), Task(B, 0, 1), Task(B, 0, 0), STEP]
    first, second = replay([order, order], placement=V)
    assert [(int(span.start), int(span.end)) for span in first] == [(0, 1), (3, 4), (4, 6), (10, 12), (12, 12)]
    assert [(int(span.start), int(span.end)) for span in second] == [(1, 2), (2, 3), (6, 8), (8, 10), (10, 10)]


TORCH = json.loads((Path(__file__).parent / "torch_orders.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", TORCH["orders"], ids=lambda row: "-".join(map(str, list(row.values())[:4])))
def test_orders_are_those_of_torch(row: Mapping[str, Any]) -> None:
    """Orders that `_calculate_single_rank_operations` and `_add_bubbles_to_actions` make, without empty slots."""
    found = stage_orders(row["schedule"], row["stages"], row["microbatches"], row["chunks"])
    assert [order_text(order) for order in found] == row["orders"]


PAIRED = pytest.mark.parametrize("row", TORCH["pairs"], ids=lambda row: f"{row['stages']}-{row['microbatches']}")


def halves(text: str) -> list[str]:
    """The tasks of a word: both of a pair, and each whole backward as its halves."""
    return [half for task in text.split("+") for half in ((f"I{task[1:]} W{task[1:]}",) if task[0] == "B" else (task,))]


@PAIRED
def test_dual_pipe_v_is_that_of_torch(row: Mapping[str, Any]) -> None:
    """Each whole backward is its halves in a row here, and a pair its forward and then its backward."""
    found = stage_orders(row["schedule"], row["stages"], row["microbatches"], row["chunks"])
    written = [" ".join(half for word in order.split() for half in halves(word)) for order in row["orders"]]
    assert [order_text(order) for order in found] == written


def paired(order: tuple[Task, ...], words: str) -> list[tuple[Task, ...]]:
    """The tasks of an order, those of each word of torch's together."""
    tasks = iter(order)
    return [tuple(next(tasks) for _ in " ".join(halves(word)).split()) for word in words.split()]


@PAIRED
@pytest.mark.parametrize("pair", [Fraction(3), Fraction(5, 2), Fraction(2)])
def test_the_published_bubble_of_dual_pipe_v(row: Mapping[str, Any], pair: Fraction) -> None:
    """(PP/2 - 1)(F&B + B - 3W) with PP/2 stages, where a pair is one task that takes F&B (its README's table)."""
    p, m = row["stages"], row["microbatches"]
    orders = [paired(*each) for each in zip(stage_orders("dualpipev", p, m, 2), row["orders"], strict=True)]
    ends: dict[tuple[TaskKind, int, int], Fraction] = {}
    clocks, busy, at = [Fraction(0)] * p, [Fraction(0)] * p, [0] * p

    def needs(stage: int, task: Task) -> list[tuple[TaskKind, int, int]]:
        number = V.position(stage, task.chunk, p)
        if task.kind is F:
            return [(F, task.microbatch, number - 1)] if number else []
        if task.kind is I:
            return [(F, task.microbatch, number), *([(I, task.microbatch, number + 1)] if number < 2 * p - 1 else [])]
        return []

    moved = True
    while moved:
        moved = False
        for stage in range(p):
            while at[stage] < len(orders[stage]):
                word = orders[stage][at[stage]]
                waits = [need for task in word for need in needs(stage, task)]
                if any(need not in ends for need in waits):
                    break
                took = pair if len(word) == 3 else Fraction(len(word))
                clocks[stage] = max([clocks[stage], *(ends[need] for need in waits)]) + took
                busy[stage] += took
                for task in word:
                    ends[task.kind, task.microbatch, V.position(stage, task.chunk, p)] = clocks[stage]
                at[stage], moved = at[stage] + 1, True
    assert at == [len(order) for order in orders]
    assert max(clocks) - busy[-1] == (p - 1) * (pair + 2 - 3)


def test_dual_pipe_v_needs_two_micro_batches_a_stage() -> None:
    assert "takes at least 8 micro-batches" in SCHEDULES["dualpipev"].misfit(4, 7)
    assert SCHEDULES["dualpipev"].misfit(4, 9) == ""


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(0, 9))
def test_dual_pipe_v_holds_at_most_what_is_published(p: int, more: int) -> None:
    """PP + 1 chunks' activations (DualPipe's README), and those that wait for weight gradients as well."""
    orders = stage_orders("dualpipev", p, 2 * p + more, 2)
    assert max(live(order, I) for order in orders) <= 2 * p + 1
    assert max(live(order, W) for order in orders) <= 2 * p + 1


@settings(deadline=None)
@given(stage_counts, st.integers(0, 12))
def test_zb_v_has_no_hole_and_holds_no_more_than_1f1b(p: int, more: int) -> None:
    """Qi et al. 2024, section 6: a stage idles only before its first forward, and holds 2p chunks' activations."""
    orders = stage_orders("zb-v", p, 2 * p - 1 + more, 2)
    for stage, row in enumerate(replay(orders, placement=V)):
        assert row[0].start == stage
        assert all(one.end == other.start for one, other in pairwise(row))
    assert [live(order, W) for order in orders] == [2 * p] * p


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_weight_gradients_of_interleaved_zb_fill_its_bubble(p: int, groups: int, v: int) -> None:
    orders = stage_orders("interleaved-zb", p, groups * p, v)
    assert bubble(orders) < bubble(stage_orders("interleaved", p, groups * p, v))
    for stage, order in enumerate(orders):
        waiting = [each.kind for each in order if each.kind in (I, W)]
        ahead = [sum({I: 1, W: -1}[kind] for kind in waiting[: at + 1]) for at in range(len(waiting))]
        assert max(ahead) == min(stage + 1, groups * p * v)


def test_a_whole_backward_in_the_place_of_weight_gradients() -> None:
    """torch's first chunk: the input-gradient task does nothing, and the message comes to the whole backward."""
    first, second = stage_orders("zb-h1", 2, 3)
    orders = whole_backwards(first, 0), second
    assert [order_text(order) for order in orders] == ["F0 F1 B0 F2 B1 B2", "F0 I0 F1 I1 W0 F2 I2 W1 W2"]
    assert [str(span.task.kind) for span in replay(orders)[0]][:3] == ["forward", "forward", "backward"]
    assert PostedReceive(Task(B, 0)) in posted(orders, 1)[0]
    assert PostedReceive(Task(F, 0)) in posted(orders, 1)[1]
    with pytest.raises(UsageError, match="stage 0 waits to run backward of micro-batch 0"):
        replay([orders[0], [task for task in orders[1] if task.kind is not I]])


def test_every_schedule_of_the_package_is_registered_once() -> None:
    files = {path.stem for path in Path(schedules_package.__file__).parent.glob("*.py")}
    tools = {"__init__", "schedule", "task_orders"}
    assert len(SCHEDULES) == len(files - tools)
    assert all(name == each.name and each.help for name, each in SCHEDULES.items())
    assert all(each.chunked is None or SCHEDULES[each.chunked].several_chunks for each in SCHEDULES.values())
    # With one stage a chunk would send messages to its own rank.
    assert all(each.one_stage for each in SCHEDULES.values() if each.several_chunks)
