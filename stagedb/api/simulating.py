"""`simulate`: a trace set run by a simulator, next to the profile of the same step on the same system."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from stagedb.api.results import Rows
from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.store import Store
from stagedb.store.contents.profiles import read_profile
from stagedb.store.contents.stored_programs import read_workload
from stagedb.systems import Collectives, Overlap, System
from stagedb.systems.system import ASTRA_SIM, FLAT
from stagedb.timing import JobProfile, ProfileInputs, profile_job
from stagedb.timing.lanes import lane_numbers
from stagedb.traces.simulation import TIMEOUT, RankFinish, SimulatedSet, find_program, read_set, simulate_set
from stagedb.traces.simulators.astra_files import peak
from stagedb.traces.simulators.astra_network import astra_network

# The result of `simulate`.


@dataclass(frozen=True)
class Simulated:
    """A simulated set next to its profile; times in ns.

    path: the set. step: of the profile. makespan: when the simulator's last rank finished. compute: where the
    simulator's compute comes from, `durations` or `roofline`. ranks: the terms of both, a row for ranks with the same
    times. differences: what explains the difference, a row each with the step that the profile has with it, and with
    all before it. finishes: when each rank ends in the simulator.
    """

    path: Path
    system: str
    compute: str
    step: int
    makespan: int
    ranks: Rows
    differences: Rows
    finishes: Mapping[int, int]

    @property
    def ratio(self) -> float:
        """The simulator's makespan over the profile's step."""
        return self.makespan / self.step if self.step else float("inf")


RANKS = (
    "class", "stage", "rank", "ranks",
    "computing", "exposed", "waiting", "step",
    "simulated_computing", "simulated_other", "simulated_finish",
)  # fmt: skip
"""Columns by rank; ns. A row is for the ranks that keep the same time in the profile, `rank` is the first of them."""

AS_SIMULATED = Overlap("out-of-order", "one")
"""A rank of the simulator takes any kernel that is ready, and one collective or message at a time."""


def simulate(store: Store, directory: Path | str, binary: str | Path | None, *, timeout: float = TIMEOUT) -> Simulated:
    """See `Stagedb.simulate`."""
    found = read_set(Path(directory))
    program = find_program(found.simulator, binary)
    inputs = _inputs(store, found)
    workload = read_workload(store, found.instance)
    if len(workload.ranks) != found.job.world:
        raise UsageError(f"instance {found.instance} has {len(workload.ranks)} ranks, the set {found.job.world}")
    if not found.job.timed and workload.plan.get("offload", "none") != "none":
        raise UsageError(
            "without durations a simulator times copies to the host, and the optimizer there, as kernels of the "
            f"accelerator: export the set with {Word('durations_in_traces', True)}"
        )
    job = profile_job(workload, inputs.system, inputs.measured, inputs.scalings, inputs.blocking)
    finishes = simulate_set(found, program, timeout)
    makespan = max(each.finish for each in finishes.values())
    compute = "durations" if found.job.timed else "roofline"
    rows = _differences(found, job, inputs, makespan)
    return Simulated(
        found.directory, job.system.name, compute, job.step, makespan, _ranks(job, finishes), rows,
        {rank: each.finish for rank, each in sorted(finishes.items())},
    )  # fmt: skip


def _inputs(store: Store, found: SimulatedSet) -> ProfileInputs:
    """What the set was timed with: the inputs of its profile, or its system alone."""
    if found.profile is None:
        return ProfileInputs(found.job.system, None, (), ())
    return read_profile(store, found.profile).inputs


def _ranks(job: JobProfile, finishes: Mapping[int, RankFinish]) -> Rows:
    """The terms of the profile and of the simulator. The simulator's are those of the last of the ranks to finish."""
    numbers = lane_numbers(job.workload, job.system.network(len(job.workload.ranks)))
    rows = []
    for lane, spent in zip(job.times.network.lanes, job.times.lanes, strict=True):
        ranks = (numbers == lane.number).nonzero()[0].tolist()
        last = max((finishes[rank] for rank in ranks), key=lambda each: each.finish)
        waiting = spent.bubble + spent.idle
        rows.append((
            lane.rank_class, lane.stage, lane.rank, lane.ranks,
            spent.busy, spent.exposed, waiting, spent.busy + spent.exposed + waiting,
            last.computing, last.finish - last.computing, last.finish,
        ))  # fmt: skip
    return Rows(RANKS, tuple(rows))


def _differences(found: SimulatedSet, job: JobProfile, inputs: ProfileInputs, makespan: int) -> Rows:
    """The profile again with one rule of the simulator after the other."""
    system, rows = job.system, [("profile", job.step)]
    if system.overlap != AS_SIMULATED:
        system = dataclasses.replace(system, overlap=AS_SIMULATED)
        rows.append(("one collective or message at a time, any ready kernel", _step(job, system, inputs)))
    if not found.job.timed:
        system = _as_roofline(system, found)
        inputs = dataclasses.replace(inputs, measured=None, scalings=())
        rows.append(("compute at one peak, without efficiencies and launches", _step(job, system, inputs)))
    if system.collectives.model != ASTRA_SIM:
        splits = astra_network(found.job).splits
        system = dataclasses.replace(system, collectives=Collectives(ASTRA_SIM, splits))
        rows.append(("a smaller group as one ring over its list, a charge for reductions", _step(job, system, inputs)))
    rows.append(("simulator", makespan))
    return Rows(("with", "step", "ratio"), tuple((what, step, step / job.step) for what, step in rows))


def _step(job: JobProfile, system: System, inputs: ProfileInputs) -> int:
    # Without blocking axes: these need an order of issue, which the simulator does not have.
    return profile_job(job.workload, system, inputs.measured, inputs.scalings).step


def _as_roofline(system: System, found: SimulatedSet) -> System:
    """The accelerator of `system.json`."""
    accelerator = system.accelerator
    rates = dict.fromkeys(accelerator.peak, peak(found.job))
    return dataclasses.replace(
        system,
        tables=(),
        accelerator=dataclasses.replace(
            accelerator, peak=rates, launch=Fraction(0), matmul=FLAT, attention=FLAT, memory=FLAT
        ),
    )
