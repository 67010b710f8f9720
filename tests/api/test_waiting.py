"""`store wait`: until a store answers, and until it has what another process makes. It writes nothing."""

import socket
import threading
from typing import Any

import pytest

from stagedb.api import Stagedb, database
from stagedb.errors import StagedbError
from stagedb.store import Store
from tests.ir.tiny import card

PLAN: dict[str, Any] = {"tp": 2, "seq_len": 16}


@pytest.fixture
def environment(store: Store, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environment")
def test_a_task_waits_for_what_another_one_makes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    version = Store.version

    def seen(opened: Store) -> int:
        looked.set()
        return version(opened)

    monkeypatch.setattr(Store, "version", seen)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(database.wait("mine", seconds=60)))
    waiting.start()
    assert looked.wait(30)
    made = Stagedb(store).instantiate(card("llama", layers=2), name="mine", **PLAN)
    waiting.join(60)
    assert [each.id for each in found] == [made.id]


@pytest.mark.usefixtures("environment")
def test_waiting_writes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Stagedb(store).instantiate(card("llama", layers=2), **PLAN)

    def write(*_: Any, **__: Any) -> Any:
        raise AssertionError("a write")

    for name in ("write", "write_rows", "migrate"):
        monkeypatch.setattr(Store, name, write)
    found = database.wait(made.id, seconds=0)
    assert found is not None
    assert found.id == made.id
    assert database.wait(seconds=0) is None


@pytest.mark.usefixtures("environment")
def test_what_does_not_come_is_given_up() -> None:
    with pytest.raises(StagedbError, match=r"waited 0\.6 s, and the store at .* has no 'nothing'") as caught:
        database.wait("nothing", seconds=0.6)
    assert type(caught.value) is StagedbError


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StagedbError, match=r"waited 0\.6 s, and no store answers"):
        database.wait(store=f"bolt://127.0.0.1:{port}", seconds=0.6)
