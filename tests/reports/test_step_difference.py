"""The sentence that compares two steps, and the sums behind it."""

import dataclasses

import pytest

from stagedb.reports import StepSums, sums_of, verdict
from stagedb.reports.step_difference import TERMS, axis_changes, grown, longer, part_changes, term_changes
from stagedb.store import Store
from tests.reports.jobs import PLANS, job

MS = 10**6


def step(
    name: str, *, tokens: int = 1000, world: int = 8, matmul: float = 0, gather: float = 0, **terms: float
) -> StepSums:
    """A step with times in ms."""
    spent = {term: terms.get(term, 0.0) * MS for term in TERMS}
    parts = {"busy": {"matmul backward": matmul * MS}, "exposed": {"dp all_gather forward": gather * MS}}
    return StepSums(name, int(sum(spent.values())), tokens, world, spent, parts)


SLOW = step("slow", busy=100, exposed=60, bubble=40, matmul=80, gather=60)
FAST = step("fast", busy=90, exposed=10, bubble=0, matmul=75, gather=5)


def test_the_faster_one_is_the_subject_in_either_order() -> None:
    sentence = (
        "fast is 2 times as fast as slow: 100.0 ms instead of 200.0 ms a step, because exposed communication "
        "takes 50 ms less on a rank (above all dp all_gather forward, 55 ms) and the pipeline bubble 40 ms less"
    )
    assert verdict(SLOW, FAST) == sentence
    assert verdict(FAST, SLOW) == sentence


def test_what_takes_longer_all_the_same_is_named() -> None:
    other = step("other", busy=110, exposed=60, bubble=10, matmul=90, gather=60)
    assert verdict(SLOW, other) == (
        "other is 1.11 times as fast as slow: 180.0 ms instead of 200.0 ms a step, because the pipeline bubble takes "
        "30 ms less on a rank, although computing takes 10 ms more"
    )


def test_steps_with_other_tokens_are_compared_by_tokens() -> None:
    half = step("half", tokens=500, world=4, busy=60, exposed=30, bubble=20, idle=10, matmul=48, gather=30)
    assert verdict(SLOW, half) == (
        "slow is 1.2 times as fast as half: 200.0 ms instead of 120.0 ms for 1,000 instead of 500 tokens on 8 instead "
        "of 4 ranks a step, because for as many tokens computing takes 10 ms less on a rank (above all matmul "
        "backward, 8 ms) and other waiting 10 ms less; an accelerator of slow computes 0.6 times as many tokens as one "
        "of half"
    )


def test_equal_steps_and_steps_of_no_time_have_no_faster_one() -> None:
    assert verdict(SLOW, SLOW) == "the first and the second are equally fast: 200.0 ms and 200.0 ms a step"
    assert verdict(SLOW, dataclasses.replace(SLOW, name="x")).startswith("slow and x are equally fast")
    none = step("none")
    assert verdict(SLOW, none) == "a step of slow takes 200 ms, and one of none 0 ns"


def test_a_small_difference_keeps_its_sign() -> None:
    near = step("near", busy=100, exposed=60, bubble=39.8, matmul=80, gather=60)
    assert verdict(SLOW, near).startswith("near is 0.10% faster than slow: 199.8 ms instead of 200.0 ms a step")


def test_a_long_name_is_cut() -> None:
    assert len(verdict(dataclasses.replace(SLOW, name="n" * 10_000), FAST)) < 400


@pytest.mark.parametrize("name", PLANS)
def test_the_terms_of_a_step_are_the_step(embedded_store: Store, name: str) -> None:
    made = job(embedded_store, name)
    sums = sums_of(made, name)
    assert sum(sums.terms.values()) == pytest.approx(made.times.step)
    assert sum(sums.parts["busy"].values()) == pytest.approx(sums.terms["busy"])
    assert sum(sums.parts["exposed"].values()) >= sums.terms["exposed"] - 1
    slower = sums_of(job(embedded_store, name, system="a100-80gb"), "a100")
    changes = term_changes(sums, slower)
    assert sum(each.change for each in changes) == pytest.approx(slower.step - sums.step)
    assert [abs(each.change) for each in changes] == sorted((abs(each.change) for each in changes), reverse=True)
    parts = part_changes(sums, slower, "busy")
    assert sum(theirs - ours for ours, theirs in parts.values()) == pytest.approx(
        slower.terms["busy"] - sums.terms["busy"]
    )


def test_the_term_that_grew_is_named_with_its_axis() -> None:
    gathers = {"tp all_gather forward": 30.0 * MS, "dp all_reduce backward": 10.0 * MS}
    before = dataclasses.replace(SLOW, parts={**SLOW.parts, "exposed": gathers})
    more = {"tp all_gather forward": 60.0 * MS, "dp all_reduce backward": 10.0 * MS}
    after = dataclasses.replace(before, terms={**SLOW.terms, "exposed": 105.0 * MS}, step=245 * MS)
    after = dataclasses.replace(after, parts={**SLOW.parts, "exposed": more})
    # Two axes at once share the time of which a rank waits for both: 3 in 4 of 60 ms, then 6 in 7 of 105 ms.
    changes = {each.term: each.change / MS for each in axis_changes(before, after)}
    assert changes == {"tp": pytest.approx(45), "dp": pytest.approx(0), "busy": 0, "bubble": 0, "idle": 0}
    assert sum(changes.values()) * MS == pytest.approx(after.step - before.step)
    assert grown(before, after) == "exposed communication over tp takes 45 ms more on a rank"
    assert grown(after, before) == ""
    assert longer(before, after) == pytest.approx(0.225)


def test_computing_that_grew_has_its_operator() -> None:
    assert grown(FAST, step("a", busy=99, exposed=10, matmul=83, gather=5)) == (
        "computing takes 9 ms more on a rank (above all matmul backward)"
    )
    assert grown(FAST, step("a", busy=90, exposed=10, bubble=3, matmul=75, gather=5)) == (
        "the pipeline bubble takes 3 ms more on a rank"
    )


def test_a_second_term_is_named_if_it_is_clear() -> None:
    assert grown(FAST, step("a", busy=90, exposed=17, bubble=10, matmul=75, gather=12)) == (
        "the pipeline bubble takes 10 ms more on a rank and exposed communication over dp 7 ms more"
    )
    assert grown(FAST, step("a", busy=90, exposed=19.5, bubble=10, matmul=75, gather=14.5)) == (
        "exposed communication over dp takes 9.5 ms more on a rank and the pipeline bubble 10 ms more"
    )
    assert " and " not in grown(FAST, step("a", busy=90, exposed=11, bubble=10, matmul=75, gather=6))


def test_a_step_is_longer_for_as_many_tokens() -> None:
    double = step("double", tokens=2000, busy=300, matmul=240)
    assert longer(SLOW, double) == pytest.approx(-0.25)
    assert longer(double, SLOW) == pytest.approx(1 / 3)
    assert longer(step("none"), SLOW) is None


@pytest.mark.parametrize("name", PLANS)
def test_terms_by_axis_add_up_to_the_step(store: Store, name: str) -> None:
    sums = sums_of(job(store, name), name)
    none = dataclasses.replace(sums, step=0, terms=dict.fromkeys(TERMS, 0.0), parts={"busy": {}, "exposed": {}})
    assert sum(each.change for each in axis_changes(none, sums)) == pytest.approx(sums.step, abs=len(TERMS))
