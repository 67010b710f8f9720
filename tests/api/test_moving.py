"""Push and pull between two stores of the embedded engine, by names and addresses."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, connect
from stagedb.errors import StagedbError, UsageError
from stagedb.models import load_card
from stagedb.store import Store, embedded
from stagedb.store import connect as open_of
from stagedb.store.store_targets import choose
from tests.ir.tiny import card


@pytest.fixture(scope="module")
def second_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("second")
    yield home
    embedded.stop(home)


@pytest.fixture
def second(second_home: Path) -> Iterator[Stagedb]:
    with open_of(environment={}, home=second_home) as store:
        yield Stagedb(store)


def test_nothing_is_sent_to_the_store_itself(embedded_store: Store, stagedb_home: Path) -> None:
    db = Stagedb(embedded_store)
    db.instantiate(card("llama", layers=2), name="mine")
    with open_of(environment={}, home=stagedb_home) as again, pytest.raises(UsageError, match="are the same store"):
        db.push("mine", to=Stagedb(again))


def test_a_copy_of_a_database_is_another_store(embedded_store: Store, second: Stagedb) -> None:
    """A restored backup looks like its original in every property."""
    with second.store._session("WRITE") as session:
        for found in (embedded_store.read("schema/probe")[0],):
            session.run("MATCH (s:Store) SET s.created = $created, s.probe = $probe", **found).consume()
    db = Stagedb(embedded_store)
    made = db.instantiate(card("llama", layers=2), name="mine")
    assert db.push("mine", to=second) == 2
    assert second.instances()[0].id == made.id


def test_content_that_is_not_sound_is_not_sent(embedded_store: Store, second: Stagedb) -> None:
    db = Stagedb(embedded_store)
    made = db.instantiate(card("llama", layers=3), name="mine", tp=2)
    with embedded_store._session("WRITE") as session:
        session.run("MATCH (o:Op) WITH o LIMIT 1 SET o.flops = coalesce(o.flops, 0) + 1").consume()
    before = second.query("MATCH (n) RETURN count(n) AS n").rows
    with pytest.raises(StagedbError, match=r"nothing was sent.*not sound.*stagedb store check"):
        db.push(made.id, to=second)
    assert second.query("MATCH (n) RETURN count(n) AS n").rows == before
    with pytest.raises(UsageError, match="no graph, instance, profile, search or run 'other'"):
        second.pull("other", source=db)
    with pytest.raises(UsageError, match="name at least one"):
        second.pull(source=db)


HERE = "bolt://127.0.0.1:1"
ACCOUNT = {"NEO4J_USERNAME": "me", "NEO4J_PASSWORD": "hunter2"}


@pytest.mark.parametrize(
    ("environment", "holder"),
    [({**ACCOUNT, "NEO4J_URI": "bolt+s://team.example.org"}, None), (ACCOUNT, "bolt+s://team.example.org:7687")],
)
@pytest.mark.parametrize("option", ["--to", "--from", "--store"])
def test_the_account_of_one_server_is_not_sent_to_another(
    environment: dict[str, str], holder: str | None, option: str, tmp_path: Path
) -> None:
    none = tmp_path / "none.toml"

    def chosen(word: str) -> Any:
        return choose(word, environment, none, option=option, holder=holder)

    with pytest.raises(UsageError, match=rf"{option} is bolt\+s://other.*belongs to bolt\+s://team") as refused:
        chosen("bolt+s://other")
    assert "hunter2" not in str(refused.value)
    for other in ("bolt+s://team.example.org:7688", "bolt+s://team.example.org.evil", "bolt+s://me@x"):
        try:
            found = chosen(other)
        except UsageError:
            continue
        assert (found.username, found.password) == ("me", None)
    assert chosen("bolt+s://team.example.org").password == "hunter2"
    assert chosen("bolt+s://bob:own@other").password == "own"


def test_an_account_of_no_server_goes_to_the_one_that_is_named(tmp_path: Path) -> None:
    found = choose(HERE, ACCOUNT, tmp_path / "none.toml", option="--to")
    assert found is not None
    assert found.password == "hunter2"


def test_the_other_store_must_be_there(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Stagedb(embedded_store)
    db.instantiate(card("llama", layers=2), name="mine")
    monkeypatch.setenv("STAGEDB_CONFIG", "/dev/null")
    for way in ("push", "pull"):
        with pytest.raises(UsageError, match=rf"no store answers at {HERE}"):
            db.push("mine", to=HERE) if way == "push" else db.pull("mine", source=HERE)


def test_a_source_is_only_read(
    embedded_store: Store, second_home: Path, second: Stagedb, stagedb_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEDB_CONFIG", "/dev/null")
    monkeypatch.setenv("STAGEDB_HOME", str(stagedb_home))
    db = Stagedb(embedded_store)
    made = db.instantiate(card("llama", layers=4), name="mine")
    assert second.pull(made.id, source="embedded") == 2
    monkeypatch.setenv("STAGEDB_HOME", str(second_home))
    assert db.push("mine", to="embedded") == 0
    with connect() as opened, pytest.raises(UsageError, match="same store"):
        opened.pull(made.id, source="embedded")


def test_a_tied_embedding_over_tp_is_sound(embedded_store: Store, second: Stagedb) -> None:
    """Its gradient is reduced outside all buckets."""
    db = Stagedb(embedded_store)
    palm = dataclasses.replace(load_card("palm-540b"), layers=4, name="palm-4")
    made = db.instantiate(palm, tp=2, pp=2, ranks=4, seq_len=16)
    alone = "MATCH (o:Collective)-[:CARRIES]->(w:SymTensor) WHERE o.name CONTAINS 'slice' RETURN count(o) AS n"
    assert db.query(alone).rows[0][0] > 0
    assert db.push(made.id, to=second) == 2  # by the rules of `store check`
