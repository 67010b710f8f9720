"""Lanes: the ranks that keep the same time. They have one class and stage, and equal groups and neighbours.

The position in a network counts, too: the messages of a class take longer where they leave a node.

A class may serve several stages, which do the same work at different times. So the unit of timing is a lane: it is
timed once for all of its ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.lowering.columns import Groups, Ints, Workload
from stagedb.systems import Dimension
from stagedb.timing.network_position import rank_positions


@dataclass(frozen=True)
class Lane:
    """Ranks that run everything at the same time. The smallest, `rank`, represents all `ranks`.

    rank_class: the number of their class. next, previous: the lanes of the neighbouring ranks in the pipeline (around
    its ends). ring_next, ring_previous: the lanes of the neighbours on a ring of cp. members: by axis, the lanes that
    have members in its groups, itself included, in ascending order.
    """

    number: int
    rank_class: int
    stage: int
    rank: int
    ranks: int
    next: int
    previous: int
    ring_next: int
    ring_previous: int
    members: Mapping[str, tuple[int, ...]]


def find_lanes(workload: Workload, network: Sequence[Dimension] = ()) -> tuple[Lane, ...]:
    """The lanes of an instance, in the order of their first ranks.

    network: dimensions of the ranks' network, with their sizes; without any, all ranks have equal positions. Ranks of
    one class and stage are first separated by the positions of their groups and neighbours. They are separated further
    where the members of their groups or their neighbours are in different lanes. This repeats until no two ranks of a
    lane differ.
    """
    ranks, stage, members = workload.ranks, stages_of(workload), _members_by_axis(workload)
    label = _numbers(workload, network, stage, members)
    firsts = np.unique(label, return_index=True)[1]
    counts = np.bincount(label)
    lanes = []
    for number, rank in enumerate(firsts.tolist()):
        groups = {axis: _group(of_axis, rank) for axis, of_axis in members.items()}
        lanes.append(
            Lane(
                number,
                int(ranks.number[rank]),
                int(stage[rank]),
                rank,
                int(counts[number]),
                int(label[ranks.next[rank]]),
                int(label[ranks.previous[rank]]),
                int(label[ranks.ring_next[rank]]),
                int(label[ranks.ring_previous[rank]]),
                {axis: tuple(np.unique(label[group]).tolist()) for axis, group in groups.items() if len(group)},
            )
        )
    return tuple(lanes)


def lane_numbers(workload: Workload, network: Sequence[Dimension] = ()) -> Ints:
    """For every rank the number of its lane: see `find_lanes`.

    network: dimensions of the ranks' network.
    """
    return _numbers(workload, network, stages_of(workload), _members_by_axis(workload))


def _numbers(workload: Workload, network: Sequence[Dimension], stage: Ints, members: Mapping[str, Ints]) -> Ints:
    ranks = workload.ranks
    placed = [rank_positions(workload, members, network)] if network else []
    label = _dense(np.concatenate([np.stack([ranks.number, stage], axis=1), *placed], axis=1))
    while True:
        met = {axis: _met(label, each) for axis, each in members.items()}
        neighbours = [label[each] for each in (ranks.next, ranks.previous, ranks.ring_next, ranks.ring_previous)]
        finer = _dense(np.stack([label, *neighbours, *met.values()], axis=1))
        if finer.max(initial=0) == label.max(initial=0):
            break
        label = finer
    firsts = np.unique(label, return_index=True)[1]
    # Numbers in the order of their first ranks.
    numbers: Ints = np.argsort(np.argsort(firsts))[label]
    return numbers


def _members_by_axis(workload: Workload) -> dict[str, Ints]:
    return {axis: _members(workload.groups, axis) for axis in sorted(set(workload.groups.axis))}


def stages_of(workload: Workload) -> Ints:
    """Each rank's pipeline stage, from its number in the mesh."""
    axes = list(workload.plan["rank_order"])
    at = axes.index("pp")
    stride = int(np.prod(workload.degrees[:at], dtype=np.int64))
    stage: Ints = np.arange(len(workload.ranks)) // stride % workload.degrees[at]
    return stage


def _members(groups: Groups, axis: str) -> Ints:
    """The ranks of an axis's groups, a row a group. Short rows repeat their first rank."""
    chosen = np.flatnonzero(np.array([each == axis for each in groups.axis], bool))
    sizes = groups.sizes[chosen]
    column = np.arange(int(sizes.max()))
    starts = (np.cumsum(groups.sizes) - groups.sizes)[chosen]
    rows: Ints = groups.ranks[starts[:, None] + np.where(column < sizes[:, None], column, 0)]
    return rows


def _met(label: Ints, members: Ints) -> Ints:
    """For each rank a number for the set of labels in its group; -1 for a rank without a group."""
    labels = np.sort(label[members], axis=1)
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
    labels.sort(axis=1)
    groups = np.full(len(label), -1, np.int64)
    groups[members] = _dense(labels)[:, None]
    return groups


def group_of(groups: Groups, axis: str, rank: int) -> tuple[int, ...]:
    """The ranks of a rank's group on an axis, ascending."""
    return tuple(np.unique(_group(_members(groups, axis), rank)).tolist())


def _group(members: Ints, rank: int) -> Ints:
    rows = np.flatnonzero((members == rank).any(axis=1))
    return members[rows[0]] if len(rows) else np.zeros(0, np.int64)


def _dense(rows: Ints) -> Ints:
    """Equal rows have equal numbers, from 0."""
    order = np.lexsort(rows.T)
    fresh = np.zeros(len(rows), np.int64)
    fresh[1:] = (rows[order[1:]] != rows[order[:-1]]).any(axis=1)
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = np.cumsum(fresh)
    return numbers
