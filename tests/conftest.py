"""Stores for tests: the embedded engine, and a real Neo4j where one is named.

STAGEDB_TEST_NEO4J=bolt://host:port (with NEO4J_USERNAME and NEO4J_PASSWORD if it wants an account) runs every store
test on that server too; its database is emptied, so it must be empty at first, or one that these tests made. Several
addresses, with spaces between them, give each test process a server of its own.
STAGEDB_REQUIRE_NEO4J=1 makes its absence a failure.
"""

import contextlib
import functools
import gc
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import filelock
import pytest
from hypothesis import settings

from stagedb.api import jobs
from stagedb.graphs.model_graph import build_graph
from stagedb.store import LABELS, Store, connect, embedded, open_store
from tests.browsing import Browser, browsing
from tests.sampling import ALL, slow_tests

# A machine that is busy with something else is no failure. The usual run draws the same examples each time.
settings.register_profile("stagedb", deadline=None, derandomize=not ALL)
settings.load_profile("stagedb")

# Virtual machines of tests live for minutes: a simple collector and the first compiler alone halve their time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")

Made = TypeVar("Made")

ENGINES = ("embedded", "neo4j")

HOW = "no Neo4j server to test on: `scripts/neo4j start` starts one and prints the setting that points the tests at it"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files with the slowest tests first, and leave out the slow cases that the usual run does not try.

    So no process has a long file left while the others are done.
    """
    slow = slow_tests()
    seconds: defaultdict[str, float] = defaultdict(float)
    for test, one in slow.items():
        seconds[test.partition("::")[0]] += one.tried_seconds
    files = {path: path.relative_to(Path(__file__).parent).as_posix() for path in {item.path for item in items}}
    items.sort(key=lambda item: -seconds[files[item.path]])
    cases: Counter[str] = Counter()
    left = []
    for item in items:
        test = f"{files[item.path]}::{item.name.partition('[')[0]}"
        if test in slow and not slow[test].is_tried(cases[test]):
            left.append(item)
        cases[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        dropped = set(left)
        items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector leave alone what lives as long as the tests: thousands of them, and all modules."""
    gc.collect()
    gc.freeze()
    # Tests keep graphs and programs of many models, which the default looks through again and again.
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def _no_jobs() -> Iterator[None]:
    """Jobs of tests leave nothing in a store, also where a busy machine makes them take longer than a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "PATIENCE", 3_600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _kept_graphs() -> Iterator[None]:
    """Tests ask for the graphs of a few small models again and again: they keep more of them than the program does."""
    kept = functools.lru_cache(128)(build_graph.__wrapped__)
    with pytest.MonkeyPatch.context() as patch:
        for module in list(sys.modules.values()):
            if vars(module).get("build_graph") is build_graph:
                patch.setattr(module, "build_graph", kept)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_core() -> Iterator[None]:
    """Searches and advice try plans in this process: what one test has built, the next one finds. Tests run on all
    cores already, and those of several processes name how many.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
        yield


@pytest.fixture(scope="session")
def stagedb_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of this process's own embedded engine, which ends with the tests."""
    home = tmp_path_factory.mktemp("home")
    yield home
    embedded.stop(home)


@pytest.fixture(scope="session")
def embedded_engine(stagedb_home: Path) -> Iterator[Store]:
    with connect(environment={}, home=stagedb_home) as store:
        yield store


@pytest.fixture(scope="session")
def neo4j_environment() -> dict[str, str]:
    """Settings of the Neo4j server to test on; skips (or fails) where there is none."""
    addresses = os.environ.get("STAGEDB_TEST_NEO4J", "").split()
    if not addresses:
        if os.environ.get("STAGEDB_REQUIRE_NEO4J") == "1":
            pytest.fail(f"STAGEDB_REQUIRE_NEO4J is set, and there is {HOW}")
        pytest.skip(HOW)
    kept = {
        name: os.environ[name]
        for name in ("NEO4J_USERNAME", "NEO4J_PASSWORD", "STAGEDB_INSECURE")
        if name in os.environ
    }
    return {"NEO4J_URI": addresses[_worker() % len(addresses)], **kept}


def _worker() -> int:
    """The number of this test process, from 0."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.fixture(scope="session")
def neo4j_engine(neo4j_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with contextlib.ExitStack() as connections:
        # Alone: between another process's migration and its mark, the server looks like somebody's own.
        with _alone("neo4j", tmp_path_factory):
            with open_store(environment=neo4j_environment) as found:
                empty = found.version() == 0
                if not empty and not _is_made_for_tests(found):
                    pytest.exit(
                        f"the store at {found.uri} is not one that tests made, and they empty theirs: name another", 2
                    )
            store = connections.enter_context(connect(environment=neo4j_environment, migrate=True))
            _mark(store)
        yield store


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty store, on each engine in turn."""
    engine: Store = request.getfixturevalue(f"{request.param}_engine")
    with _alone(request.param, tmp_path_factory):
        empty(engine)
        yield engine


@pytest.fixture
def embedded_store(embedded_engine: Store) -> Store:
    """An empty store on the embedded engine, for what does not depend on the engine."""
    empty(embedded_engine)
    return embedded_engine


@pytest.fixture
def neo4j_store(neo4j_engine: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty store on Neo4j, for what only a server shows."""
    with _alone("neo4j", tmp_path_factory):
        empty(neo4j_engine)
        yield neo4j_engine


@dataclass(frozen=True)
class Filled(Generic[Made]):
    """What tests that only read share. store: refuses writes. made: what the function that filled it returned."""

    store: Store
    made: Made


class Fill(Protocol):
    """Fills an empty store with a function, unless the test before has left it filled with the same one."""

    def __call__(self, make: Callable[[Store], Made]) -> Filled[Made]: ...


@pytest.fixture(params=ENGINES)
def fill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fill]:
    """Fills a store for tests that only read, on each engine in turn."""
    engine: Store = request.getfixturevalue(f"{request.param}_engine")
    with _alone(request.param, tmp_path_factory):
        yield _filling(engine)


@pytest.fixture
def fill_embedded(embedded_engine: Store) -> Fill:
    """The same on the embedded engine, for what does not depend on the engine."""
    return _filling(embedded_engine)


def is_own(engine: Store) -> bool:
    """Whether no other test process uses an engine, so that its content stays from test to test."""
    servers = len(os.environ.get("STAGEDB_TEST_NEO4J", "").split())
    return engine.engine == "embedded" or servers >= int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _filling(engine: Store) -> Fill:
    def fill(make: Callable[[Store], Made]) -> Filled[Made]:
        content = _contents.get(engine.uri)
        if content is None or content.make is not make or not is_own(engine):
            empty(engine)
            content = _contents[engine.uri] = _Content(make, make(engine))
        reading = Store.__new__(Store)
        reading.__dict__ |= engine.__dict__
        return Filled(reading.only_read(), content.made)

    return fill


@pytest.fixture
def store_environment(store: Store, stagedb_home: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """Environment with which another process opens the same store as the fixture `store`."""
    if store.engine == "embedded":
        return {"STAGEDB_HOME": str(stagedb_home), "STAGEDB_CONFIG": os.devnull}
    settings: dict[str, str] = request.getfixturevalue("neo4j_environment")
    return {**settings, "STAGEDB_CONFIG": os.devnull}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the tests of a file: what one leaves behind, or breaks, is not in another."""
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@dataclass(frozen=True)
class _Content:
    """What an engine holds, made by a function."""

    make: Callable[[Store], Any]
    made: Any


_contents: dict[str, _Content] = {}
"""By address: engines that hold what a function made, and nothing else since."""


def empty(store: Store) -> None:
    """Delete all that a store holds but its own mark, label by label, in one transaction if it is not much."""
    _contents.pop(store.uri, None)
    with store._session("WRITE") as session:
        nodes = session.execute_read(_nodes_by_label)
        if sum(nodes.values()) < _AT_ONCE:
            session.execute_write(_delete_all, nodes)
            return
        for label in nodes:
            while session.execute_write(_delete_some, label) == _AT_ONCE:
                pass


_LABELS = tuple(label.name for label in LABELS if label.name != "Store")
_COUNTS = " UNION ALL ".join(f"MATCH (n:{name}) RETURN '{name}' AS label, count(n) AS nodes" for name in _LABELS)
_AT_ONCE = 5000


def _nodes_by_label(transaction: Any) -> dict[str, int]:
    return {row["label"]: row["nodes"] for row in transaction.run(_COUNTS) if row["nodes"]}


def _delete_all(transaction: Any, labels: Iterable[str]) -> None:
    for label in labels:
        _delete_some(transaction, label)


def _delete_some(transaction: Any, label: str) -> int:
    text = f"MATCH (n:{label}) WITH n LIMIT {_AT_ONCE} DETACH DELETE n RETURN count(*) AS deleted"
    return int(transaction.run(text).single()["deleted"])


def _is_made_for_tests(store: Store) -> bool:
    with store._session("READ") as session:
        return bool(session.run("MATCH (t:StagedbTests) RETURN count(t) AS marks").single(strict=True)["marks"])


def _mark(store: Store) -> None:
    with store._session("WRITE") as session:
        session.run("MERGE (:StagedbTests {id: 'stagedb'})").consume()


@contextlib.contextmanager
def _alone(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Test processes that share a Neo4j server use it one test at a time."""
    if engine == "embedded" or "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    servers = max(1, len(os.environ.get("STAGEDB_TEST_NEO4J", "").split()))
    with filelock.FileLock(tmp_path_factory.getbasetemp().parent / f"neo4j-{_worker() % servers}.lock"):
        yield
