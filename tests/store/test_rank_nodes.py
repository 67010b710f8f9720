"""Nodes of ranks and groups are written when a query can reach them: once, by whoever asks, and not before."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.plans import Plan, RankLayout, groups
from stagedb.store import Store, rank_nodes
from stagedb.store.failures import ReadOnlyError
from stagedb.store.rank_nodes import instances_reached
from tests import lowered
from tests.faults.injected import at
from tests.ir.tiny import card

WORDS = {"tp": 2, "pp": 2, "dp": 4, "seq_len": 16}
RANKS = "MATCH (r:Rank {instance: $instance}) RETURN r.rank AS rank ORDER BY rank"
PARAMS = {"instance": "a", "other": "b"}

NONE = (
    "MATCH (o:Op {instance: $instance}) RETURN o.rank AS rank, o.group AS Group",
    "MATCH (i:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass)-[:RUNS]->(o) RETURN count(o)",
    "MATCH (a:Op)-[:DEP]->(b:Op) MATCH (b)-[d:DEP|COPY_OF]->(c) RETURN labels(c), count(*), size([x IN [1] | x])",
    "MATCH (c:RankClass) WHERE (c)<-[:HAS_CLASS]-() RETURN count(c) AS n, sum((c.ranks + 1) * 2)",
    "MATCH (:Task)-[:NEXT*1..3]->(t:Task) RETURN t",
    "MATCH (i:Instance|Profile {id: $instance}) RETURN i, 'MATCH (n)' AS text, [(i)-[:OF]->(g) | g.name] AS graphs",
    "UNWIND [1] AS `Rank` RETURN `Rank`",
    "MATCH (c:RankClass) CALL { WITH c MATCH (c)-[:RUNS]->(o:Op) RETURN count(o) AS n } RETURN n",
)
ONE = {
    "MATCH (r:Rank {instance: $instance}) RETURN r": ("a",),
    "MATCH (:`Rank` {`rank`: 3, instance: $ `other`}) RETURN 1": (),
    "MATCH (r:Rank {`rank`: 3, instance: $other}) RETURN r": ("b",),
    "MATCH (i:Instance {id: $instance}) MATCH (r:Rank {instance: i.id, class: 0}) RETURN r": ("a",),
    "MATCH (i:Instance {id: $instance})-[:HAS_GROUP]->(g:Group) RETURN g": ("a",),
    "MATCH (:Instance {id: $instance, state: 'ready'})-[h:HAS_GROUP]->(g) RETURN h, g": ("a",),
    "MATCH (i:Instance {id: $instance})-[:OF]->(:Graph) MATCH (i)-[:HAS_GROUP]->(g:Group {axis: 'tp'}) "
    "MATCH (r:Rank {instance: i.id}) WHERE r.rank IN g.ranks RETURN r": ("a",),
    "MATCH (r:Rank {instance: $instance}), (g:Group {instance: $other}) RETURN r, g": ("a", "b"),
}
ALL = (
    "MATCH (n) RETURN count(n)",
    "MATCH (n {instance: $instance}) RETURN count(n)",
    "MATCH (n WHERE n.rank = 0) RETURN n",
    "MATCH (n:!Op) RETURN count(n)",
    "MATCH (n:%) RETURN count(n)",
    "MATCH (n:$($instance)) RETURN n",
    "MATCH (n:$all($instance)) RETURN n",
    "MATCH (n:Op|Rank {instance: $instance}) RETURN n",
    "MATCH (n IS Group) RETURN n",
    "MATCH (r:Rank) WHERE r.instance = $instance RETURN r",
    "MATCH (r:Rank {instance: 'a'}) RETURN r",
    "MATCH (r:Rank {instance: $instance + ''}) RETURN r",
    "MATCH (r:Rank {class: {instance: $instance}.x}) RETURN r",
    "MATCH (i:Instance)-[:HAS_GROUP]->(g:Group) RETURN g",
    "MATCH (i:Instance {id: $instance}) MATCH (i:Instance)-[:HAS_GROUP]->(g) RETURN g",
    "MATCH (i:Instance {id: $instance}) WITH 1 AS x MATCH (j:Instance) WITH j AS i MATCH (r:Rank {instance: i.id}) "
    "RETURN r",
    "MATCH (:Instance {id: $instance})-->(x) RETURN x",
    "MATCH (:Instance {id: $instance})-[r]-(x) RETURN r",
    "MATCH (:Instance {id: $instance})-[:OF|HAS_GROUP]->(x) RETURN x",
    "MATCH (:Instance {id: $instance})-[:!OF]->(x) RETURN x",
    "MATCH (n)-[:DEP*0..1]->(m) RETURN n",
    "MATCH (:Op)-[*1..2]-(:Op) RETURN 1",
    "MATCH (a:Op) ((x)-[:DEP]->(y)){0,2} (b) RETURN b",
    "MATCH (:Op)-[:DEP]->{0,2}(b) RETURN b",
    "MATCH (o:Op) WHERE EXISTS { (n) } RETURN o",
    "MATCH SHORTEST 1 (n)--(m) RETURN n",
    "MATCH (a:Op) WHERE a:Rank RETURN a",
    "CALL db.labels() YIELD label RETURN label",
    "MATCH (n:Op RETURN '",
)


@pytest.mark.parametrize("text", NONE)
def test_a_text_that_reaches_no_rank_writes_none(text: str) -> None:
    assert instances_reached(text, PARAMS) == ()


@pytest.mark.parametrize("text", ONE)
def test_a_text_about_one_instance_writes_those_of_it(text: str) -> None:
    assert instances_reached(text, PARAMS) == (ONE[text] or ("b",))


@pytest.mark.parametrize("text", ALL)
def test_a_text_that_may_reach_any_rank_writes_all(text: str) -> None:
    assert instances_reached(text, PARAMS) is None


def made(store: Store, **words: int) -> str:
    return Stagedb(store).instantiate(card("llama", layers=2), **{**WORDS, **words}).id  # type: ignore[arg-type]


def nodes(store: Store) -> dict[str, int]:
    """How many nodes of ranks and groups the store has, without asking for them."""
    with store._session("READ") as session:
        return {
            label: session.run(f"MATCH (n:{label}) RETURN count(n) AS n").single(strict=True)["n"]
            for label in ("Rank", "Group")
        }


def test_a_long_write_shows_how_far_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and groups of all instances that are written; nothing is shown where all nodes are there."""
    monkeypatch.setattr(rank_nodes, "AT_ONCE", 8)
    db, one, other = Stagedb(store), made(store), made(store, dp=2)
    seen: list[tuple[int, int]] = []
    (ranks,) = db.query("MATCH (r:Rank {instance: $instance}) RETURN count(r)", instance=one, progress=_into(seen)).rows
    assert ranks == (16,)
    first = nodes(store)
    whole = sum(first.values())
    assert seen[0] == (0, whole)
    assert seen[-1] == (whole, whole)
    assert {(8, whole), (16, whole)} <= set(seen)
    assert seen == sorted(seen)

    made(store, tp=4)
    seen.clear()
    db.query("MATCH (n:Rank) RETURN count(n)", progress=_into(seen))
    written = sum(nodes(store).values()) - whole
    assert len(db.instances()) == 3
    assert seen[-1] == (written, written)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(done <= of <= written for done, of in seen)
    seen.clear()
    db.query("MATCH (r:Rank {instance: $instance}) RETURN r", instance=other, progress=_into(seen))
    assert len(set(seen)) == 1
    db.query("bytes_by_axis", instance=one, progress=_into(seen))
    assert len(set(seen)) == 1


def _into(seen: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda done, of: seen.append((done, of))


def test_they_are_written_for_the_first_query_that_reaches_them(store: Store, tmp_path: Path) -> None:
    db, one, other = Stagedb(store), made(store), made(store, dp=2)
    db.profile(one)
    db.export(one, out=tmp_path / "traces")
    db.report(one, out=tmp_path / "report.html")
    db.query("exposed_collectives")
    assert nodes(store) == {"Rank": 0, "Group": 0}
    assert [row[0] for row in db.query(RANKS, instance=one).rows] == list(range(16))
    assert nodes(store)["Rank"] == 16
    assert db.query("MATCH (n) WHERE n.rank = 3 AND n:Rank RETURN n.instance", {}).rows  # those of the others too
    assert nodes(store)["Rank"] == 16 + 8
    before = nodes(store)
    assert [row[0] for row in db.query(RANKS, instance=one).rows] == list(range(16))
    assert nodes(store) == before
    db.rm(one)
    assert nodes(store)["Rank"] == 8
    db.rm(other)
    assert nodes(store) == {"Rank": 0, "Group": 0}


def test_they_are_written_once_if_several_ask_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_nodes, "AT_ONCE", 5)
    instance, rows, barrier = made(store), [], threading.Barrier(4)

    def ask() -> None:
        barrier.wait()
        rows.append(store.query(RANKS, {"instance": instance}).rows)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert rows == [tuple((rank,) for rank in range(16))] * 4
    layout = rank_nodes.layout_of(store.read("ranks/state", instance=instance)[0])
    assert layout is not None
    assert nodes(store) == {"Rank": 16, "Group": layout.group_count}


KILLED = """
import sys
from stagedb.store import connect, rank_nodes
rank_nodes.AT_ONCE = 5
with connect() as store:
    rank_nodes.write_rank_nodes(store, sys.argv[1])
"""


def test_the_next_one_goes_on_where_a_killed_one_was(store: Store, store_environment: dict[str, str]) -> None:
    instance = made(store)
    environment = {**os.environ, **store_environment, **at("write.ranks/write_ranks:kill:2")}
    ended = subprocess.run([sys.executable, "-c", KILLED, instance], env=environment, capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert 0 <= nodes(store)["Rank"] < 16
    assert len(store.query(RANKS, {"instance": instance}).rows) == 16
    found = store.query("MATCH (r:Rank {instance: $i}) RETURN count(DISTINCT r.rank)", {"i": instance}).rows
    assert found == ((16,),)


def test_who_may_not_write_is_shown_the_way_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, db = made(store), Stagedb(store)
    with monkeypatch.context() as reading:
        reading.setattr(store, "_writes", False)
        with pytest.raises(ReadOnlyError, match=r"nobody wrote yet.*run the query once with an account that may write"):
            db.query(RANKS, instance=instance)
        assert db.query("MATCH (o:Op {instance: $instance}) RETURN count(o)", instance=instance).rows[0][0] > 0
    db.query(RANKS, instance=instance)
    monkeypatch.setattr(store, "_writes", False)
    assert len(db.query(RANKS, instance=instance).rows) == 16


def test_a_query_over_too_many_ranks_is_refused(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made(embedded_store)
    monkeypatch.setattr(rank_nodes, "MOST", 15)
    with pytest.raises(UsageError, match=r"may reach the ranks of 1 instances, 16 nodes .* ask about one instance"):
        embedded_store.query("MATCH (r:Rank) RETURN count(r)")
    assert nodes(embedded_store)["Rank"] == 0


EVERYONES = (
    "MATCH (n) RETURN labels(n) AS labels, count(*) AS count",
    "MATCH (i:Instance)-[r]->(c) RETURN i, r, c LIMIT 5",
)


@pytest.mark.parametrize("text", EVERYONES)
def test_a_query_over_all_nodes_gets_those_that_there_are(
    store: Store, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    made(store)
    with monkeypatch.context() as few:
        few.setattr(rank_nodes, "MOST_UNNAMED", 15)
        answer = Stagedb(store).query(text)
        assert answer.rows
        assert answer.hints == (WITHOUT_RANKS,)
    with monkeypatch.context() as reading:
        reading.setattr(store, "_writes", False)
        assert Stagedb(store).query(text).hints == (WITHOUT_RANKS,)
    assert nodes(store)["Rank"] == 0
    assert Stagedb(store).query(text).hints == ()
    assert nodes(store)["Rank"] == 16


WITHOUT_RANKS = (
    "the answer is without 16 ranks and their groups, whose nodes nobody wrote yet: a query of one instance writes "
    "them, such as MATCH (r:Rank {instance: $instance}) RETURN count(r)"
)


@pytest.mark.parametrize("first", range(8))
def test_parts_of_the_groups_are_all_of_them(first: int) -> None:
    """Ranges of groups, from any number on, follow each other without a gap."""
    plan = Plan(tp=2, dp=2, pp=2)
    layout = RankLayout(plan, (0, 1), 1, 1, 1, groups(plan, 4, ["tp", "dp", "pp"]))
    for most in (1, 3, 5, 100):
        found, at = [], first
        while at < layout.group_count:
            rows = layout.group_rows(at, most)
            part = [row["first"] + g for row in rows for g in range(row["first_index"], row["last_index"] + 1)]
            assert 0 < len(part) <= max(1, most // 2)
            found += part
            at += len(part)
        assert found == layout.group_columns()["gid"][first:]


DAMAGES = {"class_table": [0], "class_cp": 2, "group_counts": [4, 4, 3], "group_strides": [0, 1, 1]}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_layout_that_does_not_fit_its_plan_is_refused(name: str) -> None:
    plan = Plan(tp=2, dp=2, pp=2)
    layout = RankLayout(plan, (0, 1), 1, 1, 1, groups(plan, 4, ["tp", "dp", "pp"]))
    row = layout.properties()
    assert RankLayout.stored(plan, row) == layout
    with pytest.raises(ValueError, match="its "):
        RankLayout.stored(plan, {**row, name: DAMAGES[name]})


def test_ranks_that_update_other_weights_are_of_other_classes(store: Store) -> None:
    """Their classes follow from coordinates on cp and dp, in Cypher as in memory."""
    words: dict[str, Any] = {"recipe": "megatron", "optimizer": "dist-muon", "tp": 2, "cp": 2, "dp": 2, "pp": 2}
    words |= {"seq_len": 8, "global_batch_size": 4}
    db = Stagedb(store)
    instance = db.instantiate(card("llama", layers=2), **words).id
    rows = db.query("MATCH (r:Rank {instance: $instance}) RETURN r.rank, r.class ORDER BY r.rank", instance=instance)
    wanted = lowered.workload(card("llama", layers=2), **words).ranks
    found = [number for _, number in rows.rows]
    assert found == wanted.number.tolist()
    assert len(set(found)) == 8
    classes = db.query("MATCH (c:RankClass {instance: $instance}) RETURN c.cp, c.dp, c.ranks", instance=instance)
    assert sorted(classes.rows) == sorted(2 * [(cp, dp, 2) for cp in range(2) for dp in range(2)])
