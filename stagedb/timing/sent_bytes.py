"""The bytes that a rank sends in a step: all of its collectives and messages, on any system.

A ring sends them, and no algorithm without help of the network sends fewer: `CollectiveKind` has how many messages a
member sends and how large they are. `wire_bytes_by_axis` counts the same of a stored instance, all ranks together.
"""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from stagedb.collectives import KINDS
from stagedb.lowering.columns import COLLECTIVE, SEND, ClassColumns, Workload
from stagedb.timing.op_durations import runs_of


def sent_by_member(kind: str, size: Fraction, members: int) -> Fraction:
    """Bytes that a member of a group sends in a collective.

    kind: of the collective. size: bytes that the member passes in. members: ranks of the group.
    """
    collective = KINDS[kind]
    return collective.messages(members) * collective.message(size, members)


def most_sent(workload: Workload) -> int:
    """Bytes that the rank that sends most sends in a step."""
    return max(sent_by_classes(workload).values(), default=0)


def sent_by_classes(workload: Workload) -> dict[int, int]:
    """Bytes that each rank of a class sends in a step, by the number of the class. Parts of a byte are left out."""
    return {columns.number: int(sum(sent_of_ops(workload, columns).values())) for columns in workload.classes}


def sent_of_ops(workload: Workload, columns: ClassColumns) -> dict[int, Fraction]:
    """Bytes that a rank of a class sends in a step, by the collective or message: its row among the ops."""
    ops, members, runs = columns.ops, members_of(workload, columns), runs_of(columns)
    sent = {}
    for row in np.flatnonzero((ops.type == COLLECTIVE) | (ops.type == SEND)).tolist():
        size = Fraction(int(ops.operand[row]))
        if int(ops.type[row]) == COLLECTIVE:
            size = sent_by_member(ops.kind[row], size, members[ops.axis[row]])
        sent[row] = runs[row] * size
    return sent


def members_of(workload: Workload, columns: ClassColumns) -> Mapping[str, int]:
    """The number of ranks in the groups of a class, by axis."""
    rank, world = int(np.flatnonzero(workload.ranks.number == columns.number)[0]), len(workload.ranks)
    sizes = dict(zip(workload.groups.gid.tolist(), workload.groups.sizes.tolist(), strict=True))
    groups = {axis: int(workload.groups.of_axis(axis, world)[rank]) for axis in sorted(set(workload.groups.axis))}
    return {axis: sizes.get(group, 1) for axis, group in groups.items()}
