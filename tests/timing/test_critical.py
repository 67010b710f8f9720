"""Critical path and slack: exact to the nanosecond for all durations."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.lowering.columns import COMPUTE, Ints, Workload
from stagedb.systems.system import COMPUTE_MODES as ORDERS
from stagedb.timing.node_graph import STREAMS, Reason, node_graph_of
from stagedb.timing.time_spent import Cover, step_times
from stagedb.timing.timeline import PARTS, Timeline, clock
from tests.timing.stepping import by_lane, run_classes
from tests.traces.synthetic import workload

AXES = ("tp", "dp", "pp")
"""On which the ranks of a small job communicate."""


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Timeline, Mapping[int, Ints]]:
    """A step of a small job with durations at random, some of them 0 and many alike, and these."""
    pp, dp = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    made = workload(
        tp=draw(st.integers(1, 2)),
        dp=dp,
        pp=pp,
        microbatches=draw(st.integers(1, 5)),
        layers=draw(st.integers(1, 3)),
        schedule=draw(st.sampled_from(["gpipe", "1f1b", "zb-h1"] if pp > 1 else ["gpipe", "1f1b"])),
    )
    if dp == 2 and draw(st.booleans()):
        made = with_twins(made)
    most = draw(st.sampled_from([1, 3, 1000]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    durations = {each.number: random.integers(0, most + 1, len(each.ops)) for each in made.classes}
    if draw(st.booleans()):
        durations = symmetric(made, durations)
    streams, compute = draw(st.sampled_from(STREAMS)), draw(st.sampled_from(ORDERS))
    waits = draw(st.sets(st.sampled_from(AXES))) if compute != "out-of-order" else ()
    return run_classes(node_graph_of(made, streams), durations, compute, blocking=waits), durations


def with_twins(made: Workload) -> Workload:
    """The ranks of dp 1 are of classes of their own, whose ops have other names and may take other times."""
    stages, tp, pp = len(made.classes), made.plan["tp"], made.plan["pp"]
    assert stages == pp
    twins = [
        dataclasses.replace(
            each,
            number=each.number + stages,
            ops=dataclasses.replace(each.ops, name=tuple(f"twin.{name}" for name in each.ops.name)),
        )
        for each in made.classes
    ]
    number = made.ranks.number + stages * (np.arange(len(made.ranks)) // tp % 2)
    ranks = dataclasses.replace(made.ranks, number=number)
    return dataclasses.replace(made, classes=(*made.classes, *twins), ranks=ranks)


def symmetric(made: Workload, durations: Mapping[int, Ints]) -> dict[int, Ints]:
    """Computing takes time alone."""
    return {each.number: np.where(each.ops.type == COMPUTE, durations[each.number], 0) for each in made.classes}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(timelines())
def test_the_critical_path_is_the_step_without_a_gap(made: tuple[Timeline, Mapping[int, Ints]]) -> None:
    found = step_times(made[0])
    path = found.path
    assert path.start[0] == 0
    assert path.finish[-1] == found.step
    assert (path.start[1:] == path.finish[:-1]).all()
    assert int(path.length.sum()) == found.step
    assert (found.slack[path.node] == 0).all()
    assert path.reason[0] == Reason.START
    # It changes lanes where a message or a member of a group is waited for, and nowhere else.
    assert ((path.lane[1:] != path.lane[:-1]) <= (path.reason[1:] >= Reason.MEMBER)).all()
    legs = path.legs()
    assert (legs.start[0], legs.finish[-1]) == (0, found.step)
    assert (legs.start[1:] == legs.finish[:-1]).all()
    assert ((legs.lane[1:] != legs.lane[:-1]) | (legs.task[1:] != legs.task[:-1])).all()
    for by in PARTS:
        assert sum(path.parts(by).values()) == found.step


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(timelines(), st.data())
def test_a_delay_on_the_critical_path_delays_the_step_as_much(
    made: tuple[Timeline, Mapping[int, Ints]], data: st.DataObject
) -> None:
    found, durations = made
    path = step_times(found).path
    delta = data.draw(st.integers(1, 5000))
    for node in data.draw(st.lists(st.sampled_from(path.node.tolist()), min_size=1, max_size=8)):
        later = clock(found.order, found.network.lengths(by_lane(found.network, durations), {node: delta}))
        assert later.step == found.step + delta


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(timelines(), st.data())
def test_a_delay_of_no_more_than_its_slack_changes_nothing(
    made: tuple[Timeline, Mapping[int, Ints]], data: st.DataObject
) -> None:
    found, durations = made
    slack = step_times(found).slack
    assert (slack >= 0).all()
    for node in data.draw(st.lists(st.integers(0, len(slack) - 1), min_size=1, max_size=8)):
        delta = data.draw(st.integers(0, int(slack[node])))
        for delay, step in ((delta, found.step), (int(slack[node]) + 3, found.step + 3)):
            assert (
                clock(found.order, found.network.lengths(by_lane(found.network, durations), {node: delay})).step == step
            )


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(timelines())
def test_a_lane_spends_the_whole_step(made: tuple[Timeline, Mapping[int, Ints]]) -> None:
    found = step_times(made[0])
    net, timed = found.network, found.timeline
    start, finish = timed.start[net.event], timed.finish[net.event]
    free = not (finish - start)[net.type != COMPUTE].any()
    for lane, spent in zip(net.lanes, found.lanes, strict=True):
        at = slice(net.firsts[lane.number], net.firsts[lane.number + 1])
        parts = (spent.busy, spent.exposed, spent.bubble, spent.idle)
        assert min(parts) >= 0
        assert sum(parts) == found.step
        # Moment by moment, where that is not too long.
        if found.step < 2000:
            doing = np.zeros((2, found.step), bool)
            for node in range(at.start, at.stop):
                doing[int(net.type[node] != COMPUTE), start[node] : finish[node]] = True
            assert doing[0].sum() == spent.busy
            assert (doing[1] & ~doing[0]).sum() == spent.exposed
            assert doing[1].sum() == spent.communication
            shown = [
                int((~doing[0, start[n] : finish[n]]).sum()) * int(net.type[n] != COMPUTE)
                for n in range(at.start, at.stop)
            ]
            assert found.exposed[at].tolist() == shown
        assert spent.exposed == 0 or not free
        assert (found.arrival[at] <= start[at]).all()
        assert spent.ops.time.sum() == (finish - start)[at].sum()
        assert spent.ops.critical.sum() == spent.tasks.critical.sum()
        assert spent.ops.runs.sum() == at.stop - at.start
        nodes = found.nodes(lane.number)
        assert nodes.start.tolist() == start[at].tolist()
        assert nodes.slack.tolist() == found.slack[at].tolist()
        assert spent.tasks.slack.min() == found.slack[at].min() == spent.ops.slack[spent.ops.runs > 0].min()
    assert sum(int(spent.ops.critical.sum()) for spent in found.lanes) == found.step
    numbers = {lane.rank_class for lane in net.lanes}
    assert sum(int(found.class_ops(number).critical.sum()) for number in numbers) == found.step


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12)


@given(spans)
def test_a_cover_counts_each_moment_once(chosen: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in chosen], np.int64)
    finish = start + np.array([length for _, length in chosen], np.int64)
    found = Cover.of(start, finish)
    covered = np.array([any(begin <= at < end for begin, end in zip(start, finish, strict=True)) for at in range(50)])
    assert found.total == covered.sum()
    assert found.before(np.arange(51)).tolist() == [int(covered[:at].sum()) for at in range(51)]
    begins, ends = found.gaps(50)
    assert int((ends - begins).sum()) == 50 - found.total
    assert not any(covered[begin:end].any() for begin, end in zip(begins, ends, strict=True))


def test_a_pipelines_wait_is_its_bubble() -> None:
    """Two stages, one micro-batch: the second waits for a forward, the first for a backward and then for the step."""
    made = workload(tp=1, dp=1, pp=2, microbatches=1, layers=1)
    took = {"layer.0.mm": 10, "layer.0.mm.grad_x": 20, "cut.send_forward": 3, "cut.send_backward": 5}
    durations = {
        each.number: np.array([took.get(name, 0) for name in each.ops.name], np.int64) for each in made.classes
    }
    found = step_times(run_classes(node_graph_of(made), durations))
    assert found.step == 10 + 3 + 10 + 20 + 5 + 20
    first, second = found.lanes
    assert (first.busy, first.exposed, first.bubble, first.idle) == (30, 3, 35, 0)
    assert (second.busy, second.exposed, second.bubble, second.idle) == (30, 5, 33, 0)
    on_path = [
        (found.network.columns[0].ops.name[op], lane) for op, lane in zip(found.path.op, found.path.lane, strict=True)
    ]
    assert ("cut.send_forward", 0) in on_path
    assert found.path.parts("axis") == {"compute": 60, "pp": 8}


def test_a_node_is_found_by_lane_task_and_op() -> None:
    net = node_graph_of(workload(tp=1, dp=1, pp=2, microbatches=2))
    for node in (0, 5, len(net) - 1):
        assert net.node(int(net.lane[node]), int(net.task[node]), int(net.op[node])) == node
    with pytest.raises(UsageError, match="does not run op"):
        net.node(0, 0, len(net.columns[0].ops) - 1)


def test_what_has_other_sizes_than_its_class_is_refused() -> None:
    made = workload(tp=1, dp=1, pp=1, microbatches=1)
    net = node_graph_of(made)
    with pytest.raises(ValueError, match="durations"):
        run_classes(net, {0: np.zeros(3, np.int64)})
    with pytest.raises(ValueError, match="less than nothing"):
        run_classes(net, {0: np.full(len(made.classes[0].ops), -1)})
