"""The order in which a ring visits the members of a group that spans several dimensions of a network."""

import math
from collections.abc import Sequence


def ring_order(members: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """The members in reflected mixed-radix Gray order over dimensions of these sizes, innermost first.

    Members with the same place in the outer dimensions follow each other, and every other row is visited backwards. So
    neighbours in the order of a full grid differ in one dimension only, and a ring leaves a row over the outer one. In
    the ascending order, the step from one row to the next also changes the inner place: a simulator that sends over
    the innermost dimension in which two ranks differ would never use the outer one.

    Rank r has place r of the network: places count like digits, the innermost dimension first.
    """
    if not sizes:
        return tuple(sorted(members))
    *inner, _ = sizes
    width = math.prod(inner)
    rows: dict[int, list[int]] = {}
    for member in sorted(members):
        rows.setdefault(member // width, []).append(member)
    found: list[int] = []
    for at, row in enumerate(rows.values()):
        base = row[0] // width * width
        ordered = [base + each for each in ring_order([member - base for member in row], inner)]
        found += reversed(ordered) if at % 2 else ordered
    return tuple(found)
