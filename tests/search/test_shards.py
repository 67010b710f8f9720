"""Shards of a search, put together, are the search; without one of them nothing is claimed."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult, Shards
from stagedb.search.searching import merged, shard_of, sizes_of
from tests.search.test_searching import H100, LLAMA, MIXTURE, asked, run

ASKED = asked(LLAMA, 4, ("recompute",), top=2)
ONE_SIZE = {"micro_batch_size": 1}


def table(found: SearchResult) -> list[Candidate]:
    """The best plans with all that is known of them."""
    return list(found.winners)


def part(request: SearchRequest, number: int, of: int, **more: Any) -> SearchResult:
    return run(request, LLAMA, shards=Shards((number,), of), **more)


@functools.cache
def alone() -> SearchResult:
    """The search without shards."""
    return run(ASKED, LLAMA)


@functools.cache
def third(number: int) -> SearchResult:
    """A shard of three, which knows of no other one."""
    return part(ASKED, number, 3)


def together(request: SearchRequest, parts: dict[int, SearchResult], of: int) -> SearchResult:
    return merged(request, LLAMA, [H100], parts, of, processes=1)


@pytest.mark.parametrize(
    "request_",
    [
        ASKED,
        asked(LLAMA, 4, ("schedule",), words={"pp": 2}, top=2),
        asked(LLAMA, 4, ("zero",), room=6 * 10**9, words=ONE_SIZE),
        asked(LLAMA, 4, ("zero",), where="tp == 2 or pp == 2", words=ONE_SIZE),
        asked(LLAMA, 4, ("recompute",), by=Objective.MEMORY, words=ONE_SIZE),
        asked(LLAMA, 4, ("strategies",), by=Objective.BYTES, words=ONE_SIZE | {"tp": 2}),
        asked(LLAMA, 4, ("zero",), by=Objective.TOKENS_PER_DOLLAR, prices={"h100": 2.5}, words=ONE_SIZE),
    ],
    ids=["recompute", "schedules", "little room", "condition", "memory", "bytes", "price"],
)
def test_shards_together_are_the_search(request_: SearchRequest) -> None:
    of = 3
    alone = run(request_, LLAMA)
    parts = {number: part(request_, number, of) for number in range(1, of + 1)}
    assert [parts[number].size for number in parts] == sizes_of(request_, LLAMA, of)
    found = together(request_, parts, of)
    assert table(found) == table(alone)
    assert (found.covered, found.left, found.size) == (True, None, alone.size)
    assert sum(each.plans for each in found.candidates) == alone.size
    assert found.shards == Shards(tuple(range(1, of + 1)), of)


def test_shards_of_a_mixture_with_several_worlds() -> None:
    request = asked(MIXTURE, 4, ("dispatch",), words=ONE_SIZE, top=2)
    request = SearchRequest(**{**vars(request), "ranks": (2, 4)})
    alone = run(request, MIXTURE)
    parts = {number: run(request, MIXTURE, shards=Shards((number,), 3)) for number in (1, 2, 3)}
    assert table(merged(request, MIXTURE, [H100], parts, 3, processes=1)) == table(alone)


def test_more_shards_than_groups() -> None:
    request = asked(LLAMA, 2, (), words={"tp": 2, "micro_batch_size": 1})
    parts = {number: part(request, number, 3) for number in (1, 2, 3)}
    assert [each.size for each in parts.values()] == [1, 0, 0] and all(each.covered for each in parts.values())
    assert table(together(request, parts, 3)) == table(run(request, LLAMA))
    without = together(request, {1: parts[1]}, 3)
    assert (without.covered, without.left, without.shards) == (False, None, Shards((1,), 3))


@pytest.mark.parametrize("present", [(1,), (2, 3), (1, 3), ()])
def test_without_a_shard_nothing_is_claimed_and_what_is_left_has_a_bound(present: Sequence[int]) -> None:
    found = together(ASKED, {number: third(number) for number in present}, 3)
    assert not found.covered and found.shards == Shards(tuple(present), 3)
    assert sum(each.plans for each in found.candidates) == found.size == alone().size
    missing = [each.step for number in {1, 2, 3} - {*present} for each in third(number).timed]
    assert found.left is not None and found.left <= min(missing)
    limit = table(found)[-1].step if len(table(found)) == ASKED.top else None
    for each in found.candidates:
        if each.fate is Fate.SLOWER and limit is not None:
            assert each.step > limit or each.layout in {one.layout for one in found.timed}


def test_a_shard_rules_out_what_others_have_beaten_and_the_best_plans_stay() -> None:
    for order in ((1, 2, 3), (3, 2, 1)):
        parts: dict[int, SearchResult] = {}
        for number in order:
            values = [each.step for one in parts.values() for each in one.winners]
            parts[number] = part(ASKED, number, 3, elsewhere=lambda values=values: {4: values})
        assert table(together(ASKED, parts, 3)) == table(alone())
        last = parts[order[-1]]
        assert last.covered and len(last.timed) <= len(third(order[-1]).timed)
    nothing = part(ASKED, 1, 3, elsewhere=lambda: {4: [1, 1]})
    assert nothing.covered and not nothing.timed


def test_what_another_shard_found_and_did_not_keep_is_searched() -> None:
    """A shard that ruled plans out by a plan which is not among the parts: these plans are left."""
    found = together(ASKED, {1: part(ASKED, 1, 3, elsewhere=lambda: {4: [1, 1]}), 2: third(2), 3: third(3)}, 3)
    assert not found.covered and found.left is not None and any(each.fate is Fate.UNTRIED for each in found.candidates)


def test_a_shard_that_ended_early_is_not_finished() -> None:
    early = part(ASKED, 2, 3, seconds=0.0)
    found = together(ASKED, {1: third(1), 2: early, 3: third(3)}, 3)
    assert (found.covered, found.shards) == (False, Shards((1, 3), 3))
    assert found.left == early.left


def test_a_search_goes_on_with_what_shards_found() -> None:
    found = run(ASKED, LLAMA, shards=Shards((2, 3), 3), found=third(1).candidates)
    assert table(found) == table(alone())
    assert (found.covered, found.size) == (True, alone().size)


def test_a_shard_of_another_version_is_refused() -> None:
    with pytest.raises(UsageError, match=f"shard 2/3 of search {ASKED.id} has .* plans, and"):
        together(ASKED, {1: third(1), 2: third(1)}, 3)


def test_texts_of_shards() -> None:
    assert shard_of("3/8") == Shards((3,), 8) and shard_of("1/1").others == Shards((), 1)
    for text in (
        "0/8",
        "9/8",
        "3",
        "3/",
        "/8",
        "-1/8",
        "3/8/9",
        "3 / 8",
        "a/b",
        "1/0",
        "1/1000000",
        "\u0663/\u0668",
        "",
    ):
        with pytest.raises(UsageError, match=r"is no shard: .*--shard.* takes I/N, from 1/N to N/N"):
            shard_of(text)
