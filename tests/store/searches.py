"""Small searches for tests of the store."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from stagedb.models import Card, load_card
from stagedb.search import Candidate, SearchRequest, SearchResult
from stagedb.search.watched import watched_search
from stagedb.store.contents.searches import Settle, Work
from stagedb.systems import load_system

CARD: Card = dataclasses.replace(load_card("llama3.2-1b"), layers=4, name="llama-4")


def small_request(**more: Any) -> SearchRequest:
    """A search over plans of four layers on four ranks, or what is changed of it."""
    words = {"global_batch_size": 8, "seq_len": 1024, "recipe": "megatron"}
    asked: dict[str, Any] = {"ranks": (4,), "allow": ("recompute",), "top": 3, **more}
    return SearchRequest(CARD.name, CARD.digest, ("h100",), ("0" * 64,), words=words, **asked)


def working(request: SearchRequest, seconds: float | None = None) -> Work:
    """What runs the search in this process."""

    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        return watched_search(
            request,
            CARD,
            [load_system("h100")],
            settled=settled,
            seconds=seconds,
            processes=1,
            known=known,
            progress=lambda each: None,
        )

    return work
