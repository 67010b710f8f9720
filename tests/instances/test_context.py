"""Rank classes, turns and groups of context parallelism in an instance."""

import pytest

from stagedb.api import Stagedb
from stagedb.plans import Plan, groups
from stagedb.store import Store
from stagedb.store.contents.instances import rank_classes
from tests.ir.tiny import card

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


def test_messages_around_a_ring_wait_for_nothing_but_what_they_send(store: Store) -> None:
    """Receives have nothing before them; a send has what it sends, and of the first turn all that the call reads."""
    words: dict[str, object] = {**WORDS, "cp": 3, "seq_len": 12, "cp_kind": "ring-p2p", "recipe": "megatron"}
    instance = made(store, **words)
    found = ask(
        store,
        "MATCH (a:Op {instance: $i, class: 1})-[d:DEP]->(b:Op) WHERE b.type IN ['send', 'recv'] AND b.layer = 0 "
        "AND (d.kind = 'data' OR a.type = 'compute') RETURN a.name AS a, b.name AS b, b.peer AS peer",
        i=instance,
    )
    ahead, back = "layer.0.attn.core", "layer.0.attn.core.input_gradient"
    sent = {(f"{at}", f"{ahead}.exchange.send.0", 1) for at in (f"{ahead}.pack", "layer.0.attn.split")}
    sent |= {(f"{ahead}.exchange.recv.0", f"{ahead}.exchange.send.1", 1)}
    keys = {(f"{back}.exchange.recv.{turn}", f"{back}.exchange.send.{turn + 1}", -1) for turn in range(2)}
    sums = {(f"{back}.add.{turn}", f"{back}.exchange.send.{turn + 1}", -1) for turn in range(2)}
    kept = {(f"{at}", f"{back}.exchange.send.0", -1) for at in (f"{ahead}.exchange.recv.1", "layer.0.attn.split")}
    before = {row for row in found if str(row[0]).startswith("layer.0.attn.wo") and row[1] == f"{back}.exchange.send.0"}
    assert before
    assert set(found) - before == sent | keys | sums | kept
    sizes = ask(
        store,
        "MATCH (o:Op {instance: $i, class: 0, layer: 0}) WHERE o.type IN ['send', 'recv'] "
        "RETURN o.name AS name, o.comm_bytes AS bytes, o.peer AS peer",
        i=instance,
    )
    one = 2 * 4 * 4 * 4 * 2  # keys and values of 4 tokens: 4 heads of 4 numbers in two bytes
    expected = [
        (f"{name}.exchange.{end}.{turn}", size, hop if end == "send" else -hop)
        for name, hop, turns in ((ahead, 1, (one, one)), (back, -1, (one, 2 * one, one)))
        for end in ("send", "recv")
        for turn, size in enumerate(turns)
    ]
    assert sorted(sizes) == sorted(expected)


@pytest.mark.parametrize("kind", ["ring-p2p", "ring-alltoall"])
def test_contiguous_parts_leave_turns_out(store: Store, kind: str) -> None:
    """Rank r attends in turns 0 to r; its result waits for turn r, and its backward begins with what it has."""
    instance = made(store, **{**WORDS, "cp_kind": kind, "cp_chunks": "contiguous"})
    for cp in range(4):
        at = ask(
            store,
            "MATCH (o:Op {instance: $i, class: $c, layer: 0, kind: 'attention'}) "
            "RETURN o.name AS name, o.dims AS dims, o.template AS template",
            i=instance,
            c=cp,
        )
        forward, back = "layer.0.attn.core.turn", "layer.0.attn.core.input_gradient.turn"
        turns = range(cp + 1)
        returned = [3 - turn for turn in turns] if kind == "ring-p2p" else turns
        names = {f"{forward}.{turn}" for turn in turns} | {f"{back}.{turn}" for turn in returned}
        assert {name for name, _, _ in at} == names
        assert {tuple(dims[3:5]) for _, dims, _ in at} == {(4, 4)}  # type: ignore[index]
        edges = set(
            ask(
                store,
                "MATCH (a:Op {instance: $i, class: $c, layer: 0})-[:DEP {kind: 'data'}]->(b:Op) "
                "RETURN a.name AS a, b.name AS b",
                i=instance,
                c=cp,
            )
        )
        after = "layer.0.attn.wo" if kind == "ring-p2p" else "layer.0.attn.core.result"
        assert {a for a, b in edges if b == after and "turn" in str(a)} == {f"{forward}.{cp}"}
        first = f"{back}.{min(returned)}"
        assert any(b == first and str(a).startswith("layer.0.attn.wo") for a, b in edges)
        assert not any(b != first and b in names and str(a).startswith("layer.0.attn.wo") for a, b in edges)


def test_gathered_keys_are_read_to_the_end_of_each_chunk(embedded_store: Store) -> None:
    words: dict[str, object] = {**WORDS, "cp_kind": "allgather-kv", "recipe": "megatron"}
    for chunks, expected in (
        ("balanced", [[(2, 2 * (cp + 1)), (2, 2 * (8 - cp))] for cp in range(4)]),
        ("contiguous", [[(4, 4 * (cp + 1))] for cp in range(4)]),
    ):
        instance = made(embedded_store, **words, cp_chunks=chunks)
        for cp in range(4):
            rows = ask(
                embedded_store,
                "MATCH (o:Op {instance: $i, class: $c, kind: 'attention', phase: 'forward', layer: 0}) "
                "RETURN o.dims AS dims ORDER BY o.`order`",
                i=instance,
                c=cp,
            )
            assert [tuple(dims[3:5]) for (dims,) in rows] == expected[cp]  # type: ignore[index]


def test_a_ring_of_neighbours_that_exchange_heads(store: Store) -> None:
    """Ranks at one place of the ring are a class; heads go among neighbours, keys to the rank so many further."""
    words: dict[str, object] = {**WORDS, "cp_kind": "ulysses-ring", "ulysses": 2, "tp": 2}
    instance = made(store, **words, dp=2)
    ranks = ask(
        store,
        "MATCH (r:Rank {instance: $i}) RETURN r.cp AS cp, r.class AS class, r.group_cpa AS g ORDER BY r.rank",
        i=instance,
    )
    assert {(cp, number) for cp, number, _ in ranks} == {(0, 0), (1, 0), (2, 1), (3, 1)}
    groups_ = ask(
        store, "MATCH (g:Group {instance: $i, axis: 'cpa'}) RETURN g.gid AS gid, g.ranks AS ranks", i=instance
    )
    assert sorted(list(members) for _, members in groups_) == [  # type: ignore[call-overload]
        [8 * dp + 4 * place + tp, 8 * dp + 4 * place + 2 + tp]
        for dp in range(2)
        for place in range(2)
        for tp in range(2)
    ]
    assert all(rank in members for gid, members in groups_ for rank in range(16) if ranks[rank][2] == gid)  # type: ignore[operator]
    moves = ask(
        store,
        "MATCH (o:Op {instance: $i, class: 0, layer: 0, phase: 'forward'}) WHERE o.axis IN ['cp', 'cpr', 'cpa'] "
        "RETURN o.kind AS kind, o.axis AS axis, o.peer AS peer ORDER BY o.`order`",
        i=instance,
    )
    assert moves == [("all_to_all", "cpa", None)] * 3 + [
        ("send", "cpr", 2), ("recv", "cpr", -2), ("all_to_all", "cpa", None)
    ]  # fmt: skip


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
    assert places == [(stage, (cp, 0, 0)) for stage in range(4) for cp in range(4)]
    assert all(len({member for _, member in each.places}) == 1 for each in classes)


def test_gradients_are_reduced_over_dp_and_cp() -> None:
    both = groups(Plan(dp=2, cp=4, tp=2), 4, ("dp",))
    assert [list(each.ranks(0)) for each in both] == [[0, 2, 4, 6, 8, 10, 12, 14]]
    words = {"dp": 2, "cp": 4, "tp": 2, "cp_grad_sync": False}
    alone = groups(Plan.from_mapping(words), 4, ("dp",))
    assert [list(each.ranks(0)) for each in alone] == [[0, 8]]
    copies = groups(Plan.from_mapping({"dp": 4, "cp": 2, "zero": 3, "hsdp": 2}), 4, ("dp", "dp_replicate"))
    assert [list(each.ranks(0)) for each in copies] == [[0, 1, 2, 3], [0, 4]]
