"""A run as the store has it: what views, exports and what-ifs of a run are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from stagedb.runs.clocks import JointCollective
from stagedb.runs.dependencies import Dependencies, dependencies_of
from stagedb.runs.measured_path import PathPieces, TimedOps, critical_path


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
