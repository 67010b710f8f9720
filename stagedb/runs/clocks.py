"""Collectives that ranks ran together, and the differences of the ranks' clocks that follow from them.

All members of a collective leave it together, so that the differences of their ends are those of their clocks. The
median over all that two ranks share is exact to the time in which a collective ends everywhere. No member leaves a
collective before the last one has begun it, which gives two bounds for a clock. Where ends differ by more than a tenth
of their distance, as they do where hosts communicate and share cores, the middle of both is closer.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from stagedb.runs.rank_trace import NONE, Integers, RankTrace, RecordedCollective

MESSAGES = ("send", "recv")
BARRIER = "barrier"

MEETINGS = frozenset((ALL_REDUCE.name, ALL_GATHER.name, REDUCE_SCATTER.name, ALL_TO_ALL.name, BARRIER))
"""Kinds of collectives that no member leaves before all have begun."""

SHARE = 10
"""Ends count if single collectives are closer to their median than this share of the distance of both bounds."""

TOGETHER = 1_000_000
"""Ns by which the members of collectives end at different times, at most, to count as matched by their order."""


@dataclass(frozen=True, slots=True)
class JointCollective:
    """One collective or message that several ranks ran together.

    collective: what the first member recorded. members: by rank the place of its op. by_order: whether ranks were
    matched by order alone, since nothing names the group.
    """

    collective: RecordedCollective
    members: Mapping[int, int]
    by_order: bool


def calls_of(ranks: Mapping[int, RankTrace]) -> list[JointCollective]:
    """The collectives and messages of a run, each with its members among the ranks that were recorded.

    Members have the same group and sequence number, or the same place among those of the group. Where no group is
    known, the places among those of a kind are compared, if all ranks have equally many.
    """
    keys: dict[tuple[object, ...], dict[int, int]] = defaultdict(dict)
    for rank, trace in ranks.items():
        for key, place in _keys(rank, trace):
            keys[key].setdefault(rank, place)
    matched = _matched_by_order(ranks, keys)
    found = []
    for key, members in keys.items():
        together = key[0] != "order" or key[1] in matched
        for part in (members,) if together else tuple({rank: place} for rank, place in members.items()):
            rank, place = next(iter(part.items()))
            trace = ranks[rank]
            found.append(JointCollective(trace.collectives[trace.ops.collective[place]], part, key[0] == "order"))
    return found


def _keys(rank: int, trace: RankTrace) -> list[tuple[tuple[object, ...], int]]:
    """What identifies each collective of a rank, with the place of its op."""
    seen: Counter[tuple[object, ...]] = Counter()
    found: list[tuple[tuple[object, ...], int]] = []
    for place in np.flatnonzero(trace.ops.collective != NONE).tolist():
        each = trace.collectives[trace.ops.collective[place]]
        if each.kind in MESSAGES and each.peer is not None:
            ends = (rank, _global(each)) if each.kind == "send" else (_global(each), rank)
            base: tuple[object, ...] = ("message", each.group, *ends)
        elif each.group or each.ranks:
            base = ("group", each.group, each.ranks)
            if each.sequence is not None:
                found.append(((*base, each.kind, "sequence", each.sequence), place))
                continue
        else:
            base = ("order", each.kind)
        found.append(((*base, seen[base]), place))
        seen[base] += 1
    return found


def _global(message: RecordedCollective) -> int:
    """The global rank of the other end of a message, which is recorded by its place in the group."""
    peer = message.peer or 0
    return message.ranks[peer] if peer < len(message.ranks) else peer


def ends_of(call: JointCollective) -> tuple[int, ...]:
    """Global ranks of a collective's group, or both ranks of a message; empty if they were not recorded."""
    recorded = call.collective
    if recorded.kind not in MESSAGES:
        return recorded.ranks
    if recorded.peer is None:
        return tuple(call.members) if len(call.members) == 2 else ()
    return next(iter(call.members)), _global(recorded)


def _matched_by_order(
    ranks: Mapping[int, RankTrace], keys: Mapping[tuple[object, ...], Mapping[int, int]]
) -> set[object]:
    """Kinds without groups whose members can be matched by their order: all ranks have equally many, and the members
    end together, once the clocks are taken as those of the kind itself. Without times none can."""
    differences: dict[object, list[list[int]]] = defaultdict(list)
    unequal = set()
    if any(trace.order is not None for trace in ranks.values()):
        return set()
    for key, members in keys.items():
        if key[0] != "order":
            continue
        if len(members) < len(ranks):
            unequal.add(key[1])
            continue
        ends = [int(ranks[rank].ops.end[members[rank]]) for rank in ranks]
        differences[key[1]].append([end - ends[0] for end in ends])
    found = set()
    for kind, rows in differences.items():
        table = np.array(rows, np.int64)
        # Clocks are relative to the first rank's, whose column is 0.
        spread = np.median(np.abs(table - np.median(table, axis=0)), axis=0)[1:]
        if kind not in unequal and (spread <= TOGETHER).all():
            found.add(kind)
    return found


@dataclass(frozen=True)
class Clock:
    """How far the clock of a rank is ahead of that of the first rank.

    offset: in ns. spread: the median distance of single collectives from it, in ns. collectives: how many there are;
    0: the clock is taken as it is.
    """

    offset: int
    spread: int
    collectives: int


def clocks_of(ranks: Mapping[int, RankTrace], calls: Sequence[JointCollective]) -> dict[int, Clock]:
    """The clock of each rank against that of the first one, through ranks that share collectives.

    calls: the collectives, each with its op on every rank.
    """
    first = next(iter(ranks))
    found = {first: Clock(0, 0, 0)}
    shared = [each for each in calls if len(each.members) > 1]
    while len(found) < len(ranks):
        # Ranks of one file were recorded by one clock.
        known_files = {ranks[rank].digest: clock.offset for rank, clock in found.items()}
        same = [rank for rank in ranks if rank not in found and ranks[rank].digest in known_files]
        found |= {rank: Clock(known_files[ranks[rank].digest], 0, 0) for rank in same}
        if same:
            continue
        differences: dict[int, list[int]] = defaultdict(list)
        for call in shared:
            known = [rank for rank in call.members if rank in found]
            if not known:
                continue
            reference, _ = _middle(np.array([_end(ranks, call, rank) - found[rank].offset for rank in known]))
            for rank in call.members:
                if rank not in found:
                    differences[rank].append(_end(ranks, call, rank) - reference)
        if not differences:
            found |= {rank: Clock(0, 0, 0) for rank in ranks if rank not in found}
            break
        # The rank with most collectives is the surest one to go on from.
        rank = max(differences, key=lambda each: (len(differences[each]), -each))
        found[rank] = _clock(np.array(differences[rank], np.int64), _bounds(ranks, shared, found, rank))
    return {rank: found[rank] for rank in ranks}


def _clock(differences: Integers, bounds: tuple[int, int] | None) -> Clock:
    """A clock, from the differences of ends, and from what it must be between."""
    offset, spread = _middle(differences)
    if bounds is not None and bounds[0] <= bounds[1] < bounds[0] + SHARE * spread:
        offset = sum(bounds) // 2
        spread, _ = _middle(np.abs(differences - offset))
    return Clock(offset, spread, len(differences))


def _middle(values: Integers) -> tuple[int, int]:
    """The median of values, and the median of their distances from it."""
    middle = int(np.sort(values)[len(values) // 2])
    return middle, int(np.sort(np.abs(values - middle))[len(values) // 2])


def _bounds(
    ranks: Mapping[int, RankTrace], shared: Sequence[JointCollective], found: Mapping[int, Clock], rank: int
) -> tuple[int, int] | None:
    """What the clock of a rank is ahead by at least and at most, since members meet in collectives."""
    least, most = [], []
    for call in shared:
        known = [each for each in call.members if each in found]
        if rank in call.members and known and call.collective.kind in MEETINGS:
            last = max(_start(ranks, call, each) - found[each].offset for each in known)
            first = min(_end(ranks, call, each) - found[each].offset for each in known)
            most.append(_end(ranks, call, rank) - last)
            least.append(_start(ranks, call, rank) - first)
    return (max(least), min(most)) if least else None


def _start(ranks: Mapping[int, RankTrace], call: JointCollective, rank: int) -> int:
    return int(ranks[rank].ops.start[call.members[rank]])


def _end(ranks: Mapping[int, RankTrace], call: JointCollective, rank: int) -> int:
    return int(ranks[rank].ops.end[call.members[rank]])
