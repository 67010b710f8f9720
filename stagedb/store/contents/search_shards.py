"""Shards of a search in the store, and the search that the ended ones are merged into.

A shard is a `Search` node of its own, with its own lease, so that machines write shards of one search at once; it is
dumped and loaded as all content. While it runs, it reads what the best plans of the other shards have, and rules out
what these beat. Whoever ends a shard merges what all shards have found by then, under the id of the search. When
all are finished, that is the search, and the shards are removed, unless somebody tagged one.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import Word, call
from stagedb.search import Candidate, Fate, SearchRequest, SearchResult, Shards
from stagedb.store import Store, building, delete
from stagedb.store.contents.search_rows import candidate_of, request_properties, shard_id, shard_properties
from stagedb.store.contents.searches import OFTEN, SearchWriting, Settle, inputs_of, read_search
from stagedb.store.makers import dead_owner, new_claim

Limits = Mapping[int, Sequence[float]]
"""By number of ranks, what the best plans have of what is to be small."""

Elsewhere = Callable[[], Limits]
"""What the best plans of the other shards have."""

ShardWork = Callable[[Sequence[Candidate], Settle, Elsewhere], SearchResult]
"""Runs a shard: gets plans that were timed before, what to call with each candidate, and what others have found."""

Parts = Mapping[int, SearchResult]
"""What shards found, by their numbers."""

MergeShards = Callable[[Parts, int], SearchResult]
"""Makes a search from the results of its shards, by number, and from how many shards there are."""


class _OverError(Exception):
    """Another process has merged all shards meanwhile."""


@dataclass(frozen=True)
class StoredShard:
    """A shard of a search in the store.

    number: of the shard, from 1. of: how many shards the search is cut into. state: finished, early (it ended before
    its time), running or stopped. made: the user who made it. limits: by number of ranks, the best values of what the
    search makes small.
    """

    id: str
    number: int
    of: int
    state: str
    made: str | None
    limits: Limits


def shards_in(store: Store, request: SearchRequest) -> list[StoredShard]:
    """The shards of a search that the store has, by number."""
    rows = store.read("search/shards", model=request.model, search=request.id)
    return [
        StoredShard(row["id"], row["number"], row["of"], _state_of(row), row["builder"], _limits(request, row))
        for row in rows
        if row["state"] != "deleting"
    ]


def _limits(request: SearchRequest, row: Mapping[str, Any]) -> Limits:
    found: dict[int, list[float]] = {}
    for value, ranks in zip(row["limits"], row["limit_ranks"] or request.ranks * len(row["limits"]), strict=False):
        found.setdefault(ranks, []).append(value)
    return found


def _state_of(row: Mapping[str, Any]) -> str:
    if row["state"] == "ready":
        return "finished" if row["covered"] else "early"
    return "stopped" if row["expired"] or dead_owner(row) is not None else "running"


def record_shard(
    store: Store,
    request: SearchRequest,
    shard: Shards,
    work: ShardWork,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None] = lambda each: None,
) -> tuple[SearchResult, bool]:
    """The search as far as its shards are finished, and whether this call searched: a finished shard is read.

    A shard that ended early goes on, and so does a stopped one. shard: which one, of how many. work: runs it. merge:
    merges what shards have found. instance_of: the id of the instance of a plan. Raises UsageError if the store has the
    search cut into another number of shards.
    """
    _check_cut(store, request, shard)
    with suppress(_OverError):
        new = _ran(store, request, shard, work)
        return merge_shards(store, request, shard.of, merge, instance_of, new), new
    return read_search(store, request.id), False


def _check_cut(store: Store, request: SearchRequest, shard: Shards) -> None:
    other = next((each for each in shards_in(store, request) if each.of != shard.of), None)
    if other is not None:
        raise UsageError(
            f"the store has search {request.id[:12]} cut into {other.of} shards: ask for one of them, such as "
            f"{Word('shard', f'{min(shard.numbers[0], other.of)}/{other.of}')}, or remove shard {other.number}/"
            f"{other.of} and the others with {call('rm', other.id[:12])}"
        )


def _is_over(store: Store, request: SearchRequest) -> bool:
    rows = store.read("search/whole", search=request.id)
    return bool(rows) and rows[0]["state"] == "ready" and rows[0]["covered"]


def _ran(store: Store, request: SearchRequest, shard: Shards, work: ShardWork) -> bool:
    """Search a shard, unless it is finished or another process finishes it. Raises _OverError if the search is over."""
    if _is_over(store, request):
        raise _OverError
    id = shard_id(request, shard)
    if any(each.id == id and each.state == "early" for each in shards_in(store, request)):
        store.write("search/reopen", search=id, owner=new_claim())
    with building(store, "Search", id, shard_properties(request, shard), inputs_of(request), resumes=True) as lease:
        if lease is None:
            return False
        if _is_over(store, request):
            raise _OverError
        others = _Others(store, request, shard)
        there = store.read("search/found", search=request.id)
        # Plans that an earlier search without shards has timed, if it ended early.
        timed = _timed(store, request, request.id) if there and there[0]["finished"] is None else []
        SearchWriting(
            store,
            lease,
            id,
            request,
            lambda known, settled: work([*timed, *known], settled, others),
            lambda each: None,
            shard=True,
        ).run()
    return True


@dataclass
class _Others:
    """What the best plans of the other shards have: read now and then, kept in between, and while no store answers.

    Shards of one cut have no layout in common, so that no plan counts twice.
    """

    store: Store
    request: SearchRequest
    own: Shards
    values: Limits = field(default_factory=dict)
    read: float = -math.inf

    def __call__(self) -> Limits:
        if time.monotonic() - self.read > OFTEN:
            self.read = time.monotonic()
            with suppress(StagedbError):
                found = shards_in(self.store, self.request)
                others = [each for each in found if each.of == self.own.of and each.number not in self.own.numbers]
                self.values = {
                    ranks: [value for each in others for value in each.limits.get(ranks, ())]
                    for ranks in self.request.ranks
                }
        return self.values


def _timed(store: Store, request: SearchRequest, search: str) -> list[Candidate]:
    """The plans that a search or a shard has timed, also one that is not complete."""
    rows = (each["values"] for each in store.read("search/candidates", search=search))
    return [candidate_of(request, row) for row in rows if row["fate"] == Fate.TIMED]


def known_of(store: Store, request: SearchRequest) -> list[Candidate]:
    """The plans that unfinished shards of a search have timed."""
    unfinished = [each for each in shards_in(store, request) if each.state != "finished"]
    return [plan for each in unfinished for plan in _timed(store, request, each.id)]


def finished_parts(store: Store, request: SearchRequest) -> tuple[Parts, int]:
    """What finished shards found, and how many shards there are; the cut with most plans, if there are several."""
    cuts: dict[int, dict[int, SearchResult]] = {}
    for each in shards_in(store, request):
        if each.state == "finished":
            cuts.setdefault(each.of, {})[each.number] = read_search(store, each.id)
    best = max(cuts, key=lambda of: sum(part.size for part in cuts[of].values()), default=1)
    return cuts.get(best, {}), best


def merge_shards(
    store: Store,
    request: SearchRequest,
    of: int,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None],
    new: bool,
) -> SearchResult:
    """Merge what shards have found by now, and keep it as the search.

    Raises _OverError if the store has the whole search. of: the number of shards. merge: merges their results.
    instance_of: the id of the instance of a plan. new: whether a shard has changed. A search without shards that ended
    early is left as it is until all shards are finished.
    """
    made: _Merged | None = None
    while True:
        if _is_over(store, request):
            raise _OverError
        there = next(iter(store.read("search/whole", search=request.id)), None)
        made = _Merged.of(store, request, of, merge, made)
        whole = made.found.covered
        if there is not None and there["finished"] is None and not whole:
            return made.found
        if there is not None and there["state"] == "ready":
            if not (new or whole) and tuple(there["finished"] or ()) == made.finished:
                return read_search(store, request.id)
            store.write("search/reopen", search=request.id, owner=new_claim())
        written = _written(store, request, of, merge, instance_of, made)
        if written is not None:
            return written
        new = False  # the holder of the lease before has merged all shards that were finished by then


def _written(
    store: Store,
    request: SearchRequest,
    of: int,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None],
    made: "_Merged",
) -> SearchResult | None:
    """Write the search of the shards that are there now; None if another process has just done so."""
    properties = {**request_properties(request), "shards": of, "finished": list(made.finished)}
    with building(store, "Search", request.id, properties, inputs_of(request), resumes=True) as lease:
        if lease is None:
            return None
        found = _Merged.of(store, request, of, merge, made).found
        SearchWriting(store, lease, request.id, request, lambda known, settled: found, instance_of).run()
    store.write("search/join_instances", search=request.id)
    if found.covered:
        remove_shards(store, request)
    return found


@dataclass(frozen=True)
class _Merged:
    """A search that was merged from shards.

    parts: the number of each shard, and the process that ended it. found: the search.
    """

    parts: tuple[tuple[int, str | None], ...]
    found: SearchResult

    @property
    def finished(self) -> tuple[int, ...]:
        return self.found.shards.numbers if self.found.shards is not None else ()

    @classmethod
    def of(cls, store: Store, request: SearchRequest, of: int, merge: MergeShards, last: "_Merged | None") -> "_Merged":
        """The search of the shards that are there now; the last one if they are the same."""
        there = [each for each in shards_in(store, request) if each.of == of and each.state in ("finished", "early")]
        parts = tuple((each.number, each.made) for each in there)
        if last is not None and last.parts == parts:
            return last
        try:
            found = {each.number: read_search(store, each.id) for each in there}
        except StagedbError:
            if _is_over(store, request):  # the search is whole, so that its shards are removed
                raise _OverError from None
            raise
        return cls(parts, merge(found, of))


def remove_shards(store: Store, request: SearchRequest) -> None:
    """Remove the shards of a search that is whole, except those that somebody tagged and those that still run."""
    for each in shards_in(store, request):
        with suppress(StagedbError):
            delete(store, "Search", each.id, f"shard {each.number}/{each.of}", unnamed=True)
