"""What a collective algorithm is."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from stagedb.collectives import CollectiveKind
from stagedb.systems.group_placement import Spread


@dataclass(frozen=True)
class Algorithm:
    """How the ranks of a group run a collective.

    name: the `Timed.rule` of its times. kinds: the collectives that it can run. time: ns by (group, bytes of the
    largest buffer, passes of the kind). shares: by dimension, the share of that buffer that a member sends in one pass,
    the mean of the members. applies: whether it suits a group. hardware: whether it needs hardware that a system's file
    must name for each dimension that the group spans (`network[].algorithms`).
    """

    name: str
    kinds: tuple[CollectiveKind, ...]
    time: Callable[[Spread, Fraction, int], Fraction]
    shares: Callable[[Spread], list[Fraction]]
    applies: Callable[[Spread], bool] = lambda spread: True
    hardware: bool = False

    def runs(self, kind: CollectiveKind, spread: Spread) -> bool:
        """Whether the algorithm can run a collective of this kind in a group."""
        return kind in self.kinds and (not self.hardware or spread.offers(self.name)) and self.applies(spread)
