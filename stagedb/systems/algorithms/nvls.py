"""NVLS, NVIDIA's NVLink SHARP: the switch adds up the members' buffers, and copies results to all members."""

from fractions import Fraction

from stagedb.collectives import ALL_REDUCE
from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.group_placement import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """ns of a collective that the switch reduces.

    Each member reads the sum of its 1/n, and writes it to all, through the switch. A member sends its whole buffer into
    the sums of all members, and its own sum once: (n + 1)/n of the buffer. spread: the group on its network. whole:
    bytes of the largest buffer. passes: how often the buffer goes around.
    """
    (span,) = spread.spans
    sent = Fraction(spread.members + 1, spread.members) * whole
    return passes * spread.dimension(span).latency + sent * spread.pace(span, whole)


def shares(spread: Spread) -> list[Fraction]:
    """Half of an all-reduce, so that both passes make (n + 1)/n."""
    return [Fraction(spread.members + 1, 2 * spread.members)]


def applies(spread: Spread) -> bool:
    """Whether the algorithm suits a group: all of its ranks are on one switch."""
    return len(spread.spans) == 1 and spread.dimension(spread.spans[0]).kind == "switch"


NVLS = Algorithm("nvls", (ALL_REDUCE,), time, shares, applies, hardware=True)
