"""A run as the store has it, what each of its ops waited for, and the run timed again with other durations."""

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.runs.clocks import MESSAGES, JointCollective
from stagedb.runs.measured_path import PathPieces, TimedOps, critical_path
from stagedb.runs.rank_trace import NONE, Integers
from stagedb.timing.whatif import Scaling

# What each op of a run waited for, and the run timed again from that.
#
# An op begins when the last of these has ended: the op before it on its stream, the op of another stream of its rank
# that ended last before it, and its launch, which comes some time of the host after the op whose end the host had
# waited for. A collective or message goes on when its last member has begun. What is then left until the op's start, no
# dependency explains: it is a gap.

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


@dataclass(frozen=True)
class RunOpFacts:
    """What an op of a lane is, the same on all of its ranks: the properties of a `RunOp` node (docs/data-model.md).

    bytes: of a copy. message: bytes of the operand of a communication on one rank. critical: ns on the critical path.
    gradients: whether it reduces gradients of known modules. None where nothing was recorded.
    """

    name: str
    type: str
    kind: str
    phase: str
    axis: str | None
    block: str
    launcher: str | None
    shapes: str | None
    dtype: str | None
    message: int | None
    bytes: int | None
    stream: str
    step_number: int | None
    critical: int
    gradients: bool


@dataclass(frozen=True)
class LaneFacts:
    """A lane: its number, the pipeline stage of its ranks, its ranks, and its ops by start."""

    number: int
    stage: int
    members: tuple[int, ...]
    ops: tuple[RunOpFacts, ...]


@dataclass(frozen=True)
class StoredCollective:
    """A collective or message and its members' times [ns]: a `RunCollective` node (docs/data-model.md).

    joint: its members. axis: the name of the group. ready: when the last member begins. last: the rank of that member.
    waited: by all others together. group: global ranks of its group, or both of a message, ascending; empty if they
    were not recorded.
    """

    joint: JointCollective
    axis: str | None
    ready: int
    last: int
    waited: int
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredLevel:
    """Memory at a moment of the fullest step. bytes: held then. start: in ns. operator: the one that runs at a peak."""

    bytes: int
    start: int
    operator: str | None


@dataclass(frozen=True)
class StoredMemory:
    """Memory of a device, or of the host, that ranks had alike: a `RunMemory` node (docs/data-model.md).

    place: `device 0` or `host`. absolute: bytes are all that the process holds; otherwise those allocated since the
    recording began. members: the ranks. step: the profiler's number of the step with the peak. phase: of the peak.
    module: path of the module whose op the peak is for. levels: by moment of that step.
    """

    place: str
    absolute: bool
    members: tuple[int, ...]
    step: int | None
    phase: str
    module: str | None
    levels: Mapping[str, StoredLevel]


@dataclass(frozen=True)
class StoredRun:
    """A run of a store.

    id, name: of the run. tool: what recorded it. step: its length in ns. job_ranks: ranks of its job, recorded or not.
    devices: names of the accelerators. lanes: by number. timed: the ops of each recorded rank. collectives: and
    messages between recorded ranks. memory: empty if it was not recorded. has_times: without times `step`, the waits of
    collectives and what is critical are 0, and the starts and ends of `timed` are the places of ops in their order.
    """

    id: str
    name: str
    tool: str
    step: int
    job_ranks: int
    devices: tuple[str, ...]
    lanes: tuple[LaneFacts, ...]
    timed: Mapping[int, TimedOps]
    collectives: tuple[StoredCollective, ...] = field(default=())
    memory: tuple[StoredMemory, ...] = ()
    has_times: bool = True

    @cached_property
    def calls(self) -> tuple[JointCollective, ...]:
        return tuple(each.joint for each in self.collectives)

    @cached_property
    def dependencies(self) -> Mapping[int, Dependencies]:
        """What the ops of each rank waited for."""
        return dependencies_of(self.timed, self.calls)

    @cached_property
    def path(self) -> PathPieces:
        """The critical path, from the begin on."""
        return critical_path(self.timed, self.calls)

    @cached_property
    def lane_of(self) -> Mapping[int, LaneFacts]:
        """The lane of each rank."""
        return {rank: lane for lane in self.lanes for rank in lane.members}

    @cached_property
    def groups_of(self) -> Mapping[int, Mapping[int, tuple[int, ...]]]:
        """By rank and op, the ranks of the group of what it communicates, where they were recorded."""
        found: dict[int, dict[int, tuple[int, ...]]] = {rank: {} for rank in self.timed}
        for each in self.collectives:
            if each.group:
                for rank, op in each.joint.members.items():
                    found[rank][op] = each.group
        return found

    @cached_property
    def is_whole(self) -> bool:
        """Whether all ranks of the job were recorded."""
        return len(self.timed) == self.job_ranks


# What a run would have taken if some of it were faster or slower, or if ops did not wait for something.

RUN_SELECTORS: Mapping[str, str] = {
    "compute": "what computes; of a kind, such as compute:matmul",
    "copy": "copies and fills of a device",
    "collective": f"collectives; of a group or a kind, such as collective:{ALL_GATHER.name}",
    "send": "messages from and to other ranks; of a group",
    "phase": "everything of a phase, such as phase:backward",
    "stage": "everything on a pipeline stage, such as stage:3",
    "rank": "everything on a rank, with its host, such as rank:2",
    "op": "ops of this name",
    "host": "what the host does between two ops or launches; of a rank, such as host:2",
}
"""The first word of a selector and what it chooses. `phase`, `stage`, `rank` and `op` need a value after the colon."""

HELD = 1e-3
"""The share of a run below which changes make next to no difference."""

_LAUNCHES = "host"
"""The kind of dependency on launches of the host."""

_NUMBERED = ("rank", "host", "stage")
"""Selectors with a number behind the colon."""

_OWN_TYPES = {"compute": ("compute",), "copy": ("copy",), "collective": ("collective",), "send": MESSAGES}


@dataclass(frozen=True)
class RunWhatIf:
    """A run timed again. measured: its length; base: timed again as it was; step: with the changes; all in ns.

    gaps: ns by which it is shorter without the gaps that no dependency explains. held: the changes make next to no
    difference, since the host launches each op when it did: without its launches they would. launching: ns by which
    they would make it shorter in addition without its launches; 0: less than a difference that counts.
    """

    measured: int
    base: int
    step: int
    gaps: int
    held: bool = False
    launching: int = 0


_FORM = re.compile(r"[^:=]+(:[^=]+)?=[0-9]+(\.[0-9]+|/[0-9]+)?")
"""What looks like a scaling."""


def scaling_of(text: str, run: StoredRun) -> Scaling:
    """The scaling that a text names for a run. text: `WHAT[:WHICH]=FACTOR`.

    Raises UsageError, with an example that the run has.
    """
    text = text.strip()
    head, _, factor = text.partition("=")
    what = head.partition(":")[0]
    known = ", ".join(RUN_SELECTORS)
    if _FORM.fullmatch(text) is None:
        raise UsageError(
            f"{shown(text)} is no what-if: write WHAT[:WHICH]=FACTOR, such as {_example(run)}, with one of {known} "
            "and a factor of 0 or more"
        )
    if what not in RUN_SELECTORS:
        way = next((f"write {each}:{what}={factor}" for each in _choosing(run, what)), None)
        hint = way or did_you_mean(what, RUN_SELECTORS, "{}") or f"write for example {_example(run)}"
        raise UsageError(f"{shown(text)} chooses by {shown(what)}, and it must be one of {known}: {hint}")
    return Scaling.parse(text, tuple(RUN_SELECTORS))


def _example(run: StoredRun) -> str:
    """A scaling that chooses something in the run."""
    for what in ("collective", "compute"):
        words = _words(run, what)
        if words:
            return f"{what}:{words[0]}=0.5"
    return "host=0.5"


def _choosing(run: StoredRun, word: str) -> Iterator[str]:
    """The selectors under which a run has a word."""
    return (what for what in (*_OWN_TYPES, "phase", "op") if word in _words(run, what))


def what_if(run: StoredRun, scalings: Sequence[Scaling], without: Collection[str] = ()) -> RunWhatIf:
    """Time a run again. scalings: those that match an op are multiplied. without: kinds of dependencies to leave out.

    Raises UsageError for a scaling that chooses nothing, and for unknown kinds.
    """
    used: set[Scaling] = set()
    work = {rank: _factors(run, rank, scalings, used) for rank in run.timed}
    host = {rank: np.full(len(ops.start), _host_factor(rank, scalings, used)) for rank, ops in run.timed.items()}
    for each in scalings:
        if each not in used:
            raise UsageError(f"{each} chooses nothing in the run: {_there(run, each)}")
    gaps = {rank: np.zeros(len(ops.start)) for rank, ops in run.timed.items()}

    def again(
        work: Mapping[int, Floats] | None = None,
        host: Mapping[int, Floats] | None = None,
        gap: Mapping[int, Floats] | None = None,
        dropped: Collection[str] = (),
    ) -> int:
        found = retimed(run.timed, run.calls, run.dependencies, work, host, gap, dropped)
        return round(found.step)

    base = again()
    step = again(work, host, dropped=without) if scalings or without else base
    held, launching = False, 0
    if scalings and _LAUNCHES not in without:
        free = {*without, _LAUNCHES}
        saved = again(dropped=free) - again(work, host, dropped=free)
        held = abs(step - base) <= HELD * base and abs(saved) > HELD * base
        launching = more if (more := saved - max(base - step, 0)) > HELD * base else 0
    return RunWhatIf(run.step, base, step, base - again(gap=gaps), held, launching)


def _factors(run: StoredRun, rank: int, scalings: Sequence[Scaling], used: set[Scaling]) -> Floats:
    lane = run.lane_of[rank]
    found = np.ones(len(lane.ops))
    for scaling in scalings:
        if scaling.what == "host":
            continue
        if scaling.what in ("rank", "stage"):
            here = np.full(len(found), int(scaling.which or 0) == (rank if scaling.what == "rank" else lane.stage))
        else:
            here = np.array([_is_chosen(scaling, op) for op in lane.ops], bool)
        if here.any():
            used.add(scaling)
        found[here] *= float(scaling.factor)
    return found


def _is_chosen(scaling: Scaling, op: RunOpFacts) -> bool:
    if scaling.what in ("phase", "op"):
        return scaling.which == (op.phase if scaling.what == "phase" else op.name)
    return op.type in _OWN_TYPES[scaling.what] and scaling.which in (None, op.kind, op.axis)


def _host_factor(rank: int, scalings: Sequence[Scaling], used: set[Scaling]) -> float:
    found = 1.0
    for scaling in scalings:
        if scaling.what in ("host", "rank") and scaling.which in (None, str(rank)):
            used.add(scaling)
            found *= float(scaling.factor)
    return found


def _there(run: StoredRun, scaling: Scaling) -> str:
    """What a selector could choose, in words."""
    words = _words(run, scaling.what)
    first = words[:12]
    more = f" and {len(words) - len(first)} more" if len(words) > len(first) else ""
    numbers = f"{scaling.what} " if scaling.what in _NUMBERED else ""
    return f"it has {numbers}{', '.join(first) or 'none'}{more}"


def _words(run: StoredRun, what: str) -> list[str]:
    """What may be behind the colon of a selector in a run, sorted."""
    ops = [op for lane in run.lanes for op in lane.ops]
    if what in _NUMBERED:
        numbers = {lane.stage for lane in run.lanes} if what == "stage" else {*run.timed}
        return [str(each) for each in sorted(numbers)]
    if what in ("phase", "op"):
        return sorted({op.phase if what == "phase" else op.name for op in ops})
    chosen = [op for op in ops if op.type in _OWN_TYPES[what]]
    return sorted({word for op in chosen for word in (op.kind, op.axis) if word})
