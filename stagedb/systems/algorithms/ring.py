"""Rings through all members."""

from fractions import Fraction

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.group_placement import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """ns of a collective by parallel rings, one for each link out of the innermost dimensions.

    In each pass a member sends (n - 1)/n of the buffer over the slowest dimension, and waits for n - 1 latencies.
    spread: the group on its network. whole: bytes of the largest buffer. passes: how often the buffer goes around.
    """
    n = spread.members
    return passes * (_steps(spread) + Fraction(n - 1, n) * whole * spread.shared_pace(whole))


def shares(spread: Spread) -> list[Fraction]:
    """For each dimension of the group, the share of the buffer that a member sends over it, with parallel rings.

    Every link of a ring carries (n - 1)/n of the buffer. A ring goes along the path of a tree and back. Parallel rings
    leave the row of an inner dimension at different members, and each has a part of the buffer.
    """
    n = spread.members
    outermost = spread.spans[-1]
    return [Fraction(each.joins + (each is outermost), n) * Fraction(n - 1, n) for each in spread.spans]


def _steps(spread: Spread) -> Fraction:
    """Latencies of the n - 1 steps of one pass. A step that leaves a dimension takes the latency of the outer one."""
    if not spread.uniform:
        return (spread.members - 1) * spread.latency()
    rows, taken = spread.members, Fraction(0)
    for each in spread.spans:
        rows //= each.members
        taken += rows * spread.hops(each) * spread.dimension(each).latency
    return taken


RING = Algorithm("ring", (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER), time, shares)
