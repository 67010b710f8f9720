"""A search on many machines: each searches a shard, and the results are merged.

A shard has every n-th group of plans. Plans that differ only in what recomputes are in one group, so that no two shards
have plans of one layout. A shard rules out a plan only if as many plans as are wanted are better, in this shard or in
another one. All of these are plans of the same search, so that the best plans of all shards together are those of the
search without shards: the same plans, steps, peaks, terms and reasons, in the same order. Which of the others were
timed depends on what was known at that time, as it does with several processes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.search.candidates import Candidate, Fate, SearchRequest, SearchResult, Shards
from stagedb.search.searching import search, sizes_of
from stagedb.systems import System

MOST = 100_000
"""Shards of a search at most."""


def shard_of(text: str) -> Shards:
    """The shard of a text such as `3/8`, the third of eight. Raises UsageError for another text."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= of <= MOST:
        raise UsageError(f"{shown(text)} is no shard: {Word('shard')} takes I/N, from 1/N to N/N, such as 3/8")
    return Shards((number,), of)


def merged(
    request: SearchRequest,
    card: Card,
    systems: Sequence[System],
    parts: Mapping[int, SearchResult],
    of: int,
    processes: int | None = None,
) -> SearchResult:
    """The results of shards merged into one: that of the search without shards, once all shards are finished.

    parts: by number, each with the plans of its shard. A shard is finished if its part is covered. of: how many there
    are. Plans of missing shards are untried, or ruled out by their bounds; `left` bounds the steps of all of them.

    processes: for work that is left; None: one for each core. Raises UsageError for a part that does not have the plans
    of its shard.
    """
    _check_sizes(request, card, parts, of)
    candidates = [each for part in parts.values() for each in part.candidates]
    missing = Shards(tuple(parts), of).others
    found = search(request, card, systems, seconds=0.0, processes=processes, shards=missing, found=candidates)
    finished = Shards(tuple(sorted(number for number, part in parts.items() if part.covered)), of)
    whole = not finished.others.numbers
    return replace(
        found,
        covered=found.covered and whole,
        left=found.left if whole or found.left is not None else _left(found.candidates),
        seconds=sum(part.seconds for part in parts.values()),
        shards=finished,
    )


def rest(
    request: SearchRequest,
    card: Card,
    parts: Mapping[int, SearchResult],
    of: int,
    searched: Callable[[Shards, Sequence[Candidate]], SearchResult],
) -> SearchResult:
    """What is left of a search when the finished shards have searched their parts. Raises UsageError as `merged`.

    parts, of: as of `merged`, each finished. searched: searches shards, and takes what the others found.
    """
    _check_sizes(request, card, parts, of)
    found = searched(Shards(tuple(parts), of).others, [each for part in parts.values() for each in part.candidates])
    return replace(found, seconds=found.seconds + sum(part.seconds for part in parts.values()))


def _check_sizes(request: SearchRequest, card: Card, parts: Mapping[int, SearchResult], of: int) -> None:
    sizes = sizes_of(request, card, of) if parts else []
    for number, part in parts.items():
        if part.size != (size := sizes[number - 1]):
            raise UsageError(
                f"shard {number}/{of} of search {request.id} has {part.size:,} plans, and {size:,} in this stagedb: "
                "another version searched it; remove it from the store, and search it again"
            )


def _left(candidates: Sequence[Candidate]) -> int | None:
    """A lower bound of the steps of all plans that were not tried, also of those that cannot be among the best."""
    return min((each.step for each in candidates if each.fate is Fate.SLOWER), default=None)
