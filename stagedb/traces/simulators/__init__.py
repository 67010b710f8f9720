"""Simulator targets, a file each: the files for a simulator next to the traces, from a system and the set's mesh.

A new target is a file with a `Simulator`, and a line in the imports and in the tuple below.
"""

from collections.abc import Mapping

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.traces.simulators.astra_analytical import ASTRA_ANALYTICAL
from stagedb.traces.simulators.astra_congestion_aware import ASTRA_CONGESTION_AWARE
from stagedb.traces.simulators.simulator import MESSAGE, Groups, SimulatedJob, Simulator, Traffic

SIMULATORS: Mapping[str, Simulator] = {each.name: each for each in (ASTRA_ANALYTICAL, ASTRA_CONGESTION_AWARE)}
"""Targets by the name that `simulator` uses."""

DEFAULT = ASTRA_ANALYTICAL
"""The target of a set that names none."""

__all__ = [
    "DEFAULT",
    "MESSAGE",
    "SIMULATORS",
    "Groups",
    "SimulatedJob",
    "Simulator",
    "Traffic",
    "simulator_named",
]


def simulator_named(name: str | None) -> Simulator:
    """The target of this name, the default for None. UsageError for an unknown name."""
    if name is None:
        return DEFAULT
    if name not in SIMULATORS:
        raise UsageError(f"unknown simulator {shown(name)}: {Word('simulator')} is {' or '.join(SIMULATORS)}")
    return SIMULATORS[name]
