"""All-to-alls of uneven parts, as a simulator takes them: one size for a call, on all ranks of its group."""

from collections.abc import Sequence

import numpy as np

from stagedb.collectives import exchanges
from stagedb.lowering.columns import ClassColumns, Ints, issued_on, with_largest
from stagedb.plans.mesh import TOKEN_AXES


def with_fullest(classes: Sequence[ClassColumns]) -> tuple[ClassColumns, ...]:
    """The classes with the most that any member of a call sends or receives, as a profile times it.

    On the way to unequal experts the fullest rank receives more than any rank sends.
    """
    calls = {columns.number: _exchanges(columns) for columns in classes}
    return with_largest(classes, calls, lambda ops: np.maximum(ops.size, ops.result))


def _exchanges(columns: ClassColumns) -> Ints:
    """The all-to-alls on the axis of experts, in issue order."""
    rows = issued_on(columns.ops, TOKEN_AXES)
    exchange_rows: Ints = rows[np.array([exchanges(columns.ops.kind[row]) for row in rows.tolist()], bool)]
    return exchange_rows
