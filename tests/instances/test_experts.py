"""Ranks and groups of a plan with experts, as the store holds them."""

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, validate
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import read_trace
from tests.ir.tiny import card


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


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_whole_experts_are_shared_by_ranks_of_tp_as_by_others(store: Store, recipe: str, ep: int) -> None:
    """One group of tp x dp x cp / ep reduces experts and shares their optimizer; none of them is reduced over tp."""
    model, tp, dp = card("moe"), 2, 2
    instance = Stagedb(store).instantiate(
        model,
        recipe=recipe,
        dp=dp,
        ep=ep,
        tp=tp,
        sp=True,
        zero=1,
        expert_tp=False,
        seq_len=8,
    )
    asked = {"id": instance.id}
    groups = store.query("MATCH (g:Group {instance: $id}) RETURN g.axis, g.ranks ORDER BY g.gid", asked).rows
    found = {axis: [list(ranks) for other, ranks in groups if other == axis] for axis in ("ep", "edp")}
    assert found["ep"] == ([[first + i for i in range(ep)] for first in range(0, 4, ep)] if ep > 1 else [])
    assert found["edp"] == ([list(range(first, 4, ep)) for first in range(ep)] if ep < 4 else [])
    placed = store.query("MATCH (r:Rank {instance: $id}) RETURN r.ep ORDER BY r.rank", asked).rows
    assert [at for (at,) in placed] == [rank % ep for rank in range(4)]

    buckets = store.query(
        "MATCH (o:Op {instance: $id}) WHERE o.type = 'collective' AND o.when <> 'every' OR o.template = 'step' "
        "RETURN o.name, o.axis, o.comm_bytes, o.comm_out_bytes",
        asked,
    ).rows
    sizes = {name.removesuffix(".0"): (axis, *bytes) for name, axis, *bytes in buckets if axis}
    held = model.layers * 3 * model.hidden * model.expert_ffn * model.experts // ep
    edp = tp * dp // ep
    if ep < 4:
        assert sizes["bucket.parameters.update.experts"] == ("edp", held // edp * 2, held * 2)
        scatters = recipe == "megatron"
        reduced = "bucket.gradients.scatter.experts" if scatters else "bucket.gradients.dp.experts"
        assert sizes[reduced] == (("edp", held * 4, held * 4 // edp) if scatters else ("edp", held * 2, held * 2))
    over_tp = sum(size for axis, size, _ in sizes.values() if axis == "tp")
    alike = model.layers * (2 * model.hidden + model.hidden * model.experts) + model.hidden  # norms and routers
    assert over_tp == alike * (4 if recipe == "megatron" else 2)


@pytest.mark.parametrize(("recipe", "zero"), [("torch", 3), ("megatron", 1)])
@pytest.mark.parametrize(("dp", "ep"), [(8, 2), (4, 2)])
def test_copies_reduce_their_parts_of_experts_apart(store: Store, recipe: str, zero: Any, dp: int, ep: int) -> None:
    """hsdp 2: dp / 2 ranks share what is sharded, dp / 2 / ep of them an expert; parts are reduced over both copies."""
    model, shards = card("moe"), dp // 2
    instance = Stagedb(store).instantiate(model, recipe=recipe, dp=dp, ep=ep, zero=zero, hsdp=2, seq_len=8)
    asked = {"id": instance.id}
    groups = store.query("MATCH (g:Group {instance: $id}) RETURN g.axis, g.ranks ORDER BY g.gid", asked).rows
    found = {axis: [list(ranks) for other, ranks in groups if other == axis] for axis in ("edp", "dp_replicate")}
    copies = [range(first, first + shards) for first in (0, shards)]
    alike = [list(copy[at::ep]) for copy in copies for at in range(ep)]
    assert found["edp"] == (alike if shards > ep else [])
    assert found["dp_replicate"] == [[rank, rank + shards] for rank in range(shards)]
    rows = store.query(
        "MATCH (o:Op {instance: $id, type: 'collective'}) WHERE o.axis IN ['dp', 'edp', 'dp_replicate'] "
        "AND o.phase <> 'forward' RETURN o.name, o.axis, o.kind, o.comm_bytes, o.comm_out_bytes",
        asked,
    ).rows
    width = 4 if recipe == "megatron" else 2
    held = model.layers * 3 * model.hidden * model.expert_ffn * model.experts // ep
    dense = model.layers * model.hidden * (2 + model.experts + model.heads * 4 * 2 + model.kv_heads * 4 * 2)
    dense += model.hidden * (2 * model.vocab + 1)
    sums: dict[tuple[str, str], list[int]] = {}
    for name, axis, kind, operand, result in rows:
        if ".gradients." in name:
            total = sums.setdefault((".experts" if ".experts" in name else "", axis), [0, 0])
            assert kind == ("all_reduce" if axis == "dp_replicate" else "reduce_scatter")
            total[0], total[1] = total[0] + operand, total[1] + result
    part = held * width // (shards // ep)
    if shards > ep:
        assert sums[".experts", "edp"] == [held * width, part]
    else:
        assert (".experts", "edp") not in sums
    assert sums[".experts", "dp_replicate"] == [part, part]
    if recipe == "torch":
        # Rows of norms and routers divide by the shards, so nothing is padded.
        assert sums["", "dp"] == [dense * width, dense * width // shards]
        assert sums["", "dp_replicate"] == [dense * width // shards] * 2


def test_experts_are_reduced_independently_of_cp(store: Store) -> None:
    db = Stagedb(store)
    for words, reduced in (({"dp": 2, "cp": 2, "ep": 4}, 0), ({"dp": 1, "cp": 4, "ep": 2}, 1)):
        instance = db.instantiate(card("moe"), **words, cp_kind="allgather-kv", cp_grad_sync=False, seq_len=16)  # type: ignore[arg-type]
        found = store.query(
            "MATCH (o:Op {instance: $id, axis: 'edp'}) RETURN DISTINCT o.name ORDER BY o.name", {"id": instance.id}
        ).rows
        assert found == (("bucket.gradients.dp.experts.0",),) * reduced


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


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        ({"dp": 4, "ep": 4}, 1),
        ({"dp": 4, "ep": 2, "tp": 2, "sp": True, "recipe": "megatron"}, 1),
        ({"dp": 4, "ep": 2, "tp": 2, "sp": True}, 2),
        ({"cp": 2, "dp": 2, "ep": 4}, 1),
    ],
)
def test_messages_of_an_uneven_load_are_what_a_rank_sends(
    store: Store, tmp_path: Path, words: dict[str, Any], copies: int
) -> None:
    """All tokens are sent to experts and come back once a layer and direction; a call in a trace has one size.

    copies: the ranks of tp that send the same tokens, each to its parts of experts.
    """
    db, model, load = Stagedb(store), card("moe"), [4, 2, 1, 1]
    context: dict[str, Any] = {"cp_kind": "allgather-kv"} if "cp" in words else {}
    instance = db.instantiate(model, **words, **context, seq_len=64, expert_load=load)
    ranks = store.query(
        "MATCH (r:Rank {instance: $id}) RETURN r.rank, r.ep, r.class ORDER BY r.rank", {"id": instance.id}
    ).rows
    rows = store.query(
        "MATCH (o:Op {instance: $id, axis: 'ep'}) RETURN o.class, o.comm_bytes, o.comm_out_bytes ORDER BY o.name",
        {"id": instance.id},
    ).rows
    ep, dealing = words["ep"], words["dp"] * words.get("cp", 1) * words.get("tp", 1) // copies
    routed = words["dp"] * 64 * model.top_k * model.hidden * 2
    each = model.experts // ep
    shares = [Fraction(sum(load[at * each : (at + 1) * each]), sum(load)) for at in range(ep)]
    received = {at: routed // dealing * ep * shares[at] for at in range(ep)}
    for rank, at, number in ranks:
        mine = [tuple(sizes) for of, *sizes in rows if of == number]
        assert len(mine) == 4 * model.layers
        assert set(mine) == {(routed // dealing, received[at]), (received[at], routed // dealing)}, rank
    moved = store.read("analyze/communication/bytes_by_axis", instance=instance.id)
    assert [row["bytes"] for row in moved if row["axis"] == "ep"] == [2 * model.layers * routed * copies] * 2
    done = db.export(instance.id, out=tmp_path / "traces")
    report = validate(done.path)
    assert not report.faults
    assert report.replayed
    for rank in range(len(ranks)):
        trace = read_trace(next(done.path.glob(f"*.{rank}.et")))
        sizes = Counter(
            trace.attributes["comm_size"][i]
            for i, kind in enumerate(trace.attributes["comm_type"])
            if kind == pb.ALL_TO_ALL
        )
        # A simulator takes one size for a call. All members wait for the fullest of them.
        fullest = max(received.values())
        assert sizes == Counter({fullest: 4 * model.layers})


def test_sizes_of_a_matmul_are_those_of_its_flops(store: Store) -> None:
    """Experts with unequal numbers of tokens are several matmuls in one op, which then has no sizes."""
    db = Stagedb(store)
    found = {}
    for load in ([1, 1, 1, 1], [2, 1, 1, 0]):
        instance = db.instantiate(card("moe"), dp=2, ep=2, seq_len=8, expert_load=load)
        rows = store.query(
            "MATCH (o:Op {instance: $id, kind: 'matmul'}) RETURN o.name, o.flops, o.dims, o.fullest",
            {"id": instance.id},
        ).rows
        assert all(flops == 2 * math.prod(dims) for _, flops, dims, _ in rows if dims is not None)
        found[tuple(load)] = {name for name, _, dims, _ in rows if dims is None}
        assert found[tuple(load)] == {name for name, _, _, fullest in rows if fullest is not None}
        # Two of the four slots of the fullest have tokens, or three of four.
        filled = {flops / 2 / math.prod(fullest) for _, flops, _, fullest in rows if fullest is not None}
        assert filled == (set() if load[0] == 1 else {1 / 4, 3 / 4})
        experts = {name for name, _, _, _ in rows if ".experts." in name}
    assert found == {(1, 1, 1, 1): set(), (2, 1, 1, 0): experts}


def test_even_loads_are_one_instance(store: Store) -> None:
    db = Stagedb(store)
    made = [db.instantiate(card("moe"), dp=2, ep=2, seq_len=8, expert_load=[each] * 4) for each in (1, 2)]
    assert {each.id for each in made} == {db.instantiate(card("moe"), dp=2, ep=2, seq_len=8).id}


@pytest.mark.parametrize(
    ("tokens", "load"), [(7, (3, 4, 3, 4)), (9, (4, 5, 4, 5)), (1, (0, 1, 0, 1)), (8, (1, 1, 1, 1))]
)
def test_tokens_that_do_not_divide_are_dealt_as_evenly_as_whole_ones_can_be(
    store: Store, tokens: int, load: tuple[int, ...]
) -> None:
    """The instance is the one whose load somebody writes out; its experts compute all that is routed."""
    db, model = Stagedb(store), card("moe")
    made = db.instantiate(model, dp=2, ep=2, seq_len=tokens)
    assert made.id == db.instantiate(model, dp=2, ep=2, seq_len=tokens, expert_load=load).id
    ((total,),) = store.query(
        "MATCH (c:RankClass {instance: $id}) MATCH (o:Op {instance: $id, class: c.class}) "
        "WHERE o.name CONTAINS '.experts.' RETURN sum(o.flops * c.ranks)",
        {"id": made.id},
    ).rows
    assert total == model.layers * 3 * 2 * tokens * model.top_k * 2 * 3 * model.hidden * model.expert_ffn
    # Another length of the same plan has a load of its own.
    longer = db.profile(made.id, system="h100", seq_len=8)
    assert longer.instance.id == db.instantiate(model, dp=2, ep=2, seq_len=8).id
