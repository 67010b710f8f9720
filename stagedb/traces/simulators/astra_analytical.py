"""ASTRA-sim with its analytical network without congestion: several dimensions, any number of ranks."""

from stagedb.traces.simulators import astra_files as astra
from stagedb.traces.simulators.network_levels import levels
from stagedb.traces.simulators.simulator import SimulatedJob, Simulator

BINARY = "AstraSim_Analytical_Congestion_Unaware"


def _system(job: SimulatedJob) -> str:
    count = len(levels(job.degrees, job.system))
    rings = {each: ["ring"] * count for each in astra.COLLECTIVES}
    return astra.system_text(job, {**rings, "all-to-all": ["direct1"] * count})


ASTRA_ANALYTICAL = Simulator(
    name="astra-sim-analytical",
    help="ASTRA-sim, analytical network without congestion",
    files={
        "system.json": _system,
        "network.yml": lambda job: astra.network_text(job, levels(job.degrees, job.system)),
        "memory.json": lambda job: astra.MEMORY,
        "run.sh": lambda job: astra.run_text(job, BINARY),
    },
    check=astra.check_rates,
)
