"""A store that went away while it was served: the status is 503, and the reason is for the log alone."""

import logging
from pathlib import Path

import psutil
import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.serve.shared_store import SharedStore
from stagedb.store import Store, connect, embedded
from stagedb.store.failures import ConnectionLost, RefusedError, UnreachableError
from tests.ir.tiny import card
from tests.serve.served import Answer, KeptOpen, serving_opened
from tests.serve.test_answers import asked

SECRET = "bolt://secret.test"
PATHS = (
    "/",
    "/list/instances",
    "/instances/none",
    "/instances/none/memory?at=1.1",
    asked(query="MATCH (n) RETURN n.id AS id"),
    asked(query="MATCH (n) RETURN n.id AS id", format="csv"),
    "/queries/bytes_by_axis",
)


def check_away(answer: Answer) -> None:
    assert answer.status == 503, answer.text
    assert "The store does not answer at the moment. Load the page again in a minute" in answer.text
    assert not any(word in answer.text for word in (SECRET, "STAGEDB_", "NEO4J_", "--store", "Traceback"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", [UnreachableError, RefusedError, UsageError, StagedbError, ConnectionLost])
def test_a_store_that_cannot_be_opened_is_away(
    kind: type[StagedbError], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def opened() -> Stagedb:
        raise kind(f"no store at {SECRET}: set NEO4J_URI")

    with serving_opened(opened) as served, caplog.at_level(logging.ERROR, "stagedb.serve"):
        check_away(served.get(path))
        assert served.get("/health").status == 503
    assert f"the store is away: no store at {SECRET}" in caplog.text


def test_an_embedded_store_that_does_not_start_again_is_away(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def opened() -> Stagedb:
        return Stagedb(connect(environment={}, home=home))

    try:
        with opened() as db:
            db.instantiate(card("llama"), name="wide")
        with serving_opened(opened) as served:
            assert "wide" in served.get("/list/instances").text
            engine = embedded.running(home)
            assert engine is not None
            psutil.Process(engine.pid).kill()
            home.chmod(0o777)  # no engine starts where others can write
            for path in PATHS:
                check_away(served.get(path))
            home.chmod(0o700)
            assert "wide" in served.get("/list/instances").text
    finally:
        home.chmod(0o700)
        embedded.stop(home)


def test_an_account_that_is_refused_later_is_asked_for_again(embedded_store: Store) -> None:
    opened: list[Stagedb] = []

    def connected() -> Stagedb:
        opened.append(KeptOpen(embedded_store))
        return opened[-1]

    def version(db: Stagedb) -> int:
        if db is opened[0]:
            raise RefusedError("the store refused the account: check NEO4J_USERNAME")
        return db.store.version()

    assert SharedStore(connected).read(version) == embedded_store.version()
    assert len(opened) == 2
    opened.clear()
    writing = SharedStore(connected, writes=True)
    with pytest.raises(ConnectionLost, match="the store of this server is away"):
        writing.write(version)
    assert writing.write(version) == embedded_store.version()
