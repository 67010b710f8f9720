"""Alignments of two sequences against the textbook's table of their longest common part."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stagedb.runs.alignment import align

SEQUENCES = st.lists(st.sampled_from("abcd"), max_size=24)


def longest(one: Sequence[str], other: Sequence[str]) -> int:
    row = [0] * (len(other) + 1)
    for left in one:
        before, row = row, [0]
        for place, right in enumerate(other):
            row.append(before[place] + 1 if left == right else max(before[place + 1], row[place]))
    return row[-1]


@given(SEQUENCES, SEQUENCES)
def test_an_alignment_is_a_longest_one(one: list[str], other: list[str]) -> None:
    found = align(one, other)
    assert len(found.pairs) == longest(one, other)
    assert all(one[left] == other[right] for left, right in found.pairs)
    assert all(
        before[0] < after[0] and before[1] < after[1]
        for before, after in zip(found.pairs, found.pairs[1:], strict=False)
    )


@given(SEQUENCES, SEQUENCES)
def test_pairs_and_gaps_are_all_there_is(one: list[str], other: list[str]) -> None:
    found = align(one, other)
    for side, sequence in enumerate((one, other)):
        paired = [pair[side] for pair in found.pairs]
        left = [place for gap in found.gaps for place in range(gap.first[side], gap.last[side])]
        assert sorted(paired + left) == list(range(len(sequence)))


def test_sequences_with_nothing_in_common_are_one_gap() -> None:
    found = align([("a", number) for number in range(5_000)], [("b", number) for number in range(5_000)])
    assert found.pairs == () and [(gap.first, gap.last) for gap in found.gaps] == [((0, 0), (5_000, 5_000))]
