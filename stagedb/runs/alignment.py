"""Two sequences aligned: the longest part that both have in the same order, and what is left between its pieces.

E. W. Myers, An O(ND) Difference Algorithm and Its Variations, Algorithmica 1 (1986): work grows with the number of
differences, so that two long sequences that are nearly the same cost little.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MOST_DIFFERENCES = 1_000
"""Differences above which nothing between a common begin and end is aligned: the sequences have little in common."""


@dataclass(frozen=True)
class Gap:
    """Entries of both sequences between two that are the same: from `first` until before `last` in each of them."""

    first: tuple[int, int]
    last: tuple[int, int]


@dataclass(frozen=True)
class Alignment:
    """pairs: places of entries that are the same, ascending. gaps: what is between them, without empty ones."""

    pairs: tuple[tuple[int, int], ...]
    gaps: tuple[Gap, ...]


def align(one: Sequence[Hashable], other: Sequence[Hashable]) -> Alignment:
    """Align two sequences of keys: find the longest part that both have in the same order.

    one, other: the keys, equal for items that may be the same.
    """
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    end = 0
    while end < min(len(one), len(other)) - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    middle = _shortest(one[begin : len(one) - end], other[begin : len(other) - end])
    pairs = [(place, place) for place in range(begin)]
    pairs += [(begin + left, begin + right) for left, right in middle]
    pairs += [(len(one) - end + place, len(other) - end + place) for place in range(end)]
    return Alignment(tuple(pairs), tuple(_gaps(pairs, len(one), len(other))))


def _gaps(pairs: Sequence[tuple[int, int]], one: int, other: int) -> list[Gap]:
    found, before = [], (0, 0)
    for left, right in (*pairs, (one, other)):
        if (left, right) != before:
            found.append(Gap(before, (left, right)))
        before = left + 1, right + 1
    return found


def _shortest(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Places of the same entries on a shortest way through both sequences."""
    if not one or not other:
        return []
    limit = min(len(one) + len(other), MOST_DIFFERENCES)
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for differences in range(limit + 1):
        trail.append(dict(furthest))
        for diagonal in range(-differences, differences + 1, 2):
            down = diagonal == -differences or (
                diagonal != differences and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            left = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            while left < len(one) and 0 <= left - diagonal < len(other) and one[left] == other[left - diagonal]:
                left += 1
            furthest[diagonal] = left
            if left >= len(one) and left - diagonal >= len(other):
                return _walked_back(trail, differences, len(one), len(other))
    return []


def _walked_back(trail: Sequence[dict[int, int]], differences: int, left: int, right: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in range(differences, -1, -1):
        furthest, diagonal = trail[number], left - right
        down = diagonal == -number or (
            diagonal != number and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        came_left = furthest.get(before, 0)
        came_right = came_left - before
        while left > max(came_left, 0) and right > max(came_right, 0):
            left, right = left - 1, right - 1
            found.append((left, right))
        if number:
            left, right = came_left, came_right
    return found[::-1]
