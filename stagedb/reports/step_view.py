"""A step of an instance on a system, with all data of its views."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from stagedb.errors import UsageError
from stagedb.lowering.columns import COMPUTE, RECV, ClassColumns, Workload
from stagedb.memory import ClassMemory
from stagedb.mentions import Word
from stagedb.schedules import Task
from stagedb.search.trials import BatchPoint
from stagedb.systems import Accelerator, System
from stagedb.timing import JobProfile, Lane, LaneTimes, Scaling, StepTimes
from stagedb.timing.op_durations import JobDurations, computed_flops
from stagedb.timing.step_profile import Merit


@dataclass(frozen=True)
class StepView:
    """A timed step, for charts and reports.

    times: when each node runs. durations: the time of each op, and the rule that gave it. merit: figures of merit.
    memory: the memory of each rank class, if it was computed. scalings: factors on durations. blocking: axes whose
    communication a rank waits for. batches: the step with other numbers of requests, if it serves some.
    """

    times: StepTimes
    durations: JobDurations
    system: System
    merit: Merit
    memory: tuple[ClassMemory, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    blocking: tuple[str, ...] = ()
    batches: tuple[BatchPoint, ...] = ()

    @classmethod
    def of(cls, job: JobProfile, memory: tuple[ClassMemory, ...] = ()) -> Self:
        """The view of a step that was timed.

        memory: that of every rank class; empty: not computed.
        """
        return cls(job.times, job.durations, job.system, job.merit, memory, job.scalings, job.blocking)

    @property
    def workload(self) -> Workload:
        """The work that runs."""
        return self.times.network.workload

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Ranks with the same times, by pipeline stage."""
        return self.times.network.lanes

    def label(self, lane: Lane) -> str:
        """A lane in words: its stage, and its class and first rank if the stage has several lanes."""
        several = sum(each.stage == lane.stage for each in self.lanes) > 1
        alike = sum((each.stage, each.rank_class) == (lane.stage, lane.rank_class) for each in self.lanes) > 1
        more = f", class {lane.rank_class}" if several else ""
        return f"stage {lane.stage}{more}{f', rank {lane.rank}' if alike else ''}"

    def of_stages(self, stages: Sequence[int] | None) -> tuple[Lane, ...]:
        """The lanes of these stages (None: all), by stage. Raises UsageError for a stage that does not exist."""
        lanes = sorted(self.lanes, key=lambda lane: (lane.stage, lane.number))
        if stages is None:
            return tuple(lanes)
        count = lanes[-1].stage + 1
        wrong = next((each for each in stages if not 0 <= each < count), None)
        if wrong is not None or not stages:
            raise UsageError(f"there is no stage {wrong}: {Word('only')} takes stages from 0 to {count - 1}")
        return tuple(lane for lane in lanes if lane.stage in stages)


# The numbers of a report: what a step achieves, where its time goes, what it sends, and what it holds.


@dataclass(frozen=True)
class Shares:
    """Where the step of a rank goes: shares of the step from 0 to 1, means of all ranks."""

    busy: float
    exposed: float
    bubble: float
    idle: float


def shares(job: StepView) -> Shares:
    """The shares of a step."""
    whole = job.times.step * len(job.workload.ranks) or 1
    words = ("busy", "exposed", "bubble", "idle")
    spent = (sum(int(getattr(times, word)) * lane.ranks for lane, _, times in _lanes(job)) for word in words)
    return Shares(*(each / whole for each in spent))


def rate_of(accelerator: Accelerator, dtype: str) -> float:
    """Peak FLOPs a ns of a format; infinite if the accelerator has no rate for it.

    dtype: such as `bf16`.
    """
    rate = accelerator.peak.get("fp8" if dtype.startswith("fp8") else dtype, math.inf)
    return float(rate) * 1000


def _lanes(job: StepView) -> Iterator[tuple[Lane, ClassColumns, LaneTimes]]:
    yield from zip(job.lanes, job.times.network.columns, job.times.lanes, strict=True)


@dataclass(frozen=True)
class Hotspot:
    """Collectives and sends of one place in the model. calls, bytes (operands), wire (bytes that they send into the
    network): sums over all ranks in a step.

    time, exposed: ns of a rank in a step, the mean of all ranks.
    """

    axis: str
    kind: str
    place: str
    calls: int
    bytes: int
    wire: int
    time: float
    exposed: float


def hotspots(job: StepView) -> list[Hotspot]:
    """The communication of a step, the most exposed first."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for lane, columns, times in _lanes(job):
        ops, took = columns.ops, job.durations.lanes[lane.number]
        for op in np.flatnonzero((ops.type != COMPUTE) & (ops.type != RECV) & (times.ops.runs > 0)).tolist():
            key = (ops.axis[op], ops.kind[op], place_of(ops.name[op], ops.kind[op], ops.axis[op]))
            runs = int(times.ops.runs[op]) * lane.ranks
            wire = runs * sum(sent for _, sent in took.wires[op])
            more = (runs, runs * int(ops.operand[op]), wire, int(times.ops.time[op]) * lane.ranks)
            sums = found.setdefault(key, [0, 0, 0, 0, 0])
            for at, value in enumerate((*more, int(times.ops.exposed[op]) * lane.ranks)):
                sums[at] += value
    ranks = len(job.workload.ranks)
    rows = [
        Hotspot(*key, int(calls), int(size), int(wire), time / ranks, exposed / ranks)
        for key, (calls, size, wire, time, exposed) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.exposed, -row.time, row.axis, row.kind, row.place))


def place_of(name: str, kind: str, axis: str) -> str:
    """An op's place in the model, the same for all layers: its name without numbers, kind and axis."""
    parts = [part for part in name.split(".") if not part.isdecimal()]
    kept = [part for part in parts if part not in (kind, axis)]
    return ".".join(kept) or name


@dataclass(frozen=True)
class AlikeOps:
    """Operators that do the same, in all layers.

    flops: as counters have them, for all pairs of an attention's queries and keys. computed: those for the pairs that
    its mask leaves, which its kernel computes; equal to `flops` for other operators. time: ns of a rank in a step, the
    mean of all ranks; share: their part of all compute time. Waits for the host are in neither, nor in ns.
    """

    kind: str
    place: str
    dtype: str
    rule: str
    flops: int
    computed: int
    bytes: int
    ns: int
    time: float
    share: float

    @property
    def intensity(self) -> float:
        """Computed FLOPs a byte."""
        return self.computed / max(self.bytes, 1)

    @property
    def rate(self) -> float:
        """TFLOP/s that they compute."""
        return self.computed / max(self.ns, 1) / 1000

    @property
    def masked(self) -> float:
        """How many times their FLOPs those are that they compute: 1 without a mask, almost 2 with a causal one."""
        return self.flops / max(self.computed, 1) if self.flops else 1.0


def works(job: StepView) -> list[AlikeOps]:
    """The compute of a step, the longest first. Work that only moves bytes has `flops` 0."""
    found: dict[tuple[str, str, str, int, int, int, int], list[float]] = {}
    names: dict[tuple[str, str, str, int, int, int, int], str] = {}
    cp_kind = str(job.workload.plan.get("cp_kind", ""))
    for lane, columns, times in _lanes(job):
        ops, took = columns.ops, job.durations.lanes[lane.number]
        kernels = took.kernels
        for op in np.flatnonzero((ops.type == COMPUTE) & (times.ops.runs > 0)).tolist():
            key = (
                ops.kind[op],
                ops.dtype[op],
                took.rule[op],
                int(ops.flops[op]),
                computed_flops(columns, op, cp_kind),
                int(ops.bytes[op]),
                int(kernels[op]),
            )
            names.setdefault(key, place_of(ops.name[op], ops.kind[op], ops.axis[op]))
            found.setdefault(key, [0])[0] += int(times.ops.time[op]) * lane.ranks
    ranks, whole = len(job.workload.ranks), sum(sums[0] for sums in found.values()) or 1
    rows = [
        AlikeOps(kind, names[key], dtype, rule, flops, computed, size, ns, sums[0] / ranks, sums[0] / whole)
        for key, sums in found.items()
        for kind, dtype, rule, flops, computed, size, ns in (key,)
    ]
    return sorted(rows, key=lambda row: (-row.time, row.kind, row.place))


@dataclass(frozen=True)
class Held:
    """The memory of one rank of a class at its peak.

    rank_class: its number. stages: of the class. sizes: bytes by category. when: the moment of the peak, in words.
    """

    rank_class: int
    stages: tuple[int, ...]
    sizes: Mapping[str, int]
    when: str

    @property
    def total(self) -> int:
        """Bytes of all categories together."""
        return sum(self.sizes.values())


def task_words(task: Task) -> str:
    """What a task does, in words."""
    kind = task.kind
    return f"{kind.phase} {kind.words}" if kind.once else f"{kind.words} of micro-batch {task.microbatch}"


def held(job: StepView) -> list[Held]:
    """The peak of memory of each rank class."""
    found = []
    for each in job.memory:
        task, _, name = each.at(each.peak)
        sizes = {str(category): size for category, size in each.usage.at(each.peak).items()}
        found.append(Held(each.rank_class.number, tuple(each.rank_class.stages), sizes, f"{task_words(task)} ({name})"))
    return sorted(found, key=lambda each: (each.stages, each.rank_class))
