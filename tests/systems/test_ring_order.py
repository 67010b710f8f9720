"""The ring through a group: reflected Gray order over the dimensions of a network."""

from itertools import pairwise

import pytest

from stagedb.systems.group_placement import ring_order


def _places(rank: int, sizes: tuple[int, ...]) -> list[int]:
    places = []
    for size in sizes:
        places.append(rank % size)
        rank //= size
    return places


@pytest.mark.parametrize(
    ("members", "sizes", "order"),
    [
        (range(4), (4,), (0, 1, 2, 3)),
        ((0, 2, 4, 6), (4, 2), (0, 2, 6, 4)),
        (range(8), (4, 2), (0, 1, 2, 3, 7, 6, 5, 4)),
        (range(8), (2, 2, 2), (0, 1, 3, 2, 6, 7, 5, 4)),
        ((1, 3, 5), (4, 2), (1, 3, 5)),
        ((5, 1), (2, 4), (1, 5)),
    ],
)
def test_known_orders(members: range | tuple[int, ...], sizes: tuple[int, ...], order: tuple[int, ...]) -> None:
    assert ring_order(tuple(members), sizes) == order


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2, 4), (4, 1, 2), (8, 8, 2)])
def test_neighbours_in_a_grid_differ_in_one_dimension(sizes: tuple[int, ...]) -> None:
    world = 1
    for size in sizes:
        world *= size
    order = ring_order(range(world), sizes)
    assert sorted(order) == [*range(world)]
    for before, after in pairwise(order):
        apart = [a - b for a, b in zip(_places(before, sizes), _places(after, sizes), strict=True)]
        assert sorted(map(abs, apart)) == [0] * (len(sizes) - 1) + [1]


def test_groups_with_a_stride_leave_a_row_over_the_outer_dimension() -> None:
    """tp 2, dp 8 on four accelerators a node: half of the links of the ring lead out of a node."""
    order = ring_order(range(0, 16, 2), (4, 4))
    leaving = [a for a, b in zip(order, (*order[1:], order[0]), strict=True) if a // 4 != b // 4]
    assert len(leaving) == 4
    assert all(a % 4 == b % 4 for a, b in pairwise((*order, order[0])) if a // 4 != b // 4)
