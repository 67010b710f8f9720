"""The placement of a group: counted member by member, and by the numbers."""

from collections import Counter
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.systems import place
from stagedb.systems.group_placement import DimensionSpan, crossed


@pytest.mark.parametrize(
    ("ranks", "spans"),
    [
        (range(8), [DimensionSpan(0, 8, 8, 1, True, 7, 56)]),
        (range(4), [DimensionSpan(0, 4, 4, 1, False, 3, 12)]),
        (range(0, 8, 2), [DimensionSpan(0, 4, 4, 2, True, 3, 12)]),
        (range(3, 32, 8), [DimensionSpan(1, 4, 4, 1, True, 3, 12)]),
        (range(16), [DimensionSpan(0, 8, 8, 1, True, 14, 112), DimensionSpan(1, 2, 2, 1, False, 1, 128)]),
        (range(0, 32, 4), [DimensionSpan(0, 2, 2, 4, True, 4, 8), DimensionSpan(1, 4, 4, 1, True, 3, 48)]),
        ((5,), []),
    ],
)
def test_an_even_group_spans_what_its_ranks_differ_in(ranks: range, spans: list[DimensionSpan]) -> None:
    placement = place(tuple(ranks), (8, 4))
    assert list(placement.spans) == spans
    assert placement.uniform
    assert placement.members == len(ranks)


def test_an_uneven_group_is_marked() -> None:
    placement = place(tuple(range(12)), (8, 4))
    assert not placement.uniform
    assert placement.spans == (DimensionSpan(0, 8, 4, 1, False, 10, 68), DimensionSpan(1, 2, 2, 1, False, 1, 64))
    assert not place((0, 1, 8), (8, 4)).uniform


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.data())
def test_the_members_of_an_even_group_are_the_product_of_its_spans(sizes: list[int], data: st.DataObject) -> None:
    ranks = tuple(sorted(data.draw(st.sets(st.integers(0, prod(sizes) - 1), min_size=1))))
    placement = place(ranks, sizes)
    if placement.uniform:
        assert prod(each.members for each in placement.spans) == len(ranks)
    inside = 1
    for dimension, size in enumerate(sizes):
        rows = Counter(unit // size for unit in {rank // inside for rank in ranks})
        span = next((each for each in placement.spans if each.dimension == dimension), None)
        assert max(rows.values()) == (1 if span is None else span.members)
        assert span is None or min(rows.values()) == span.least
        inside *= size
    pairs = Counter(crossed(one, other, sizes)[0] for one in ranks for other in ranks if one != other)
    assert {each.dimension: each.pairs for each in placement.spans} == dict(pairs)
    assert sum(each.joins for each in placement.spans) == len(ranks) - 1


@pytest.mark.parametrize("ranks", [(), (1, 0), (1, 1), (-1, 2)])
def test_what_is_no_group_is_refused(ranks: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="must ascend"):
        place(ranks, (8,))


def test_a_rank_without_a_place_is_refused() -> None:
    with pytest.raises(UsageError, match="8 x 2 accelerators has no place for rank 16"):
        place((0, 16), (8, 2))
    with pytest.raises(UsageError, match="no place for rank 16"):
        crossed(16, 0, (8, 2))
    with pytest.raises(UsageError, match="rank 3 sends a message to rank 3"):
        crossed(3, 3, (8, 2))


def test_a_message_crosses_the_outermost_dimension_that_differs() -> None:
    assert crossed(0, 7, (8, 4)) == (0, 7)
    assert crossed(0, 8, (8, 4)) == (1, 1)
    assert crossed(31, 2, (8, 4)) == (1, 3)
