"""A client that is suspended in the middle of a transaction holds up the others for a bounded time."""

from pathlib import Path

import pytest
import yaml

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store, connect
from tests.faults.meanwhile import resumed, stopped_at
from tests.ir.tiny import card


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Path of a small model's card."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**card("llama", layers=2).to_dict(), "max_positions": 32}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("point", ["write.lifecycle/claim_graph", "write.lifecycle/claim_instance"])
def test_a_suspended_client_is_passed(store: Store, store_environment: dict[str, str], tiny: str, point: str) -> None:
    """It holds the lock of a node that the next one needs. This one has it after the time-out. Resumed, the first one
    finds what the other made."""
    environment = {**store_environment, "STAGEDB_WRITE_TIME": "5"}
    process = stopped_at(point, ["instantiate", tiny, "--tp", "2", "--name", "mine"], environment)
    try:
        db = Stagedb(store)
        made = db.instantiate(str(tiny), tp=2, name="mine")
    finally:
        status, printed = resumed(process)
    assert status in (0, 1), printed
    assert "Traceback" not in printed and "stagedb itself failed" not in printed
    assert status == 0 or "took over" in printed or "took too long" in printed, printed
    assert [each.id for each in db.instances()] == [made.id]
    assert len(db.graphs()) == 1


def test_the_time_of_a_write_is_a_number_of_seconds(neo4j_environment: dict[str, str]) -> None:
    for text in ("soon", "0", "-1", "nan", "1e9"):
        with pytest.raises(UsageError, match="STAGEDB_WRITE_TIME must be a number of seconds from 1"):
            connect(environment={**neo4j_environment, "STAGEDB_WRITE_TIME": text})


def test_a_write_that_takes_too_long_is_ended_with_its_reason(
    neo4j_store: Store, neo4j_environment: dict[str, str]
) -> None:
    """Another client holds the lock of the node that it needs."""
    neo4j_store.write("lifecycle/claim_graph", id="g", owner="x", lease=1, dead="", properties={})
    environment = {**neo4j_environment, "STAGEDB_WRITE_TIME": "2"}
    with (
        connect(environment=environment) as second,
        neo4j_store._session("WRITE") as session,
        session.begin_transaction() as holding,
    ):
        holding.run("MATCH (g:Graph {id: 'g'}) SET g.claim = 'held'").consume()
        with pytest.raises(StagedbError, match="took too long: another client may hold what it needs"):
            second.write("lifecycle/renew_graph", id="g", owner="x", lease=5)
        holding.rollback()
