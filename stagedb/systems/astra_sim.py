"""Collectives by the rules of ASTRA-sim with its analytical network without congestion. docs/systems.md has the rules.

Source: the published simulator (github.com/astra-sim/astra-sim, 518bd51) and its analytical network. A group of all
ranks runs the algorithm of each network dimension, in parts that are pipelined over the dimensions. Any other group
is one ring over its list of ranks. Nothing slows a message down but its own link.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, permutations

from stagedb.collectives import CollectiveKind
from stagedb.systems.group_placement import DimensionSpan, Placement, Spread, differences, ring_order
from stagedb.systems.system import Network

ENDPOINT_OF_ALL, ENDPOINT_OF_SOME = 1, 10
"""ns between the arrival of a message and the next send: the `endpoint-delay` that `export` writes for groups of all
ranks, and the simulator's constant for others."""

REDUCED = 3
"""A member reads two values and writes one of each element that it reduces."""

Link = tuple[int, int]
"""The index of a network dimension, and the links of it on the way from one member to the next."""


@dataclass(frozen=True)
class Phase:
    """What one part of a collective does in one dimension of the network.

    along: members along the dimension. kind: the collective that runs there. data: bytes that a rank holds before it.
    """

    along: DimensionSpan
    kind: CollectiveKind
    data: Fraction


@dataclass(frozen=True)
class SimulatedCollective:
    """A collective on a simulated network. memory: ns a byte of the accelerator's memory. Times are in ns.

    size: bytes that a rank passes in. placement: of a group that spans a dimension. parts: the number in the
    simulator's settings; it makes one more part of what division leaves.
    """

    network: Network
    memory: Fraction
    kind: CollectiveKind
    size: int
    placement: Placement
    parts: int

    @property
    def whole(self) -> Fraction:
        """Bytes of the collective's largest buffer, from which efficiencies of messages follow."""
        return Fraction(self.kind.whole(self.size, self.placement.members))

    @property
    def rule(self) -> str:
        """The name of the algorithm: `ring`, `direct`, or `hierarchical`."""
        if self._by_dimension and len(self.placement.spans) > 1 and not self.kind.exchanges:
            return "hierarchical"
        return "direct" if self.kind.exchanges or at_once(self.network) else "ring"

    def time(self) -> Fraction:
        """ns until the last member has the result."""
        part, count = self._cut
        if self._by_dimension:
            stages = [(each.along.dimension, self._phase(each)) for each in self._phases(part)]
            return in_turn(stages, count)
        return count * self._phase(Phase(self.placement.spans[0], self.kind, part))

    def sent(self) -> Mapping[int, Fraction]:
        """Bytes that a rank sends into each dimension, the mean of the members."""
        part, count = self._cut
        found: dict[int, Fraction] = defaultdict(Fraction)
        if self._by_dimension:
            for each in self._phases(part):
                n = each.along.members
                sent = each.kind.messages(n) * each.kind.message(each.data, n)
                found[each.along.dimension] += count * sent
            return found
        n = self.placement.members
        sent = count * self.kind.messages(n) * self.kind.message(part, n)
        links = Counter(dimension for dimension, _ in self._links)
        if self.kind.exchanges:
            links = self._pairs
        return {dimension: sent * Fraction(times, links.total()) for dimension, times in links.items()}

    @property
    def _cut(self) -> tuple[Fraction, int]:
        """Bytes of a part, and the number of parts."""
        world, part = math.prod(each.places for each in self.network), self.size // self.parts
        if not self.kind.gathers and part < world:
            return Fraction(world), self.parts
        return (Fraction(part), -(-self.size // part)) if part else (Fraction(self.size), 1)

    @cached_property
    def _by_dimension(self) -> bool:
        """Whether it runs the algorithm of each dimension: a group of all ranks."""
        return self.placement.members == math.prod(each.places for each in self.network)

    def _phases(self, data: Fraction) -> list[Phase]:
        """The phases of a part in order."""
        spans = self.placement.spans
        steps = self.kind.steps([each.members for each in spans], data)
        return [Phase(spans[at], kind, size) for kind, at, size in steps]

    def _phase(self, phase: Phase) -> Fraction:
        """ns of a part in a phase."""
        links = self._links if not self._by_dimension else _row(self.network, phase.along)
        n, kind = len(links), phase.kind
        message = kind.message(phase.data, n)
        charge = REDUCED * message * self.memory if kind.reduces else Fraction(0)
        if at_once(self.network):
            return (kind.passes + 1) * self._endpoint + kind.passes * self._link(links[0], message) + charge
        if kind.exchanges:
            return n * self._endpoint + self._exchange(phase.along, message)
        steps = kind.messages(n)
        waits = {link: self._link(link, message) for link in set(links)}
        return (steps + 1) * self._endpoint + longest([waits[link] for link in links], steps) + (n - 1) * charge

    def _exchange(self, along: DimensionSpan, message: Fraction) -> Fraction:
        """ns in which every member sends a message to one other after the other, without endpoints."""
        spans = self.placement.spans
        if self.placement.ring:
            waits = [self._link((at, 1), message) for at in range(len(self.network))]
            return one_by_one([each.places for each in self.network], waits, self.placement.ring)
        if not self._by_dimension and len(spans) > 1:
            waits = [self._link((each.dimension, 1), message) for each in spans]
            sizes = tuple(each.members for each in spans)
            return one_by_one(sizes, waits, ring_order(range(math.prod(sizes)), sizes))
        dimension, n = self.network[along.dimension], along.members
        if dimension.kind != "ring":
            return (n - 1) * self._link((along.dimension, 1), message)
        apart = [each * along.spacing for each in range(1, n)]
        hops = sum(max(dimension.hops(one), dimension.hops(n * along.spacing - one)) for one in apart)
        # A link carries what the ranks on one side send to those on the other; `export` sets the ring's bandwidth
        # accordingly.
        return hops * dimension.latency + (n * n // 4) * message * self._paces[along.dimension]

    @cached_property
    def _links(self) -> tuple[Link, ...]:
        """The links of the ring over the group's list."""
        if len(self.placement.spans) == 1 and not self.placement.ring:
            return _row(self.network, self.placement.spans[0])
        return _ring_links(self.network, self.placement)

    @property
    def _pairs(self) -> Counter[int]:
        """Ordered pairs of members by the dimension that a message between them takes."""
        if self.placement.ring:
            sizes = [each.places for each in self.network]
            return Counter(differences(*pair, sizes)[0][0] for pair in permutations(self.placement.ring, 2))
        return Counter({each.dimension: each.pairs for each in self.placement.spans})

    def _link(self, link: Link, message: Fraction) -> Fraction:
        index, hops = link
        return hops * self.network[index].latency + message * self._paces[index]

    @cached_property
    def _paces(self) -> Mapping[int, Fraction]:
        """By dimension, ns a byte of a message: over one of several links at once, or over all links to members."""
        if at_once(self.network):
            (span,) = self.placement.spans
            dimension = self.network[span.dimension]
            return {span.dimension: dimension.pace(self.whole) * (dimension.places - 1)}
        spread = Spread(self.network, self.placement)
        paces = {each.dimension: spread.pace(each, self.whole) for each in self.placement.spans}
        if self.placement.ring:
            # A step from a member to the next may also cross a dimension without a span: there, members with different
            # places differ in another dimension too.
            others = range(len(self.network))
            return {**{at: self.network[at].pace(self.whole) for at in others}, **paces}
        return paces

    @property
    def _endpoint(self) -> int:
        return ENDPOINT_OF_ALL if self._by_dimension else ENDPOINT_OF_SOME


def at_once(network: Network) -> bool:
    """Whether members send to all others at once, each over a link of its own.

    That is on a network of one dimension, a fully connected one. With several dimensions the simulator runs groups of
    some ranks as rings, which use one link at a time: `export` gives that one the bandwidth of all links to members.
    """
    used = [each for each in network if each.places > 1]
    return len(used) == 1 and used[0].kind == "fully-connected"


def _row(network: Network, along: DimensionSpan) -> tuple[Link, ...]:
    """The links of a ring through a row of one dimension, and back to its first member."""
    dimension = network[along.dimension]
    back = dimension.hops((along.members - 1) * along.spacing)
    onwards = (along.dimension, dimension.hops(along.spacing))
    return (*((onwards,) * (along.members - 1)), (along.dimension, back))


def _ring_links(network: Network, placement: Placement) -> tuple[Link, ...]:
    """The links of a ring in the order of `ring_order`."""
    spans, ring = placement.spans, placement.ring
    if ring:
        sizes = [each.places for each in network]
        steps = [differences(one, other, sizes)[0] for one, other in pairwise((*ring, ring[0]))]
        return tuple((dimension, network[dimension].hops(apart)) for dimension, apart in steps)

    def link(span: int, apart: int) -> Link:
        along = spans[span]
        return along.dimension, network[along.dimension].hops(apart * along.spacing)

    return tuple(link(*each) for each in _gray_steps(tuple(each.members for each in spans)))


@lru_cache(maxsize=256)
def _gray_steps(sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """For each member of a full grid the innermost dimension in which the next one differs, and their distance."""
    order = ring_order(range(math.prod(sizes)), sizes)
    return tuple(differences(one, other, sizes)[0] for one, other in pairwise((*order, order[0])))


def longest(links: Sequence[Fraction], steps: int) -> Fraction:
    """ns of the slowest way of a message over `steps` links of a ring, one after the other. links: ns of each link."""
    rounds, rest = divmod(steps, len(links))
    around = sum(links, Fraction(0))
    # The slowest `rest` neighbouring links are all but the fastest `left` ones: the smaller number is summed.
    left = len(links) - rest
    if left <= rest:
        return (rounds + 1) * around - min(_windows(links, left))
    return rounds * around + max(_windows(links, rest))


def _windows(links: Sequence[Fraction], width: int) -> list[Fraction]:
    """The sums of `width` links that follow each other around a ring, from each link on."""
    found = [sum(links[:width], Fraction(0))]
    for at in range(len(links) - 1):
        found.append(found[-1] - links[at] + links[(at + width) % len(links)] if width else found[-1])
    return found


def one_by_one(sizes: Sequence[int], waits: Sequence[Fraction], order: Sequence[int]) -> Fraction:
    """ns until every member of a group in a grid has a message from each other one. order: their places.

    A member sends to the next in the order of the ring, then to the one after it, each when the message before has come
    to it. waits: what a message takes in each dimension; it takes the innermost in which two members differ. sizes:
    places of each dimension of the grid, innermost first.
    """
    n, unit = len(order), math.lcm(*(each.denominator for each in waits))
    whole = [int(each * unit) for each in waits]
    places = [[rank // math.prod(sizes[:at]) % size for at, size in enumerate(sizes)] for rank in order]
    ready = [0] * n
    for apart in range(1, n):
        ready = [
            ready[at - apart]
            + next(wait for wait, one, other in zip(whole, places[at - apart], places[at], strict=True) if one != other)
            for at in range(n)
        ]
    return Fraction(max(ready), unit)


def in_turn(stages: Sequence[tuple[int, Fraction]], parts: int) -> Fraction:
    """ns until all parts have been through all stages, where a dimension has one part at a time: the first to come.

    stages: the dimension of each, and what a part takes there.
    """
    free: dict[int, Fraction] = defaultdict(Fraction)
    waiting = [(Fraction(0), part, 0) for part in range(parts)]  # when, in which order, and before which stage
    order = parts
    while waiting:
        came, _, stage = heapq.heappop(waiting)
        dimension, takes = stages[stage]
        free[dimension] = max(came, free[dimension]) + takes
        if stage + 1 < len(stages):
            heapq.heappush(waiting, (free[dimension], order, stage + 1))
            order += 1
    return max(free.values())
