"""Durations of the model: closed forms exactly, and what must hold for all numbers."""

from dataclasses import replace
from fractions import Fraction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.systems import (
    Accelerator,
    CollectiveWork,
    Costs,
    Curve,
    Dimension,
    System,
    Timed,
    Transfer,
    Work,
    load_system,
)
from stagedb.systems.algorithms import COLLECTIVES
from stagedb.systems.cost_model import time_collective, time_transfer, time_work

CHIP = Accelerator("chip", {"bf16": Fraction(100), "fp8": Fraction(200)}, Fraction(1000), Fraction(32), Fraction(0))


def switch(size: int, bandwidth: float = 100, latency: int = 0, name: str = "inside") -> Dimension:
    rate = inf if bandwidth == inf else Fraction(bandwidth)
    return Dimension(name, size, "switch", rate, Fraction(latency))


NODES = (switch(8, 400), switch(4, 25, name="outside"))
CURVE = Curve(((Fraction(10**3), Fraction(1, 10)), (Fraction(10**6), Fraction(7, 10)), (Fraction(10**9), Fraction(1))))


def bare(timed: Timed) -> Timed:
    """Without what is put on the wire, which has tests of its own."""
    return replace(timed, wires=())


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_rings_take_their_closed_forms(n: int) -> None:
    network, ranks, size = (switch(8),), tuple(range(n)), 8 * 3 * 7 * 10**6
    assert time_collective(network, CollectiveWork("all_reduce", size, ranks)).ns == 2 * size * (n - 1) // n // 100
    assert time_collective(network, CollectiveWork("reduce_scatter", size, ranks)).ns == size * (n - 1) // n // 100
    assert time_collective(network, CollectiveWork("all_gather", size, ranks)).ns == size * (n - 1) // 100
    assert time_collective(network, CollectiveWork("all_to_all", size, ranks)).ns == size * (n - 1) // n // 100


def test_a_gather_takes_as_long_as_the_scatter_of_its_result() -> None:
    network = (replace(switch(8, latency=700), efficiency=CURVE),)
    ranks = tuple(range(8))
    gathered = time_collective(network, CollectiveWork("all_gather", 10**6, ranks))
    assert gathered == time_collective(network, CollectiveWork("reduce_scatter", 8 * 10**6, ranks))


def test_a_step_of_a_ring_takes_a_latency() -> None:
    network = (switch(8, latency=1000),)
    size, ranks = 8 * 10**9, tuple(range(8))
    timed = time_collective(network, CollectiveWork("all_reduce", size, ranks))
    assert bare(timed) == Timed(14 * 1000 + 14 * 10**7, "ring", "inside")


def test_a_small_all_reduce_goes_up_and_down_a_tree() -> None:
    network, ranks = (switch(8, latency=1000),), tuple(range(8))
    assert bare(time_collective(network, CollectiveWork("all_reduce", 800, ranks))) == Timed(
        2 * 3 * 1000 + 16, "tree", "inside"
    )
    assert bare(time_collective(network, CollectiveWork("all_gather", 100, ranks))) == Timed(
        7 * 1000 + 7, "ring", "inside"
    )


def test_a_duration_is_rounded_once_and_a_half_up() -> None:
    assert time_collective((switch(2, 2),), CollectiveWork("all_gather", 1, (0, 1))).ns == 1
    assert time_collective((switch(2, 4),), CollectiveWork("all_gather", 1, (0, 1))).ns == 0
    assert time_transfer((switch(2, 2),), Transfer(5, 0, 1)).ns == 3


def test_a_group_of_one_a_node_uses_the_network_between_nodes() -> None:
    timed = time_collective(NODES, CollectiveWork("all_reduce", 10**9, (0, 8, 16, 24)))
    assert bare(timed) == Timed(2 * 3 * 10**9 // 4 // 25, "ring", "outside")


def test_members_of_a_node_share_the_work_between_nodes() -> None:
    # Eight parallel rings: 8 x 25 GB/s between nodes, which is less than 400 GB/s inside.
    whole = time_collective(NODES, CollectiveWork("all_reduce", 32 * 10**8, tuple(range(32))))
    assert bare(whole) == Timed(2 * 31 * 10**8 // 200, "ring", "outside")
    # Between fast nodes a ring inside, one outside of an eighth, and back again are faster than one through all.
    fast = (switch(8, inf), switch(4, 25, latency=10**6, name="outside"))
    timed = time_collective(fast, CollectiveWork("reduce_scatter", 32 * 10**8, tuple(range(32))))
    assert bare(timed) == Timed(3 * 10**6 + 3 * 10**8 // 25, "hierarchical", "outside")


def test_an_uneven_group_takes_what_is_slowest() -> None:
    network = (switch(8, 400, latency=10), switch(4, 25, latency=1000, name="outside"))
    uneven = time_collective(network, CollectiveWork("reduce_scatter", 12 * 10**8, tuple(range(12))))
    # Four rings, as the second node has four members; every step as long as one between nodes.
    assert bare(uneven) == Timed(11 * 1000 + 11 * 10**8 // 100, "ring", "outside")
    lone = time_collective(network, CollectiveWork("all_to_all", 3 * 10**8, (0, 1, 8)))
    assert bare(lone) == Timed(1000 + 2 * 10**8 // 25, "direct", "outside")


def test_dimensions_carry_direct_traffic_in_parallel() -> None:
    timed = time_collective(NODES, CollectiveWork("all_to_all", 32 * 10**8, tuple(range(32))))
    assert bare(timed) == Timed(24 * 10**8 // 25, "direct", "outside")


def test_of_a_mesh_of_links_only_those_to_members_are_used() -> None:
    mesh = (Dimension("mesh", 8, "fully-connected", Fraction(700), Fraction(0)),)
    assert time_collective(mesh, CollectiveWork("reduce_scatter", 8 * 10**9, tuple(range(8)))).ns == 7 * 10**9 // 700
    assert time_collective(mesh, CollectiveWork("reduce_scatter", 2 * 10**9, (0, 1))).ns == 10**9 // 100
    assert time_collective(mesh, CollectiveWork("all_to_all", 4 * 10**9, (0, 1, 2, 3))).ns == 3 * 10**9 // 300
    assert time_transfer(mesh, Transfer(10**9, 0, 5)).ns == 10**7


def test_a_part_of_a_ring_of_links_needs_the_way_back() -> None:
    links = (Dimension("x", 8, "ring", Fraction(100), Fraction(10)),)
    assert (
        time_collective(links, CollectiveWork("reduce_scatter", 8 * 10**9, tuple(range(8)))).ns == 70 + 7 * 10**9 // 100
    )
    assert time_collective(links, CollectiveWork("reduce_scatter", 4 * 10**9, (0, 1, 2, 3))).ns == 50 + 3 * 10**9 // 50
    # Every other place: two groups share the links.
    assert time_collective(links, CollectiveWork("reduce_scatter", 4 * 10**9, (0, 2, 4, 6))).ns == 60 + 3 * 10**9 // 50
    # 16 pairs of eight cross a link's place each way; two links.
    assert time_collective(links, CollectiveWork("all_to_all", 8 * 10**9, tuple(range(8)))).ns == 10 + 16 * 10**9 // 100
    assert bare(time_transfer(links, Transfer(10**9, 0, 7))) == Timed(10 + 10**9 // 50, "p2p", "x")
    assert bare(time_transfer(links, Transfer(10**9, 0, 4))) == Timed(40 + 10**9 // 50, "p2p", "x")


def test_a_message_takes_the_outermost_link_that_it_crosses() -> None:
    network = (switch(8, 400, latency=5), switch(4, 25, latency=50, name="outside"))
    assert bare(time_transfer(network, Transfer(10**6, 0, 7))) == Timed(5 + 2500, "p2p", "inside")
    assert bare(time_transfer(network, Transfer(10**6, 7, 8))) == Timed(50 + 40_000, "p2p", "outside")


def test_an_operator_takes_the_longer_of_computing_and_moving() -> None:
    assert time_work(CHIP, Work("matmul", "bf16", 10**9, 10**6)) == Timed(10_000, "roofline:compute")
    assert time_work(CHIP, Work("matmul", "fp8_e4m3", 10**9, 10)) == Timed(5_000, "roofline:compute")
    assert time_work(CHIP, Work("matmul", "bf16", 10, 10**9)) == Timed(10**6, "roofline:memory")
    assert time_work(CHIP, Work("norm", "fp32", 0, 10**6)) == Timed(1000, "roofline:memory")
    assert time_work(replace(CHIP, launch=Fraction(70)), Work("norm", "fp32", 0, 0)) == Timed(70, "roofline:memory")


def test_each_kind_of_operator_has_its_efficiency() -> None:
    half, fifth, tenth = (Curve(((Fraction(1), Fraction(1, part)),)) for part in (2, 5, 10))
    chip = replace(CHIP, matmul=half, attention=fifth, memory=tenth)
    assert time_work(chip, Work("matmul", "bf16", 10**9, 0)).ns == 20_000
    assert time_work(chip, Work("attention", "bf16", 10**9, 0)).ns == 50_000
    assert time_work(chip, Work("norm", "bf16", 0, 10**6)).ns == 10_000


@pytest.mark.parametrize(
    ("queries", "keys", "window"), [(8, 8, 8), (4, 12, 12), (1, 9, 9), (12, 5, 5), (7, 7, 7), (16, 16, 3)]
)
def test_an_attention_computes_the_pairs_that_its_mask_leaves(queries: int, keys: int, window: int) -> None:
    """Queries are the last positions, and see those before them: of a window as many as it is wide."""
    end = max(queries, keys)
    pairs = [(q, k) for q in range(end - queries, end) for k in range(end) if max(0, q - window + 1) <= k <= q]
    whole = queries * min(keys, window)
    dims = (2, 4, 4, queries, min(keys, window), 64)
    work = Work("attention", "bf16", whole * 10**6, 0, dims)
    assert time_work(CHIP, work).ns == len(pairs) * 10
    assert time_work(CHIP, replace(work, causal=False)).ns == whole * 10
    assert time_work(CHIP, replace(work, kind="matmul")).ns == whole * 10


def test_what_has_no_cost_is_refused() -> None:
    with pytest.raises(UsageError, match=r"chip has no rate for matmul in fp32. .*bf16, fp8: add fp32"):
        time_work(CHIP, Work("matmul", "fp32", 1, 1))
    with pytest.raises(UsageError, match="'broadcast' has no cost; the cost model has all_reduce"):
        time_collective(NODES, CollectiveWork("broadcast", 1, (0, 1)))
    with pytest.raises(UsageError, match="-1 FLOPs and 1 bytes has no duration"):
        time_work(CHIP, Work("matmul", "bf16", -1, 1))
    with pytest.raises(UsageError, match="a collective with -1 bytes has no duration"):
        time_collective(NODES, CollectiveWork("all_reduce", -1, (0, 1)))
    with pytest.raises(UsageError, match="a message with -1 bytes has no duration"):
        time_transfer(NODES, Transfer(-1, 0, 1))


def test_costs_are_those_of_the_system_at_the_size_of_the_job() -> None:
    system = replace(load_system("h100"), tables=())
    costs = Costs(system, 32)
    message, send, work = (
        CollectiveWork("all_reduce", 10**9, tuple(range(16))),
        Transfer(10**6, 0, 8),
        Work("norm", "", 0, 9),
    )
    for _ in range(2):
        assert costs.collective(message) == time_collective(system.network(32), message)
        assert costs.placed("all_reduce", 10**9, costs.placement(message.ranks)) == costs.collective(message)
        assert costs.transfer(send) == time_transfer(system.network(32), send)
        assert costs.work(work) == time_work(system.accelerator, work)
    with pytest.raises(UsageError, match="4 ranks"):
        Costs(System("one", ("-",), CHIP, (switch(2),)), 4)


groups = st.sampled_from([range(2), range(8), range(12), range(32), range(0, 32, 8), range(0, 32, 4), (1, 2, 11)])
kinds = st.sampled_from(COLLECTIVES)
shapes = st.sampled_from(["switch", "ring", "fully-connected"])


@given(kinds, st.integers(0, 10**12), groups, shapes, shapes)
def test_a_free_network_takes_no_time(kind: str, size: int, ranks: range, inner: str, outer: str) -> None:
    network = tuple(
        Dimension(name, places, shape, inf, Fraction(0), CURVE)
        for name, places, shape in (("inside", 8, inner), ("outside", 4, outer))
    )
    assert time_collective(network, CollectiveWork(kind, size, tuple(ranks))).ns == 0
    assert time_transfer(network, Transfer(size, ranks[0], ranks[1])).ns == 0


@given(kinds, st.integers(0, 10**11), st.integers(0, 10**11), groups, shapes, shapes)
def test_more_bytes_never_take_less_time(kind: str, size: int, more: int, ranks: range, inner: str, outer: str) -> None:
    network = (
        Dimension("inside", 8, inner, Fraction(400), Fraction(600), CURVE),
        Dimension("outside", 4, outer, Fraction(25), Fraction(2700), CURVE),
    )
    less, longer = (time_collective(network, CollectiveWork(kind, each, tuple(ranks))) for each in (size, size + more))
    assert less.ns <= longer.ns
    assert time_transfer(network, Transfer(size, 1, 9)).ns <= time_transfer(network, Transfer(size + more, 1, 9)).ns


@given(kinds, st.integers(0, 10**11), st.integers(2, 31), st.booleans())
def test_more_ranks_never_take_less_time_in_one_dimension(kind: str, size: int, n: int, apart: bool) -> None:
    network = (switch(2, 400), switch(32, 50, 500, "outside")) if apart else (switch(32, 50, 500),)
    step = 2 if apart else 1
    fewer, all_ = (
        time_collective(network, CollectiveWork(kind, size, tuple(range(0, step * m, step)))) for m in (n, n + 1)
    )
    assert fewer.ns <= all_.ns


@given(st.integers(0, 10**15), st.integers(0, 10**14), st.integers(0, 10**12), st.integers(0, 10**11))
def test_more_work_never_takes_less_time(flops: int, more: int, moved: int, further: int) -> None:
    chip = replace(CHIP, matmul=CURVE, memory=CURVE)
    less, longer = (
        time_work(chip, Work("matmul", "bf16", *each)) for each in ((flops, moved), (flops + more, moved + further))
    )
    assert less.ns <= longer.ns
