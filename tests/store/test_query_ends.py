"""Queries of users that take too much time or memory: they end, with their work, and everything else goes on."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from neo4j._sync.io._bolt import Bolt

from stagedb.serve.shared_store import SharedStore
from stagedb.store import Store, connect, embedded
from stagedb.store.failures import QueryEnded
from tests.serve.served import KeptOpen

TEXTS = f"RETURN [x IN range(1, 1600000) | toString(x) + '{'a' * 200}'] AS texts"
ROWS = f"UNWIND range(1, 1500000) AS x RETURN size(collect(toString(x) + '{'a' * 50}')) AS n"
DOUBLED = "WITH reduce(s = 'aaaaaaaaaa', i IN range(0, 27) | s + s) AS s RETURN size(s) AS n"
ENDLESS = {
    "rows": "UNWIND range(1, 9000) AS a UNWIND range(1, 9000) AS b UNWIND range(1, 9000) AS c RETURN count(*) AS n",
    "expression": "WITH range(1, 1000000) AS l RETURN reduce(n = 0, x IN l | n + reduce(m = 0, y IN l | m + y)) AS n",
    "list": "RETURN size([x IN range(1, 1000000) WHERE any(y IN range(1, 1000000) WHERE y = -x)]) AS n",
}
"""Queries that end by themselves after hours, and where their time goes."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of an engine that runs nothing but the queries of these tests."""
    found = tmp_path_factory.mktemp("home")
    yield found
    embedded.stop(found)


@pytest.fixture(scope="module")
def alone(home: Path) -> Iterator[Store]:
    with connect(environment={"STAGEDB_HEAP": "256m"}, home=home) as store:
        with store._session("WRITE") as session:
            session.run("UNWIND range(1, 40) AS i CREATE (:Note {id: toString(i)})").consume()
        yield store


@pytest.fixture
def engine(home: Path, alone: Store) -> psutil.Process:
    return process_of(home)


def process_of(home: Path) -> psutil.Process:
    endpoint = embedded.running(home)
    assert endpoint is not None
    return psutil.Process(endpoint.pid)


def computes(process: psutil.Process) -> bool:
    """Whether a process uses a core. A query that goes on uses one whole, even if others use the machine too."""
    before = sum(process.cpu_times()[:2])
    time.sleep(2)
    return sum(process.cpu_times()[:2]) - before > 0.4


def test_a_query_that_is_out_of_time_stops_working(alone: Store, engine: psutil.Process) -> None:
    for text in ENDLESS.values():
        with pytest.raises(QueryEnded, match=r"ended after 0\.5 s"):
            alone.query(text, timeout=0.5)
    end = time.monotonic() + 300
    while computes(engine):
        assert time.monotonic() < end, "a query goes on although nobody waits for it"
    assert engine.is_running()
    assert alone.read("catalog/graphs") == []


def test_a_query_that_is_being_sent_when_its_time_is_over_ends_too(
    alone: Store, engine: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message of a driver fails while another thread writes to its buffer."""

    def busy(connection: Bolt) -> None:
        raise BufferError("Existing exports of data: object cannot be re-sized")

    for kind in (Bolt, *deep(Bolt)):
        if "goodbye" in vars(kind):
            monkeypatch.setattr(kind, "goodbye", busy)
    with pytest.raises(QueryEnded, match=r"ended after 0\.5 s"):
        alone.query(ENDLESS["expression"], timeout=0.5)
    monkeypatch.undo()
    end = time.monotonic() + 300
    while computes(engine):
        assert time.monotonic() < end, "a query goes on although nobody waits for it"
    assert alone.read("catalog/graphs") == []


def deep(kind: Any) -> Iterator[Any]:
    """All classes below one."""
    for each in kind.__subclasses__():
        yield each
        yield from deep(each)


@pytest.mark.parametrize("text", [DOUBLED, TEXTS, ROWS])
def test_a_query_that_needs_too_much_memory_ends_with_the_reason(
    text: str, alone: Store, engine: psutil.Process
) -> None:
    with pytest.raises(QueryEnded, match=r"needs more memory .*WHERE or LIMIT.*not run again.*STAGEDB_HEAP"):
        alone.query(text, timeout=100)
    assert engine.is_running(), "the same engine serves the others"
    assert alone.query("MATCH (n:Note) RETURN count(n) AS n").rows == ((40,),)


def test_eight_large_queries_leave_room_for_others(alone: Store, engine: psutil.Process) -> None:
    ended = []

    def ask() -> None:
        try:
            alone.query(TEXTS, timeout=100)
        except QueryEnded as error:
            ended.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert alone.read("catalog/graphs") == []
    assert len(ended) == 8
    assert all("needs more memory" in text for text in ended)
    assert engine.is_running()


def test_nothing_repeats_a_query_that_the_store_ended(alone: Store) -> None:
    shared, asked = SharedStore(lambda: KeptOpen(alone)), []

    def ask(db: object) -> None:
        asked.append(db)
        shared._open = None  # as if another request had found the connection lost
        alone.query(DOUBLED, timeout=100)

    with pytest.raises(QueryEnded):
        shared.read(ask)
    assert len(asked) == 1


def test_a_connection_that_is_lost_during_a_query_is_no_reason_to_run_it_again(tmp_path: Path) -> None:
    """A query may be why the engine ended. So its error asks for no repetition, and is not that of a lost store."""
    with connect(environment={}, home=tmp_path / "home") as store:
        process = process_of(tmp_path / "home")
        threading.Timer(1.0, process.kill).start()
        with pytest.raises(QueryEnded, match="it is not run again by itself"):
            store.query(ENDLESS["rows"], timeout=100)


def test_a_query_whose_thread_is_gone_has_ended() -> None:
    """A thread that ended with an error leaves its query in the register. It must not count as one that goes on."""
    from stagedb.store import _query_watch

    closed: list[str] = []
    query = SimpleNamespace(getClientAddress=lambda: "/127.0.0.1:1", close=lambda: closed.append("closed"))
    watch = _query_watch.QueryWatch.__new__(_query_watch.QueryWatch)
    watch._asked, watch._stop = {"q": (time.monotonic(), -1e9, _query_watch.TIME)}, lambda name, reason: False
    watch._insist("q", query)
    assert closed == ["closed"]


def test_a_query_that_has_ended_ends_no_others() -> None:
    """Only a collection of the old generation shows what it has. One of the young leaves the figure as it was."""
    from stagedb.store import _query_watch

    counts = {"young": 0, "whole": 0}
    pool = SimpleNamespace(
        getName=lambda: "Tenured Gen",
        getCollectionUsage=lambda: SimpleNamespace(getUsed=lambda: 90, getMax=lambda: 100),
    )
    young = SimpleNamespace(getCollectionCount=lambda: counts["young"], getMemoryPoolNames=lambda: ["Eden Space"])
    whole = SimpleNamespace(
        getCollectionCount=lambda: counts["whole"], getMemoryPoolNames=lambda: ["Eden Space", "Tenured Gen"]
    )
    watch = _query_watch.QueryWatch.__new__(_query_watch.QueryWatch)
    watch._old, watch._collectors, watch._collections = [pool], [young, whole], 0
    counts["whole"] += 1
    assert watch._is_full()
    counts["young"] += 1
    assert not watch._is_full()
