"""Shards of a search in stores: together they are the search, whoever is killed, and from wherever they come."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import catalog, checking, dumps, lookup, removing
from stagedb.errors import StagedbError, UsageError
from stagedb.search import Candidate, Fate, SearchResult, Shards
from stagedb.search.searching import merged
from stagedb.store import Store
from stagedb.store.contents.searches import (
    Elsewhere,
    Parts,
    Settle,
    ShardWork,
    finished_parts,
    known_of,
    read_search,
    record_search,
    record_shard,
    shard_id,
    shards_in,
)
from stagedb.systems import load_system
from tests.store.searches import CARD, small_request, working

ROOT = Path(__file__).parents[2]

PLAIN = small_request(allow=())


@cache
def alone() -> SearchResult:
    """The search without shards and without a store."""
    return working(PLAIN)([], lambda each: None)


def table(found: SearchResult) -> list[Candidate]:
    """The best plans with all that is known of them."""
    return list(found.winners)


def merge(parts: Parts, of: int) -> SearchResult:
    return merged(PLAIN, CARD, [load_system("h100")], parts, of, processes=1)


def shard_work(shard: Shards, seconds: float | None = None) -> ShardWork:
    """What runs a shard in this process."""

    def work(known: Sequence[Candidate], settled: Settle, elsewhere: Elsewhere) -> SearchResult:
        return working(PLAIN, seconds, shards=shard, elsewhere=elsewhere)(known, settled)

    return work


def run(store: Store, number: int, of: int, **more: Any) -> tuple[SearchResult, bool]:
    shard = Shards((number,), of)
    return record_shard(store, PLAIN, shard, more.get("work") or shard_work(shard, more.get("seconds")), merge)


def states(store: Store) -> dict[int, str]:
    return {each.number: each.state for each in shards_in(store, PLAIN)}


def sound(store: Store) -> bool:
    return not checking.check(store, lambda line: None)


def test_shards_become_the_search_when_all_are_finished(store: Store) -> None:
    for number, finished in ((2, (2,)), (1, (1, 2))):
        found, new = run(store, number, 3)
        assert new and not found.covered and found.left is not None
        assert found.shards == Shards(finished, 3)
        assert read_search(store, PLAIN.id) == found
        assert sum(each.plans for each in found.candidates) == found.size == alone().size
        assert sound(store)
    assert states(store) == {1: "finished", 2: "finished"}
    again, new = run(store, 2, 3)
    assert not new and again == found
    whole, new = run(store, 3, 3)
    assert new and whole.covered and whole.left is None
    assert table(whole) == table(alone())
    assert read_search(store, PLAIN.id) == whole
    assert states(store) == {} and sound(store)
    for number in (1, 3):
        assert run(store, number, 3) == (whole, False)
    assert record_search(store, PLAIN, lambda known, settled: pytest.fail("it is there")) == (whole, False)


def test_two_shards_at_once(store: Store) -> None:
    found: dict[int, SearchResult] = {}
    both = threading.Barrier(2)

    def ask(number: int) -> None:
        both.wait()
        found[number] = run(store, number, 2)[0]

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert any(each.covered for each in found.values())
    whole = read_search(store, PLAIN.id)
    assert whole.covered and table(whole) == table(alone()) and whole.shards == Shards((1, 2), 2)
    assert states(store) == {} and sound(store)


def test_the_same_shard_twice_at_once_is_searched_once(store: Store) -> None:
    news: list[bool] = []
    both = threading.Barrier(2)

    def ask() -> None:
        both.wait()
        news.append(run(store, 1, 1)[1])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(news) == [False, True]
    assert read_search(store, PLAIN.id).covered


RUN = """
import sys
from stagedb.search import Shards
from stagedb.store import connect
from stagedb.store.contents.searches import record_shard
from tests.store.searches import slowly
from tests.store.test_search_shards import PLAIN, merge
shard = Shards((1,), 2)
def work(known, settled, elsewhere):
    return slowly(PLAIN, hangs_after=2, shards=shard, elsewhere=elsewhere)(known, settled)
with connect() as store:
    record_shard(store, PLAIN, shard, work, merge)
"""


def test_a_shard_that_was_killed_goes_on_while_another_one_runs(
    store: Store, store_environment: dict[str, str]
) -> None:
    own = shard_id(PLAIN, Shards((1,), 2))
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    process = subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, env={**settings, **store_environment})
    try:
        until = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < until:
            timed = store.read("search/candidates", search=own)
            if timed and any(each.limits for each in shards_in(store, PLAIN)):
                break
            time.sleep(0.05)
        # What the running shard has timed is known to the other one, which finishes first.
        seen: list[float] = []

        def watching(known: Sequence[Candidate], settled: Settle, elsewhere: Elsewhere) -> SearchResult:
            seen.extend(elsewhere()[4])
            return shard_work(Shards((2,), 2))(known, settled, elsewhere)

        early, _ = run(store, 2, 2, work=watching)
    finally:
        process.kill()
        process.wait()
    assert timed and seen and not early.covered and early.shards == Shards((2,), 2)
    assert states(store) == {1: "stopped", 2: "finished"}
    counts: list[int] = []

    def resumed(known: Sequence[Candidate], settled: Settle, elsewhere: Elsewhere) -> SearchResult:
        counts.append(len(known))
        return shard_work(Shards((1,), 2))(known, settled, elsewhere)

    found, new = run(store, 1, 2, work=resumed)
    assert new and counts[0] >= len(timed) and found.covered
    assert table(found) == table(alone())
    assert read_search(store, PLAIN.id) == found and sound(store)


def test_shards_of_separate_stores_are_merged_in_one(store: Store, tmp_path: Path) -> None:
    for number in (1, 2):
        run(store, number, 2)
        # The dump of the second store has its state of the whole search, too.
        words = [shard_id(PLAIN, Shards((1,), 2))] if number == 1 else []
        dumps.dump(store, tmp_path / f"{number}.dump", words, False, None)
        removing.remove(store, PLAIN.id, force=False)
    assert store.query("MATCH (n:Search|Candidate) RETURN count(n) AS n").rows == ((0,),)
    assert dumps.load(store, tmp_path / "1.dump", None) == 1
    with pytest.raises(UsageError, match=r"only shards of searches: `stagedb search` without --shard"):
        lookup.the_search(store, None)
    assert dumps.load(store, tmp_path / "2.dump", None) == 2
    parts, of = finished_parts(store, PLAIN)
    assert (sorted(parts), of) == ([1, 2], 2)
    found, new = run(store, 1, 2)
    assert not new and found.covered and table(found) == table(alone())


def test_a_search_without_shards_goes_on_with_those_that_are_finished(store: Store) -> None:
    first, _ = run(store, 1, 3)
    run(store, 2, 3, seconds=0.0)
    assert states(store) == {1: "finished", 2: "early"}
    parts, of = finished_parts(store, PLAIN)
    assert (list(parts), of, known_of(store, PLAIN)) == ([1], 3, [])
    others = Shards((1,), 3).others

    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        return working(PLAIN, shards=others, found=parts[1].candidates)(known, settled)

    found, new = record_search(store, PLAIN, work)
    assert new and found.covered and found.shards is None and table(found) == table(alone())
    assert first.shards is not None and read_search(store, PLAIN.id) == found
    assert sound(store)


def test_a_search_without_shards_that_ended_early_stays_until_all_shards_are_finished(store: Store) -> None:
    early, _ = record_search(store, PLAIN, working(PLAIN, seconds=0.0))
    first, _ = run(store, 1, 2)
    assert read_search(store, PLAIN.id) == early and first.shards == Shards((1,), 2)
    last, _ = run(store, 2, 2)
    assert last.covered and read_search(store, PLAIN.id) == last


def test_another_cut_is_refused(store: Store) -> None:
    run(store, 1, 3)
    with pytest.raises(UsageError, match=r"cut into 3 shards: ask for one of them, such as `?--shard 2/3"):
        run(store, 2, 2)


def test_a_shard_that_failed_leaves_the_others(store: Store) -> None:
    def fails(known: Sequence[Candidate], settled: Settle, elsewhere: Elsewhere) -> SearchResult:
        raise StagedbError("no process")

    run(store, 1, 2)
    with pytest.raises(StagedbError, match="no process"):
        run(store, 2, 2, work=fails)
    assert states(store) == {1: "finished"} and sound(store)


def test_lists_and_removal(store: Store) -> None:
    run(store, 1, 2)
    own = shard_id(PLAIN, Shards((1,), 2))
    plans = [each.extent for each in catalog.searches(store)]
    assert any(each.endswith("plans, not all tried, shards 1 of 2 finished") for each in plans)
    assert any(each.endswith(f"plans, shard 1/2 of {PLAIN.id[:12]}") for each in plans)
    assert lookup.the_search(store, None).id == PLAIN.id
    info = lookup.the_search(store, own)
    assert (info.shard, info.whole, info.shards) == ("1/2", PLAIN.id, 2)
    assert {each.id for each in removing.remove(store, PLAIN.id[:12], force=False)} == {PLAIN.id, own}
    assert store.query("MATCH (n:Search|Candidate) RETURN count(n) AS n").rows == ((0,),)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("s.limits = [1.0]", "its limits are not those of its plans"),
        ("s.shard = 2", "as shard 2/2 of search"),
        ("s.whole = 'x'", "it is no shard of search"),
        ("s.shard = null", "it is no shard of search"),
    ],
)
def test_a_damaged_shard_is_found(store: Store, change: str, problem: str) -> None:
    run(store, 1, 2)
    with store._session("WRITE") as session:
        session.run("MATCH (s:Search {id: $id}) SET " + change, id=shard_id(PLAIN, Shards((1,), 2))).consume()
    (found,) = checking.check(store, lambda line: None)
    assert problem in found.problem


def test_a_search_that_claims_missing_shards_is_found(store: Store) -> None:
    run(store, 1, 2)
    with store._session("WRITE") as session:
        session.run("MATCH (s:Search {id: $id}) SET s.covered = true", id=PLAIN.id).consume()
    (found,) = checking.check(store, lambda line: None)
    assert "of its 2 shards those that are finished are [1]" in found.problem


def test_the_limits_of_a_shard_are_its_best_plans(store: Store) -> None:
    run(store, 1, 2)
    (shard,) = shards_in(store, PLAIN)
    timed = [each for each in read_search(store, shard.id).candidates if each.fate is Fate.TIMED]
    best = sorted({each.layout: each.step for each in reversed(timed)}.values())[: PLAIN.top]
    assert shard.limits == {4: best}


def test_shards_over_several_numbers_of_ranks_have_limits_of_each(store: Store) -> None:
    """The best plans on four ranks, which are shorter than all on two, leave those on two as they are."""
    request = small_request(allow=(), ranks=(2, 4), top=2)
    seen: list[Mapping[int, Sequence[float]]] = []

    def search_part(number: int) -> SearchResult:
        one = Shards((number,), 2)

        def work(known: Sequence[Candidate], settled: Settle, elsewhere: Elsewhere) -> SearchResult:
            seen.append(elsewhere())
            return working(request, shards=one, elsewhere=elsewhere)(known, settled)

        def whole(parts: Parts, of: int) -> SearchResult:
            return merged(request, CARD, [load_system("h100")], parts, of, processes=1)

        return record_shard(store, request, one, work, whole)[0]

    search_part(1)
    (shard,) = shards_in(store, request)
    own = read_search(store, shard.id).winners
    assert shard.limits == {ranks: [each.step for each in own if each.ranks == ranks] for ranks in (2, 4)}
    assert sound(store)
    found = search_part(2)
    assert seen == [{2: [], 4: []}, shard.limits]
    assert found.covered and sound(store)
    assert found.winners == working(request)([], lambda each: None).winners
