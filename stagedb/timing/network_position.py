"""Positions of ranks in a network, as far as time depends on them: where groups are, and which links messages cross.

Ranks of one class do the same work, but a group of neighbours is in one node for some of them and not for others.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering.columns import COLLECTIVE, SEND, Ints, Ops, Workload
from stagedb.mentions import OPTIONS, Word, shown_in
from stagedb.systems import Dimension, Placement, System, crossed, place

NEIGHBOURS = {(False, 1): "next", (False, -1): "previous", (True, 1): "ring_next", (True, -1): "ring_previous"}
"""Columns of a workload's ranks: the other end of a message, by whether it goes around a ring, and its direction."""

NOWHERE = -1
"""The value for messages that a rank's class does not send."""


def rank_positions(workload: Workload, members: Mapping[str, Ints], network: Sequence[Dimension]) -> Ints:
    """A row of numbers for each rank. Equal rows: ranks of one class whose communication crosses equal links.

    members: by axis, the ranks of its groups, a row a group. network: its dimensions, with their sizes. Raises
    UsageError if the network has no place for a rank.
    """
    ranks, sizes = workload.ranks, [each.size or 1 for each in network]
    of_class = {each.number: _sent(each.ops) for each in workload.classes}
    rows = []
    for what in sorted({what for sent in of_class.values() for what in sent}, key=str):
        senders = np.isin(ranks.number, [number for number, sent in of_class.items() if what in sent])
        if isinstance(what, str):
            crossing = _placements(members[what], sizes, len(ranks), simulated=network[0].simulated)
        else:
            crossing = _crossings(getattr(ranks, NEIGHBOURS[what]), network, sizes)
        rows.append(np.where(senders, crossing, NOWHERE))
    return np.stack(rows, axis=1) if rows else np.full((len(ranks), 1), NOWHERE)


def _sent(ops: Ops) -> set[str | tuple[bool, int]]:
    """Axes of a class's collectives, and the directions of its messages."""
    axes = {ops.axis[op] for op in np.flatnonzero(ops.type == COLLECTIVE).tolist()}
    rings, towards = ops.rings.tolist(), ops.towards.tolist()
    return axes | {(rings[op], towards[op]) for op in np.flatnonzero(ops.type == SEND).tolist()}


def _placements(rows: Ints, sizes: Sequence[int], world: int, *, simulated: bool) -> Ints:
    """For each rank the number of its group's placement."""
    rows = np.sort(rows, axis=1)
    alike, pattern = _shifted(np.concatenate([rows[:, :1], rows - rows[:, :1]], axis=1), sizes)
    numbers: dict[Placement, int] = {}
    placed = [place(np.unique(rows[at]).tolist(), sizes, simulated=simulated) for at in alike.tolist()]
    of_alike = np.array([numbers.setdefault(each, len(numbers)) for each in placed], np.int64)
    placements = np.full(world, NOWHERE, np.int64)
    placements[rows] = of_alike[pattern, None]
    return placements


def _crossings(targets: Ints, network: Sequence[Dimension], sizes: Sequence[int]) -> Ints:
    """For each rank a number for the dimension between it and its target, and the links between them on a ring."""
    sources = np.arange(len(targets))
    alike, pattern = _shifted(np.stack([sources, targets - sources], axis=1), sizes)
    numbers: dict[tuple[int, int], int] = {}
    of_alike = []
    for source, target in zip(alike.tolist(), targets[alike].tolist(), strict=True):
        if source == target:
            of_alike.append(NOWHERE)
            continue
        dimension, apart = crossed(source, target, sizes, innermost=network[0].simulated)
        links = network[dimension].hops(apart)
        of_alike.append(numbers.setdefault((dimension, links), len(numbers)))
    crossings: Ints = np.array(of_alike, np.int64)[pattern]
    return crossings


def _shifted(rows: Ints, sizes: Sequence[int]) -> tuple[Ints, Ints]:
    """Rows with equal positions: they differ only by whole places of the outermost dimension.

    rows: a rank, and the distances of others from it. Returns the index of one row of each sort, and each row's sort.
    """
    rows = rows.copy()
    rows[:, 0] %= math.prod(sizes[:-1])
    _, one, pattern = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return one, pattern.reshape(-1)


# Groups that take two domains of a network though they would fit in one, and how many accelerators avoid it.
#
# A job whose system names no number of accelerators (`network[].use`) is placed on the number that avoids it: `placed`.


@dataclass(frozen=True)
class Straddle:
    """Groups of an axis that take more than one domain of a dimension.

    groups: how many. of: all groups of the axis. places: accelerators of a domain. use: the accelerators of each domain
    with which every group of such axes is in one (`network[].use`).
    """

    axis: str
    dimension: str
    groups: int
    of: int
    places: int
    use: int

    def __str__(self) -> str:
        return shown_in(
            OPTIONS,
            f"{self.groups} of {self.of} groups of {self.axis} straddle two domains of {self.places} accelerators on "
            f"{self.dimension}: with use: {self.use} of them (network, {Word('system', 'FILE')}) each group is in one",
        )


@dataclass(frozen=True)
class JobPlacement:
    """The accelerators of each domain of a dimension on which a job is placed, where its system names no number.

    axes: those whose groups would straddle two domains if a job took all `places` of a domain.
    """

    dimension: str
    use: int
    places: int
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return shown_in(
            OPTIONS,
            f"placed on {self.use} of the {self.places} accelerators of each domain of {self.dimension}, so that no "
            f"group of {', '.join(self.axes)} straddles two (use: {self.places} in a {Word('system', 'FILE')} takes "
            "all)",
        )


def placed(workload: Workload, system: System) -> tuple[System, tuple[JobPlacement, ...]]:
    """The system with the best valid placement of a job: whole groups in a domain where they fit in one.

    A dimension with a number of its own (`use`) keeps it, and so does one of which the job needs every accelerator.
    """
    placements = []
    for level, dimension in enumerate(system.dimensions[:-1]):
        straddled = () if dimension.use else tuple(_at(workload, system.network(len(workload.ranks)), level))
        if not straddled:
            continue
        use = straddled[0].use
        wanted = tuple(replace(each, use=use) if each is dimension else each for each in system.dimensions)
        try:
            replace(system, dimensions=wanted).network(len(workload.ranks))
        except UsageError:  # too few places
            continue
        system = replace(system, dimensions=wanted)
        axes = tuple(each.axis for each in straddled)
        placements.append(JobPlacement(dimension.name, use, dimension.places, axes))
    return system, tuple(placements)


def remarks(placements: Sequence[JobPlacement], workload: Workload, system: System) -> tuple[str, ...]:
    """What a user needs to know of the places of a job's ranks: how it was placed, and what straddles none the less.

    placements: of the job, one for each dimension without a number of its own.
    """
    return (*map(str, placements), *(f"warning: {straddle}" for straddle in straddles(workload, system)))


def straddles(workload: Workload, system: System) -> tuple[Straddle, ...]:
    """The axes whose groups straddle a domain, innermost dimension first. A group that fits in none is left out."""
    network = system.network(len(workload.ranks))
    return tuple(straddle for level in range(len(network) - 1) for straddle in _at(workload, network, level))


def _at(workload: Workload, network: Sequence[Dimension], level: int) -> Iterator[Straddle]:
    """The straddles of one dimension. A domain has the places of this dimension and of those inside it."""
    inner = math.prod(each.places for each in network[:level])
    domain, dimension = inner * network[level].places, network[level]
    straddling: dict[str, tuple[int, int, int]] = {}
    for axis in sorted(set(workload.groups.axis)):
        first, last, block = _extents(workload, axis)
        if 1 < block <= domain:
            apart = int((first // domain != last // domain).sum())
            straddling[axis] = apart, len(first), block
    blocks = inner
    for block in sorted({block for _, _, block in straddling.values()}):
        together = math.lcm(blocks, block)
        blocks = together if together <= domain else blocks
    if dimension.kind != "switch":
        return
    use = domain // blocks * blocks // inner
    for axis, (apart, groups, block) in straddling.items():
        if apart and use * inner % block == 0:
            yield Straddle(axis, dimension.name, apart, groups, dimension.places, use)


def _extents(workload: Workload, axis: str) -> tuple[Ints, Ints, int]:
    """The first and last rank of each group of an axis, and the length of the blocks of ranks that groups fill."""
    groups = workload.groups
    starts = np.cumsum(groups.sizes) - groups.sizes
    chosen = np.array([each == axis for each in groups.axis], bool)
    first = np.minimum.reduceat(groups.ranks, starts)[chosen]
    last = np.maximum.reduceat(groups.ranks, starts)[chosen]
    sizes = groups.sizes[chosen]
    if sizes.max() < 2:
        return first, last, 1
    span = last - first
    return first, last, int((span + span // np.maximum(sizes - 1, 1)).max())
