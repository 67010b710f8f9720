"""ASTRA-sim with its analytical network without congestion: several dimensions, two or more ranks."""

from typing import TYPE_CHECKING

from stagedb.traces.simulators import astra_files as astra
from stagedb.traces.simulators.network_levels import levels
from stagedb.traces.simulators.simulator import Groups, SimulatedJob, Simulator

if TYPE_CHECKING:
    from stagedb.traces.simulators.astra_network import AstraNetwork

BINARY = "AstraSim_Analytical_Congestion_Unaware"


def _network(job: SimulatedJob) -> "AstraNetwork":
    # The command line shows its options without importing the systems.
    from stagedb.traces.simulators.astra_network import astra_network

    return astra_network(job)


def _system(job: SimulatedJob) -> str:
    network = _network(job)
    return astra.system_text(job, network.implementations, network.splits)


def _network_text(job: SimulatedJob) -> str:
    network = _network(job)
    return astra.network_text(job, network.levels, network.rates)


def _ring_ordered(job: SimulatedJob, groups: Groups) -> Groups:
    """Each group in an order in which a ring leaves a row of a level over the next one.

    The simulator sends over the innermost level on which two ranks differ, and runs a group as a ring over its list.
    """
    from stagedb.systems.group_placement import ring_order

    sizes = [each.size for each in levels(job.degrees, job.system)]
    if len(sizes) == 1:
        return groups
    inner = job.world // sizes[-1]
    known: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    ordered = {}
    for gid, members in groups.items():
        first = min(members)
        apart = tuple(sorted(member - first for member in members))
        # Groups at equal places of the inner levels have one order.
        place = first % inner
        if (place, apart) not in known:
            known[place, apart] = tuple(each - place for each in ring_order([place + each for each in apart], sizes))
        ordered[gid] = [first + each for each in known[place, apart]]
    return ordered


ASTRA_ANALYTICAL = Simulator(
    name="astra-sim-analytical",
    help="ASTRA-sim, analytical network without congestion",
    program=BINARY,
    files={
        "system.json": _system,
        "network.yml": _network_text,
        "memory.json": lambda job: astra.MEMORY,
        "run.sh": lambda job: astra.run_text(job, BINARY),
    },
    check=astra.check_rates,
    differences=astra.differences,
    groups=_ring_ordered,
)
