"""Finding: rows are those that a search through all profiles gives; older profiles; many of them."""

from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store, load
from tests.conftest import Fill
from tests.ir.tiny import card
from tests.store.many import copies

MODEL, OTHER = card("llama", layers=2), card("gpt", layers=2)
PLANS: tuple[dict[str, Any], ...] = ({"tp": 2, "dp": 2}, {"tp": 2, "pp": 2}, {"tp": 4})


def stock(store: Store) -> dict[str, Any]:
    """Every plan of one model on two systems, one of another model, one scaled: the results by profile id."""
    db = Stagedb(store)
    found = [db.profile(model=MODEL, system=system, **plan) for plan in PLANS for system in ("h100", "a100-80gb")]
    found.append(db.profile(model=OTHER, system="h100", tp=2))
    db.profile(model=MODEL, system="h100", scale=["compute=0.01"], tp=2, dp=2)
    return {each.info.id: each for each in found}


def test_rows_are_those_of_a_search(fill: Fill) -> None:
    db, profiled = Stagedb(fill(stock).store), fill(stock).made
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, lambda each: True),
        ({"model": MODEL.name}, lambda each: each.instance.model == MODEL.name),
        ({"system": "h100"}, lambda each: each.info.system == "h100"),
        ({"model": MODEL.name, "system": "a100-80gb"}, lambda each: each.info.system == "a100-80gb"),
        ({"tp": 2}, lambda each: each.instance.plan.get("tp") == 2),
        (
            {"model": MODEL.name, "system": "h100", "tp": 2, "pp": 1},
            lambda each: each.instance.plan == {**each.instance.plan, "tp": 2, "dp": 2} and each.info.system == "h100",
        ),
        ({"ranks": 4, "fits": True}, lambda each: each.instance.ranks == 4),
    ]
    for words, wanted in cases:
        rows = list(db.find(**words))
        expected = sorted((-_speed(each), each.step, id) for id, each in profiled.items() if wanted(each))
        assert expected, words
        assert [(row["step"], row["profile"]) for row in rows] == [found[1:] for found in expected], words
        for row in rows:
            each = profiled[row["profile"]]
            assert row["instance"] == each.instance.id
            assert row["tokens_per_accelerator"] == pytest.approx(_speed(each))
            assert (row["memory"], row["room"]) == (each.memory[0].bytes, each.room)
            assert row["fits"] is True
        assert [row["profile"] for row in db.find(limit=2, **words)] == [id for *_, id in expected[:2]]


def test_what_the_store_does_not_have_is_named(fill: Fill) -> None:
    db = Stagedb(fill(stock).store)
    with pytest.raises(UsageError, match="system='h1000': the store has nothing of it: did you mean h100"):
        db.find(model=MODEL.name, system="h1000")
    with pytest.raises(UsageError, match="model='nothing'"):
        db.find(model="nothing")
    assert list(db.find(model=MODEL.name, tp=64)) == []
    with pytest.raises(UsageError, match=r"expert_load.*own.yaml.*is a file"):
        db.find(expert_load="own.yaml")
    with pytest.raises(UsageError, match="limit=0"):
        db.find(limit=0)


def test_a_larger_batch_is_before_a_shorter_step(store: Store) -> None:
    """Steps of other batches and worlds are compared by what an accelerator does in a second."""
    db = Stagedb(store)
    small = db.profile(model=MODEL, system="h100", pp=2, global_batch_size=1)
    large = db.profile(model=MODEL, system="h100", pp=2, global_batch_size=16)
    assert small.step < large.step
    assert _speed(small) < _speed(large)
    assert [row["profile"] for row in db.find(model=MODEL.name)] == [large.info.id, small.info.id]
    rows = db.query("fastest_plans", {"model": MODEL.name})
    assert [row["profile"] for row in rows] == [large.info.id, small.info.id]


def _speed(profile: Any) -> float:
    """Tokens a second an accelerator."""
    return float(profile.merit.tokens_per_second / profile.instance.ranks)


def test_what_does_not_fit_and_what_is_unknown_is_left_out(store: Store) -> None:
    """A smaller accelerator, one without a bound, and a profile that an older stagedb made."""
    db, profiled = Stagedb(store), stock(store)
    small, unbounded, old, *rest = [row["profile"] for row in db.find(model=MODEL.name)]
    with store._session("WRITE") as session:
        session.run("MATCH (p:Profile {id: $id}) SET p.room = p.memory - 1", id=small).consume()
        session.run("MATCH (p:Profile {id: $id}) REMOVE p.room", id=unbounded).consume()
        session.run("MATCH (p:Profile {id: $id}) REMOVE p.memory, p.room", id=old).consume()
    found = db.find(model=MODEL.name)
    assert {row["profile"]: row["fits"] for row in found} == {
        small: False,
        unbounded: True,
        old: None,
        **dict.fromkeys(rest, True),
    }
    fitting = db.find(model=MODEL.name, fits=True)
    assert [row["profile"] for row in fitting] == [unbounded, *rest]
    instance, system = profiled[old].instance, profiled[old].info.system
    for answer in (found, fitting):
        assert f"`stagedb profile {instance.id[:12]} --system {system}`" in answer.hints[0]
    again = db.profile(instance.id, system=system)
    assert (again.info.new, again.info.memory) == (False, profiled[old].memory[0].bytes)
    assert old in {row["profile"] for row in db.find(fits=True)}
    assert db.find(fits=True).hints == ()


def test_many_profiles_are_found_and_listed(store: Store) -> None:
    db = Stagedb(store)
    made = db.profile(model=MODEL, system="h100", tp=2, dp=2)
    copies(store, made.instance.id, 200)
    rows = list(db.find(model=MODEL.name, system="h100", fits=True, limit=1000, tp=2))
    assert [row["step"] for row in rows] == [made.step + number for number in range(201)]
    assert len(db.ls("instances")) == len(db.ls("profiles")) == 201


@pytest.mark.parametrize(
    ("name", "words", "index"),
    [
        ("find_of_model", {"model": MODEL.name, "system": "h100"}, ":Graph(name)"),
        ("find_on_system", {"system": "system-3"}, ":Profile(system)"),
    ],
)
def test_a_search_begins_at_an_index(neo4j_store: Store, name: str, words: dict[str, Any], index: str) -> None:
    """Its plan on a server with a thousand profiles on twenty systems."""
    db = Stagedb(neo4j_store)
    made = db.profile(model=MODEL, system="h100", tp=2, dp=2)
    copies(neo4j_store, made.instance.id, 1000)
    with neo4j_store._session("WRITE") as session:
        session.run("MATCH (p:Profile) SET p.system = 'system-' + toString(p.step % 20)").consume()
        session.run("CALL db.resampleOutdatedIndexes()").consume()
        session.run("CALL db.clearQueryCaches()").consume()
    with neo4j_store._session("READ") as session:
        given = {**words, "words": {"tp": 2}, "fits": True, "limit": 10}
        plan = session.run(f"EXPLAIN {load(f'team/{name}').text}", given).consume().plan
    operators = _operators(plan)
    seeks = [each["args"]["Details"] for each in operators if "IndexSeek" in each["operatorType"]]
    assert any(index in each for each in seeks), [each["operatorType"] for each in operators]
    assert not any(each["operatorType"].startswith(("AllNodesScan", "NodeByLabelScan")) for each in operators)


def _operators(plan: Any) -> list[Any]:
    return [plan, *(each for child in plan.get("children", ()) for each in _operators(child))]
