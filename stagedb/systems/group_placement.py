"""Where the ranks of a group stand in a network: which dimensions they span, and how many lie along each.

Rank r stands at place r of the network; places count like digits, the innermost dimension first.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stagedb.errors import UsageError


@dataclass(frozen=True)
class Along:
    """The members of a group along one dimension: in each of its rows that has some, where rows are alike.

    dimension: its index, 0 the innermost. members: in the row that has most, least: in the one that has fewest.
    spacing: places from one member to the next, the widest gap where they differ. wraps: evenly spaced, and the last
    member is as far from the first as from the one before it, so that they close a ring.

    Of all rows together, where messages are counted in the outermost dimension that they cross: joins: how many of the
    links of a tree over all members, built row by row, cross this one. pairs: how many ordered pairs of members do.
    """

    dimension: int
    members: int
    least: int
    spacing: int
    wraps: bool
    joins: int
    pairs: int


@dataclass(frozen=True)
class Placement:
    """A group in a network. spans: innermost first, dimensions along which all members stand at one place left out.

    uniform: every row of a dimension has as many members, so that the product of the spans is the group. Where not,
    costs take what is slowest: every step crosses the outermost dimension, and shares its links with the fewest.
    """

    members: int
    spans: tuple[Along, ...]
    uniform: bool


def place(ranks: Sequence[int], sizes: Sequence[int]) -> Placement:
    """The placement of a group, ranks ascending, in a network with dimensions of these sizes, innermost first.

    UsageError for ranks that do not ascend, or that the network has no place for.
    """
    if not ranks or any(before >= after for before, after in pairwise(ranks)) or ranks[0] < 0:
        raise UsageError("the ranks of a group are at least one, ascending, from 0")
    if ranks[-1] >= math.prod(sizes):
        raise UsageError(f"a network of {' x '.join(map(str, sizes))} accelerators has no place for rank {ranks[-1]}")
    spans, uniform = [], True
    standing = dict.fromkeys(ranks, 1)  # members that stand at a place
    for dimension, size in enumerate(sizes):
        rows: dict[int, list[int]] = {}
        inside: dict[int, int] = {}
        for each, members in standing.items():
            rows.setdefault(each // size, []).append(each % size)
            inside[each // size] = inside.get(each // size, 0) + members
        counts = {len(row) for row in rows.values()}
        uniform = uniform and len(counts) == 1
        if max(counts) > 1:
            spacing, wraps = _spacing(list(rows.values()), size)
            joins = len(standing) - len(rows)
            pairs = _square(inside.values()) - _square(standing.values())
            spans.append(Along(dimension, max(counts), min(counts), spacing, wraps, joins, pairs))
        standing = inside
    return Placement(len(ranks), tuple(spans), uniform)


def _square(members: Iterable[int]) -> int:
    return sum(each * each for each in members)


def _spacing(rows: Sequence[Sequence[int]], size: int) -> tuple[int, bool]:
    gaps = [after - before for row in rows for before, after in pairwise(row)]
    around = {size - row[-1] + row[0] for row in rows}
    return max(gaps), len({*gaps, *around}) == 1


def crossed(source: int, target: int, sizes: Sequence[int]) -> tuple[int, int]:
    """The outermost dimension that a message between two ranks crosses, and how many places apart they are along it.

    UsageError for a message of a rank to itself, and for ranks that the network has no place for.
    """
    if source == target or min(source, target) < 0:
        raise UsageError(f"rank {source} sends to rank {target}: a message has two ends")
    if max(source, target) >= math.prod(sizes):
        raise UsageError(
            f"a network of {' x '.join(map(str, sizes))} accelerators has no place for rank {max(source, target)}"
        )
    found = (0, 0)
    for dimension, size in enumerate(sizes):
        if source % size != target % size:
            found = (dimension, abs(source % size - target % size))
        source, target = source // size, target // size
    return found
