"""The simulated network: the degrees of a mesh as levels on the links of the system."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagedb.systems.system import Dimension, System

SIMULATED_GB = Fraction(1 << 30, 10**9)
"""Decimal GB of one GB of the simulator's network, which counts 2^30 bytes."""


@dataclass(frozen=True)
class Level:
    """A dimension of the simulated network: the members of a row that share the links of the system's dimension."""

    size: int
    links: "Dimension"

    @property
    def rate(self) -> Fraction:
        """GB/s of one link in one direction."""
        # In a mesh of links one leads to each other accelerator; a ring has two, one in each direction.
        links = {"switch": 1, "fully-connected": max((self.links.size or 1) - 1, 1), "ring": 2}[self.links.kind]
        return Fraction(self.links.bandwidth) / links

    @property
    def latency(self) -> Fraction:
        """ns of one link; a way through a switch has two."""
        return self.links.latency / (2 if self.links.kind == "switch" else 1)


def levels(degrees: Sequence[int], system: "System") -> tuple[Level, ...]:
    """The simulated network, innermost first: each level has more than one member, all together are the world.

    A degree of the mesh that reaches beyond a network dimension is cut there. If the cut gives no whole number, the
    whole degree has the links of the outer dimension. Neighbouring parts on the same links are one level: two levels
    would each have the whole bandwidth of these links. UsageError if the network has no place for the mesh.
    """
    network = system.network(math.prod(degrees))
    if network[0].simulated:
        # This network has exactly as many places as the job has ranks.
        return tuple(Level(each.places, each) for each in network if each.places > 1) or (Level(1, network[0]),)
    merged: list[Level] = []
    for part in _parts(degrees, network):
        if merged and merged[-1].links == part.links:
            part = Level(merged.pop().size * part.size, part.links)
        merged.append(part)
    return tuple(merged) or (Level(1, network[0]),)


def _parts(degrees: Sequence[int], network: Sequence["Dimension"]) -> list[Level]:
    """Each degree above 1 on its links, cut where they end."""
    ends = [math.prod(each.size or 1 for each in network[: at + 1]) for at in range(len(network))]
    levels, stride = [], 1
    for degree in degrees:
        left = degree
        for links, end in zip(network, ends, strict=True):
            if left > 1 and stride < end:
                inside, over = divmod(end, stride)
                if stride * left <= end:
                    levels.append(Level(left, links))
                    stride, left = stride * left, 1
                elif over == 0 and left % inside == 0:
                    levels.append(Level(inside, links))
                    stride, left = end, left // inside
    return levels
