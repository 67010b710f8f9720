"""Small searches for tests of the store."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from stagedb.models import Card, load_card
from stagedb.search import Candidate, Fate, SearchRequest, SearchResult
from stagedb.search.searching import search
from stagedb.store.contents.searches import OFTEN, Settle, Work
from stagedb.systems import load_system

CARD: Card = dataclasses.replace(load_card("llama3.2-1b"), layers=4, name="llama-4")


def small_request(**more: Any) -> SearchRequest:
    """A search over plans of four layers on four ranks, or what is changed of it."""
    words = {"global_batch_size": 8, "seq_len": 1024, "recipe": "megatron"}
    asked: dict[str, Any] = {
        "model": CARD.name,
        "card": CARD.digest,
        "systems": ("h100",),
        "digests": ("0" * 64,),
        "ranks": (4,),
        "words": words,
        "allow": ("recompute",),
        "top": 3,
        **more,
    }
    return SearchRequest(**asked)


def working(request: SearchRequest, seconds: float | None = None, **more: Any) -> Work:
    """What runs the search in this process. more: further arguments of it, such as its shards."""

    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        if not known and seconds is None and not more:
            candidates, found = _whole_search(request)
            for candidate in candidates:
                settled(candidate)
            return found
        return _search(request, settled, seconds=seconds, known=known, **more)

    return work


def _search(request: SearchRequest, settled: Settle, **more: Any) -> SearchResult:
    systems = [load_system("h100")]
    return search(request, CARD, systems, settled=settled, processes=1, progress=lambda each: None, **more)


def _whole_search(request: SearchRequest) -> tuple[Sequence[Candidate], SearchResult]:
    """The candidates of a search in the order in which they are settled, and its result: many tests keep the same."""
    if request.id not in _searched:
        candidates: list[Candidate] = []
        _searched[request.id] = candidates, _search(request, candidates.append)
    return _searched[request.id]


_searched: dict[str, tuple[Sequence[Candidate], SearchResult]] = {}


def slowly(request: SearchRequest, hangs_after: int | None = None, **more: Any) -> Work:
    """The same, with a pause after each plan that was timed, which is longer than a writer waits for more of them.

    hangs_after: plans after which it does nothing for ten minutes.
    """

    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        timed: list[Candidate] = []

        def paused(candidate: Candidate) -> None:
            if candidate.fate is Fate.TIMED:
                timed.append(candidate)
                time.sleep(600 if len(timed) == hangs_after else OFTEN)
            settled(candidate)

        return working(request, **more)(known, paused)

    return work
