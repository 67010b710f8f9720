"""With every rule of a framework the terms of two steps sum to their difference, on paths and in what-ifs too."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stagedb.frameworks.profiles import find_profile
from stagedb.lowering.columns import COMPUTE, RECV
from stagedb.reports import StepView, sums_of
from stagedb.reports.step_difference import TERMS, part_changes, term_changes
from stagedb.systems import System, load_system
from stagedb.timing import JobProfile, profile_job
from stagedb.timing.framework_timing import as_used_by
from stagedb.timing.whatif import Scaling
from tests.timing.test_hidden_communication import workload

SHARDED: dict[str, object] = {"recipe": "torch", "dp": 2, "zero": 3, "param_dtype": "fp32", "reduce_dtype": "fp32"}


def used(name: str, framework: str, **fewer: object) -> System:
    system = as_used_by(load_system(name), find_profile(framework))
    return replace(system, overlap=replace(system.overlap, **fewer))  # type: ignore[arg-type]


PAIRS: dict[str, tuple[dict[str, object], System, System]] = {
    "copies": (SHARDED, used("h100", "torch-fsdp", copies=""), used("h100", "torch-fsdp")),
    "flat copies": (SHARDED, used("h100", "llm-foundry", copies="parameters"), used("h100", "llm-foundry")),
    "fp8 gathers": (
        {"recipe": "torch", "tp": 2, "sp": True, "matmul_dtype": "fp8"},
        used("h100", "torchtitan", casts=""),
        used("h100", "torchtitan"),
    ),
    "a clock": (
        {**SHARDED, "matmul_dtype": "fp8"},
        used("h100", "torchtitan"),
        used("h100-hbm2e", "torchtitan"),
    ),
    "sums and buckets": (
        {"tp": 2, "sp": True, "dp": 2, "zero": 1, "matmul_dtype": "fp8"},
        used("h100", "nemo", sums="", reduced=0),
        used("h100", "nemo"),
    ),
    "a ring": (
        {"recipe": "torch", "cp": 4, "seq_len": 64},
        used("h100", "torchtitan", merges=""),
        used("h100", "torchtitan"),
    ),
    "a pipeline": ({"pp": 2, "dp": 2, "zero": 1}, used("h100", "nemo"), used("b200", "megatron-core")),
}
"""By what differs: a plan, and two systems."""


def pair(name: str) -> tuple[JobProfile, JobProfile]:
    words, one, other = PAIRS[name]
    made = workload(global_batch_size=8, **words)
    return profile_job(made, one), profile_job(made, other)


@pytest.mark.parametrize("name", PAIRS)
def test_terms_sum_to_the_difference_of_two_steps(name: str) -> None:
    one, other = pair(name)
    assert one.step != other.step
    for job in (one, other):
        ranks = len(job.workload.ranks)
        lanes = list(zip(job.times.network.lanes, job.times.lanes, strict=True))
        whole = {term: sum(int(getattr(times, term)) * lane.ranks for lane, times in lanes) for term in TERMS}
        assert sum(whole.values()) == job.step * ranks
        parts = dict.fromkeys(("busy", "exposed"), 0)
        for (lane, times), columns in zip(lanes, job.times.network.columns, strict=True):
            computes = columns.ops.type == COMPUTE
            parts["busy"] += int(times.ops.time[computes].sum()) * lane.ranks
            parts["exposed"] += int(times.ops.exposed[~computes & (columns.ops.type != RECV)].sum()) * lane.ranks
        assert parts["busy"] == whole["busy"]
        # A message and a collective that nothing hides at the same time both count in their kinds.
        assert parts["exposed"] >= whole["exposed"] if name == "a pipeline" else parts["exposed"] == whole["exposed"]
    ours, theirs = (sums_of(StepView.of(job), "it") for job in (one, other))
    assert sum(each.change for each in term_changes(ours, theirs)) == pytest.approx(other.step - one.step, abs=1e-6)
    for term in ("busy",) if name == "a pipeline" else ("busy", "exposed"):
        change = sum(second - first for first, second in part_changes(ours, theirs, term).values())
        assert change == pytest.approx(theirs.terms[term] - ours.terms[term], abs=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_the_critical_path_has_the_terms(name: str) -> None:
    """Each node on it takes what its op takes in the step, and all of them together are the step."""
    for job in pair(name):
        path = job.times.path
        assert int(path.length.sum()) == job.step
        for lane, columns in zip(job.times.network.lanes, job.times.network.columns, strict=True):
            here = (path.lane == lane.number) & (columns.ops.type[path.op % len(columns.ops)] == COMPUTE)
            assert path.length[here].tolist() == job.durations.lanes[lane.number].ns[path.op[here]].tolist()


@pytest.mark.parametrize("name", PAIRS)
def test_what_ifs_scale_the_terms(name: str) -> None:
    """Without communication a rank's step is its computing, in which copies, sums, casts and merges are."""
    for job in pair(name):
        twice = profile_job(job.workload, job.system, scalings=[Scaling("compute", None, Fraction(2))])
        for lane, before, after in zip(
            job.times.network.lanes, job.durations.lanes, twice.durations.lanes, strict=True
        ):
            computes = job.times.network.columns[lane.number].ops.type == COMPUTE
            assert after.ns[computes].tolist() == (2 * before.ns[computes]).tolist()
            assert after.ns[~computes].tolist() == before.ns[~computes].tolist()
        assert [each.busy for each in twice.times.lanes] == [2 * each.busy for each in job.times.lanes]
        none = profile_job(
            job.workload, job.system, scalings=[Scaling(what, None, Fraction(0)) for what in _moved(job)]
        )
        assert none.step >= max(each.busy for each in job.times.lanes)
        assert np.all([each.exposed == 0 for each in none.times.lanes])


def _moved(job: JobProfile) -> list[str]:
    """The selectors that choose something that is sent."""
    types = {int(each) for columns in job.times.network.columns for each in columns.ops.type.tolist()}
    return [what for what, number in (("collective", 1), ("send", 2)) if number in types]
