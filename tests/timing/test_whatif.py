"""What-if: what selectors choose, and what a step gains."""

from fractions import Fraction

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, SEND
from stagedb.timing.node_graph import node_graph_of
from stagedb.timing.time_spent import step_times
from stagedb.timing.whatif import Scaling, scaled
from tests.timing.stepping import by_lane, run_classes, what_if_classes
from tests.traces.synthetic import workload

MADE = workload(tp=2, dp=2, pp=3, microbatches=4)
TOOK = {each.number: np.full(len(each.ops), 100) for each in MADE.classes}
NET = node_graph_of(MADE)


@pytest.mark.parametrize(
    ("text", "what", "which", "factor"),
    [
        ("collective:tp=0.5", "collective", "tp", Fraction(1, 2)),
        ("compute=2", "compute", None, Fraction(2)),
        ("send:pp=0", "send", "pp", Fraction(0)),
        ("stage:3=1.2", "stage", "3", Fraction(6, 5)),
        (" op:layer.0.mm=2/3 ", "op", "layer.0.mm", Fraction(2, 3)),
    ],
)
def test_a_selector_is_read(text: str, what: str, which: str | None, factor: Fraction) -> None:
    assert Scaling.parse(text) == Scaling(what, which, factor)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp", r"WHAT\[:WHICH\]=FACTOR"),
        ("collective:tp=-1", "0 or more"),
        ("collective:tp=nan", "0 or more"),
        ("collective:tp=1e9", "0 or more"),
        ("matmul=2", "known are compute, collective"),
        ("stage=2", "stage:WHICH"),
        ("stage:last=2", "a number, not 'last'"),
        ("compute=1/0", "divides by zero"),
    ],
)
def test_what_is_no_selector_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Scaling.parse(text)


def test_a_selector_that_chooses_nothing_is_refused_with_what_there_is() -> None:
    for text, reason in (
        ("collective:cp=0.5", "collective: all_gather, all_reduce, dp, reduce_scatter, tp"),
        ("stage:3=2", "stage 0, 1, 2"),
        ("phase:recompute=0", "phase: backward, forward, optimizer"),
        ("compute:conv=1", "compute: embedding, loss, matmul, optimizer"),
    ):
        with pytest.raises(UsageError, match=reason):
            scaled(NET, by_lane(NET, TOOK), [Scaling.parse(text)])


def test_selectors_choose_what_they_name() -> None:
    for text, type_ in (("compute=0.5", COMPUTE), ("collective=0.5", COLLECTIVE), ("send:pp=0.5", SEND)):
        for columns, took in zip(NET.columns, scaled(NET, by_lane(NET, TOOK), [Scaling.parse(text)]), strict=True):
            assert took.tolist() == np.where(columns.ops.type == type_, 50, 100).tolist()
    both = scaled(NET, by_lane(NET, TOOK), [Scaling.parse("stage:1=3"), Scaling.parse("compute:matmul=0.3335")])
    for lane, columns, took in zip(NET.lanes, NET.columns, both, strict=True):
        factors = [(3 if lane.stage == 1 else 1) * (0.3335 if kind == "matmul" else 1) for kind in columns.ops.kind]
        assert took.tolist() == [round(100 * factor) for factor in factors]


def test_a_gain_is_what_the_step_gets_shorter() -> None:
    before = run_classes(NET, TOOK)
    twice = what_if_classes(
        NET, TOOK, [Scaling("compute", None, Fraction(2)), Scaling.parse("collective=2"), Scaling.parse("send=2")]
    )
    assert (twice.before.step, twice.gain) == (before.step, -before.step)
    free = what_if_classes(NET, TOOK, [Scaling.parse("collective=0"), Scaling.parse("send=0")])
    assert free.gain > 0
    assert [spent.exposed for spent in step_times(free.after).lanes] == [0, 0, 0]
    assert what_if_classes(NET, TOOK, []).gain == 0
