"""Positions of ranks in a network, as far as time depends on them: where groups are, and which links messages cross.

Ranks of one class do the same work, but a group of neighbours is in one node for some of them and not for others.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stagedb.lowering.columns import COLLECTIVE, SEND, Ints, Ops, Workload
from stagedb.systems import Dimension, Placement, crossed, place

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
