"""The critical path of a run through the ranks that were recorded: what, from the last op back, each op waited for.

An op waits for what ended last before it on its rank: the op before it on its stream, or one of another stream, or the
call that launched it if that came later. A collective waits for the member that begins last, and the path goes on at
that rank. So the pieces of a path are next to each other in time, and add up to the run.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stagedb.runs.clocks import JointCollective
from stagedb.runs.rank_trace import NONE, Integers, Places, parts_of, rows_at, rows_of

START, STREAM, DEPENDENCY, LAUNCH, MEMBER, MESSAGE = "start", "stream", "dependency", "launch", "member", "message"


@dataclass(frozen=True)
class TimedOps:
    """Ops of a rank by start; times in ns from the begin of the window, by the clock of the first rank.

    stream: where each ran. launched: when the call that launched it began. synchronised: the op whose end the host had
    waited for last before the launch. Both are `NONE` where they are unknown. by_host: whether it is an operator of a
    host, on whose thread the program runs.
    """

    start: Integers
    end: Integers
    stream: Places
    launched: Integers
    synchronised: Places
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


REASONS = (START, STREAM, DEPENDENCY, LAUNCH, MEMBER, MESSAGE)


@dataclass(frozen=True)
class PathPieces(Sequence[PathPiece]):
    """The pieces of a critical path as columns, one entry a piece, because the path of a large run has millions.

    rank, op: what runs. start, end: in ns. reason: places in `REASONS`. idle, launching: ns, as in `PathPiece`.
    """

    rank: Places
    op: Places
    start: Integers
    end: Integers
    reason: Places
    idle: Integers
    launching: Integers

    def __len__(self) -> int:
        return len(self.rank)

    @overload
    def __getitem__(self, at: int) -> PathPiece: ...
    @overload
    def __getitem__(self, at: slice) -> "PathPieces": ...
    def __getitem__(self, at: int | slice) -> "PathPiece | PathPieces":
        part = (self.rank, self.op, self.start, self.end, self.reason, self.idle, self.launching)
        if isinstance(at, slice):
            return PathPieces(*(column[at] for column in part))
        rank, op, start, end, reason, idle, launching = (int(column[at]) for column in part)
        return PathPiece(rank, op, start, end, REASONS[reason], idle, launching)

    def __iter__(self) -> Iterator[PathPiece]:
        columns = (self.rank, self.op, self.start, self.end, self.reason, self.idle, self.launching)
        for rank, op, start, end, reason, idle, launching in rows_of(*columns):
            yield PathPiece(rank, op, start, end, REASONS[reason], idle, launching)


def critical_path(ranks: Mapping[int, TimedOps], calls: Sequence[JointCollective]) -> PathPieces:
    """The pieces of the critical path of a run, from the begin of the window on.

    ranks: the ops of each recorded rank. calls: the collectives and messages that ranks ran together.
    """
    member = {(rank, place): call for call in calls if len(call.members) > 1 for rank, place in call.members.items()}
    before = {rank: _before(ops) for rank, ops in ranks.items()}
    # A number of a view is found faster than one of an array.
    befores, starts, ends = (
        {rank: np.ascontiguousarray(column).data for rank, column in columns.items()}
        for columns in (before, *({rank: getattr(ops, name) for rank, ops in ranks.items()} for name in _TIMES))
    )
    rank = max(ranks, key=lambda each: (int(ranks[each].end.max()), -each))
    until = int(ranks[rank].end.max())
    at = int(np.flatnonzero(ranks[rank].end == until)[-1])
    pieces = tuple(array(code) for code in "qiqqb")
    add_rank, add_op, add_start, add_end, add_reason = (column.append for column in pieces)
    while at != NONE:
        call = member.get((rank, at)) if member else None
        last = None if call is None else _last_member(ranks, call, rank, until)
        add_rank(rank)
        add_op(at)
        add_end(until)
        if call is not None and last is not None:
            # Once the last member has begun, the path goes on through that member's op.
            other, place = last
            until = starts[other][place]
            add_start(until)
            add_reason(REASONS.index(_met(call)))
            rank, at = other, place
            continue
        add_start(starts[rank][at])
        add_reason(NONE)
        at = befores[rank][at]
        until = NONE if at == NONE else ends[rank][at]
    return _explained(ranks, before, [np.frombuffer(column, column.typecode)[::-1] for column in pieces])


_TIMES = ("start", "end")


def _explained(
    ranks: Mapping[int, TimedOps], before: Mapping[int, Places], pieces: "list[npt.NDArray[Any]]"
) -> PathPieces:
    """Pieces with what each waited for, where no other member of a collective is known to be it.

    before: what `_before` returns for each rank. pieces: rank, op, start, end, and the place of the reason or `NONE`.
    """
    rank, op, start, end, reason = pieces
    idle, launching = np.zeros_like(start), np.zeros_like(start)
    for each, ops in ranks.items():
        of_rank = np.flatnonzero((rank == each) & (reason == NONE))
        for part in parts_of(len(of_rank)):
            here = of_rank[part]
            at, after = op[here], before[each][op[here]]
            ready = np.where(after == NONE, 0, ops.end[after])
            begin, launched = ops.start[at], ops.launched[at]
            idle[here] = begin - ready
            late = np.where(launched == NONE, 0, np.minimum(np.maximum(launched - ready, 0), begin - ready))
            launching[here] = late
            same = np.where(ops.stream[at] == ops.stream[after], _STREAM, _DEPENDENCY)
            reason[here] = np.where(after == NONE, _START, np.where(late > 0, _LAUNCH, same))
    return PathPieces(rank, op, start, end, reason, idle, launching)


_START, _STREAM, _DEPENDENCY, _LAUNCH = range(4)


def _before(ops: TimedOps) -> Places:
    """For each op the one of its rank that ended last until its start, and began before it; or `NONE`."""
    by_end = np.argsort(ops.end, kind="stable").astype(np.int32)
    ends = ops.end[by_end]
    # An op that ends at a moment began before it, unless it has no duration: only ops with one can precede each other.
    lasting = np.flatnonzero(ops.start[by_end] < ends)
    last = np.searchsorted(ends[lasting], ops.start, side="right") - 1
    found = np.where(last < 0, NONE, lasting[last]) if len(lasting) else np.full(len(ends), NONE)
    found = np.maximum(found, np.searchsorted(ends, ops.start, side="left") - 1)
    return np.where(found < 0, np.int32(NONE), by_end[found])


def _last_member(ranks: Mapping[int, TimedOps], call: JointCollective, rank: int, until: int) -> tuple[int, int] | None:
    """The member that a collective waited for, if it is of another rank and began later than this one."""
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
    collective may be later by its wait for the last one, and from then on holds up all that follows any member. ranks:
    by number, the times of the rank's ops. calls: the collectives, each with its op on every rank. window: ns from the
    begin of the run to its end.
    """
    first = dict(zip(ranks, np.cumsum([0, *(len(ops.start) for ops in ranks.values())]).tolist(), strict=False))
    start, end = (np.concatenate([getattr(ops, name) for ops in ranks.values()]) for name in _TIMES)
    pairs = [[np.where(of == NONE, NONE, of + first[rank]) for of in _following(ops)] for rank, ops in ranks.items()]
    following = [np.concatenate(columns) for columns in zip(*pairs, strict=True)]
    joint = np.full(len(start), NONE, np.int32)
    for number, call in enumerate(calls):
        if len(call.members) > 1:
            joint[[first[rank] + place for rank, place in call.members.items()]] = number
    slack = window - end
    late = slack.data

    def after(op: int) -> int:
        """The least delay of the end of an op that makes the run longer."""
        # Ops of a stream follow each other, but for errors of the recording.
        each = [int(of[op]) for of in following if of[op] != NONE]
        return min([window - int(end[op]), *(max(0, int(start[at] - end[op])) + late[at] for at in each)])

    # If ops begin together, those of the last rank come first, and the last places.
    order = np.argsort(start, kind="stable")[::-1].astype(np.int32)
    distances = [np.maximum(start[of] - end, 0) for of in following]
    met: dict[int, tuple[int, int]] = {}
    for op, number, one, other, to_one, to_other in rows_at(order, joint, *following, *distances):
        if number == NONE:
            least = late[op]
            if one != NONE and (one_late := to_one + late[one]) < least:
                least = one_late
            if other != NONE and (other_late := to_other + late[other]) < least:
                least = other_late
            late[op] = least
            continue
        if number not in met:
            members = [first[rank] + place for rank, place in calls[number].members.items()]
            met[number] = int(start[members].max()), min(map(after, members))
        last, least = met[number]
        late[op] = last - int(start[op]) + least
    return {rank: slack[at : at + len(ranks[rank].start)] for rank, at in first.items()}


def _following(ops: TimedOps) -> tuple[Places, Places]:
    """For each op the next one of its stream, and the first one of any stream that begins after its end, or `NONE`."""
    count = len(ops.start)
    later = np.searchsorted(ops.start, ops.end, side="left")
    places = np.arange(count)
    return next_of_stream(ops.stream), np.where((places < later) & (later < count), later, NONE).astype(np.int32)


def next_of_stream(stream: Places) -> Places:
    """For each op, by start, the next one of its stream, or `NONE`. stream: where each op ran."""
    following = np.full(len(stream), NONE, np.int32)
    order = np.argsort(stream, kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    following[order[:-1][same]] = order[1:][same]
    return following
