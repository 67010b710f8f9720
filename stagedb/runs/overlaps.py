"""Phases of a run that run next to each other: how much of the communication of one the computing of another hides.

Schedules that pair a forward with a backward, as DualPipe does, exchange the tokens of one half while the other one
computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.runs.clocks import MESSAGES
from stagedb.runs.measured_run import covered, length, union, without
from stagedb.runs.stored_run import RunOpFacts, StoredRun
from stagedb.workflows import RECOMPUTE

Bools = npt.NDArray[np.bool_]

HALVES = ("forward", "backward")
"""The halves of a pair. What is recomputed is a part of the backward."""

LEAST = 0.05
"""Share of a run's communication that the other half hides, from which on its halves count as a pair."""


@dataclass(frozen=True)
class Half:
    """A half of a rank; times in ns. computing: it computes or copies. communicating: it communicates.

    by_other, by_own: parts of that in which the other half, or only this one, computes. exposed: no half does.
    """

    name: str
    computing: int
    communicating: int
    by_other: int
    by_own: int
    exposed: int


Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Starts and ends in ns, in order; none touches the next one."""


@dataclass(frozen=True)
class HalfSpans:
    """When a half computes or copies, when it communicates, and when it does that while no half computes."""

    name: str
    computing: Spans
    communicating: Spans
    exposed: Spans


def halves_of(run: StoredRun, rank: int) -> tuple[Half, ...]:
    """Both halves of a rank, if they overlap: if the other half hides a share of the communication. Else none."""
    return _overlapped(_spans_of(run, rank))


def half_spans(run: StoredRun, rank: int) -> tuple[HalfSpans, ...]:
    """The spans of both halves of a rank, if it has them; see `halves_of`."""
    spans = _spans_of(run, rank)
    return spans if _overlapped(spans) else ()


def _overlapped(spans: tuple[HalfSpans, ...]) -> tuple[Half, ...]:
    """Both halves with these spans, if they overlap."""
    found = tuple(_half(own, other) for own, other in zip(spans, reversed(spans), strict=True))
    communicating = sum(each.communicating for each in found)
    return found if communicating and sum(each.by_other for each in found) >= LEAST * communicating else ()


def _spans_of(run: StoredRun, rank: int) -> tuple[HalfSpans, ...]:
    ops, facts = run.timed[rank], run.lane_of[rank].ops
    talks = communicates(facts)
    of_half = [in_half(facts, half) for half in HALVES]

    def spans(which: Bools) -> Spans:
        return union(ops.start[which], ops.end[which])

    any_ = spans(np.logical_or(*of_half) & ~talks)
    found = []
    for name, own in zip(HALVES, of_half, strict=True):
        exchange = spans(own & talks)
        found.append(HalfSpans(name, spans(own & ~talks), exchange, without(exchange, any_)))
    return tuple(found)


def in_half(facts: Sequence[RunOpFacts], half: str) -> Bools:
    """For each op, whether it belongs to a half. half: name of the half.

    facts: those of the ops, in order.
    """
    phases = ("backward", RECOMPUTE) if half == "backward" else (half,)
    return np.array([each.phase in phases for each in facts], bool)


def communicates(facts: Sequence[RunOpFacts]) -> Bools:
    """Which ops are collectives or messages.

    facts: those of the ops, in order.
    """
    return np.array([each.type in ("collective", *MESSAGES) for each in facts], bool)


def _half(own: HalfSpans, other: HalfSpans) -> Half:
    whole, exposed = length(own.communicating), length(own.exposed)
    by_other = int(covered(*own.communicating, other.computing).sum())
    return Half(own.name, length(own.computing), whole, by_other, whole - by_other - exposed, exposed)
