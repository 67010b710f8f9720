"""Messages in a timeline: their axes, and when their two ends meet."""

import dataclasses

import numpy as np
import pytest

from stagedb.lowering.columns import COMPUTE
from stagedb.timing.node_graph import Reason, node_graph_of
from stagedb.timing.timeline import run_step
from tests.timing.stepping import by_lane
from tests.timing.test_timeline import PLANS, durations, instance
from tests.traces.synthetic import workload


def test_a_ring_over_places_of_neighbours_has_an_axis_of_its_own() -> None:
    """Its messages are on `cpr`; what waits for `cp` waits for them, and not for the exchanges of heads (`cpa`)."""
    rows = instance(**PLANS["both"])
    assert {axis for each in rows.classes for axis in each.ops.axis} >= {"cpr", "cpa", "pp"}
    assert "cp" not in {axis for each in rows.classes for axis in each.ops.axis}
    net = node_graph_of(rows, "axis")
    took = by_lane(net, durations(rows))
    free, ring, whole, heads = (
        run_step(net, took, "in-order", blocking=axes) for axes in ((), ("cpr",), ("cp",), ("cpa",))
    )
    np.testing.assert_array_equal(ring.start, whole.start)
    assert free.step < ring.step
    assert not np.array_equal(heads.start, ring.start)


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (8, 32)])
def test_in_1f1b_a_send_finds_its_receiver_waiting(stages: int, microbatches: int) -> None:
    """Lockstep costs nothing (docs/step-times.md): equal stages reach each exchange of messages together.

    The step is the same if a send begins only when the receiver has computed all that comes before the message.
    """
    made = workload(tp=1, dp=1, pp=stages, microbatches=microbatches)
    net = node_graph_of(made)
    took = [np.where(each.ops.type == COMPUTE, 3_000, 700) for each in net.columns]
    computes = np.flatnonzero(net.type == COMPUTE).tolist()
    last = {(int(net.lane[node]), int(net.task[node])): node for node in computes}
    messages = np.flatnonzero(net.reason == Reason.MESSAGE)
    pairs = [
        (last[lane, task - 1], send)
        for send, receive in zip(net.source[messages].tolist(), net.target[messages].tolist(), strict=True)
        for lane, task in [(int(net.lane[receive]), int(net.task[receive]))]
        if (lane, task - 1) in last
    ]
    assert len(pairs) > len(messages) // 2
    asked, sends = np.array(pairs, np.int64).T
    reasons = np.full(len(pairs), int(Reason.DEPENDENCY))
    lockstep = dataclasses.replace(
        net,
        source=np.concatenate([net.source, asked]),
        target=np.concatenate([net.target, sends]),
        reason=np.concatenate([net.reason, reasons]),
    )
    free, waiting = (run_step(each, took, "in-order", blocking=("pp",)).step for each in (net, lockstep))
    assert free == waiting
