"""Two binary trees, each for half of the buffer."""

from fractions import Fraction

from stagedb.collectives import ALL_REDUCE
from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.group_placement import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """ns of a collective up a tree to its root and down again: a member sends its whole buffer up, and as much down.

    spread: the group on its network. whole: bytes of the largest buffer. passes: how often the buffer goes around.
    """
    if spread.uniform:
        steps = sum((_levels(each.members) * spread.dimension(each).latency for each in spread.spans), Fraction(0))
    else:
        steps = _levels(spread.members) * spread.latency()
    return passes * (steps + whole * spread.shared_pace(whole))


def applies(spread: Spread) -> bool:
    """Whether the algorithm suits a group: any two members reach each other in one step.

    Along a ring of links they do not.
    """
    return all(spread.dimension(each).kind != "ring" for each in spread.spans)


def _levels(members: int) -> int:
    """Number of levels of a binary tree."""
    return (members - 1).bit_length()


TREE = Algorithm("tree", (ALL_REDUCE,), time, Spread.link_shares, applies)
