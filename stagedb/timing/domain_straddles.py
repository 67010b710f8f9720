"""Groups that take two domains of a network though they would fit in one, and how many accelerators avoid it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.systems import Dimension, System
from stagedb.workload.instance_columns import Ints, Workload


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
        return (
            f"{self.groups} of {self.of} groups of {self.axis} straddle two domains of {self.places} accelerators on "
            f"{self.dimension}: with use: {self.use} of them (network, --system FILE) each group is in one"
        )


def straddles(workload: Workload, system: System) -> tuple[Straddle, ...]:
    """The axes whose groups straddle a domain, innermost dimension first. A group that fits in none is left out."""
    network = system.network(len(workload.ranks))
    return tuple(each for level in range(len(network) - 1) for each in _at(workload, network, level))


def _at(workload: Workload, network: Sequence[Dimension], level: int) -> Iterator[Straddle]:
    """The straddles of one dimension. A domain has the places of this dimension and of those inside it."""
    inner = math.prod(each.places for each in network[:level])
    domain, dimension = inner * network[level].places, network[level]
    found: dict[str, tuple[int, int, int]] = {}
    for axis in sorted(set(workload.groups.axis)):
        first, last, block = _extents(workload, axis)
        if 1 < block <= domain:
            apart = int((first // domain != last // domain).sum())
            found[axis] = apart, len(first), block
    blocks = inner
    for block in sorted({block for _, _, block in found.values()}):
        together = math.lcm(blocks, block)
        blocks = together if together <= domain else blocks
    if dimension.kind != "switch":
        return
    use = domain // blocks * blocks // inner
    for axis, (apart, groups, block) in found.items():
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
