"""A recorded step next to its plan, by terms that both have."""

import dataclasses

import pytest

from stagedb.reports.seen_step import UNKNOWN, axes_of, expected_sums, seen_sums, seen_verdict
from stagedb.reports.step_difference import terms_of
from tests.matching.recorded import CLEAN, match_of
from tests.reports.test_step_difference import FAST, SLOW, step


@pytest.mark.parametrize("name", CLEAN)
def test_the_terms_of_a_run_are_its_step(name: str) -> None:
    found = match_of(name)
    sums = seen_sums(found, name, 1000)
    assert sum(sums.terms.values()) == pytest.approx(sums.step, abs=2)
    assert sum(terms_of(sums).values()) == pytest.approx(sums.step, abs=2)
    planned = {op.axis for match in found.ranks.values() for op in match.planned if op.axis}
    # What no plan has, such as barriers, has the name of its group in the run.
    assert terms_of(sums).keys() - {"busy", "bubble", "idle"} <= planned | {"default_pg"}


@pytest.mark.parametrize("name", ["fsdp-tp", "hsdp"])
def test_what_is_communicated_has_the_axis_of_the_plan(name: str) -> None:
    """The groups of a run have names of their own, here one for all: the axis is that of the op which is the same."""
    found = match_of(name)
    lanes = tuple(
        dataclasses.replace(lane, ops=tuple(dataclasses.replace(op, axis="world") for op in lane.ops))
        for lane in found.run.lanes
    )
    axes = axes_of(dataclasses.replace(found, run=dataclasses.replace(found.run, lanes=lanes)))
    matched = 0
    for (rank, _), match in found.ranks.items():
        for pair in match.matched:
            if axis := match.planned[pair.planned].axis:
                assert axes[rank, match.seen[pair.seen].place] == axis
                matched += 1
    assert matched > 20 and len({*axes.values()}) > 1 and UNKNOWN not in axes.values()


def test_messages_are_part_of_the_bubble() -> None:
    planned = dataclasses.replace(
        SLOW, parts={"busy": {}, "exposed": {"pp send forward": 20e6, "dp all_gather forward": 40e6}}
    )
    found = expected_sums(planned)
    assert found.terms == {"busy": 100e6, "exposed": pytest.approx(40e6), "bubble": pytest.approx(60e6), "idle": 0}
    assert terms_of(found) == {"busy": 100e6, "dp": pytest.approx(40e6), "bubble": pytest.approx(60e6), "idle": 0}


def test_the_sentence_has_both_steps_and_the_term_that_grew() -> None:
    assert seen_verdict(FAST, dataclasses.replace(SLOW, name="run")) == (
        "a step of run takes 200.0 ms, 2 times the expected 100.0 ms: exposed communication over dp takes 50 ms more "
        "on a rank and the pipeline bubble 40 ms more"
    )
    slow = dataclasses.replace(SLOW, name="run", step=1_055 * FAST.step)
    assert ", 1,055 times the expected 100.0 ms" in seen_verdict(FAST, slow)
    near = step("run", busy=92, exposed=10, matmul=77, gather=5)
    assert seen_verdict(FAST, near).startswith("a step of run takes 102.0 ms, 2.00% more than the expected 100.0 ms: ")
    assert seen_verdict(SLOW, FAST) == "a step of fast takes 100.0 ms, 50.00% less than the expected 200.0 ms"
    assert seen_verdict(FAST, FAST) == "a step of fast takes 100.0 ms, as was expected"
    assert seen_verdict(step("none"), FAST).endswith(", and 0 ns was expected")
