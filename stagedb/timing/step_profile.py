"""An instance's step on a system, from its columns to its figures of merit: the content of a profile."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.lowering.columns import COMPUTE, Ints, Workload
from stagedb.mentions import Word
from stagedb.plans import GROUP_AXES, Plan
from stagedb.systems import Durations, System
from stagedb.timing.framework_terms import hidden, in_buckets, in_step
from stagedb.timing.host_waits import host_notes, longest_wait, with_host
from stagedb.timing.lanes import Lane, find_lanes
from stagedb.timing.network_position import JobPlacement, placed, remarks
from stagedb.timing.node_graph import NodeGraph, Reason, node_graph_of
from stagedb.timing.op_durations import JobDurations, time_ops
from stagedb.timing.time_spent import StepTimes, step_times
from stagedb.timing.timeline import Timeline, check_blocking, run_step, step_length
from stagedb.timing.whatif import Scaling, scaled
from stagedb.workflows import RECOMPUTE
from stagedb.workflows.training import STEP

# The inputs of a timed step.


@dataclass(frozen=True)
class ProfileInputs:
    """The inputs of a profile: a system, measured durations that replace the model's, scalings, and blocking axes."""

    system: System
    measured: Durations | None = None
    scalings: tuple[Scaling, ...] = ()
    blocking: tuple[str, ...] = ()


# Figures of merit of a step: tokens and FLOPs a second, and their share of the accelerators' peak.

SECOND = 10**9
"""Nanoseconds."""


@dataclass(frozen=True)
class Merit:
    """Figures of merit of a step. step: ns. tokens: in all sequences of a step. The rates are of `Plan.tokens`.

    model_flops: FLOPs of all ranks in a step, without recomputation and without the optimizer's. hardware_flops: with
    both. dtype: the format in which most FLOPs are computed, by its name in a system's file; None where there are no
    FLOPs. peak: FLOP/s of one accelerator in this format. mfu, hfu: FLOPs divided by the FLOPs that the peak of all
    accelerators gives in the step; None without a finite peak, and for a step of no time. The rates are also None for a
    step of no time, and of drafts without an acceptance.
    """

    step: int
    world: int
    tokens: int
    tokens_per_second: float | None
    tokens_per_second_per_accelerator: float | None
    model_flops: int
    hardware_flops: int
    dtype: str | None
    peak: float | None
    mfu: float | None
    hfu: float | None


def merit_of(times: StepTimes, system: System) -> Merit:
    """The figures of a step on a system."""
    workload = times.network.workload
    plan, world = Plan.from_mapping(workload.plan), len(workload.ranks)
    formats: Counter[str] = Counter()
    hardware = model = 0
    for lane, columns, spent in zip(times.network.lanes, times.network.columns, times.lanes, strict=True):
        ops = columns.ops
        for op in np.flatnonzero((ops.type == COMPUTE) & (ops.flops > 0)).tolist():
            flops = int(ops.flops[op]) * int(spent.ops.runs[op]) * lane.ranks
            hardware += flops
            model += flops if ops.phase[op] not in (RECOMPUTE, STEP.phase) else 0
            formats["fp8" if ops.dtype[op].startswith("fp8") else ops.dtype[op]] += flops
    dtype = max(sorted(formats), key=formats.__getitem__, default=None)
    peak = None if dtype is None else system.accelerator.peak.get(dtype)
    tokens, gained = plan.batch * plan.seq_len, plan.tokens
    step = times.step
    rate = None if gained is None or not step else gained * SECOND / step
    capacity = None
    if peak is not None and peak != math.inf and step:
        capacity = Fraction(peak) * 1000 * step * world  # a TFLOP/s is a thousand FLOPs a nanosecond
    return Merit(
        step=step,
        world=world,
        tokens=tokens,
        tokens_per_second=None if rate is None else float(rate),
        tokens_per_second_per_accelerator=None if rate is None else float(rate / world),
        model_flops=model,
        hardware_flops=hardware,
        dtype=dtype,
        peak=None if peak is None or peak == math.inf else float(peak) * 1e12,
        mfu=None if capacity is None else float(model / capacity),
        hfu=None if capacity is None else float(hardware / capacity),
    )


@dataclass(frozen=True)
class JobProfile:
    """A step of a workload on a system, and the inputs of its times.

    blocking: mesh axes whose communication a rank waits for. durations: ns of each lane's ops, scaled; `rule` and
    `dimension` are those of the times before scaling. times: where the time of the step goes. unscaled: ns of the step
    without the scalings; equal to the step where there are none. placements: where the system names no number of
    accelerators, the numbers on which the job is placed; `system` has them.
    """

    workload: Workload
    system: System
    measured: Durations | None
    scalings: tuple[Scaling, ...]
    blocking: tuple[str, ...]
    durations: JobDurations
    times: StepTimes
    merit: Merit
    unscaled: int
    placements: tuple[JobPlacement, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes and warnings on the places of the job's ranks, and on what they wait for."""
        waited = longest_wait(self.times.network.columns, self.durations)
        return (
            *remarks(self.placements, self.workload, self.system),
            *host_notes(waited, self.step, self.workload.plan),
        )

    @property
    def step(self) -> int:
        """Nanoseconds of the step."""
        return self.times.step

    @property
    def gain(self) -> int:
        """The ns by which the scalings shorten the step; below 0 where they lengthen it."""
        return self.unscaled - self.step


def blocking_axes(given: str | Sequence[str], system: System) -> tuple[str, ...]:
    """Mesh axes of a text such as `tp,pp`, or of their names, each once and in one order.

    given: the text or the names. Raises UsageError for an unknown axis, with the list of axes, and for a system on
    which nothing can wait. An axis on which a job has no neighbours is accepted: whether a framework waits does not
    depend on the job.
    """
    named = given.split(",") if isinstance(given, str) else given
    names = {name.strip() for name in named} - {""}
    for name in sorted(names - set(GROUP_AXES)):
        raise UsageError(
            f"unknown axis {shown(name)}: {Word('blocking')} takes axes on which ranks communicate, "
            f"{', '.join(GROUP_AXES)}"
        )
    check_blocking(names, system.overlap.compute)
    return tuple(axis for axis in GROUP_AXES if axis in names)


def timed_step(
    workload: Workload, system: System, measured: Durations | None, blocking: tuple[str, ...]
) -> tuple[JobDurations, Timeline]:
    """Durations of a workload's ops, and its step with them, on the system's best placement (`placed`).

    The errors are those of `profile_job`. measured: durations that replace those of the cost model. blocking: mesh axes
    whose communication a rank waits for.
    """
    return _timed(workload, placed(workload, system)[0], measured, blocking)


def step_of(workload: Workload, system: System, blocking: tuple[str, ...] = ()) -> int:
    """The step of `timed_step` alone [ns], for many plans: it has no timeline, and no critical path.

    blocking: mesh axes whose communication a rank waits for.
    """
    network, durations = _durations(workload, placed(workload, system)[0], None)
    return step_length(network, durations.ns, system.overlap.compute, blocking)


def step_and_waits(workload: Workload, system: System, blocking: tuple[str, ...] = ()) -> tuple[int, int]:
    """The step of `timed_step` [ns], and how much of it the rank waits that waits most for its host [ns].

    blocking: mesh axes whose communication a rank waits for.
    """
    system = placed(workload, system)[0]
    network, durations = _durations(workload, system, None)
    step = step_length(network, durations.ns, system.overlap.compute, blocking)
    return step, longest_wait(network.columns, durations)


def _timed(
    workload: Workload, system: System, measured: Durations | None, blocking: tuple[str, ...]
) -> tuple[JobDurations, Timeline]:
    network, durations = _durations(workload, system, measured)
    return durations, run_step(network, durations.ns, system.overlap.compute, blocking=blocking)


def _durations(workload: Workload, system: System, measured: Durations | None) -> tuple[NodeGraph, JobDurations]:
    network = node_graph_of(workload, system.overlap.streams, system.network(len(workload.ranks)))
    return network, _of_lanes(workload, network.lanes, system, measured)


def lane_durations(workload: Workload, system: System, count: int | None = None) -> JobDurations:
    """The durations that `step_of` has of the ops of each lane, without a step.

    count: how many lanes, from the first one; None: all.
    """
    system = placed(workload, system)[0]
    return _of_lanes(workload, find_lanes(workload, system.network(len(workload.ranks)))[:count], system, None)


def _of_lanes(workload: Workload, lanes: Sequence[Lane], system: System, measured: Durations | None) -> JobDurations:
    return as_in_step(workload, lanes, time_ops(workload, lanes, system, measured), system)


def as_in_step(workload: Workload, lanes: Sequence[Lane], alone: JobDurations, system: System) -> JobDurations:
    """The durations of ops in a step of the system's framework, from those of each op alone.

    lanes: all of them, in the order of `alone`. Measured durations stay as they are.
    """
    rank_classes = [lane.rank_class for lane in lanes]
    kernels = hidden(workload, lanes, in_step(workload, rank_classes, alone, system), system)
    return with_kernels(workload, lanes, alone, _measured_kept(alone, kernels).ns, system)


def _measured_kept(alone: JobDurations, durations: JobDurations) -> JobDurations:
    """The durations, with those that were measured as they were: a measured op already has what a step adds to it."""
    if not alone.coverage.measured_ops:
        return durations
    lanes = []
    for before, after in zip(alone.lanes, durations.lanes, strict=True):
        lanes.append(replace(after, ns=np.where(before.measured, before.ns, after.ns)))
    return replace(durations, lanes=tuple(lanes))


def with_kernels(
    workload: Workload, lanes: Sequence[Lane], durations: JobDurations, ns: Sequence[Ints], system: System
) -> JobDurations:
    """The durations with those of other kernels: what these wait for the host, and what computing hides of buckets.

    lanes: in the order of `durations`. ns: those of the kernels, one array a lane.
    """
    own = zip(durations.lanes, ns, strict=True)
    kernels = replace(durations, lanes=tuple(replace(lane, ns=took, waits=None, spared=None) for lane, took in own))
    rank_classes = [lane.rank_class for lane in lanes]
    return in_buckets(workload, rank_classes, with_host(workload, rank_classes, kernels, system), system)


def profile_job(
    workload: Workload,
    system: System,
    measured: Durations | None = None,
    scalings: Sequence[Scaling] = (),
    blocking: str | Sequence[str] = (),
) -> JobProfile:
    """Time a step of a workload: durations of its ops, a timeline of all lanes, and the figures that follow from it.

    measured: durations that replace the model's. scalings: which ops take longer or shorter, and by which factor.
    blocking: mesh axes (`tp,pp`) whose communication a rank waits for before it computes on, because its framework
    does. The job has the best placement of a system that names none. Raises UsageError if the system has no room or no
    rate for the job, if measured rows contradict each other, for a scaling that matches nothing, and for an unknown
    axis. Raises StagedbError for a step that never ends.
    """
    axes = blocking_axes(blocking, system)
    system, placements = placed(workload, system)
    durations, timeline = _timed(workload, system, measured, axes)
    unscaled = timeline.step
    if scalings:
        ns = scaled(timeline.network, durations.kernels, scalings)
        durations = with_kernels(workload, timeline.network.lanes, durations, ns, system)
        timeline = run_step(timeline.network, durations.ns, system.overlap.compute, blocking=axes)
    times = step_times(timeline, [lane.waits for lane in durations.lanes])
    merit = merit_of(times, system)
    return JobProfile(workload, system, measured, tuple(scalings), axes, durations, times, merit, unscaled, placements)


# The critical path of a profile as rows: legs, and the segments of ops that the legs consist of.
#
# Most legs of a steady pipeline run the same ops for the same time, so a segment is stored once and legs share it.

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PathRows:
    """The rows of a critical path that the statements `profile/segments` and `profile/legs` take."""

    segments: tuple[Row, ...]
    legs: tuple[Row, ...]


def path_rows(profile: str, job: JobProfile, lanes: Sequence[Mapping[str, Any]]) -> PathRows:
    """The rows of a job's critical path. lanes: by number, the properties that all rows of a lane have.

    profile: the id of the profile.
    """
    path, legs = job.times.path, job.times.path.legs()
    if not len(path):
        return PathRows((), ())
    op, length = path.op, path.length
    reasons = path.reason[legs.first].tolist()
    segments: dict[tuple[int, bytes, bytes], int] = {}
    made, places = [], []
    for number, (first, end) in enumerate(zip(legs.first, np.append(legs.first[1:], len(path)), strict=True)):
        at, ops, took = int(legs.lane[number]), op[first:end], length[first:end]
        key = (at, ops.tobytes(), took.tobytes())
        if key not in segments:
            segments[key] = len(segments)
            made.append(_segment(profile, segments[key], lanes[at], ops.tolist(), took.tolist()))
        start, finish = int(legs.start[number]), int(legs.finish[number])
        values = {"number": number, "start": start, "finish": finish, "ns": finish - start}
        places.append(
            {
                "id": f"{profile}/l{number}",
                "task": f"{profile}/{at}/t{int(legs.task[number])}",
                "segment": f"{profile}/s{segments[key]}",
                "values": {**lanes[at], **values, "reason": Reason(reasons[number]).name.lower()},
            }
        )
    return PathRows(tuple(made), tuple(places))


def _segment(profile: str, number: int, lane: Mapping[str, Any], ops: list[int], took: list[int]) -> Row:
    return {
        "id": f"{profile}/s{number}",
        "values": {**lane, "ops": len(ops), "ns": sum(took)},
        "lane": f"{profile}/{lane['lane']}",
        "ops": ops,
        "ns": took,
    }
