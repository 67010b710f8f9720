"""Every member sends its part to each other member at once."""

from fractions import Fraction

from stagedb.collectives import ALL_TO_ALL
from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.group_placement import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """ns of a collective in which every member sends 1/n of the buffer to each other member at once.

    All dimensions work in parallel. spread: the group on its network. whole: bytes of the largest buffer. passes: how
    often the buffer goes around (2 for an all-reduce).
    """
    del passes
    n = spread.members
    if not spread.uniform:
        slowest = max(spread.pace(each, whole) for each in spread.spans)
        return spread.latency() + Fraction(n - 1, n) * whole * slowest
    busiest, inside = Fraction(0), 1
    for each in spread.spans:
        if spread.dimension(each).kind == "ring":
            # Traffic of outer dimensions crosses it too. A link carries what members on one side send to the other.
            load = Fraction(each.members * each.members // 4, each.members) * whole
        else:
            load = Fraction(inside * (each.members - 1), n) * whole
        busiest = max(busiest, load * spread.pace(each, whole))
        inside *= each.members
    return spread.latency() + busiest


def shares(spread: Spread) -> list[Fraction]:
    """1/n of the buffer goes from each member to each other one."""
    return [Fraction(each.pairs, spread.members**2) for each in spread.spans]


DIRECT = Algorithm("direct", (ALL_TO_ALL,), time, shares)
