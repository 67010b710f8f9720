"""A group of ranks on the network dimensions that it spans. Collective algorithms compute their times from it."""

from dataclasses import dataclass
from fractions import Fraction

from stagedb.systems.group_placement import DimensionSpan, Placement
from stagedb.systems.system import Dimension, Network


@dataclass(frozen=True)
class Spread:
    """A group of ranks on a network. Times are in ns.

    network: its dimensions. placement: of the group. parts: the most parts that an algorithm may cut a buffer into, so
    that several dimensions work at a time. `whole`, in the methods, is the largest buffer of a collective in bytes.
    """

    network: Network
    placement: Placement
    parts: int = 1

    @property
    def members(self) -> int:
        """The number of ranks in the group."""
        return self.placement.members

    @property
    def spans(self) -> tuple[DimensionSpan, ...]:
        """The group along each dimension that it spans, innermost first."""
        return self.placement.spans

    @property
    def uniform(self) -> bool:
        """Whether all rows of a dimension have the same number of members."""
        return self.placement.uniform

    def dimension(self, along: DimensionSpan) -> Dimension:
        """The network dimension of a span."""
        return self.network[along.dimension]

    def offers(self, algorithm: str) -> bool:
        """Whether every dimension that the group spans has hardware for the algorithm with this name."""
        return all(algorithm in self.dimension(each).algorithms for each in self.spans)

    def latency(self) -> Fraction:
        """The latency of the slowest step between two members."""
        return max(
            along.spacing * dimension.latency if dimension.kind == "ring" else dimension.latency
            for along in self.spans
            for dimension in (self.dimension(along),)
        )

    def hops(self, along: DimensionSpan) -> int:
        """Steps from the first member of a dimension round to its last. They count links between distant members."""
        if self.dimension(along).kind != "ring":
            return along.members - 1
        # A row that does not close a ring needs the whole way back to its first member.
        steps = along.members - 1 if along.wraps else 2 * along.members - 3
        return steps * along.spacing

    def pace(self, along: DimensionSpan, whole: Fraction) -> Fraction:
        """ns a byte for what one member can send along a dimension to the others over all links together."""
        return self.dimension(along).pace(whole) * self.slower(along)

    def slower(self, along: DimensionSpan) -> Fraction:
        """How many times as long a byte takes a member as an accelerator that has all links along a dimension."""
        dimension = self.dimension(along)
        if dimension.kind == "fully-connected":
            # Links to ranks outside the group are idle. A row with one member sends over one link.
            return Fraction(dimension.places - 1, max(along.least - 1, 1))
        if dimension.kind == "ring":
            # Distant members share links with other groups. A row that does not close a ring needs the way back.
            return Fraction(along.spacing * (1 if along.wraps else 2))
        return Fraction(1)

    def shared_pace(self, whole: Fraction) -> Fraction:
        """ns a byte of the slowest dimension, where all members inside a dimension share its links."""
        paces, inside = [], 1
        for each in self.spans:
            paces.append(self.pace(each, whole) / inside)
            inside *= each.least
        return max(paces)

    def slowest(self, whole: Fraction) -> str:
        """The name of the dimension over which one member sends slowest; the outer one of two that are equally slow."""
        span = max(self.spans, key=lambda each: (self.pace(each, whole), each.dimension))
        return self.dimension(span).name

    def link_shares(self) -> list[Fraction]:
        """By dimension, what a member sends in one pass where every link of a tree carries the buffer.

        The values are shares of the buffer, the mean of all members. A ring along each dimension in turn sends the
        same: (m - 1)/m of what the inner dimensions leave.
        """
        return [Fraction(each.joins, self.members) for each in self.spans]
