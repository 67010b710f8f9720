"""A ring along each dimension in turn."""

from fractions import Fraction

from stagedb.systems.algorithms.algorithm import Algorithm
from stagedb.systems.spread import Spread


def time(spread: Spread, whole: Fraction, passes: int) -> Fraction:
    """The part that is scattered inside a dimension is all that goes to the next outer one."""
    taken = Fraction(0)
    for each in spread.spans:
        sent = Fraction(each.members - 1, each.members) * whole
        taken += spread.hops(each) * spread.dimension(each).latency + sent * spread.pace(each, whole)
        whole /= each.members
    return passes * taken


def applies(spread: Spread) -> bool:
    """Even groups that span several dimensions."""
    return spread.uniform and len(spread.spans) > 1


HIERARCHICAL = Algorithm(
    "hierarchical", ("all_reduce", "all_gather", "reduce_scatter"), time, Spread.link_shares, applies
)
