"""Small jobs, profiled in memory and exported, to run by the rules of a simulator."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.lowering import program_of
from stagedb.lowering.columns import Workload
from stagedb.models import load_card
from stagedb.plans import Plan
from stagedb.systems import Accelerator, Dimension, Overlap, System
from stagedb.timing import JobProfile, profile_job
from stagedb.timing.lanes import lane_numbers
from stagedb.traces.node_durations import NodeTiming, RankPart
from tests.traces.written import export_workload

CHIP = Accelerator(
    "chip",
    {dtype: Fraction("989.4") for dtype in ("bf16", "fp16", "fp32")},
    Fraction(3350),
    Fraction(1000),
    Fraction(0),
)
"""One peak for all formats, no launch, and the whole peak at any size."""

AS_SIMULATED = Overlap("out-of-order", "one")


def system(name: str, *dimensions: Dimension) -> System:
    return System(name, ("-",), CHIP, dimensions, AS_SIMULATED)


def links(kind: str) -> Dimension:
    return Dimension("links", None, kind, Fraction(50), Fraction(500))


FLAT, RING, MESH = (
    system("flat", links("switch")),
    system("ringnet", links("ring")),
    system("mesh", links("fully-connected")),
)
TWO = system(
    "two",
    Dimension("inside", 4, "switch", Fraction(200), Fraction(300)),
    Dimension("outside", None, "switch", Fraction(25), Fraction(1000)),
)
"""Four accelerators a node."""


@cache
def workload_of(model: str, layers: int, words: tuple[tuple[str, Any], ...]) -> Workload:
    """A model with so many layers under a plan."""
    card = dataclasses.replace(load_card(model), layers=layers, name=f"{model}-{layers}")
    plan = Plan.from_mapping(dict(words))
    return program_of(card, plan).workload


def timing_of(job: JobProfile) -> NodeTiming:
    """The durations of a profile, as `read_timing` reads those of a store."""
    numbers = lane_numbers(job.workload, job.system.network(len(job.workload.ranks)))
    parts = {}
    for columns in job.workload.classes:
        found: dict[bytes, tuple[np.ndarray[Any, Any], list[int]]] = {}
        for lane, durations in zip(job.times.network.lanes, job.durations.lanes, strict=True):
            if lane.rank_class == columns.number:
                found.setdefault(durations.ns.tobytes(), (durations.ns, []))[1].append(lane.number)
        of_class = [RankPart(tuple(each), np.flatnonzero(np.isin(numbers, each)), ns) for ns, each in found.values()]
        parts[columns.number] = tuple(sorted(of_class, key=lambda part: int(part.ranks[0])))
    return NodeTiming("profile", job.system, job.step, parts)


def exported(job: JobProfile, out: Path, *, timed: bool, **words: Any) -> Path:
    """The set of a profile's workload, on its system."""
    times = timing_of(job) if timed else None
    export_workload(job.workload, out, system=job.system, times=times, replay=False, **words)
    return out


def profiled(of: System, model: str, layers: int, **words: Any) -> JobProfile:
    """A job on a system."""
    return profile_job(workload_of(model, layers, tuple(sorted(words.items()))), of)


def ratio(finishes: Sequence[int], job: JobProfile) -> float:
    """The makespan of a simulator over the profile's step."""
    assert min(finishes) > 0, "a rank hangs"
    return max(finishes) / job.step
