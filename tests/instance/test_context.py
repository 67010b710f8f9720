"""Rank classes, turns and groups of context parallelism in an instance."""

import pytest

from stagedb.api import Stagedb
from stagedb.instance import rank_classes
from stagedb.parallel import Plan, groups
from stagedb.store import Store
from tests.graph.tiny import card

WORDS: dict[str, object] = {"cp": 4, "seq_len": 16, "cp_kind": "ring-alltoall"}


def ask(store: Store, statement: str, **parameters: object) -> list[tuple[object, ...]]:
    return [tuple(row) for row in store.query(statement, parameters).rows]


def made(store: Store, **words: object) -> str:
    return Stagedb(store).instantiate(card("llama", kv_heads=4), **words).id  # type: ignore[arg-type]


def test_a_ring_has_a_class_for_each_rank_of_cp(embedded_store: Store) -> None:
    """Rank r has r turns in which it sees half of the keys, and the rest in which half of its queries see all."""
    instance = made(embedded_store, **WORDS, dp=2)
    ranks = ask(
        embedded_store,
        "MATCH (r:Rank {instance: $i}) RETURN r.cp AS cp, r.class AS class ORDER BY r.rank",
        i=instance,
    )
    assert ranks == [(cp, cp) for _ in range(2) for cp in range(4)]
    for cp in range(4):
        dims = ask(
            embedded_store,
            "MATCH (o:Op {instance: $i, class: $c, kind: 'attention', phase: 'forward', layer: 0}) "
            "RETURN o.name AS name, o.dims AS dims ORDER BY o.`order`",
            i=instance,
            c=cp,
        )
        assert [name for name, _ in dims] == [f"layer.0.attn.core.turn.{step}" for step in range(4)]
        shapes = [tuple(row[3:5]) for _, row in dims]  # type: ignore[index]
        assert shapes == [(4, 4), *[(4, 2)] * cp, *[(2, 4)] * (3 - cp)]


def test_turns_wait_for_each_other_and_for_what_is_sent(embedded_store: Store) -> None:
    instance = made(embedded_store, **WORDS)
    found = ask(
        embedded_store,
        "MATCH (a:Op {instance: $i, class: 1, layer: 0})-[:DEP {kind: 'data'}]->(b:Op) "
        "WHERE a.name CONTAINS 'attn.core' AND b.name CONTAINS 'attn.core' AND a.phase = 'forward' "
        "AND b.phase = 'forward' RETURN a.name AS a, b.name AS b",
        i=instance,
    )
    at = "layer.0.attn.core"
    turns = {(f"{at}.turn.{step}", f"{at}.turn.{step + 1}") for step in range(3)}
    sent = {(f"{at}.exchange.{step}", f"{at}.turn.{step + 1}") for step in range(3)}
    onward = {(f"{at}.exchange.{step}", f"{at}.exchange.{step + 1}") for step in range(2)}
    ends = {(f"{at}.pack", f"{at}.exchange.0"), (f"{at}.pack", f"{at}.turn.0"), (f"{at}.turn.3", f"{at}.result")}
    assert set(found) == turns | sent | onward | ends


@pytest.mark.parametrize("kind", ["allgather-kv", "ulysses"])
def test_equal_work_is_one_class(embedded_store: Store, kind: str) -> None:
    db = Stagedb(embedded_store)
    words: dict[str, object] = {**WORDS, "cp_kind": kind}
    instance = db.instantiate(card("llama", kv_heads=4), **words)  # type: ignore[arg-type]
    assert len(rank_classes(embedded_store, instance.graph, Plan.from_mapping(instance.plan))) == 1


def test_stages_and_ranks_of_cp_share_classes(embedded_store: Store) -> None:
    """Two stages in the middle are alike on the same rank of cp."""
    db = Stagedb(embedded_store)
    words: dict[str, object] = {**WORDS, "pp": 4, "global_batch_size": 4}
    instance = db.instantiate(card("llama", layers=4, kv_heads=4), **words)  # type: ignore[arg-type]
    classes = rank_classes(embedded_store, instance.graph, Plan.from_mapping(instance.plan))
    places = sorted(place for each in classes for place in each.places)
    assert places == [(stage, cp) for stage in range(4) for cp in range(4)]
    assert all(len({cp for _, cp in each.places}) == 1 for each in classes)


def test_gradients_are_reduced_over_dp_and_cp() -> None:
    both = groups(Plan(dp=2, cp=4, tp=2), 4, ("dp",))
    assert [list(each.ranks(0)) for each in both] == [[0, 2, 4, 6, 8, 10, 12, 14]]
    words = {"dp": 2, "cp": 4, "tp": 2, "cp_grad_sync": False}
    alone = groups(Plan.from_mapping(words), 4, ("dp",))
    assert [list(each.ranks(0)) for each in alone] == [[0, 8]]
    copies = groups(Plan.from_mapping({"dp": 4, "cp": 2, "zero": 3, "hsdp": 2}), 4, ("dp", "dp_replicate"))
    assert [list(each.ranks(0)) for each in copies] == [[0, 1, 2, 3], [0, 4]]
