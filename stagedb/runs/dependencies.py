"""What each op of a run waited for, and the run timed again from that.

An op begins when the last of these has ended: the op before it on its stream, the op of another stream of its rank that
ended last before it, and its launch, which comes some time of the host after the op whose end the host had waited for.
A collective or message goes on when its last member has begun. What is then left until the op's start, no dependency
explains: it is a gap.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.runs.clocks import JointCollective
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.rank_trace import NONE, Integers

KINDS_OF_DEPENDENCY: Mapping[str, str] = {
    "stream": "the op before it on its stream",
    "other": "the op of another stream of its rank that ended last before it",
    "host": "its launch, or in a trace of hosts the program between two operators of a thread",
    "member": "the last member of its collective, or the other end of its message",
}
"""What an op may wait for."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Dependencies:
    """Columns of a rank, one entry an op, in its order; times in ns.

    stream, other: the op that it waited for, `NONE` if none. anchor: the op after whose end the host went on to launch
    it; `NONE`: the begin of the run. host: time of the host after that until the op could begin; `NONE`: not known.
    allowed: the moment of the run at which that was, or `NONE`. gap: what no dependency explains before its start.
    work: its own time, for a member of a collective from the moment at which the last member has begun. by_host:
    whether the op is one of a host, whose thread the program runs on.
    """

    stream: Integers
    other: Integers
    anchor: Integers
    host: Integers
    allowed: Integers
    gap: Integers
    work: Integers
    by_host: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RetimedRun:
    """A run timed again. start, end: by rank, ns of each op. step: ns until the last end."""

    start: Mapping[int, Floats]
    end: Mapping[int, Floats]
    step: float


def dependencies_of(ranks: Mapping[int, TimedOps], calls: Sequence[JointCollective]) -> dict[int, Dependencies]:
    """What the ops of each rank waited for.

    ranks: by rank, its ops with their times. calls: the collectives and messages of the run.
    """
    ready = {rank: ops.start.copy() for rank, ops in ranks.items()}
    for call in calls:
        last = max(int(ranks[rank].start[place]) for rank, place in call.members.items())
        for rank, place in call.members.items():
            ready[rank][place] = last
    return {rank: _of_rank(ops, ready[rank]) for rank, ops in ranks.items()}


def _of_rank(ops: TimedOps, ready: Integers) -> Dependencies:
    stream = np.full(len(ops.start), NONE, np.int64)
    for each in np.unique(ops.stream).tolist():
        mine = np.flatnonzero(ops.stream == each)
        stream[mine] = _ended_before(ops, mine, mine)
    every = np.arange(len(ops.start))
    last = _ended_before(ops, every, every)
    other = np.where((last == NONE) | (ops.stream[last] == ops.stream), NONE, last)
    anchor, host = _launches(ops)
    after_stream = np.where(stream == NONE, NONE, ops.end[stream])
    after_other = np.where(other == NONE, NONE, ops.end[other])
    # The thread of an operator runs the program until the operator begins, unless it was woken by another thread.
    runs = ops.by_host & (stream != NONE) & (after_stream >= after_other)
    host = np.where(runs, ops.start - after_stream, host)
    anchor = np.where(runs, stream, anchor)
    after_host = np.where(host == NONE, NONE, np.where(anchor == NONE, 0, ops.end[anchor]) + host)
    waited = np.maximum.reduce([after_stream, after_other, after_host, np.zeros(len(host), np.int64)])
    work = np.maximum(ops.end - np.maximum(ready, ops.start), 0)
    return Dependencies(stream, other, anchor, host, after_host, ops.start - waited, work, ops.by_host)


def _ended_before(ops: TimedOps, among: Integers, which: Integers) -> Integers:
    """For each of some ops the one of `among` that ended last before its start, and began before it; or `NONE`."""
    by_end = among[np.lexsort((among, ops.end[among]))]
    place = np.searchsorted(ops.end[by_end], ops.start[which], side="right") - 1
    while True:
        # An op without a duration may end where another one begins, and begin there too.
        late = (place >= 0) & (ops.start[by_end[place]] >= ops.start[which])
        if not late.any():
            return np.where(place < 0, NONE, by_end[place])
        place = np.where(late, place - 1, place)


def _launches(ops: TimedOps) -> tuple[Integers, Integers]:
    """For each op the one after whose end the host launched it, and the time from there until it could begin.

    The least time of the rank between a launch and the begin of its op is what any launch takes.
    """
    known = (ops.launched != NONE) & ~ops.by_host & (ops.launched <= ops.start)
    if not known.any():
        return np.full(len(known), NONE, np.int64), np.full(len(known), NONE, np.int64)
    least = int((ops.start - ops.launched)[known].min())
    synchronised = np.where(known, ops.synchronised, NONE)
    begin = np.where(synchronised == NONE, 0, ops.end[synchronised])
    # A launch before the end of what the host waited for has errors of the recording.
    synchronised = np.where(begin > ops.launched, NONE, synchronised)
    begin = np.where(synchronised == NONE, 0, begin)
    return synchronised, np.where(known, ops.launched - begin + least, NONE)


def retimed(
    ranks: Mapping[int, TimedOps],
    calls: Sequence[JointCollective],
    found: Mapping[int, Dependencies],
    work: Mapping[int, Floats] | None = None,
    host: Mapping[int, Floats] | None = None,
    gap: Mapping[int, Floats] | None = None,
    without: Collection[str] = (),
) -> RetimedRun:
    """Time a run again: each op begins as soon as what it waits for allows, after its gap.

    ranks: by rank, its ops with their times. calls: the collectives and messages of the run. found: by rank, what its
    ops waited for. work, host, gap: by rank, factors of each op's own time, of the time of the host before it, and of
    the gap before it. without: kinds of dependencies that are left out, of `KINDS_OF_DEPENDENCY`. Raises UsageError for
    an unknown kind.
    """
    for kind in without:
        if kind not in KINDS_OF_DEPENDENCY:
            raise UsageError(f"unknown kind of dependency {shown(kind)}: known are {', '.join(KINDS_OF_DEPENDENCY)}")
    factors = {"work": work, "host": host, "gap": gap}
    every = [
        _Retimed(rank, found[rank], {name: each[rank] for name, each in factors.items() if each is not None})
        for rank in ranks
    ]
    by_rank = {each.rank: each for each in every}
    member = {}
    if "member" not in without:
        member = {
            (rank, place): call for call in calls if len(call.members) > 1 for rank, place in call.members.items()
        }
    begun: dict[int, float] = {}
    order = sorted(
        (start, rank, place) for rank, ops in ranks.items() for place, start in enumerate(ops.start.tolist())
    )
    for _, rank, place in order:
        each = by_rank[rank]
        each.begin(place, without)
        call = member.get((rank, place))
        if call is not None:
            begun[id(call)] = max(begun.get(id(call), 0.0), each.start[place])
            if all(by_rank[other].start[at] >= 0 for other, at in call.members.items()):
                for other, at in call.members.items():
                    by_rank[other].finish(at, begun[id(call)])
        else:
            each.finish(place, each.start[place])
    ends = {each.rank: np.array(each.end) for each in every}
    return RetimedRun(
        {each.rank: np.array(each.start) for each in every}, ends, max(float(end.max()) for end in ends.values())
    )


class _Retimed:
    """A rank while its run is timed again."""

    def __init__(self, rank: int, found: Dependencies, factors: Mapping[str, Floats]) -> None:
        def scaled(name: str) -> list[float]:
            column: Integers = getattr(found, name)
            times: list[float] = (column * factors[name] if name in factors else column).tolist()
            return times

        self.rank = rank
        self.start, self.end = [-1.0] * len(found.work), [-1.0] * len(found.work)
        self.work, self.host, self.gap = scaled("work"), scaled("host"), scaled("gap")
        self.known = (found.host != NONE).tolist()
        self.stream, self.other, self.anchor = found.stream.tolist(), found.other.tolist(), found.anchor.tolist()
        self.launched: dict[int, float] = {}
        # A host launches one op after the other; an operator of a host begins on a thread of its own.
        launched = np.flatnonzero(~found.by_host & (found.host != NONE))
        self.launches: deque[int] = deque(launched[np.argsort(found.allowed[launched], kind="stable")].tolist())
        self.by_host = found.by_host.tolist()
        self.last = 0.0

    def begin(self, place: int, without: Collection[str]) -> None:
        at = 0.0
        if self.stream[place] != NONE and "stream" not in without:
            at = self._end(self.stream[place])
        if self.other[place] != NONE and "other" not in without:
            at = max(at, self._end(self.other[place]))
        if self.known[place] and "host" not in without:
            at = max(at, self._launched(place))
        self.start[place] = at + self.gap[place]

    def _launched(self, place: int) -> float:
        """When the host allows an op to begin: after its own time, and after all launches before it."""
        if self.by_host[place]:
            return self._end(self.anchor[place]) + self.host[place]
        while place not in self.launched:
            next_ = self.launches.popleft()
            anchor = self.anchor[next_]
            self.last = max(self.last, (0.0 if anchor == NONE else self._end(anchor)) + self.host[next_])
            self.launched[next_] = self.last
        return self.launched[place]

    def _end(self, place: int) -> float:
        # An op may wait for a member of a collective that not all ranks have begun: only if the recording has errors.
        return self.end[place] if self.end[place] >= 0 else self.start[place]

    def finish(self, place: int, begun: float) -> None:
        self.end[place] = max(begun, self.start[place]) + self.work[place]
