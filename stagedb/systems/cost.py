"""How long operators, collectives and messages take on a system: a model, written down in docs/systems.md.

Beside its duration stands what it puts on the wire: bytes that a rank sends into each network dimension. All is
computed in exact fractions and rounded once, half up. `Costs` remembers what was asked before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.errors import UsageError
from stagedb.systems.placement import Along, Placement, crossed, place
from stagedb.systems.system import Accelerator, Curve, Dimension, Network, System, inverse

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds of collective that have a cost."""


Wires = tuple[tuple[str, int], ...]
"""Network dimensions, innermost first, and bytes sent into each."""


@dataclass(frozen=True)
class Work:
    """An operator on one rank: FLOPs (2 a multiply-add), and bytes that it reads and writes.

    dtype: the format that it computes in, by the name of `stagedb.parallel.WIDTHS`.
    """

    kind: str
    dtype: str
    flops: int
    bytes: int


@dataclass(frozen=True)
class Message:
    """A collective. bytes of this rank: of an all-gather its input shard, of the others its whole input.

    ranks: the members, ascending.
    """

    kind: str
    bytes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """A message from one rank to another."""

    bytes: int
    source: int
    target: int


@dataclass(frozen=True)
class Timed:
    """A duration. rule: what made it: `roofline:compute`, `roofline:memory`, `ring`, `tree`, `direct`, `hierarchical`,
    `p2p` or `measured`. dimension: the slowest network dimension that it spans; None without a network.

    wires: each dimension that it crosses, innermost first, and the bytes that a rank sends into it, mean of the
    members. What is sent counts once, in the outermost dimension between its two ends.
    """

    ns: int
    rule: str
    dimension: str | None = None
    wires: Wires = ()


class Costs:
    """The costs on one system for a job of so many ranks; what was asked before is remembered.

    Raises UsageError where the system's network has too few places for the job.
    """

    def __init__(self, system: System, world: int) -> None:
        self.system = system
        self.network = system.network(world)
        self._sizes = _sizes(self.network)
        self._known: dict[Work | Transfer | tuple[str, int, Placement], Timed] = {}
        self._places: dict[tuple[int, ...], Placement] = {}

    def work(self, work: Work) -> Timed:
        """How long an operator takes."""
        if work not in self._known:
            self._known[work] = time_work(self.system.accelerator, work)
        return self._known[work]

    def message(self, message: Message) -> Timed:
        """How long a collective takes."""
        return self.placed(message.kind, message.bytes, self.placement(message.ranks))

    def placement(self, ranks: tuple[int, ...]) -> Placement:
        """Where a group stands. Many groups stand alike, and take equally long."""
        if ranks not in self._places:
            self._places[ranks] = place(ranks, self._sizes)
        return self._places[ranks]

    def placed(self, kind: str, size: int, placement: Placement) -> Timed:
        """How long a collective takes whose group's placement is known: for those who ask often of large groups."""
        asked = (kind, size, placement)
        if asked not in self._known:
            self._known[asked] = time_placed(self.network, kind, size, placement)
        return self._known[asked]

    def transfer(self, transfer: Transfer) -> Timed:
        """How long a send takes."""
        if transfer not in self._known:
            self._known[transfer] = time_transfer(self.network, transfer)
        return self._known[transfer]


def time_work(accelerator: Accelerator, work: Work) -> Timed:
    """The longer of computing and of reading and writing, and the launch. UsageError for a dtype without a rate."""
    if work.flops < 0 or work.bytes < 0:
        raise UsageError(f"an operator of {work.flops} FLOPs and {work.bytes} bytes has no duration")
    compute = Fraction(0)
    if work.flops:
        dtype = "fp8" if work.dtype.startswith("fp8") else work.dtype
        if dtype not in accelerator.peak:
            raise UsageError(
                f"{accelerator.name} has no rate for {work.kind} in {work.dtype}: its file has accelerator.peak for "
                f"{', '.join(accelerator.peak)}; add {dtype} there, or take another dtype"
            )
        curve = accelerator.attention if work.kind.startswith("attention") else accelerator.matmul
        compute = work.flops / curve.at(work.flops) * inverse(accelerator.peak[dtype]) / 1000
    memory = work.bytes / accelerator.memory.at(max(work.bytes, 1)) * inverse(accelerator.bandwidth)
    rule = "roofline:compute" if work.flops and compute >= memory else "roofline:memory"
    return Timed(_whole(max(compute, memory) + accelerator.launch), rule)


def time_message(network: Network, message: Message) -> Timed:
    """The fastest algorithm for a collective where its ranks stand. UsageError for unknown kinds."""
    return time_placed(network, message.kind, message.bytes, place(message.ranks, _sizes(network)))


def time_placed(network: Network, kind: str, size: int, placement: Placement) -> Timed:
    """The same for a placement that is known."""
    if kind not in COLLECTIVES:
        raise UsageError(f"a collective {kind!r} has no cost: {', '.join(COLLECTIVES)} have")
    if size < 0:
        raise UsageError(f"a collective of {size} bytes has no duration")
    if not placement.spans:
        return Timed(0, "direct" if kind == "all_to_all" else "ring")
    spread = _Spread(network, placement)
    whole = Fraction(size * placement.members if kind == "all_gather" else size)
    if kind == "all_to_all":
        found = {"direct": spread.direct(whole)}
    else:
        passes = 2 if kind == "all_reduce" else 1
        # In the order in which a tie is decided.
        found = {"ring": spread.ring(whole, passes)}
        if kind == "all_reduce" and spread.has_trees:
            found["tree"] = spread.tree(whole)
        if placement.uniform and len(placement.spans) > 1:
            found["hierarchical"] = spread.hierarchical(whole, passes)
    rule = min(found, key=lambda name: found[name])
    return Timed(_whole(found[rule]), rule, spread.slowest(whole), spread.wires(whole, kind, rule))


def time_transfer(network: Network, transfer: Transfer) -> Timed:
    """Latency and bytes over the link of the outermost dimension that the two ranks cross."""
    if transfer.bytes < 0:
        raise UsageError(f"a message of {transfer.bytes} bytes has no duration")
    index, apart = crossed(transfer.source, transfer.target, _sizes(network))
    dimension = network[index]
    size = _size(dimension)
    # Of a mesh of links one is taken, and one of a ring's two.
    slower = {"switch": 1, "fully-connected": size - 1, "ring": 2 if size > 2 else 1}[dimension.kind]
    taken = transfer.bytes * slower * inverse(dimension.bandwidth) / _share(dimension.efficiency, transfer.bytes)
    wires = ((dimension.name, transfer.bytes),)
    return Timed(_whole(dimension.hops(apart) * dimension.latency + taken), "p2p", dimension.name, wires)


@dataclass(frozen=True)
class _Spread:
    """A group on the dimensions that it spans. Times are in ns; `whole` is the largest buffer of the collective."""

    network: Network
    placement: Placement

    @property
    def has_trees(self) -> bool:
        """Whether any two members reach each other in one step: not along a ring of links."""
        return all(self._dimension(each).kind != "ring" for each in self.placement.spans)

    def ring(self, whole: Fraction, passes: int) -> Fraction:
        """Rings through all members, as many beside each other as there are links out of the innermost dimensions.

        Each member sends all but one n-th of the buffer once a pass, over the dimension that is slowest at that.
        """
        n = self.placement.members
        return passes * (self._steps() + Fraction(n - 1, n) * whole * self._slowest(whole))

    def tree(self, whole: Fraction) -> Fraction:
        """Two binary trees, each for half of the buffer: up to the root and down again.

        A member sends all of its buffer up, and as much down.
        """
        spans = self.placement.spans
        if self.placement.uniform:
            steps = sum((_levels(each.members) * self._dimension(each).latency for each in spans), Fraction(0))
        else:
            steps = _levels(self.placement.members) * self._latency()
        return 2 * (steps + whole * self._slowest(whole))

    def hierarchical(self, whole: Fraction, passes: int) -> Fraction:
        """A ring along each dimension in turn: what is scattered inside is all that goes further out."""
        taken = Fraction(0)
        for each in self.placement.spans:
            sent = Fraction(each.members - 1, each.members) * whole
            dimension = self._dimension(each)
            taken += _hops(each, dimension) * dimension.latency + sent * self._inverse(each, whole)
            whole /= each.members
        return passes * taken

    def direct(self, whole: Fraction) -> Fraction:
        """Every member sends each other one its n-th at once; dimensions carry theirs beside each other."""
        n = self.placement.members
        if not self.placement.uniform:
            return self._latency() + Fraction(n - 1, n) * whole * self._inverses(whole)
        busiest, inside = Fraction(0), 1
        for each in self.placement.spans:
            dimension = self._dimension(each)
            if dimension.kind == "ring":
                # What goes further crosses it too. A link carries what members on one side of it send to the other.
                load = Fraction(each.members * each.members // 4, each.members) * whole
            else:
                load = Fraction(inside * (each.members - 1), n) * whole
            busiest = max(busiest, load * self._inverse(each, whole))
            inside *= each.members
        return self._latency() + busiest

    def slowest(self, whole: Fraction) -> str:
        """The name of the dimension over which one member sends slowest; the outer one where two are alike."""
        span = max(self.placement.spans, key=lambda each: (self._inverse(each, whole), each.dimension))
        return self._dimension(span).name

    def wires(self, whole: Fraction, kind: str, rule: str) -> Wires:
        """What a member sends into each dimension by the algorithm of a rule, mean of all members."""
        shares = self._tree_shares()
        if rule == "direct":
            shares = self._pair_shares()
        elif rule == "ring":
            shares = self._ring_shares()
        passes = 2 if kind == "all_reduce" else 1
        return tuple(
            (self._dimension(each).name, _whole(passes * share * whole))
            for each, share in zip(self.placement.spans, shares, strict=True)
        )

    def _tree_shares(self) -> list[Fraction]:
        """Of the buffer, in one pass: every link of a tree carries all of it.

        A ring along each dimension in turn sends as much: m - 1 m-ths of what the rows inside of it have left.
        """
        return [Fraction(each.joins, self.placement.members) for each in self.placement.spans]

    def _ring_shares(self) -> list[Fraction]:
        """Every link of a ring carries all but one n-th of the buffer; it is a tree's path and the way back.

        Rings beside each other leave a row from different members, and share the buffer.
        """
        n = self.placement.members
        outermost = self.placement.spans[-1]
        return [Fraction(each.joins + (each is outermost), n) * Fraction(n - 1, n) for each in self.placement.spans]

    def _pair_shares(self) -> list[Fraction]:
        """An n-th of the buffer from each member to each other one."""
        return [Fraction(each.pairs, self.placement.members**2) for each in self.placement.spans]

    def _dimension(self, along: Along) -> Dimension:
        return self.network[along.dimension]

    def _latency(self) -> Fraction:
        """Of the slowest step between two members."""
        return max(
            along.spacing * dimension.latency if dimension.kind == "ring" else dimension.latency
            for along in self.placement.spans
            for dimension in (self._dimension(along),)
        )

    def _steps(self) -> Fraction:
        """Latencies of the n - 1 steps of one pass, of which those that leave a dimension take the outer one's."""
        if not self.placement.uniform:
            return (self.placement.members - 1) * self._latency()
        rows, taken = self.placement.members, Fraction(0)
        for each in self.placement.spans:
            rows //= each.members
            dimension = self._dimension(each)
            taken += rows * _hops(each, dimension) * dimension.latency
        return taken

    def _slowest(self, whole: Fraction) -> Fraction:
        return max(self._paces(whole))

    def _paces(self, whole: Fraction) -> list[Fraction]:
        """ns a byte of each dimension, whose links all members inside of it share."""
        paces, inside = [], 1
        for each in self.placement.spans:
            paces.append(self._inverse(each, whole) / inside)
            inside *= each.least
        return paces

    def _inverses(self, whole: Fraction) -> Fraction:
        return max(self._inverse(each, whole) for each in self.placement.spans)

    def _inverse(self, along: Along, whole: Fraction) -> Fraction:
        """ns a byte of what one member can send along a dimension to the others, all links together."""
        dimension = self._dimension(along)
        pace = inverse(dimension.bandwidth) / _share(dimension.efficiency, whole)
        if dimension.kind == "fully-connected":
            # Links to those that are not of the group lie idle. A row with one member sends as along one link.
            return pace * (_size(dimension) - 1) / max(along.least - 1, 1)
        if dimension.kind == "ring":
            # Members that are apart share links with other groups; a row that does not close needs the way back.
            return pace * along.spacing * (1 if along.wraps else 2)
        return pace


def _hops(along: Along, dimension: Dimension) -> int:
    """Steps from a dimension's first member round to its last, links counted where members are apart."""
    if dimension.kind != "ring":
        return along.members - 1
    # A row that does not close comes back to its first member the whole way.
    steps = along.members - 1 if along.wraps else 2 * along.members - 3
    return steps * along.spacing


def _levels(members: int) -> int:
    """Levels of a binary tree."""
    return (members - 1).bit_length()


def _share(curve: Curve, size: Fraction | int) -> Fraction:
    return curve.at(max(size, 1))


def _size(dimension: Dimension) -> int:
    if dimension.size is None:
        raise UsageError(f"the network dimension {dimension.name} has no size: `System.network(world)` gives it one")
    return dimension.size


def _sizes(network: Sequence[Dimension]) -> list[int]:
    return [_size(each) for each in network]


def _whole(ns: Fraction) -> int:
    """Rounded, a half up."""
    return math.floor(ns + Fraction(1, 2))
