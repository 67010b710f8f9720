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
