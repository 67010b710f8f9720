"""Several steps compared: the sentence, the terms, and their shares."""

import dataclasses

import pytest

from stagedb.reports import StepSums, sums_of, verdict
from stagedb.reports.step_difference import (
    compared_parts,
    compared_terms,
    differs_most,
    labels,
    sentences_of,
    shares_of,
    terms_of,
    verdict_of,
)
from stagedb.store import Store
from tests.reports.jobs import PLANS, job
from tests.reports.test_step_difference import FAST, SLOW, step

MS = 10**6
MIDDLE = step("middle", busy=90, exposed=50, bubble=10, matmul=75, gather=50)


def test_the_sentence_on_two_is_that_of_diff() -> None:
    assert verdict_of([SLOW, FAST]) == verdict(SLOW, FAST)
    assert sentences_of([SLOW, FAST]) == ()


def test_the_fastest_of_three_is_named_with_the_term_that_differs_most() -> None:
    assert verdict_of([SLOW, MIDDLE, FAST]) == (
        "fast is the fastest of 3: 100.0 ms a step, 1.5 times as fast as middle and 2 times as fast as slow; exposed "
        "communication over dp differs the most, from 10 ms a rank in fast to 60 ms in slow"
    )
    assert verdict_of([FAST, SLOW, MIDDLE]) == verdict_of([SLOW, MIDDLE, FAST])
    assert sentences_of([SLOW, MIDDLE, FAST]) == (verdict(MIDDLE, FAST), verdict(SLOW, FAST))


def test_ties_are_those_of_two_steps() -> None:
    tied = dataclasses.replace(FAST, name="tied", step=FAST.step + 1)
    assert verdict(FAST, tied).startswith("fast and tied are equally fast")
    assert verdict_of([FAST, SLOW, tied]).startswith("fast and tied are the fastest of 3: 100.0 ms a step, 2 times as ")
    same = dataclasses.replace(FAST, name="same")
    assert verdict_of([FAST, tied, same]) == "fast, tied and same are equally fast: 100.0 ms a step"


def test_steps_with_other_tokens_are_compared_for_as_many() -> None:
    half = step("half", tokens=500, world=4, busy=60, exposed=30, bubble=20, idle=10, matmul=48, gather=30)
    text = verdict_of([SLOW, half, FAST])
    assert text.startswith("fast is the fastest of 3: 100.0 ms a step of 1,000 tokens on 8 ranks, 2 times as fast as ")
    assert "2.4 times as fast as half; for as many tokens exposed communication over dp differs the most" in text
    busy = next(each for each in compared_terms([SLOW, half]) if each.name == "busy")
    assert busy.values == (100 * MS, 120 * MS)


def test_steps_of_no_time_have_no_fastest() -> None:
    assert verdict_of([SLOW, FAST, step("none")]).startswith("steps of no time cannot be compared: slow 200 ms, ")


def test_names_are_distinct() -> None:
    assert labels(["a", "b"]) == ("a", "b")
    assert labels(["a", "b", "a"]) == ("a (first)", "b", "a (third)")
    long = labels(["n" * 1000, "n" * 1000])
    assert len({*long}) == 2 and max(map(len, long)) < 60


def test_shares_of_a_step_add_up() -> None:
    thirds = StepSums("thirds", 3, 10, 1, {"busy": 1.0, "exposed": 1.0, "bubble": 1.0, "idle": 0.0}, {"exposed": {}})
    thirds = dataclasses.replace(thirds, step=3 * MS, terms={name: ns * MS for name, ns in thirds.terms.items()})
    thirds = dataclasses.replace(thirds, parts={"busy": {}, "exposed": {"tp all_reduce forward": 1.0 * MS}})
    terms = compared_terms([thirds])
    assert [each.name for each in terms] == ["busy", "tp", "bubble"]
    assert shares_of(terms, 0) == (0.333, 0.334, 0.333)
    assert shares_of((), 0) == ()


@pytest.mark.parametrize("name", PLANS)
def test_the_terms_are_the_step(embedded_store: Store, name: str) -> None:
    sums = [sums_of(job(embedded_store, name, system=system), system) for system in ("h100", "a100-80gb", "h200")]
    terms = compared_terms(sums)
    for at, each in enumerate(sums):
        assert sum(term.values[at] for term in terms) == pytest.approx(each.step)
        assert sum(terms_of(each).values()) == pytest.approx(each.step)
        assert sum(shares_of(terms, at)) == pytest.approx(1)
    most = differs_most(terms)
    assert most is not None and most.spread == max(each.spread for each in terms)
    parts = compared_parts(sums)
    assert [each.spread for each in parts] == sorted((each.spread for each in parts), reverse=True)
    assert {each.name for each in parts} <= {"busy", "exposed"}
