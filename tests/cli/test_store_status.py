"""`store status`: what a store is, what it has, and who changed it last."""

import json

from stagedb import connect
from stagedb.store import Store, current_user
from stagedb.store.leases import building
from tests.cli.conftest import Run


def status(run: Run) -> dict[str, object]:
    ran = run("store", "status", "-f", "json")
    assert ran.status == 0, ran.err
    return {row["property"]: row["value"] for row in json.loads(ran.out)}


def test_an_empty_store_and_one_with_content(run: Run, store: Store, tiny: str) -> None:
    made = run("profile", "--model", tiny, "--tp", "2", "--ranks", "2", "--seq-len", "32", "--name", "mine")
    assert made.status == 0, made.err
    with connect() as db:  # nodes of ranks are written for the query
        nodes = db.query("MATCH (n) RETURN count(n) AS n").rows[0][0]
        edges = db.query("MATCH ()-[r]->() RETURN count(r) AS n").rows[0][0]
        newest = next(iter(db.log()))
    found = status(run)
    assert (found["nodes"], found["edges"]) == (nodes, edges)
    assert (found["engine"], found["state"]) == (store.engine, "ready")
    assert str(found["product"]).startswith("Neo4j/")
    assert float(str(found["latency_ms"])) >= 0
    assert [found[kind] for kind in ("graphs", "instances", "profiles", "unfinished", "dead")] == [1, 1, 1, 0, 0]
    assert found["last_change"] == f"{newest['time']}: {current_user()} named profile {newest['id'][:12]} " + str(
        newest["detail"]
    )


def test_what_is_being_built_is_counted(run: Run, store: Store) -> None:
    with building(store, "Graph", "g", {"name": "half"}):
        assert [status(run)[name] for name in ("graphs", "unfinished", "dead")] == [0, 1, 0]
