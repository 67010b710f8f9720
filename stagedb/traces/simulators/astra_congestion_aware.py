"""ASTRA-sim with its analytical network with congestion: messages queue at each link. One network dimension.

The network is one basic topology (`Ring`, `Switch` or `FullyConnected`), so all ranks must be on one dimension of the
system. Each link carries one message at a time. A message through a switch, or along a ring, is stored whole at each
hop before it goes on.
"""

from stagedb.collectives import SIMULATED
from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.traces.simulators import astra_files as astra
from stagedb.traces.simulators.network_levels import Level, levels
from stagedb.traces.simulators.simulator import SimulatedJob, Simulator

BINARY = "AstraSim_Analytical_Congestion_Aware"

IMPLEMENTATIONS = {"ring": "ring", "switch": "ring", "fully-connected": "direct"}
"""Implementations of collectives of all ranks, by the kind of the dimension: a mesh uses every link at once."""


def _check(job: SimulatedJob) -> None:
    astra.check_rates(job)
    if job.world < 2:
        raise UsageError(
            f"the congestion-aware network of ASTRA-sim takes 2 or more ranks: export with more {Word('ranks')}"
        )
    used = list(dict.fromkeys(each.links.name for each in levels(job.degrees, job.system)))
    if len(used) > 1:
        raise UsageError(
            f"{job.world} ranks on {job.system.name} use {' and '.join(used)}, and the congestion-aware network of "
            f"ASTRA-sim takes one dimension: use {Word('simulator', 'astra-sim-analytical')}, or fewer ranks, or a "
            f"{Word('system')} of one dimension"
        )


def network(job: SimulatedJob) -> Level:
    """The one dimension, which has all ranks: degrees of the mesh on the same links are one level."""
    return Level(job.world, levels(job.degrees, job.system)[0].links)


def _system(job: SimulatedJob) -> str:
    implementation = IMPLEMENTATIONS[network(job).links.kind]
    kinds = {name: ["direct1" if kind.exchanges else implementation] for name, kind in SIMULATED.items()}
    return astra.system_text(job, kinds)


ASTRA_CONGESTION_AWARE = Simulator(
    name="astra-sim-congestion-aware",
    help="ASTRA-sim, analytical network of one dimension whose links queue messages",
    program=BINARY,
    files={
        "system.json": _system,
        "network.yml": lambda job: astra.network_text(job, [network(job)], [network(job).rate]),
        "memory.json": lambda job: astra.MEMORY,
        "run.sh": lambda job: astra.run_text(job, BINARY),
    },
    check=_check,
    differences=astra.differences,
)
