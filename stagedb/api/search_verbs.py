"""The verbs on searches that a store keeps, of `Stagedb`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stagedb.api.python_words import all_for_python
from stagedb.api.results import Searched
from stagedb.lazy_names import deferred
from stagedb.store import Store

if TYPE_CHECKING:
    from stagedb.api import jobs, searching
    from stagedb.api.searching import Report, Systems
    from stagedb.models import Card
else:
    # A listing or a query runs without these two modules, which take long to import.
    jobs, searching = deferred("stagedb.api.jobs", "stagedb.api.searching")


@all_for_python
class SearchVerbs:
    """The verbs of `Stagedb` on searches. store: the connection."""

    store: Store

    def search(
        self,
        model: "str | Card",
        ranks: Sequence[int],
        system: "Systems" = None,
        *,
        allow: Sequence[str] | None = None,
        room: int | None = None,
        by: str = "step",
        where: str = "",
        top: int = 5,
        seconds: float | None = None,
        prices: Mapping[str, float] | None = None,
        watts: Mapping[str, float] | None = None,
        framework: str | None = None,
        progress: "Report | None" = None,
        words: Mapping[str, Any] | None = None,
        shard: str | None = None,
        on: str | None = None,
        compare: Mapping[str, Any] | None = None,
    ) -> Searched:
        """`stagedb.search`, whose result the store keeps: every candidate is a node, and the best lead to instances.

        The arguments are those of `stagedb.search`. The same search is read from the store if it is there. One that was
        stopped, or that ended before all plans were tried, goes on with what it has. shard: which part of the search
        this call searches, such as `3/8` for the third of eight; the result is what all finished shards have found, and
        the whole search when they all are. on: the address of a Ray cluster; its machines need no store.
        compare: words of a plan that is compared with the best one.
        """
        asked = searching.SearchAsked.of(
            model, ranks, system, allow, room, by, where, top, prices, watts, framework, words
        )
        with jobs.shown(self.store, "search", model, "plans") as job:
            watched = jobs.watched(job, progress)
            found = searching.search_in(self.store, asked, seconds, watched, shard, on, compare)
            job.about("search", found.id)
            return found

    def searched(self, search: str | None = None, /) -> Searched:
        """A search of the store with its candidates. search: its id, or the start of it; the newest by default."""
        return searching.searched_in(self.store, search)
