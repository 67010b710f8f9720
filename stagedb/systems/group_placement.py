"""The places of a group's ranks in a network: which dimensions they span, and how many ranks are along each.

Rank r has place r of the network. Places count like digits, the innermost dimension first.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from stagedb.errors import UsageError
from stagedb.systems.system import Dimension, Network

# The order in which a ring visits the members of a group that spans several dimensions of a network.


def ring_order(members: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The members in reflected mixed-radix Gray order over dimensions of these sizes, innermost first.

    Members with the same place in the outer dimensions follow each other, and every other row is visited backwards. So
    neighbours in the order of a full grid differ in one dimension only, and a ring leaves a row over the outer one. In
    the ascending order, the step from one row to the next also changes the inner place: a simulator that sends over
    the innermost dimension in which two ranks differ would never use the outer one.

    Rank r has place r of the network: places count like digits, the innermost dimension first.
    """
    if not sizes:
        return tuple(sorted(members))
    *inner, _ = sizes
    width = math.prod(inner)
    rows: dict[int, list[int]] = {}
    for member in sorted(members):
        rows.setdefault(member // width, []).append(member)
    found: list[int] = []
    for at, row in enumerate(rows.values()):
        base = row[0] // width * width
        ordered = [base + each for each in ring_order([member - base for member in row], inner)]
        found += reversed(ordered) if at % 2 else ordered
    return tuple(found)


@dataclass(frozen=True)
class DimensionSpan:
    """The members of a group along one dimension. Only rows of the dimension that have members count.

    dimension: its index, 0 is the innermost. members: those in the fullest row. least: those in the row with fewest.
    spacing: places from one member to the next; the widest gap if gaps differ. wraps: members are evenly spaced, and
    the last is as far from the first as from the one before it, so that they close a ring.

    The next two are sums over all rows. A message counts in the outermost dimension that it crosses. joins: links of a
    tree over all members, built row by row, that cross this dimension. pairs: ordered pairs of members that cross it.
    """

    dimension: int
    members: int
    least: int
    spacing: int
    wraps: bool
    joins: int
    pairs: int


@dataclass(frozen=True)
class Placement:
    """A group in a network. spans: the dimensions along which members have different places, innermost first.

    uniform: every row of a dimension has the same number of members, so that the product of the spans is the group's
    size. Otherwise costs take the slowest case: every step crosses the outermost dimension, and has the fewest links.
    ring: in the network of a simulator, the members of a group that is no grid, in the order of `ring_order`, as places
    from the first one of their row of the outermost dimension. Empty for a grid.
    """

    members: int
    spans: tuple[DimensionSpan, ...]
    uniform: bool
    ring: tuple[int, ...] = ()


def place(ranks: Sequence[int], sizes: Sequence[int], *, simulated: bool = False) -> Placement:
    """The placement of a group in a network with dimensions of these sizes, innermost first. The ranks ascend.

    simulated: the network is that of a simulator, which sends over the innermost dimension in which two ranks differ.

    UsageError for ranks that do not ascend, or that have no place in the network.
    """
    if not ranks or any(before >= after for before, after in pairwise(ranks)) or ranks[0] < 0:
        raise UsageError("a group needs at least one rank, and its ranks must ascend from 0 or more")
    if ranks[-1] >= math.prod(sizes):
        raise UsageError(f"a network with {' x '.join(map(str, sizes))} accelerators has no place for rank {ranks[-1]}")
    spans, uniform = [], True
    occupied = dict.fromkeys(ranks, 1)  # members at each place
    for dimension, size in enumerate(sizes):
        rows: dict[int, list[int]] = {}
        inside: dict[int, int] = {}
        for each, members in occupied.items():
            rows.setdefault(each // size, []).append(each % size)
            inside[each // size] = inside.get(each // size, 0) + members
        counts = {len(row) for row in rows.values()}
        uniform = uniform and len(counts) == 1
        if max(counts) > 1:
            spacing, wraps = _spacing(list(rows.values()), size)
            joins = len(occupied) - len(rows)
            pairs = _square(inside.values()) - _square(occupied.values())
            spans.append(DimensionSpan(dimension, max(counts), min(counts), spacing, wraps, joins, pairs))
        occupied = inside
    ring = _ring(ranks, sizes, uniform) if simulated else ()
    return Placement(len(ranks), tuple(spans), uniform, ring)


def _ring(ranks: Sequence[int], sizes: Sequence[int], uniform: bool) -> tuple[int, ...]:
    """The ring of a group that is no grid, in which a step may change the places in several dimensions."""
    order = ring_order(ranks, sizes)
    if uniform and all(len(differences(one, other, sizes)) == 1 for one, other in pairwise(order)):
        return ()
    first = min(order) // math.prod(sizes[:-1]) * math.prod(sizes[:-1])
    return tuple(each - first for each in order)


def _square(members: Iterable[int]) -> int:
    return sum(each * each for each in members)


def _spacing(rows: Sequence[Sequence[int]], size: int) -> tuple[int, bool]:
    gaps = [after - before for row in rows for before, after in pairwise(row)]
    around = {size - row[-1] + row[0] for row in rows}
    return max(gaps), len({*gaps, *around}) == 1


def crossed(source: int, target: int, sizes: Sequence[int], *, innermost: bool = False) -> tuple[int, int]:
    """The outermost dimension in which two ranks have different places, and their distance along it (1: neighbours).

    innermost: the innermost one instead, as messages of a simulator go.

    source, target: the ranks. sizes: places of each dimension of the network, innermost first. UsageError for a message
    of a rank to itself, and for ranks that have no place in the network.
    """
    if source == target or min(source, target) < 0:
        raise UsageError(f"rank {source} sends a message to rank {target}: sender and receiver must differ")
    if max(source, target) >= math.prod(sizes):
        raise UsageError(
            f"a network with {' x '.join(map(str, sizes))} accelerators has no place for rank {max(source, target)}"
        )
    return differences(source, target, sizes)[0 if innermost else -1]


def differences(source: int, target: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Dimensions in which two ranks have different places, innermost first, each with their distance along it.

    source, target: ranks. sizes: places of each dimension, innermost first.
    """
    found = []
    for dimension, size in enumerate(sizes):
        if source % size != target % size:
            found.append((dimension, abs(source % size - target % size)))
        source, target = source // size, target // size
    return found


# A group of ranks on the network dimensions that it spans. Collective algorithms compute their times from it.


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
