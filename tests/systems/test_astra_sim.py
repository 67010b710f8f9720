"""Collectives by the rules of a simulator: rings whose messages go from rank to rank one by one, and closed forms."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.systems import Collectives, CollectiveWork, Costs, Dimension, System, Transfer, load_system
from stagedb.systems.astra_sim import ENDPOINT_OF_ALL, ENDPOINT_OF_SOME, in_turn, longest, one_by_one
from stagedb.systems.group_placement import ring_order

H100 = load_system("h100")
MEMORY = 3350
TWO = (
    Dimension("inside", 4, "switch", Fraction(200), Fraction(300)),
    Dimension("outside", None, "switch", Fraction(25), Fraction(1000)),
)
FLAT = (Dimension("flat", None, "switch", Fraction(50), Fraction(500)),)
MESH = (Dimension("mesh", None, "fully-connected", Fraction(70), Fraction(500)),)
RING = (Dimension("x", None, "ring", Fraction(50), Fraction(500)),)


def simulated(dimensions: tuple[Dimension, ...], parts: int = 1) -> System:
    return replace(H100, dimensions=dimensions, collectives=Collectives("astra-sim", parts))


def took(
    dimensions: tuple[Dimension, ...], world: int, kind: str, size: int, ranks: Sequence[int], parts: int = 1
) -> int:
    return Costs(simulated(dimensions, parts), world).collective(CollectiveWork(kind, size, tuple(ranks))).ns


def link(network: Sequence[Dimension], one: int, other: int, message: Fraction) -> Fraction:
    """A message over the innermost dimension in which two ranks differ. Switches only."""
    for each in network:
        if one % each.places != other % each.places:
            return each.latency + message / Fraction(each.bandwidth)
        one, other = one // each.places, other // each.places
    raise AssertionError


def passed_on(network: Sequence[Dimension], kind: str, size: int, ranks: Sequence[int]) -> Fraction:
    """The end of a ring: each rank sends a message when the one before has come, and ends with the last one.

    In an all-to-all a rank sends to one after the other along the list instead.
    """
    order = ring_order(ranks, [each.places for each in network])
    n = len(order)
    message = Fraction(size) if kind == "all_gather" else Fraction(size, n)
    steps = 2 * (n - 1) if kind == "all_reduce" else n - 1
    ready = [Fraction(ENDPOINT_OF_SOME)] * n
    for step in range(steps):
        reduces = kind == "reduce_scatter" or (kind == "all_reduce" and step < n - 1)
        charge = 3 * message / MEMORY if reduces else 0
        apart = step + 1 if kind == "all_to_all" else 1
        ready = [
            ready[at - apart] + link(network, order[at - apart], order[at], message) + ENDPOINT_OF_SOME + charge
            for at in range(n)
        ]
    return max(ready)


KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
GROUPS = [range(0, 16, 2), range(0, 8, 4), range(0, 16, 4), range(4), (0, 1, 4, 5), range(8), (2, 3, 6, 7, 10, 11)]
NO_GRIDS = [range(3, 6), (0, 5, 10, 15), range(5), range(0, 15, 3)]
"""Groups whose rings have steps that change the places in both dimensions."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [*GROUPS, *NO_GRIDS], ids=str)
def test_a_group_of_some_ranks_is_one_ring_over_its_list(kind: str, ranks: Sequence[int]) -> None:
    network = simulated(TWO).network(16)
    size = 3 * 2**20
    expected = passed_on(network, kind, size, ranks)
    assert abs(took(TWO, 16, kind, size, ranks) - expected) <= 1
    # Parts follow each other on the ring.
    four = 4 * passed_on(network, kind, size // 4, ranks)
    assert abs(took(TWO, 16, kind, size, ranks, parts=4) - four) <= 1


def test_in_an_exchange_a_member_waits_for_the_message_before() -> None:
    inner, outer = Fraction(1), Fraction(10)
    # Two rows of two: distance 1 leads outside for two members, distance 2 for none, distance 3 for the two others.
    assert one_by_one((2, 2), [inner, outer], (0, 1, 3, 2)) == 21
    assert one_by_one((4,), [Fraction(5, 3)], range(4)) == 5


@given(st.lists(st.integers(1, 9).map(Fraction), min_size=2, max_size=7), st.integers(1, 30))
def test_the_slowest_way_around_a_ring_is_the_longest_row_of_links(links: list[Fraction], steps: int) -> None:
    n = len(links)
    rows: list[Fraction] = [sum((links[(at + step) % n] for step in range(steps)), Fraction(0)) for at in range(n)]
    assert longest(links, steps) == max(rows)


def test_all_ranks_run_an_algorithm_along_each_dimension() -> None:
    size = 16 * 2**20
    inner, outer = Fraction(size, 4), Fraction(size, 16)
    scatter = 4 * ENDPOINT_OF_ALL + 3 * (300 + inner / 200 + 3 * inner / MEMORY)
    reduce = 7 * ENDPOINT_OF_ALL + 6 * (1000 + outer / 25) + 3 * 3 * outer / MEMORY
    gather = 4 * ENDPOINT_OF_ALL + 3 * (300 + inner / 200)
    assert abs(took(TWO, 16, "all_reduce", size, range(16)) - (scatter + reduce + gather)) <= 1
    outside = 4 * ENDPOINT_OF_ALL + 3 * (1000 + outer / 25)
    assert abs(took(TWO, 16, "all_gather", size // 16, range(16)) - (outside + gather)) <= 1
    assert abs(took(TWO, 16, "reduce_scatter", size, range(16)) - (scatter + outside + 9 * outer / MEMORY)) <= 1
    each = [4 * ENDPOINT_OF_ALL + 3 * (latency + inner / rate) for latency, rate in ((300, 200), (1000, 25))]
    assert abs(took(TWO, 16, "all_to_all", size, range(16)) - sum(each, Fraction(0))) <= 1


def test_parts_of_all_ranks_queue_at_each_dimension() -> None:
    """An all-reduce comes back to the inner dimension, where parts that came earlier go first."""
    assert in_turn([(0, Fraction(3)), (1, Fraction(5)), (0, Fraction(2))], 2) == 15
    assert in_turn([(0, Fraction(5)), (1, Fraction(1)), (0, Fraction(5))], 3) == 30
    assert in_turn([(0, Fraction(7))], 4) == 28
    size = 16 * 2**20
    assert took(TWO, 16, "all_reduce", size, range(16), 4) < took(TWO, 16, "all_reduce", size, range(16), 1)
    # What division leaves is one more part.
    assert took(FLAT, 2, "all_reduce", 10**6 + 1, (0, 1), 4) == pytest.approx(
        took(FLAT, 2, "all_reduce", 10**6, (0, 1), 4) * 5 / 4, abs=2
    )


def test_a_fully_connected_dimension_sends_to_all_at_once() -> None:
    message = Fraction(8 * 2**20, 8)
    at_once = 500 + message / 10  # each of seven links has 10 GB/s
    charge = 3 * message / MEMORY
    size = 8 * 2**20
    assert abs(took(MESH, 8, "all_reduce", size, range(8)) - (3 * ENDPOINT_OF_ALL + 2 * at_once + charge)) <= 1
    assert abs(took(MESH, 8, "reduce_scatter", size, range(8)) - (2 * ENDPOINT_OF_ALL + at_once + charge)) <= 1
    assert abs(took(MESH, 8, "all_gather", size // 8, range(8)) - (2 * ENDPOINT_OF_ALL + at_once)) <= 1
    assert abs(took(MESH, 8, "all_to_all", size, range(8)) - (2 * ENDPOINT_OF_ALL + at_once)) <= 1
    # Some ranks of a network of one dimension do so too. On two dimensions they are a ring over all links together.
    assert abs(took(MESH, 8, "all_gather", size // 8, range(4)) - (2 * ENDPOINT_OF_SOME + at_once)) <= 1
    two = (replace(MESH[0], size=8), FLAT[0])
    assert (
        abs(took(two, 16, "all_gather", size // 8, range(8)) - (8 * ENDPOINT_OF_SOME + 7 * (500 + message / 70))) <= 1
    )


def test_an_all_to_all_on_a_switch_goes_to_one_rank_after_the_other() -> None:
    size = 8 * 2**20
    each = 500 + Fraction(size, 8) / 50
    assert abs(took(FLAT, 8, "all_to_all", size, range(8)) - (8 * ENDPOINT_OF_ALL + 7 * each)) <= 1
    # Along a ring of links the message to the farthest rank passes four of them, and a link carries those of 16 pairs.
    apart = sum((min(one, 8 - one) for one in range(1, 8)), 0) * 500 + 16 * Fraction(size, 8) / 50
    assert abs(took(RING, 8, "all_to_all", size, range(8)) - (8 * ENDPOINT_OF_ALL + apart)) <= 1


def test_a_message_takes_the_innermost_dimension_that_differs() -> None:
    costs = Costs(simulated(TWO), 16)
    assert costs.transfer(Transfer(10**6, 0, 4)).ns == 1000 + 40_000
    assert costs.transfer(Transfer(10**6, 3, 4)).ns == 300 + 5_000
    own = Costs(replace(simulated(TWO), collectives=Collectives()), 16)
    assert own.transfer(Transfer(10**6, 3, 4)).ns == 1000 + 40_000
    assert Costs(simulated(RING), 8).transfer(Transfer(10**6, 0, 7)).ns == 500 + 40_000
    assert Costs(simulated(MESH), 8).transfer(Transfer(10**6, 0, 7)).ns == 500 + 100_000


@pytest.mark.parametrize(
    ("sizes", "world", "places"),
    [((8, None), 4, [4, 1]), ((8, None), 16, [8, 2]), ((8, None), 12, [4, 3]), ((8, 8, None), 64, [8, 8, 1])],
)
def test_the_network_has_a_place_for_each_rank_and_no_others(
    sizes: tuple[int | None, ...], world: int, places: list[int]
) -> None:
    dimensions = tuple(
        Dimension(f"d{at}", size, "fully-connected", Fraction(70), Fraction(1)) for at, size in enumerate(sizes)
    )
    network = simulated(dimensions).network(world)
    assert [each.size for each in network] == places
    assert prod(places) == world
    # The links that are left keep their bandwidth.
    kept = [(each.places - 1) * 10 if each.places > 1 else 10 for each in network[:1]]
    assert [each.bandwidth for each in network[:1]] == kept


@given(st.sampled_from(KINDS), st.integers(0, 10**10), st.sampled_from([*GROUPS, *NO_GRIDS]), st.integers(1, 6))
def test_what_is_sent_is_all_that_a_group_needs(kind: str, size: int, ranks: Sequence[int], parts: int) -> None:
    size = size // (120 * parts) * 120 * parts + 120 * 16 * parts
    found = Costs(simulated(TWO, parts), 16).collective(CollectiveWork(kind, size, tuple(ranks)))
    n = len(ranks)
    messages = 2 * (n - 1) if kind == "all_reduce" else n - 1
    message = size if kind == "all_gather" else Fraction(size, n)
    assert sum(sent for _, sent in found.wires) == pytest.approx(float(messages * message), abs=2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_uneven_group_and_an_empty_one_have_a_time(kind: str) -> None:
    assert took(TWO, 16, kind, 10**6, (0, 1, 4)) > 0
    assert took(TWO, 16, kind, 0, range(16)) > 0
    assert took(TWO, 16, kind, 10**6, (3,)) == 0
    free = tuple(replace(each, bandwidth=inf, latency=Fraction(0)) for each in TWO)
    assert took(free, 16, "all_gather", 10**9, range(0, 16, 2)) == 8 * ENDPOINT_OF_SOME
