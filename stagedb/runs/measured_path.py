"""The critical path of a run through the ranks that were recorded: what, from the last op back, each op waited for.

An op waits for what ended last before it on its rank: the op before it on its stream, or one of another stream, or the
call that launched it if that came later. A collective waits for the member that begins last, and the path goes on at
that rank. So the pieces of a path are next to each other in time, and add up to the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from stagedb.runs.clocks import JointCollective
from stagedb.runs.rank_trace import NONE, Integers

START, STREAM, DEPENDENCY, LAUNCH, MEMBER, MESSAGE = "start", "stream", "dependency", "launch", "member", "message"


@dataclass(frozen=True)
class TimedOps:
    """Ops of a rank by start, in ns from the begin of the window, by the clock of the first rank.

    launched: when the call that launched each began; synchronised: the op whose end the host had waited for last before
    that; either `NONE`: unknown. by_host: whether each is an operator of a host, on whose thread the program runs.
    """

    start: Integers
    end: Integers
    stream: Integers
    launched: Integers
    synchronised: Integers
    by_host: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PathPiece:
    """A part of the path: an op of a rank, from `start` to `end` in ns, after a gap.

    reason: why it did not begin earlier. idle: ns of the gap, between what it waited for and its start; ops that are
    not on the path may run in it. launching: the part of the gap in which its launch had not begun yet.
    """

    rank: int
    op: int
    start: int
    end: int
    reason: str
    idle: int = 0
    launching: int = 0


def critical_path(ranks: Mapping[int, TimedOps], calls: Sequence[JointCollective]) -> list[PathPiece]:
    """The pieces of the path, from the begin of the window on. `idle` of a piece is before its `start`."""
    member = {(rank, place): call for call in calls if len(call.members) > 1 for rank, place in call.members.items()}
    by_end = {rank: np.argsort(ops.end, kind="stable") for rank, ops in ranks.items()}
    ends = {rank: ranks[rank].end[order] for rank, order in by_end.items()}
    rank = max(ranks, key=lambda each: (int(ends[each][-1]), -each))
    at, until = int(by_end[rank][-1]), int(ends[rank][-1])
    found: list[PathPiece] = []
    while True:
        last = _last_member(ranks, member.get((rank, at)), rank, until)
        if last is not None:
            # From the moment on at which the last member is there, its own op is the one that counts.
            other, place = last
            begin = int(ranks[other].start[place])
            found.append(PathPiece(rank, at, begin, until, _met(member[rank, at])))
            rank, at, until = other, place, begin
        begin = int(ranks[rank].start[at])
        before = _before(ranks[rank], by_end[rank], ends[rank], begin)
        found.append(_piece(ranks[rank], rank, at, until, before))
        if before is None:
            return found[::-1]
        at, until = before, int(ranks[rank].end[before])


def _piece(ops: TimedOps, rank: int, at: int, until: int, before: int | None) -> PathPiece:
    """An op from its start on, after the op that ended last before it, or after the begin of the run."""
    ready = 0 if before is None else int(ops.end[before])
    begin, launched = int(ops.start[at]), int(ops.launched[at])
    launching = 0 if launched == NONE else min(max(launched - ready, 0), begin - ready)
    if before is None:
        reason = START
    elif launching:
        reason = LAUNCH
    else:
        reason = STREAM if ops.stream[at] == ops.stream[before] else DEPENDENCY
    return PathPiece(rank, at, begin, until, reason, begin - ready, launching)


def _before(ops: TimedOps, by_end: Integers, ends: Integers, moment: int) -> int | None:
    """The op of a rank that ended last until a moment, and began before it."""
    place = int(np.searchsorted(ends, moment, side="right")) - 1
    while place >= 0 and int(ops.start[by_end[place]]) >= moment:
        place -= 1
    return None if place < 0 else int(by_end[place])


def _last_member(
    ranks: Mapping[int, TimedOps], call: JointCollective | None, rank: int, until: int
) -> tuple[int, int] | None:
    """The member that a collective waited for, if it is of another rank and began later than this one."""
    if call is None:
        return None
    own = int(ranks[rank].start[call.members[rank]])
    starts = {each: int(ranks[each].start[place]) for each, place in call.members.items()}
    other = max(starts, key=lambda each: (starts[each], each == rank, -each))
    if other == rank or not own < starts[other] < until:
        return None
    return other, call.members[other]


def _met(call: JointCollective) -> str:
    return MESSAGE if call.collective.kind in ("send", "recv") else MEMBER


def slack_of(ranks: Mapping[int, TimedOps], calls: Sequence[JointCollective], window: int) -> dict[int, Integers]:
    """For each op of each rank the least delay in ns by which the run ends later, if all else keeps its distances.

    What follows an op: the next op of its stream, and the first op of its rank that begins after its end. A member of a
    collective may be later by its wait for the last one, and from then on holds up all that follows any member.
    """
    member = {(rank, place): call for call in calls if len(call.members) > 1 for rank, place in call.members.items()}
    slack = {rank: window - ops.end for rank, ops in ranks.items()}
    following = {rank: _following(ops) for rank, ops in ranks.items()}
    starts = ((int(start), rank, place) for rank, ops in ranks.items() for place, start in enumerate(ops.start))

    def after(rank: int, place: int) -> int:
        """The least delay of the end of an op that makes the run longer."""
        ops, own = ranks[rank], window - int(ranks[rank].end[place])
        # Ops of a stream follow each other, but for errors of the recording.
        distances = (max(0, int(ops.start[each]) - int(ops.end[place])) for each in following[rank][place])
        steps = zip(distances, following[rank][place], strict=True)
        return min([own, *(distance + int(slack[rank][each]) for distance, each in steps)])

    joint: dict[int, tuple[int, int]] = {}
    for begin, rank, place in sorted(starts, reverse=True):
        call = member.get((rank, place))
        if call is None:
            slack[rank][place] = after(rank, place)
            continue
        if id(call) not in joint:
            last = max(int(ranks[each].start[at]) for each, at in call.members.items())
            joint[id(call)] = last, min(after(each, at) for each, at in call.members.items())
        last, least = joint[id(call)]
        slack[rank][place] = last - begin + least
    return slack


def _following(ops: TimedOps) -> list[tuple[int, ...]]:
    """For each op the next one of its stream, and the first one of any stream that begins after its end."""
    following: list[list[int]] = [[] for _ in range(len(ops.start))]
    for stream in np.unique(ops.stream).tolist():
        places = np.flatnonzero(ops.stream == stream).tolist()
        for place, after in pairwise(places):
            following[place].append(after)
    later = np.searchsorted(ops.start, ops.end, side="left")
    for place, after in enumerate(later.tolist()):
        if place < after < len(ops.start):
            following[place].append(after)
    return [tuple(each) for each in following]
