"""A ring along each dimension, in parts: while one part is in an outer dimension, the next is in the inner one."""

from collections.abc import Sequence
from fractions import Fraction

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.group_placement import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """ns of a collective along one dimension after the other, in parts, so that several dimensions work at a time.

    Only the part that is scattered inside a dimension goes to the next outer one. The number of parts is the fastest up
    to that of the system; with one part the dimensions take strict turns. spread: the group on its network. whole:
    bytes of the largest buffer. passes: how often the buffer goes around.
    """
    latencies, moves = [], []
    for each in spread.spans:
        latencies.append(spread.hops(each) * spread.dimension(each).latency)
        moves.append(Fraction(each.members - 1, each.members) * whole * spread.pace(each, whole))
        whole /= each.members
    return passes * min(pipelined(latencies, moves, parts) for parts in range(1, spread.parts + 1))


def pipelined(latencies: Sequence[Fraction], moves: Sequence[Fraction], parts: int) -> Fraction:
    """ns until the last of equal parts has been through all dimensions, each of which has one part at a time.

    latencies: of a part, by dimension. moves: ns that the bytes of all parts take, by dimension. The first part goes
    through all dimensions. The others follow it at the pace of the slowest one.
    """
    stages = [latency + move / parts for latency, move in zip(latencies, moves, strict=True)]
    return sum(stages, Fraction(0)) + (parts - 1) * max(stages)


def applies(spread: Spread) -> bool:
    """Whether the algorithm suits a group: one that spans several dimensions evenly."""
    return spread.uniform and len(spread.spans) > 1


HIERARCHICAL = Algorithm("hierarchical", (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER), time, Spread.link_shares, applies)
