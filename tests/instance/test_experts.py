"""Ranks and groups of a plan with experts, as the store holds them."""

from stagedb.api import Stagedb
from stagedb.store import Store
from tests.graph.tiny import card


def test_ranks_know_their_place_and_groups_among_experts(store: Store) -> None:
    db = Stagedb(store)
    instance = db.instantiate(card("moe"), dp=4, ep=2, tp=2, seq_len=8)
    ranks = store.query(
        "MATCH (r:Rank {instance: $id}) RETURN r.rank, r.dp, r.ep, r.group_ep, r.group_edp ORDER BY r.rank",
        {"id": instance.id},
    ).rows
    groups = store.query(
        "MATCH (g:Group {instance: $id}) RETURN g.gid, g.axis, g.ranks ORDER BY g.gid", {"id": instance.id}
    ).rows
    members = {gid: (axis, list(of)) for gid, axis, of in groups}
    assert [(dp, ep) for _, dp, ep, _, _ in ranks] == [(i // 2, i // 2 % 2) for i in range(8)]
    for rank, _, _, among, alike in ranks:
        first = rank // 4 * 4 + rank % 2
        assert members[among] == ("ep", [first, first + 2])
        assert members[alike] == ("edp", [rank % 4, rank % 4 + 4])


def test_classes_follow_ep_where_its_ranks_are_chosen_unequally(store: Store) -> None:
    """Ranks of ep with the same load are one class; those along cp and dp are, too."""
    db = Stagedb(store)
    words = {"dp": 2, "cp": 2, "ep": 4, "cp_kind": "allgather-kv", "seq_len": 16, "pp": 2, "global_batch_size": 4}
    for load, classes in (([1, 1, 1, 1], 1), ([2, 1, 1, 0], 3), ([2, 0, 2, 0], 2)):
        instance = db.instantiate(card("moe"), **words, expert_load=load)  # type: ignore[arg-type]
        ranks = store.query(
            "MATCH (r:Rank {instance: $id}) RETURN r.dp, r.cp, r.ep, r.pp, r.class ORDER BY r.rank", {"id": instance.id}
        ).rows
        assert [ep for _, _, ep, _, _ in ranks] == [rank % 4 for rank in range(8)]
        by_place = {(pp, load[ep]): number for _, _, ep, pp, number in ranks}
        assert all(by_place[pp, load[ep]] == number for _, _, ep, pp, number in ranks)
        assert len(set(by_place.values())) == 2 * classes
        sizes = store.query("MATCH (c:RankClass {instance: $id}) RETURN c.ranks, c.class", {"id": instance.id}).rows
        numbers = [row[-1] for row in ranks]
        assert {number: count for count, number in sizes} == {number: numbers.count(number) for number in numbers}


def test_experts_of_all_ranks_compute_what_is_routed(store: Store) -> None:
    db = Stagedb(store)
    flops = []
    for load in ([1, 1, 1, 1], [2, 1, 1, 0]):
        instance = db.instantiate(card("moe"), dp=4, ep=2, tp=2, sp=True, seq_len=8, expert_load=load)
        ((total,),) = store.query(
            "MATCH (c:RankClass {instance: $id}) MATCH (o:Op {instance: $id, class: c.class}) "
            "WHERE o.name CONTAINS '.experts.' RETURN sum(o.flops * c.ranks)",
            {"id": instance.id},
        ).rows
        flops.append(total)
    sizes = card("moe")
    routed = 4 * 8 * sizes.top_k
    assert flops == [sizes.layers * 3 * routed * 2 * 3 * sizes.hidden * sizes.expert_ffn] * 2
