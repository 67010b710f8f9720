"""Where the ranks of a job stand in a system's network, so far as what they send takes another time for it.

Ranks that run the same may send over other links: of a ring over two nodes, two members send from one to the other.
"""

import math
from collections.abc import Sequence

import numpy as np

from stagedb.issue.columns import COLLECTIVE, SEND, Ints, Workload
from stagedb.profile.lanes import members_of
from stagedb.systems import Dimension, System, place


def standing(workload: Workload, system: System) -> Ints:
    """A row of numbers for each rank: alike for those whose groups and neighbours stand alike in the network.

    Raises UsageError where the network has too few places for the job.
    """
    network, ranks = system.network(len(workload.ranks)), workload.ranks
    columns = [np.zeros(len(ranks), np.int64)]
    communicate = [(each.ops, each.ops.type == SEND) for each in workload.classes]
    axes = {ops.axis[op] for ops, _ in communicate for op in np.flatnonzero(ops.type == COLLECTIVE).tolist()}
    columns += [_placed(members_of(workload.groups, axis), network, len(ranks)) for axis in sorted(axes)]
    if any((sends & ~ops.rings).any() for ops, sends in communicate):
        columns += [_crossed(each, network) for each in (ranks.next, ranks.previous)]
    if any((sends & ops.rings).any() for ops, sends in communicate):
        columns += [_crossed(each, network) for each in (ranks.ring_next, ranks.ring_previous)]
    return np.stack(columns, axis=1)


def _placed(members: Ints, network: Sequence[Dimension], world: int) -> Ints:
    """For each rank a number for the placement of its group, a row of members; -1 where it has none."""
    sizes = [each.size or 1 for each in network]
    # Groups that lie further out, else alike, stand alike: few are left of many.
    inside = math.prod(sizes[:-1])
    moved = np.sort(members, axis=1)
    shapes, which = np.unique(moved - moved[:, :1] // inside * inside, axis=0, return_inverse=True)
    places = [place(tuple(np.unique(each).tolist()), sizes) for each in shapes]
    number = {each: at for at, each in enumerate(dict.fromkeys(places))}
    found = np.full(world, -1, np.int64)
    found[members] = np.array([number[each] for each in places], np.int64)[which.reshape(-1)][:, None]
    return found


def _crossed(neighbour: Ints, network: Sequence[Dimension]) -> Ints:
    """For each rank the outermost dimension to its neighbour, with the links there where it is a ring; -1 to itself."""
    one, other = np.arange(len(neighbour)), neighbour
    found = np.full(len(neighbour), -1, np.int64)
    for at, dimension in enumerate(network):
        size = dimension.size or 1
        apart = np.abs(one % size - other % size)
        hops = np.minimum(apart, size - apart) if dimension.kind == "ring" else np.zeros_like(apart)
        found = np.where(apart > 0, at + len(network) * hops, found)
        one, other = one // size, other // size
    return found
