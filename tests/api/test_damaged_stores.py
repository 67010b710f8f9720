"""A shared store has what anybody wrote: what is damaged is named and left out, and the rest works."""

import warnings
from pathlib import Path

import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError
from stagedb.store import DamageWarning, Store
from tests.ir.tiny import card

DAMAGES = {
    "a plan that is no JSON": "MATCH (i:Instance {name: 'bad'}) SET i.plan = 'x'",
    "a plan that is no mapping": "MATCH (i:Instance {name: 'bad'}) SET i.plan = '[1]'",
    "a plan that is deep": "MATCH (i:Instance {name: 'bad'}) SET i.plan = '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]'",
    "a plan with unknown words": "MATCH (i:Instance {name: 'bad'}) SET i.plan = '{\"tp\": \"two\"}'",
    "a number as plan": "MATCH (i:Instance {name: 'bad'}) SET i.plan = 5",
    "no plan": "MATCH (i:Instance {name: 'bad'}) REMOVE i.plan",
    "a text as world": "MATCH (i:Instance {name: 'bad'}) SET i.world = 'all'",
    "a world of nothing": "MATCH (i:Instance {name: 'bad'}) SET i.world = 0",
    "a world without end": "MATCH (i:Instance {name: 'bad'}) SET i.world = 9000000000000000000",
    "no time of creation": "MATCH (i:Instance {name: 'bad'}) REMOVE i.created",
    "a time that no calendar has": "MATCH (i:Instance {name: 'bad'}) SET i.created = 9000000000000000000",
    "a list as name": "MATCH (i:Instance {name: 'bad'}) SET i.name = ['bad']",
    "ranks that nobody has": "MATCH (:Instance {name: 'bad'})-[:HAS_GROUP]->(g:Group) SET g.ranks = [1000000000000]",
    "a text as ranks": "MATCH (:Instance {name: 'bad'})-[:HAS_GROUP]->(g:Group) SET g.ranks = 'all'",
    "an op of an unknown type": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->()-[:RUNS]->(o:Op) SET o.type = 'x'",
    "an op without a place": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->()-[:RUNS]->(o:Op) REMOVE o.index",
    "negative indices": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->()-[:RUNS]->(o:Op) SET o.index = -5",
    "a text as FLOPs": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->()-[:RUNS]->(o:Op) SET o.flops = 'many'",
    "a task of an unknown kind": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->()-[:SCHEDULES]->(t:Task) "
    "SET t.kind = 'x'",
    "a class without its number": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->(c:RankClass) REMOVE c.number",
    "a class with a number as id": "MATCH (:Instance {name: 'bad'})-[:HAS_CLASS]->(c:RankClass) WITH c LIMIT 1 "
    "SET c.id = 7",
    "sizes that are no JSON": "MATCH (g:Graph {name: 'tiny-gpt'}) SET g.sizes = '{'",
    "a profile with a text as step": "MATCH (p:Profile {name: 'bad'}) SET p.step = 'long'",
    "a profile with another system": "MATCH (p:Profile {name: 'bad'}) SET p.system_json = '!!python/none'",
    "a mark of no version": "MATCH (s:Store) SET s.version = 'x'",
}


def change(store: Store, text: str) -> None:
    with store._session("WRITE") as session:
        session.run(text).consume()


def make(store: Store) -> Stagedb:
    """A sound instance, and one of another model with a profile, to be damaged."""
    db = Stagedb(store)
    db.instantiate(card("llama", layers=2), name="good", tp=2, dp=2)
    db.instantiate(card("gpt", layers=2), name="bad", pp=2)
    db.profile("bad", name="bad")
    return db


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_node_spoils_only_what_it_belongs_to(store: Store, tmp_path: Path, damage: str) -> None:
    db = make(store)
    (version,) = store.read("schema/store")
    change(store, DAMAGES[damage])
    try:
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always", DamageWarning)
            assert "good" in [each.name for each in db.instances()]
            assert "tiny-llama" in [each.name for each in db.graphs()]
            db.profiles()
            assert db.export("good", out=tmp_path / "good").files == 4
            assert len(db.query("bytes_by_axis", instance="good").rows) > 0
            assert db.store.version() == version["applied"]
        assert all(str(each.message).isprintable() and len(str(each.message)) < 600 for each in shown)
        # What is damaged works as far as it is read, or is refused with its name. No other error comes out.
        for verb in (
            lambda: db.export("bad", out=tmp_path / "bad"),
            lambda: db.memory("bad"),
            lambda: db.report("bad", profile="bad", out=tmp_path / "bad.html"),
            lambda: db.show("bad"),
        ):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DamageWarning)
                    verb()
            except StagedbError as error:
                assert str(error).isprintable()
    finally:
        change(store, f"MATCH (s:Store) SET s.version = {version['version']}")
