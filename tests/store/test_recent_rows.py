"""Rows of lists that were just read: one read for all who ask at once, none that is older than it may be."""

import copy
import threading
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.store import Store
from stagedb.store.recent_rows import LARGEST, RecentRows
from tests.ir.tiny import card

Row = dict[str, Any]


class Asked:
    """A store of one list, whose rows have the number of the read."""

    def __init__(self, rows: int = 1) -> None:
        self.reads, self.rows = 0, rows

    def __call__(self) -> list[Row]:
        self.reads += 1
        return [{"read": self.reads} for _ in range(self.rows)]


def test_rows_are_shared_for_so_many_seconds_and_not_longer() -> None:
    now, asked = [0.0], Asked()
    recent = RecentRows(1.0, lambda: now[0])
    found = []
    for now[0] in (0.0, 0.9, 1.0, 1.5, 2.1):
        found += [row["read"] for row in recent.get("catalog/names", {}, asked)]
    assert found == [1, 1, 2, 2, 3]


def test_zero_seconds_share_nothing() -> None:
    asked = Asked()
    recent = RecentRows(0.0)
    assert [recent.get("catalog/names", {}, asked)[0]["read"] for _ in range(3)] == [1, 2, 3]


def test_other_parameters_are_another_list() -> None:
    asked = Asked()
    recent = RecentRows(1.0, lambda: 0.0)
    words: list[Row] = [{"words": {}}, {"words": {"tp": 2}}, {"words": {"tp": "2"}}, {"words": {"tp": 2}}]
    assert [recent.get("catalog/plans", each, asked)[0]["read"] for each in words] == [1, 2, 3, 2]


def test_a_caller_changes_only_rows_of_its_own() -> None:
    recent, asked = RecentRows(1.0, lambda: 0.0), Asked()
    for _ in range(3):
        (row,) = recent.get("catalog/names", {}, asked)
        assert row == {"read": 1}
        row["read"] = 99


def test_what_is_read_while_the_store_changes_is_not_kept() -> None:
    recent, asked = RecentRows(1.0, lambda: 0.0), Asked()

    def changed() -> list[Row]:
        rows = asked()
        recent.clear()
        return rows

    assert recent.get("catalog/names", {}, changed) == [{"read": 1}]
    assert recent.get("catalog/names", {}, asked) == [{"read": 2}]


def test_a_failure_is_not_kept() -> None:
    recent = RecentRows(1.0, lambda: 0.0)

    def fails() -> list[Row]:
        raise ValueError("away")

    with pytest.raises(ValueError, match="away"):
        recent.get("catalog/names", {}, fails)
    assert recent.get("catalog/names", {}, Asked()) == [{"read": 1}]


def test_readers_at_the_same_time_read_once() -> None:
    recent, asked, begun, goes_on = RecentRows(60.0), Asked(), threading.Event(), threading.Event()

    def slow() -> list[Row]:
        begun.set()
        assert goes_on.wait(10)
        return asked()

    found: list[list[Row]] = []
    first = threading.Thread(target=lambda: found.append(recent.get("catalog/names", {}, slow)))
    first.start()
    assert begun.wait(10)
    others = [threading.Thread(target=lambda: found.append(recent.get("catalog/names", {}, asked))) for _ in range(9)]
    for each in others:
        each.start()
    goes_on.set()
    for each in (first, *others):
        each.join(10)
    assert found == [[{"read": 1}]] * 10


def test_who_waited_for_a_read_that_failed_reads_itself() -> None:
    recent, asked, begun, goes_on = RecentRows(60.0), Asked(), threading.Event(), threading.Event()

    def fails() -> list[Row]:
        begun.set()
        assert goes_on.wait(10)
        raise ValueError("away")

    failed: list[str] = []

    def first() -> None:
        try:
            recent.get("catalog/names", {}, fails)
        except ValueError as error:
            failed.append(str(error))

    reader = threading.Thread(target=first)
    reader.start()
    assert begun.wait(10)
    found: list[list[Row]] = []
    other = threading.Thread(target=lambda: found.append(recent.get("catalog/names", {}, asked)))
    other.start()
    goes_on.set()
    reader.join(10)
    other.join(10)
    assert (failed, found) == (["away"], [[{"read": 1}]])


def test_a_list_that_is_too_long_is_not_kept() -> None:
    recent, asked = RecentRows(1.0, lambda: 0.0), Asked(LARGEST + 1)
    assert [recent.get("catalog/names", {}, asked)[0]["read"] for _ in range(2)] == [1, 2]


def test_only_lists_are_shared(embedded_store: Store) -> None:
    recent, store = RecentRows(60.0), copy.copy(embedded_store)  # the fixture is for other tests too
    store.share_rows(recent)
    Stagedb(embedded_store).build(card("llama"))
    (graph,) = store.read("catalog/graphs")
    tagged = Stagedb(embedded_store)
    assert store.read("catalog/tags") == []
    tagged.tag(graph["id"], "new")
    assert store.read("catalog/tags") == []
    recent.clear()
    assert [row["tag"] for row in store.read("catalog/tags")] == ["new"]
    # A question about one thing is asked each time.
    tagged.tag(graph["id"], "newer")
    (found,) = store.read("lookup/graph", word=graph["id"])
    assert sorted(found["tags"]) == ["new", "newer"]
