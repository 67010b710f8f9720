"""Searches in the store: what was asked, what came out, and every candidate as a node.

A search is written under a lease, and readers see it when it is complete. Plans that were timed are written as they are
found, so that a search that was stopped goes on with them: nothing else of it takes long. The same request has the same
id, so that of two searches at once the second one waits for the result of the first.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.search import Candidate, Fate, SearchRequest, SearchResult, Shards
from stagedb.store import Input, Lease, Store, building, read_whole, reading
from stagedb.store.contents.comparisons import without_none
from stagedb.store.contents.search_rows import (
    FORMAT,
    candidate_of,
    candidate_values,
    content_digest,
    limits_of,
    request_of,
    request_properties,
    with_ids,
)
from stagedb.store.makers import new_claim

AT_ONCE = 2_000
"""Candidates that one transaction writes."""

OFTEN = 2.0
"""Seconds between two writes of plans that a running search has timed."""

Settle = Callable[[Candidate], None]
"""Called with each candidate of a running search."""

Work = Callable[[Sequence[Candidate], Settle], SearchResult]
"""Runs a search: gets the plans that were timed before, and calls the second argument with each that it settles."""


def record_search(
    store: Store,
    request: SearchRequest,
    work: Work,
    instance_of: Callable[[Candidate], str | None] = lambda each: None,
) -> tuple[SearchResult, bool]:
    """The result of a search, and whether this call searched: a finished search of the store is read.

    A search that ended before all plans were tried goes on, and so does a stopped one. work: runs the search.
    instance_of: the id of the instance of a plan, which joins the best plans to it. An error inside is raised again;
    plans that were timed before stay for the next search.
    """
    there = store.read("search/found", search=request.id)
    if there and there[0]["covered"]:
        return read_search(store, request.id), False
    if there:
        store.write("search/reopen", search=request.id, owner=new_claim())
    # A search that was merged from some of its shards counts as one without shards from now on.
    properties = {**request_properties(request), "shards": None, "finished": None}
    inputs = inputs_of(request)
    with building(store, "Search", request.id, properties, inputs, resumes=True) as lease:
        if lease is not None:
            found = SearchWriting(store, lease, request.id, request, work, instance_of).run()
    if lease is None:
        return read_search(store, request.id), False
    store.write("search/join_instances", search=request.id)
    return found, True


def read_search(store: Store, search: str) -> SearchResult:
    """A complete search of the store. Raises UsageError if there is none with this id, or one of another version."""
    return read_whole(store, "Search", search, partial(_read, store, search))


def _read(store: Store, search: str) -> SearchResult:
    row = store.read("search/found", search=search)[0]
    if row["format"] != FORMAT:
        raise UsageError(
            f"search {shown(search)} has format {row['format']}, and this stagedb reads format {FORMAT}: "
            f"remove it with {call('rm', search)}, and search again"
        )
    with reading(f"search {shown(search)}"):
        request = request_of(row["request"])
        candidates = [candidate_of(request, each["values"]) for each in store.read("search/candidates", search=search)]
    shards = None if row["finished"] is None else Shards(tuple(row["finished"]), row["shards"])
    return SearchResult(request, row["size"], tuple(candidates), row["covered"], row["left"], row["seconds"], shards)


def inputs_of(request: SearchRequest) -> list[Input]:
    """The inputs that a search is made from, with digests."""
    systems = zip(request.systems, request.digests, strict=True)
    return [
        Input("card", request.card[:20], request.model),
        *(Input("system", digest[:20], name) for name, digest in systems),
        Input("search", request.id),
    ]


@dataclass
class SearchWriting:
    """A search, or a shard of one, while it runs.

    lease: the right to write it. id: of its node. work: runs the search. instance_of: the id of the instance of a plan.
    shard: whether it is a shard, whose best plans others read while it runs. there: ids of the candidates in the store.
    timed: plans that were timed. new: those that are not written yet. written: when plans were written last, by a
    monotonic clock [s].
    """

    store: Store
    lease: Lease
    id: str
    request: SearchRequest
    work: Work
    instance_of: Callable[[Candidate], str | None]
    shard: bool = False
    there: set[str] = field(default_factory=set)
    timed: list[Candidate] = field(default_factory=list)
    new: list[Candidate] = field(default_factory=list)
    written: float = field(default_factory=time.monotonic)

    def run(self) -> SearchResult:
        """Search on from what the store has, and write what is found while the search runs. Returns the result."""
        rows = [each["values"] for each in self.store.read("search/candidates", search=self.id)]
        self.there = {row["id"] for row in rows}
        known = [candidate_of(self.request, row) for row in rows if row["fate"] == Fate.TIMED]
        self.lease.keeps = bool(known)
        try:
            found = self.work(known, self._settle)
        except BaseException:
            with suppress(StagedbError):
                self._flush()
            raise
        self._finish(found)
        return found

    def _settle(self, candidate: Candidate) -> None:
        if candidate.fate is Fate.TIMED:
            self.timed.append(candidate)
            self.new.append(candidate)
            if len(self.new) >= AT_ONCE or time.monotonic() - self.written > OFTEN:
                self._flush()

    def _flush(self) -> None:
        """Write the plans that were timed since the last write."""
        new, self.new, self.written = self.new, [], time.monotonic()
        running = [(id, replace(each, code="", why="")) for id, each in with_ids(self.id, self.request, new)]
        rows = {id: candidate_values(self.request, each) for id, each in running if id not in self.there}
        self._write("add", [{"id": id, "values": values} for id, values in rows.items()], search=self.id)
        if self.shard:
            limits = limits_of(self.request, self.timed)
            self.store.write("search/limits", search=self.id, owner=self.lease.owner, properties=limits)
        self.there |= rows.keys()
        self.lease.keeps = self.lease.keeps or bool(rows)

    def _finish(self, found: SearchResult) -> None:
        """Write all candidates with their places, then delete those that the search has no more."""
        winners = found.winners
        rows: list[dict[str, Any]] = []
        for place, (id, each) in enumerate(with_ids(self.id, self.request, found.candidates)):
            instance = self.instance_of(each) if each in winners else None
            values = {**candidate_values(self.request, each), "place": place, "instance": instance}
            rows.append({"id": id, "values": {"id": id, **without_none(values)}})
        self._write("change", [row for row in rows if row["id"] in self.there])
        self._write("add", [row for row in rows if row["id"] not in self.there], search=self.id)
        gone = self.there - {row["id"] for row in rows}
        self._write("drop", [{"id": id} for id in sorted(gone)])
        properties = {
            "size": found.size,
            "timed": len(found.timed),
            "covered": found.covered,
            "step": None if found.best is None else found.best.step,
            "peak": None if found.best is None else found.best.peak,
            "left": found.left,
            "seconds": found.seconds,
            "content": content_digest(row["values"] for row in rows),
            **({} if found.shards is None else {"shards": found.shards.of, "finished": list(found.shards.numbers)}),
            **(limits_of(self.request, found.timed) if self.shard else {}),
        }
        self.store.write("search/result", search=self.id, owner=self.lease.owner, properties=properties)

    def _write(self, name: str, rows: Sequence[Any], **params: Any) -> None:
        for start in range(0, len(rows), AT_ONCE):
            self.lease.renew()
            self.store.write_rows(f"search/{name}", rows[start : start + AT_ONCE], **params)
