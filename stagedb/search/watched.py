"""A search whose candidates are seen as they are settled, so that what was timed outlasts it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stagedb.build.model_graph import build_graph
from stagedb.cores import usable_cores
from stagedb.models import Card
from stagedb.search.branches import SearchPlace
from stagedb.search.candidates import Candidate, SearchRequest, SearchResult
from stagedb.search.conditions import Condition
from stagedb.search.processes import copies
from stagedb.search.searching import Report, _answer, _Search, spaces_of
from stagedb.systems import System

Settle = Callable[[Candidate], None]
"""Called with each candidate: a plan that was timed, or what was ruled out."""


def watched_search(
    request: SearchRequest,
    card: Card,
    systems: Sequence[System],
    *,
    settled: Settle,
    seconds: float | None = None,
    processes: int | None = None,
    known: Sequence[Candidate] = (),
    progress: Report,
) -> SearchResult:
    """`stagedb.search.searching.search`, which also calls `settled` with each candidate, in this process.

    The other arguments, the result and the errors are those of `search`. `known` plans are settled again.
    """
    condition = Condition.parse(request.where) if request.where else None
    graph_of = lambda options: build_graph(card, options)  # noqa: E731
    spaces = [(system, space) for system in systems for space in spaces_of(request, card)]
    places = [
        SearchPlace.of(number, space, graph_of, system, request.room, condition, card.check_tp)
        for number, (system, space) in enumerate(spaces)
    ]
    count = usable_cores() if processes is None else processes
    with copies(lambda question: _answer(places, question), count) as others:
        found = _Watched(request, places, others, (0, 1), known, progress, seconds, watcher=settled)
        return found.run()


def _unwatched(candidate: Candidate) -> None:
    """A candidate that nobody watches."""


@dataclass
class _Watched(_Search):
    """A search that shows what it settles."""

    watcher: Settle = field(default=_unwatched)

    def _settle(self, candidate: Candidate) -> None:
        super()._settle(candidate)
        self.watcher(candidate)
