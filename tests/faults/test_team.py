"""Several processes on one store: the short form of `scripts/bench team`, and its check of what they leave."""

from pathlib import Path

import pytest

from scripts import _bench_team
from stagedb.api import Stagedb
from stagedb.store import Store
from tests.ir.tiny import card


def test_a_team_does_no_harm(
    store: Store, store_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    db = Stagedb(store)
    expected = _bench_team.alone(db, tmp_path)
    for graph in db.graphs():
        db.rm(graph.id, force=True)
    result = _bench_team.team(tmp_path, 3, 5.0, 7, expected)
    assert result["faults"] == []
    assert sum(result["done"].values()) > 0


DAMAGES = {
    "an op without its class": ("MATCH (c:RankClass)-[d:RUNS]->(o:Op) WITH d LIMIT 1 DELETE d", "1 Op nodes belong to"),
    "a rank of nobody": ("CREATE (:Rank {id: 'x', instance: 'y', `rank`: 0})", "1 Rank nodes belong to no Instance"),
    "a rank twice": (
        "MATCH (i:Instance) CREATE (:Rank {id: 'x', instance: i.id, `rank`: 0}) "
        "CREATE (:Rank {id: 'x', instance: i.id, `rank`: 0})",
        "1 ids of Rank are there twice",
    ),
    "an unfinished instance": ("MATCH (i:Instance) SET i.state = 'building'", "is unfinished"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_check_finds_what_is_wrong(embedded_store: Store, damage: str) -> None:
    db = Stagedb(embedded_store)
    db.instantiate(card("llama", layers=2), tp=2)
    assert [*_bench_team.faults_of(embedded_store)] == []
    text, fault = DAMAGES[damage]
    with embedded_store._session("WRITE") as session:
        session.run(text).consume()
    try:
        assert any(fault in found for found in _bench_team.faults_of(embedded_store))
    finally:
        with embedded_store._session("WRITE") as session:
            session.run("MATCH (n:Rank {id: 'x'}) DELETE n").consume()
