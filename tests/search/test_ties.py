"""Plans that differ by less than the error to expect are ties, each by the error of its own system."""

from dataclasses import replace
from typing import Any

import pytest

from stagedb.search import Candidate, Fate, Objective, SearchResult
from stagedb.search.candidates import Ties, ties_of
from tests.store.searches import small_request

REQUEST = small_request(systems=("h100", "h200"), prices={"h100": 1, "h200": 2})


def plan(fate: Fate, step: int, plans: int = 1, system: str = "h100", **words: Any) -> Candidate:
    return Candidate({**REQUEST.words, **words}, system, 4, fate, step, 1, plans)


FOUND = (
    plan(Fate.TIMED, 1000, tp=1),
    plan(Fate.TIMED, 1050, tp=1, recompute="full"),
    plan(Fate.TIMED, 1100, tp=2),
    plan(Fate.TIMED, 1101, tp=4),
    plan(Fate.SLOWER, 1099, 7, tp=8),
    plan(Fate.SLOWER, 1200, 9, tp=8, zero=3),
    plan(Fate.MEMORY, 900, 11, tp=1, zero=0),
)


def ties(*found: Candidate, by: Objective = Objective.STEP, h200: float = 0.1) -> tuple[Ties, ...]:
    request = replace(REQUEST, by=by, top=3)
    return ties_of(SearchResult(request, 31, found, True, None, 1.0), {"h100": 0.1, "h200": h200})


def test_what_is_no_further_than_the_error_is_a_tie() -> None:
    # The plan that recomputes is no winner, because it differs only in that; with the set of seven it may be as good.
    assert ties(*FOUND) == (Ties(4, (0, 1), 1 + 7),)


def test_a_plan_of_another_system_has_the_larger_error() -> None:
    other = plan(Fate.TIMED, 1250, system="h200", tp=2)
    assert ties(*FOUND[:1], other) == (Ties(4, (0,), 0),)
    assert ties(*FOUND[:1], other, h200=0.25) == (Ties(4, (0, 1), 0),)


def test_the_price_counts_where_it_decides() -> None:
    assert ties(*FOUND[:1], plan(Fate.TIMED, 540, system="h200"), by=Objective.TOKENS_PER_DOLLAR) == (
        Ties(4, (0, 1), 0),
    )


@pytest.mark.parametrize("by", [Objective.MEMORY, Objective.BYTES])
def test_what_is_counted_has_no_ties(by: Objective) -> None:
    assert ties(*FOUND, by=by) == ()


def test_where_none_fits_there_are_none() -> None:
    assert ties(*FOUND[-1:]) == ()


def test_each_number_of_ranks_has_its_own() -> None:
    more = tuple(replace(each, ranks=8, step=each.step // 2) for each in FOUND[:4])
    request = replace(REQUEST, ranks=(4, 8), top=3)
    found = ties_of(SearchResult(request, 35, (*more, *FOUND), True, None, 1.0), {"h100": 0.1, "h200": 0.1})
    assert found == (Ties(4, (0, 1), 1 + 7), Ties(8, (3, 4, 5), 1 + 0))
