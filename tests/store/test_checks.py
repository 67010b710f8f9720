"""`store check`: a store is broken in each way, and the check finds it. Repair removes only what cannot be read."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stagedb.api import Stagedb, checking
from stagedb.models.card import Card
from stagedb.plans import Plan
from stagedb.store import Store, building, write_graph, write_rank_nodes
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.memory import analyse, record
from stagedb.store.contents.profiles import record_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.store.naming import Name, set_name
from stagedb.timing import profile_job
from tests.instances.small_graph import small_graph
from tests.ir.tiny import card
from tests.timing.plain import PLAIN

EIGHT = Plan(tp=2, dp=2, pp=2, seq_len=16)


@pytest.fixture
def filled(store: Store) -> Iterator[Store]:
    graph = small_graph()
    write_graph(store, graph)
    made = instantiate(store, graph.key, EIGHT)
    record(store, made, analyse(store, made))
    profile, _ = record_profile(store, profile_job(read_workload(store, made), PLAIN))
    set_name(store, "Profile", profile, Name("ann", "base"))
    yield store


def _check(store: Store) -> list[checking.StoreProblem]:
    return [*checking.check(store, lambda line: None)]


def _run(store: Store, text: str) -> None:
    with store._session("WRITE") as session:
        session.run(text).consume()


def _count(store: Store, pattern: str) -> int:
    return int(store.query(f"MATCH {pattern} RETURN count(*) AS n").rows[0][0])


def test_a_sound_store_has_no_problem(filled: Store) -> None:
    assert _check(filled) == []


PLANS: Mapping[str, tuple[Card, dict[str, Any]]] = {
    "tied tables on two stages": (card("gpt", tied=True), {"tp": 2, "pp": 2}),
    "gradients of norms summed over tp": (card("llama"), {"tp": 2, "sp": True}),
    "shards of weights": (card("llama", layers=3), {"dp": 2, "zero": 3}),
    "experts": (card("deepseek"), {"dp": 4, "ep": 2, "zero": 1}),
    "context parallelism": (card("qwen3"), {"cp": 2, "dp": 2}),
}


@pytest.mark.parametrize("what", PLANS)
def test_a_sound_instance_has_no_problem(embedded_store: Store, what: str) -> None:
    """Collectives outside buckets carry a weight too."""
    tiny, words = PLANS[what]
    Stagedb(embedded_store).instantiate(tiny, seq_len=8, **words)
    assert _check(embedded_store) == []


ONE = {
    "a lost CARRIES": "MATCH (:Op)-[r:CARRIES]->() WITH r LIMIT 1 DELETE r",
    "a number of an op": "MATCH (n:Op) WITH n ORDER BY n.id LIMIT 1 SET n.bytes_read = n.bytes_read + 1",
    "both numbers of an op": (
        "MATCH (n:Op:Compute) WITH n ORDER BY n.id LIMIT 1 SET n.bytes_read = n.bytes_read + 1, "
        "n.bytes_written = n.bytes_written - 1"
    ),
    "how often an op runs": "MATCH (n:Op) WITH n ORDER BY n.id LIMIT 1 SET n.runs = n.runs + 1",
    "an expression of the graph": "MATCH (n:SymOp {type: 'compute'}) WITH n LIMIT 1 SET n.flops = '7'",
    "the number of ops": "MATCH (n:RankClass) WITH n LIMIT 1 SET n.ops = n.ops + 1",
    "a digest": "MATCH (n:RankClass) WITH n LIMIT 1 SET n.ops_digest = 'x'",
    "the classes of ranks": "MATCH (n:Instance) SET n.class_table = [each IN n.class_table | 1 - each]",
    "the numbers of groups": "MATCH (n:Instance) SET n.group_firsts = [each IN n.group_firsts | each + 1]",
    "a lost NEXT": "MATCH (:Task)-[r:NEXT]->(:Task) WITH r LIMIT 1 DELETE r",
    "a second NEXT": "MATCH (a:Task)-[:NEXT]->(b:Task) WITH a, b LIMIT 1 CREATE (a)-[:NEXT]->(b)",
    "a lost FEEDS": "MATCH (:Task)-[r:FEEDS]->(:Task) WITH r LIMIT 1 DELETE r",
    "a lost DEP": "MATCH (:Op)-[r:DEP]->(:Op) WITH r LIMIT 1 DELETE r",
    "a second COPY_OF": "MATCH (a:Op)-[:COPY_OF]->(b) WITH a, b LIMIT 1 CREATE (a)-[:COPY_OF]->(b)",
    "a lost COPY_OF": "MATCH (:Op)-[r:COPY_OF]->() WITH r LIMIT 1 DELETE r",
    "a lost OF of an op's time": "MATCH (:OpTime)-[r:OF]->() WITH r LIMIT 1 DELETE r",
    "a time": "MATCH (n:OpTime) WITH n LIMIT 1 SET n.slack = n.slack + 1",
    "a second lane": "MATCH (p:Profile)-[:HAS_LANE]->(n) WITH p, n LIMIT 1 CREATE (p)-[:HAS_LANE]->(n)",
    "bytes of a level": "MATCH (n:MemoryLevel {moment: 'start'}) WITH n LIMIT 1 SET n.bytes = n.bytes + 1",
}


@pytest.mark.parametrize("what", ONE)
def test_what_was_changed_is_found_and_left_alone(filled: Store, what: str) -> None:
    _run(filled, ONE[what])
    found = _check(filled)
    assert found
    assert not any(each.repairable for each in found)
    assert all("stagedb" in each.remedy for each in found)
    before = _count(filled, "(n)")
    assert checking.repair(filled, found) == 0
    assert _count(filled, "(n)") == before


OLDER = {
    "a graph of a form that is not read any more": "MATCH (g:Graph) SET g.format = 4",
    "a schema before this one": "MATCH (n:Graph|Instance|Profile) SET n.schema = 7",
}


@pytest.mark.parametrize("what", OLDER)
def test_what_an_older_stagedb_wrote_is_not_called_damaged(filled: Store, what: str) -> None:
    _run(filled, OLDER[what])
    if "schema" in what:
        _run(filled, "MATCH (n:Op) WITH n LIMIT 1 SET n.flops = 1")
    found = _check(filled)
    assert found
    assert all(each.explained and "--force" not in each.remedy and "keep it" in each.remedy for each in found)
    assert all("older stagedb wrote it" in each.problem or "of another version" in each.problem for each in found)
    assert not any(each.repairable for each in found)


def test_damage_below_a_damaged_graph_keeps_its_words(filled: Store) -> None:
    _run(filled, "MATCH (g:Graph) SET g.sizes = '{'")
    found = _check(filled)
    assert [each.label for each in found] == ["Graph", "Instance", "Profile"]
    assert not any(each.explained for each in found)


LOST = {
    "Op": "MATCH (:RankClass)-[r:RUNS]->(:Op) WITH r LIMIT 1 DELETE r",
    "RankClass": "MATCH (:Instance)-[r:HAS_CLASS]->() WITH r LIMIT 1 DELETE r",
    "SymTensor": "CREATE (:SymTensor {id: 'alone'})",
    "Leg": "MATCH ()-[r:HAS_LEG]->() WITH r LIMIT 1 DELETE r",
    "Rank": "CREATE (:Rank {id: 'alone/0', instance: 'alone', rank: 0})",
    "Name": "MATCH (:Name)-[r:NAMES]->() DELETE r",
    "Note": "CREATE (:Note {id: 'alone', text: 'x', time: 1})",
}


@pytest.mark.parametrize("label", LOST)
def test_what_belongs_to_nothing_is_found_and_removed(filled: Store, label: str) -> None:
    _run(filled, LOST[label])
    found = _check(filled)
    assert label in {each.label for each in found if each.repairable}
    before = _count(filled, "(n)")
    assert checking.repair(filled, found) == 1
    assert _count(filled, "(n)") == before - 1
    assert not any(each.repairable for each in _check(filled) if label != "RankClass")


def test_a_profile_without_its_instance_is_removed_whole(filled: Store) -> None:
    _run(filled, "MATCH (:Profile)-[r:OF]->(:Instance) DELETE r")
    found = _check(filled)
    assert [(each.label, each.repairable) for each in found] == [("Profile", True)]
    assert checking.repair(filled, found) == 1
    assert _count(filled, "(n:Profile|LaneTime|OpTime|Leg|Segment|TaskTime)") == 0
    assert _check(filled) == []


def test_dead_work_is_removed_and_living_work_is_not(filled: Store) -> None:
    with building(filled, "Graph", "alive", {"name": "alive"}):
        _run(filled, "CREATE (:Graph {id: 'dead', name: 'dead', state: 'building', owner: 'x', lease: 0, created: 0})")
        found = _check(filled)
        assert [(each.label, each.id) for each in found] == [("Graph", "dead")]
        assert checking.repair(filled, found) == 1
        assert _check(filled) == []
        assert _count(filled, "(n:Graph {id: 'alive'})") == 1


def test_what_was_mended_since_the_check_stays(filled: Store) -> None:
    _run(filled, "MATCH (:Profile)-[r:OF]->(:Instance) DELETE r")
    found = _check(filled)
    _run(filled, "MATCH (p:Profile), (i:Instance) CREATE (p)-[:OF]->(i)")
    assert checking.repair(filled, found) == 0
    assert _check(filled) == []


DERIVED = {
    "a coordinate of a rank": "MATCH (r:Rank) WITH r ORDER BY r.id LIMIT 1 SET r.tp = r.tp + 1",
    "the class of a rank": "MATCH (r:Rank) WITH r ORDER BY r.id LIMIT 1 SET r.class = r.class + 1",
    "a group of a rank": "MATCH (r:Rank) WITH r ORDER BY r.id LIMIT 1 SET r.group_tp = r.group_tp + 1",
    "a lost rank": "MATCH (r:Rank) WITH r ORDER BY r.id LIMIT 1 DETACH DELETE r",
    "the ranks of a group": "MATCH (g:Group) WITH g ORDER BY g.id LIMIT 1 SET g.ranks = [7]",
    "a lost group": "MATCH (g:Group) WITH g ORDER BY g.id LIMIT 1 DETACH DELETE g",
    "a count": "MATCH (i:Instance) SET i.ranks_written = i.ranks_written - 1",
}


@pytest.mark.parametrize("what", DERIVED)
def test_a_derived_node_that_was_changed_is_found(filled: Store, what: str) -> None:
    instance = filled.query("MATCH (i:Instance) RETURN i.id AS id").rows[0][0]
    write_rank_nodes(filled, instance)
    assert _check(filled) == []
    _run(filled, DERIVED[what])
    assert [(each.label, each.id, each.repairable) for each in _check(filled)] == [("Instance", instance, False)]
