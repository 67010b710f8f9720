"""How a rank spends a window of time: computing, communicating while nothing computes, waiting."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.runs.rank_trace import Integers


@dataclass(frozen=True)
class RankTime:
    """Times of one rank in ns, which add up to the window.

    busy: at least one op computes or copies. copying: part of it, in which none computes. exposed: a collective runs,
    and nothing else. bubble: only messages to or from other ranks run. idle: nothing runs. communication: collectives
    and messages, hidden or not.
    """

    busy: int
    copying: int
    exposed: int
    bubble: int
    idle: int
    communication: int


def union(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Spans that cover the same time and do not touch each other, in order. start, end: of the given spans [ns]."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    if not len(start):
        return start, end
    furthest = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > furthest[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return start[opens], furthest[closes]


def covered(start: Integers, end: Integers, spans: tuple[Integers, Integers]) -> Integers:
    """For each span, for how much of its time one of `spans` runs [ns].

    start, end: each span's [ns]. spans: a union, as `union` returns it.
    """
    first, last = spans
    if not len(first):
        return np.zeros(len(start), np.int64)
    before = np.concatenate(([0], np.cumsum(last - first)))

    def until(moment: Integers) -> Integers:
        at = np.searchsorted(first, moment, side="right")
        inside = np.where(at > 0, np.minimum(moment, last[np.maximum(at - 1, 0)]) - first[np.maximum(at - 1, 0)], 0)
        return before[np.maximum(at - 1, 0)] + np.maximum(inside, 0)

    return until(end) - until(start)


def without(spans: tuple[Integers, Integers], others: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """The parts of spans in which none of the others runs, in order. spans, others: unions, as `union` returns them."""
    if not len(others[0]):
        return spans
    # Between the others it is free: before the first one, and after each of them.
    free = np.concatenate((spans[0][:1], others[1])), np.concatenate((others[0], spans[1][-1:]))
    first = np.searchsorted(free[1], spans[0], side="right")
    count = np.maximum(np.searchsorted(free[0], spans[1], side="left") - first, 0)
    of = np.repeat(np.arange(len(count)), count)
    at = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + first[of]
    start, end = np.maximum(spans[0][of], free[0][at]), np.minimum(spans[1][of], free[1][at])
    return start[end > start], end[end > start]


def length(spans: tuple[Integers, Integers]) -> int:
    """ns that a union of spans covers."""
    return int((spans[1] - spans[0]).sum())


def time_of(start: Integers, end: Integers, types: Sequence[str], window: int) -> RankTime:
    """The times of a rank.

    start, end: each op's [ns]. types: what each op is: compute, copy, collective, send or recv. window: the length of
    the run in ns.
    """
    numbers = {name: number for number, name in enumerate({*types})}
    column = np.fromiter(map(numbers.__getitem__, types), np.int8, len(types))

    def of(*chosen: str) -> int:
        which = np.isin(column, [numbers[name] for name in chosen if name in numbers])
        return length(union(start[which], end[which]))

    compute, own = of("compute"), of("compute", "copy")
    local, every = of("compute", "copy", "collective"), length(union(start, end))
    communication = of("collective", "send", "recv")
    return RankTime(own, own - compute, local - own, every - local, window - every, communication)


def exposed_of(start: Integers, end: Integers, communicates: "npt.NDArray[np.bool_]") -> Integers:
    """For each op the time in which it communicates and nothing is computed; 0 for what computes.

    start, end: each op's [ns]. communicates: which ops do, as booleans.
    """
    compute = union(start[~communicates], end[~communicates])
    return np.where(communicates, (end - start) - covered(start, end, compute), 0)
