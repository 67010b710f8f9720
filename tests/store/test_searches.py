"""A search in the store: whole or resumable, found again, removed, dumped and loaded; the same for all who ask."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import checking, dumps, removing
from stagedb.errors import StagedbError, UsageError
from stagedb.files.stored_values import DamagedError
from stagedb.search import Candidate, Fate, SearchRequest, SearchResult
from stagedb.store import Store, delete, sweep, unfinished
from stagedb.store.contents.searches import (
    FORMAT,
    Settle,
    candidate_of,
    candidate_values,
    read_search,
    record_search,
    request_of,
    request_text,
    with_ids,
)
from stagedb.store.plan_labels import CHOSEN_WORDS, TERMS
from tests.store.searches import small_request, working

ROOT = Path(__file__).parents[2]

PLAIN = small_request(allow=())


def best(found: SearchResult, count: int = 3) -> list[tuple[int, int]]:
    return [(each.step, each.peak) for each in found.timed[:count]]


class Stopped(Exception):
    """A search was stopped from outside."""


def stopped_after(request: SearchRequest, timed: int) -> Any:
    """A search that fails after so many timed plans."""

    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        left = [timed]

        def count(candidate: Candidate) -> None:
            settled(candidate)
            left[0] -= candidate.fate is Fate.TIMED
            if not left[0]:
                raise Stopped

        return working(request)(known, count)

    return work


def rows_of(store: Store, search: str) -> list[dict[str, Any]]:
    return [row["values"] for row in store.read("search/candidates", search=search)]


def test_a_search_is_read_as_it_was_found(store: Store) -> None:
    request = small_request()
    found, new = record_search(store, request, working(request))
    assert new and found.covered and found.timed
    assert read_search(store, request.id) == found
    again, new = record_search(store, request, lambda known, settled: pytest.fail("it is there"))
    assert not new and again == found
    rows = rows_of(store, request.id)
    assert [row["place"] for row in rows] == list(range(len(found.candidates)))
    assert sum(row["plans"] for row in rows) == found.size
    # Words of all plans are in the request alone.
    assert not {name for row in rows for name in row} & request.words.keys()


def test_the_properties_of_a_candidate_are_the_whole_of_it() -> None:
    request = small_request()
    assert request_of(request_text(request)) == request
    every: dict[str, Any] = {"integer?": 2, "string?": "x", "boolean?": False, "float?": 0.5}
    every |= {"string[]?": ["a"], "integer[]?": [1, 2]}
    words = {row.name: every[row.type] for row in CHOSEN_WORDS if row.name not in request.words}
    each = Candidate(
        {**request.words, **words}, "h100", 4, Fate.SLOWER, 7, 8, 3, dict.fromkeys(TERMS, -1), "bubble", "longer"
    )
    values = candidate_values(request, each)
    assert candidate_of(request, values) == each
    assert values["exposed_tp"] == values["term_compute"] == -1 and values["tp"] == 2


def test_sets_with_equal_words_have_ids_of_their_own() -> None:
    one = Candidate({"tp": 2}, "h100", 4, Fate.MEMORY, plans=3)
    ids = [id for id, _ in with_ids("s", small_request(), [one, one, Candidate({"tp": 4}, "h100", 4, Fate.MEMORY)])]
    assert len(set(ids)) == 3
    assert ids[1] == f"{ids[0]}.2"


def test_a_search_that_was_stopped_goes_on_with_what_was_timed(store: Store) -> None:
    whole, _ = record_search(store, PLAIN, working(PLAIN))
    delete(store, "Search", PLAIN.id)
    with pytest.raises(Stopped):
        record_search(store, PLAIN, stopped_after(PLAIN, 2))
    with pytest.raises(UsageError, match="no search"):
        read_search(store, PLAIN.id)
    assert [(each.kind, each.state) for each in unfinished(store)] == [("Search", "building")]
    assert len(rows_of(store, PLAIN.id)) == 2
    assert sweep(store) == [] and not checking.check(store, lambda line: None)
    seen: list[int] = []

    def resumed(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        seen.append(len(known))
        return working(PLAIN)(known, settled)

    again, new = record_search(store, PLAIN, resumed)
    assert new and seen == [2]
    assert best(again) == best(whole) and again.size == whole.size == sum(each.plans for each in again.candidates)
    assert read_search(store, PLAIN.id) == again
    assert not checking.check(store, lambda line: None)


def test_a_search_that_ended_early_goes_on(store: Store) -> None:
    early, _ = record_search(store, PLAIN, working(PLAIN, seconds=0.0))
    assert not early.covered and early.left is not None
    assert read_search(store, PLAIN.id) == early
    later, new = record_search(store, PLAIN, working(PLAIN))
    assert new and later.covered and later.left is None
    assert read_search(store, PLAIN.id) == later
    assert not checking.check(store, lambda line: None)


def test_a_search_that_found_nothing_leaves_nothing(store: Store) -> None:
    def work(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        raise StagedbError("no process")

    with pytest.raises(StagedbError, match="no process"):
        record_search(store, PLAIN, work)
    assert unfinished(store) == []
    assert store.query("MATCH (s:Search) RETURN count(s) AS n").rows == ((0,),)


def test_two_searches_at_once_give_one_result(store: Store) -> None:
    found: list[tuple[SearchResult, bool]] = []
    both = threading.Barrier(2)

    def ask() -> None:
        both.wait()
        found.append(record_search(store, PLAIN, working(PLAIN)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(new for _, new in found) == [False, True]
    assert found[0][0] == found[1][0]
    assert len(rows_of(store, PLAIN.id)) == len(found[0][0].candidates)


def test_what_nobody_needs_is_collected(store: Store) -> None:
    with pytest.raises(Stopped):
        record_search(store, PLAIN, stopped_after(PLAIN, 1))
    left = removing.collect(store, dead=True, unnamed_older_than=None, dry_run=True)
    assert [each.kind for each in left] == ["Search"]
    assert removing.collect(store, dead=True, unnamed_older_than=None, dry_run=False) == left
    record_search(store, PLAIN, working(PLAIN))
    assert [each.kind for each in removing.unused(store, 0.0)] == ["Search"]
    removing.collect(store, dead=False, unnamed_older_than=0.0, dry_run=False)
    assert store.query("MATCH (n:Search|Candidate) RETURN count(n) AS n").rows == ((0,),)


def test_changed_content_is_found(store: Store) -> None:
    found, _ = record_search(store, PLAIN, working(PLAIN))
    first = found.candidates[0]
    with store._session("WRITE") as session:
        session.run("MATCH (c:Candidate {place: 0}) SET c.step = c.step - 1").consume()
        problems = checking.check(store, lambda line: None)
        assert [each.label for each in problems] == ["Search"]
        assert problems[0].problem.endswith("its content does not match its digest")
        session.run("MATCH (c:Candidate {place: 0}) SET c.step = $step", step=first.step).consume()
        assert not checking.check(store, lambda line: None)
        session.run("MATCH (:Search)-[r:TRIED]->(c:Candidate {place: 1}) DELETE r").consume()
        labels = [each.label for each in checking.check(store, lambda line: None)]
        assert sorted(labels) == ["Candidate", "Search"]


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [
        ("[1", "request: not JSON"),
        ("{}", "request has other fields than those of a search: 'allow', 'by'"),
        ("[" * 100_000, "request is nested too deeply"),
    ],
    ids=["torn", "empty", "deep"],
)
def test_a_damaged_request_is_named(store: Store, request_text: str, reason: str) -> None:
    record_search(store, PLAIN, working(PLAIN))
    with store._session("WRITE") as session:
        session.run("MATCH (s:Search) SET s.request = $text", text=request_text).consume()
    with pytest.raises(DamagedError, match=rf"search .* is damaged in the store: {reason}"):
        read_search(store, PLAIN.id)
    (problem,) = checking.check(store, lambda line: None)
    assert (problem.label, problem.id) == ("Search", PLAIN.id) and "cannot be read" in problem.problem


def test_a_search_of_another_format_names_the_way(store: Store) -> None:
    record_search(store, PLAIN, working(PLAIN))
    with store._session("WRITE") as session:
        session.run("MATCH (s:Search) SET s.format = 0").consume()
    with pytest.raises(
        UsageError, match=f"reads format {FORMAT}: remove it with `stagedb rm {PLAIN.id}`, and search again"
    ):
        read_search(store, PLAIN.id)


def test_a_dump_has_searches(store: Store, tmp_path: Path) -> None:
    found, _ = record_search(store, PLAIN, working(PLAIN))
    assert dumps.dump(store, tmp_path / "all.dump", [], False, None) == 1
    delete(store, "Search", PLAIN.id)
    assert dumps.load(store, tmp_path / "all.dump", None) == 1
    assert read_search(store, PLAIN.id) == found
    assert dumps.load(store, tmp_path / "all.dump", None) == 0


RUN = """
import sys
from stagedb.store import connect
from stagedb.store.contents.searches import record_search
from tests.store.searches import small_request, slowly
with connect() as store:
    record_search(store, small_request(allow=()), slowly(small_request(allow=())))
"""


def test_a_search_that_was_killed_goes_on(store: Store, store_environment: dict[str, str]) -> None:
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))}
    process = subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, env={**settings, **store_environment})
    try:
        until = time.monotonic() + 300
        while not (there := rows_of(store, PLAIN.id)) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.25)
    finally:
        process.kill()
        process.wait()
    assert there
    counts: list[int] = []

    def resumed(known: Sequence[Candidate], settled: Settle) -> SearchResult:
        counts.append(len(known))
        return working(PLAIN)(known, settled)

    found, new = record_search(store, PLAIN, resumed)
    assert new and counts[0] >= len(there)
    alone = working(PLAIN)([], lambda each: None)
    assert best(found) == best(alone)
    assert read_search(store, PLAIN.id) == found
    assert not checking.check(store, lambda line: None)
