"""Named queries on candidates: a small search, the question, and the rows."""

import dataclasses
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api.searching import described
from stagedb.errors import UsageError
from stagedb.search import Candidate, Fate, Objective, SearchResult
from stagedb.store import Store
from stagedb.store.contents.searches import record_search
from tests.conftest import Fill
from tests.store.searches import small_request

GB = 10**9


def plan(fate: Fate, step: int, peak: int, code: str, plans: int = 1, **words: Any) -> Candidate:
    request = small_request()
    return Candidate({**request.words, **words}, "h100", 4, fate, step, peak, plans, {}, code, f"{code} it is")


CANDIDATES = (
    plan(Fate.TIMED, 100, 70 * GB, "best", tp=1, zero=0, sp=True),
    plan(Fate.TIMED, 120, 30 * GB, "bubble", tp=2, zero=0, sp=True),
    plan(Fate.TIMED, 130, 35 * GB, "compute", tp=2, zero=1, sp=True),
    plan(Fate.TIMED, 150, 20 * GB, "compute", tp=1, zero=1, sp=True),
    plan(Fate.SLOWER, 110, 31 * GB, "bubble", 6, tp=4, sp=True),
    plan(Fate.SLOWER, 160, 10 * GB, "compute", 3, tp=4, zero=3, sp=True),
    plan(Fate.MEMORY, 0, 90 * GB, "memory", 9, tp=1, sp=True),
    plan(Fate.REFUSED, 0, 0, "refused", 2, tp=8, sp=True),
)
"""Of 24 plans: the best one needs 70 GB, smaller ones are longer, and a set that may be shorter was not timed."""


def stock(store: Store) -> None:
    """The search of `CANDIDATES`."""
    request = small_request()
    record_search(store, request, lambda known, settled: SearchResult(request, 24, CANDIDATES, True, None, 1.0))


@pytest.fixture
def asked(fill: Fill) -> Stagedb:
    return Stagedb(fill(stock).store)


def rows(db: Stagedb, query: str, *columns: str, **params: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[each] for each in columns) for row in db.query(query, params)]


def test_the_best_plan_by_memory(asked: Stagedb) -> None:
    found = rows(asked, "best_plan_by_memory", "memory", "step", "verdict", "bound", "tp")
    assert found == [
        (24 * GB, 150, "best", 160, 1),
        (32 * GB, 120, "may be beaten", 110, 2),
        (40 * GB, 120, "may be beaten", 110, 2),
        (48 * GB, 120, "may be beaten", 110, 2),
        (64 * GB, 120, "may be beaten", 110, 2),
        (80 * GB, 100, "best", 110, 1),
        # Plans that did not fit into the search's memory may be shorter by any amount.
        *((size * GB, 100, "may be beaten", 0, 1) for size in (96, 128, 144, 192, 288)),
    ]


def test_a_plan_of_a_search_that_ended_early_may_be_beaten(store: Store) -> None:
    request, left = small_request(), plan(Fate.UNTRIED, 90, 60 * GB, "untried", 4, tp=4)
    found = SearchResult(request, 8, (*CANDIDATES[:4], left), False, 90, 1.0)
    record_search(store, request, lambda known, settled: found)
    verdicts = dict(rows(Stagedb(store), "best_plan_by_memory", "memory", "verdict"))
    assert verdicts == {
        size * GB: "best" if size < 64 else "may be beaten" for size in (24, 32, 40, 48, 64, 80, 96, 128, 144, 192, 288)
    }


@pytest.mark.parametrize(("by", "best"), [("memory", {24, 32, 40, 48, 64, 80}), ("bytes", {80})])
def test_what_may_be_beaten_depends_on_what_is_best(store: Store, by: str, best: set[int]) -> None:
    """The first plan has the least of it. A set that was ruled out has a shorter step, and does not beat it."""
    request = small_request(by=Objective(by))
    slower = plan(Fate.SLOWER, 90, 21 * GB, by, 6, tp=4)
    first = (CANDIDATES[3],) if by == "memory" else (CANDIDATES[0], CANDIDATES[3])
    found = (*first, slower, CANDIDATES[6])
    record_search(store, request, lambda known, settled: SearchResult(request, 17, found, True, None, 1.0))
    verdicts = dict(rows(Stagedb(store), "best_plan_by_memory", "memory", "verdict"))
    assert {size for size, verdict in verdicts.items() if verdict == "best"} >= {size * GB for size in best}
    assert verdicts[64 * GB] == ("best" if by == "memory" else "may be beaten")


def test_the_front_of_step_against_memory(asked: Stagedb) -> None:
    found = rows(asked, "step_memory_front", "place", "step", "peak", "zero")
    assert found == [(0, 100, 70 * GB, 0), (1, 120, 30 * GB, 0), (3, 150, 20 * GB, 1)]


def test_plans_that_are_as_good_are_on_the_front_once(store: Store) -> None:
    request = small_request()
    twins = (plan(Fate.TIMED, 100, GB, "best", tp=1), plan(Fate.TIMED, 100, GB, "compute", tp=2))
    record_search(store, request, lambda known, settled: SearchResult(request, 2, twins, True, None, 1.0))
    assert rows(Stagedb(store), "step_memory_front", "place") == [(0,)]


def test_why_plans_lose(asked: Stagedb) -> None:
    found = rows(asked, "why_plans_lose", "code", "plans", "share", "candidates", "timed", "step", "example")
    assert found == [
        ("memory", 9, 9 / 24, 1, 0, None, "memory it is"),
        ("bubble", 7, 7 / 24, 2, 1, 110, "bubble it is"),
        ("compute", 5, 5 / 24, 3, 2, 130, "compute it is"),
        ("refused", 2, 2 / 24, 1, 0, None, "refused it is"),
        ("best", 1, 1 / 24, 1, 1, 100, "best it is"),
    ]


def test_which_option_matters_most(asked: Stagedb) -> None:
    found = rows(asked, "options_that_matter", "option", "value", "step", "exact", "plans", "timed")
    assert found == [
        ("zero", "0", 100, True, 2, 2),
        ("zero", "1", 130, True, 2, 2),
        ("zero", "3", 160, False, 3, 0),
        ("tp", "1", 100, True, 2, 2),
        ("tp", "4", 110, False, 9, 0),
        ("tp", "2", 120, True, 2, 2),
    ]
    assert rows(asked, "options_that_matter", "longer", "spread")[1] == pytest.approx((0.3, 0.6))


def test_the_best_plans_have_their_instances(asked: Stagedb) -> None:
    found = rows(asked, "best_plans", "place", "step", "code", "tp", "instance")
    assert found == [
        (0, 100, "best", 1, None),
        (1, 120, "bubble", 2, None),
        (2, 130, "compute", 2, None),
        (3, 150, "compute", 1, None),
    ]


def test_a_query_takes_the_newest_search_or_the_start_of_an_id(asked: Stagedb) -> None:
    id = small_request().id
    answer = asked.query("why_plans_lose")
    assert list(answer.newest) == ["search"] and answer.newest["search"].startswith(id[:12])
    assert asked.query("why_plans_lose", {"search": id[:8]}).rows == answer.rows
    assert asked.query("why_plans_lose", {"search": id}).newest == {}
    with pytest.raises(UsageError, match=r"no search 'nothing' in the store"):
        asked.query("why_plans_lose", {"search": "nothing"})


def test_a_store_without_searches_names_the_way(store: Store) -> None:
    with pytest.raises(UsageError, match=r"no search yet: make one with `db\.search\(\)`"):
        Stagedb(store).query("why_plans_lose")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"recompute": "full", "recompute_first": 1}, "recompute full in the first layer of each stage"),
        ({"recompute": "full", "recompute_first": 3}, "recompute full in the first 3 layers of each stage"),
        (
            {"recompute": "full", "recompute_first": 2, "virtual_stages": 2},
            "recompute full in the first 2 layers of each chunk, chunks 2",
        ),
        ({"recompute": "pointwise", "recompute_every": 4}, "recompute pointwise in every 4th layer"),
    ],
    ids=str,
)
def test_a_plan_is_described_with_its_layers_that_recompute(words: dict[str, Any], text: str) -> None:
    request = small_request()
    each = Candidate(words, "h100", 8, Fate.TIMED, 1, 1, 1)
    assert described(each, request) == text
    fixed = dataclasses.replace(request, words={**request.words, "recompute": words["recompute"]})
    assert {*described(each, fixed).split(", ")} == {*text.split(", ")}
