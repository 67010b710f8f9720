"""Searches for pages: candidates that are made up, so that each figure is known."""

from collections.abc import Sequence
from typing import Any

from stagedb.search import Candidate, Fate, SearchRequest, SearchResult
from stagedb.store import Store
from stagedb.store.contents.searches import record_search
from tests.store.searches import small_request

GB = 10**9
MS = 10**6


def candidate(fate: Fate, step: float, peak: float, code: str, plans: int = 1, **words: Any) -> Candidate:
    """A candidate of `small_request`. step: ms. peak: GB. The word `ranks` is that of the candidate itself."""
    ranks = words.pop("ranks", 4)
    values = {**small_request().words, **words}
    terms = {"compute": round(step * MS)} if fate is Fate.TIMED else {}
    return Candidate(
        values, "h100", ranks, fate, round(step * MS), round(peak * GB), plans, terms, code, f"{code} it is"
    )


FOUND: tuple[Candidate, ...] = (
    candidate(Fate.TIMED, 100, 70, "best", tp=1, dp=4, zero=0),
    candidate(Fate.TIMED, 120, 30, "bubble", tp=2, dp=2, zero=0),
    candidate(Fate.TIMED, 130, 35, "compute", tp=2, dp=2, zero=1),
    candidate(Fate.TIMED, 150, 20, "compute", tp=1, dp=4, zero=1),
    candidate(Fate.SLOWER, 110, 31, "bubble", 6, tp=4, zero=0),
    candidate(Fate.SLOWER, 140, 10, "compute", 3, tp=4, zero=3),
    candidate(Fate.MEMORY, 90, 95, "memory", 9, tp=1),
    candidate(Fate.REFUSED, 0, 0, "refused", 2, tp=8),
)
"""Of 24 plans: the best needs 70 GB, smaller ones are longer, and two sets that may be shorter were not timed."""


def made_up_search(
    store: Store,
    candidates: Sequence[Candidate] = FOUND,
    *,
    covered: bool = True,
    left: int | None = None,
    **more: Any,
) -> SearchRequest:
    """Keep a search with these candidates. more: fields of its request."""
    request = small_request(**more)
    size = sum(each.plans for each in candidates)
    found = SearchResult(request, size, tuple(candidates), covered, left, 1.5)
    record_search(store, request, lambda known, settled: found)
    return request
