"""Matches in the store: written as a whole, once, and gone with their run; on both engines."""

from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.runs.run_match import RunMatch
from stagedb.store import Store, delete, write_graph
from stagedb.store.contents.instances import instantiate
from stagedb.store.contents.matches import counts, record_match
from stagedb.store.contents.run_reading import read_run
from stagedb.store.contents.runs import record_run
from stagedb.store.contents.stored_programs import read_program
from tests.instances.small_graph import small_graph
from tests.matching.small_match import small_match
from tests.runs.recordings import small_run

PAIRS = "MATCH (o:RunOp)-[m:MATCHES]->(p:Op) RETURN o.id AS seen, p.id AS planned, m.changed AS changed ORDER BY seen"


@pytest.fixture
def made(store: Store) -> str:
    write_graph(store, small_graph())
    record_run(store, small_run())
    return instantiate(store, small_graph().key, Plan(tp=2, seq_len=16))


def matched(store: Store, made: str) -> RunMatch:
    return small_match(read_run(store, small_run().id), read_program(store, made))


def rows(store: Store, cypher: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in store.query(cypher).rows]


def test_a_match_joins_recorded_ops_to_planned_ones(store: Store, made: str) -> None:
    match = matched(store, made)
    record_match(store, made, match)
    ((_, found),) = match.ranks.items()
    ids = match.planned.program.workload.class_of(0).origins.id
    wanted = [
        (f"{match.run.id}/{match.run.lane_of[0].number}/{found.seen[at].place}", ids[found.planned[at].op], at == 1)
        for at in (0, 1)
    ]
    assert rows(store, PAIRS) == sorted(wanted)
    (row,) = rows(store, "MATCH (:Run)-[:HAS_MATCH]->(m:Match)-[:AGAINST]->(i:Instance) RETURN properties(m), i.id")
    assert row[1] == made
    assert {name: row[0][name] for name in counts(match)} == counts(match)
    kinds = rows(store, "MATCH (:Match)-[:HAS_FINDING]->(f:Finding) RETURN f.kind, f.critical ORDER BY f.number")
    assert kinds == [(each.kind, each.critical) for each in match.findings]
    assert len(kinds) == row[0]["findings"] > 0


def test_a_match_that_is_made_again_is_there_once(store: Store, made: str) -> None:
    match = matched(store, made)
    record_match(store, made, match)
    before = rows(store, PAIRS), rows(store, "MATCH (f:Finding) RETURN f.id ORDER BY f.id")
    record_match(store, made, match)
    assert (rows(store, PAIRS), rows(store, "MATCH (f:Finding) RETURN f.id ORDER BY f.id")) == before
    assert rows(store, "MATCH (m:Match) RETURN count(m)") == [(1,)]


def test_what_a_writer_that_died_left_is_taken_away(store: Store, made: str) -> None:
    match = matched(store, made)
    record_match(store, made, match)
    other = RunMatch(match.run, match.planned, {})
    record_match(store, made, other)
    assert rows(store, PAIRS) == []


@pytest.mark.parametrize("kind", ["Run", "Instance"])
def test_a_match_goes_with_its_run_and_its_ops_with_the_instance(store: Store, made: str, kind: Any) -> None:
    match = matched(store, made)
    record_match(store, made, match)
    delete(store, kind, match.run.id if kind == "Run" else made)
    assert rows(store, PAIRS) == []
    left = 0 if kind == "Run" else 1
    assert rows(store, "MATCH (m:Match) RETURN count(m)") == [(left,)]
    assert rows(store, "MATCH (:Match)-[:AGAINST]->(i) RETURN count(i)") == [(0,)]
    with pytest.raises(UsageError, match="was removed while they were matched"):
        record_match(store, made, match)
