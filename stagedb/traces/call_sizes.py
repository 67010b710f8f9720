"""All-to-alls of uneven parts, as a simulator takes them: one size for a call, on all ranks of its group."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stagedb.workload.instance_columns import ClassColumns, Ints
from stagedb.workload.store_reading import issued_on


def with_fullest(classes: Sequence[ClassColumns]) -> tuple[ClassColumns, ...]:
    """The classes with the most that any member of a call sends or receives, as a profile times it.

    On the way to unequal experts the fullest rank receives more than any rank sends.
    """
    rows = {each.number: _exchanges(each) for each in classes}
    largest: dict[tuple[tuple[int, ...], int], Ints] = {}
    for each in classes:
        mine = rows[each.number]
        own = np.maximum(each.ops.size[mine], each.ops.result[mine])
        key = each.stages, len(mine)
        largest[key] = np.maximum(largest.get(key, own), own)
    found = []
    for each in classes:
        size, mine = each.ops.size.copy(), rows[each.number]
        size[mine] = largest[each.stages, len(mine)]
        found.append(replace(each, ops=replace(each.ops, size=size)))
    return tuple(found)


def _exchanges(columns: ClassColumns) -> Ints:
    """The all-to-alls on the axis of experts, in issue order."""
    rows = issued_on(columns.ops, "ep")
    found: Ints = rows[np.array([columns.ops.kind[row] == "all_to_all" for row in rows.tolist()], bool)]
    return found
