"""What the ranks of an instance communicate in a step, in so few rows that a manifest can hold them."""

import numpy as np

from stagedb.lowering.columns import CACHES, COLLECTIVE, RING_AXES, SEND, ClassColumns, Workload
from stagedb.traces.simulators import MESSAGE, Traffic

_Key = tuple[str, str, int, int]
"""Kind, axis, direction of a message (of one with caches the place of the other end), bytes."""


def traffic_of(workload: Workload) -> tuple[Traffic, ...]:
    """Each size of each kind of collective and message, where the class that runs it most often runs it.

    The row names the group, or the two ends, of the first rank of that class.
    """
    most: dict[_Key, tuple[int, int]] = {}
    for columns in workload.classes:
        rank = int(np.flatnonzero(workload.ranks.number == columns.number)[0])
        for key, count in _counts(columns).items():
            if count > most.get(key, (0, 0))[0]:
                most[key] = count, rank
    world = len(workload.ranks)
    groups = {axis: workload.groups.of_axis(axis, world) for axis in sorted(set(workload.groups.axis))}
    sent = []
    for (kind, axis, towards, size), (count, rank) in sorted(most.items()):
        if kind != MESSAGE:
            sent.append(Traffic(kind, size, count, group=str(int(groups[axis][rank]))))
            continue
        names = ("ring_previous", "ring_next") if axis in RING_AXES else ("previous", "next")
        ends = workload.ranks.others[:, towards] if axis == CACHES else getattr(workload.ranks, names[towards > 0])
        target = int(ends[rank])
        sent.append(Traffic(MESSAGE, size, count, ends=(rank, target)))
    return tuple(sent)


def _counts(columns: ClassColumns) -> dict[_Key, int]:
    """How often a rank of the class runs each."""
    # Most of what an export needs starts sooner without this module.
    from stagedb.timing.op_durations import runs_of

    ops, counts = columns.ops, dict[_Key, int]()
    runs, towards = runs_of(columns), np.where(ops.handed, ops.peer, ops.towards)
    for op in np.flatnonzero((ops.type == COLLECTIVE) | (ops.type == SEND)).tolist():
        sends = int(ops.type[op]) == SEND
        key = (MESSAGE if sends else ops.kind[op], ops.axis[op], int(towards[op]) * sends, int(ops.size[op]))
        counts[key] = counts.get(key, 0) + runs[op]
    return {key: count for key, count in counts.items() if count}
