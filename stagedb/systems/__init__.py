"""Accelerators and the networks between them, as data, and the time that operators, collectives and messages take.

`load_system` reads a system from a preset or a file. `Costs` times the work of ranks on it. Measured `Durations`
replace modelled times where there are any.
"""

from stagedb.systems.cost_model import CollectiveWork, Costs, Timed, Transfer, Wires, Work
from stagedb.systems.group_placement import Placement, crossed, place
from stagedb.systems.measured_durations import Coverage, Durations, Measured, Subject, read_durations
from stagedb.systems.system import Accelerator, Collectives, Curve, Dimension, Overlap, System
from stagedb.systems.system_files import DEFAULT, load_system, parse_system, system_names

__all__ = [
    "DEFAULT",
    "Accelerator",
    "CollectiveWork",
    "Collectives",
    "Costs",
    "Coverage",
    "Curve",
    "Dimension",
    "Durations",
    "Measured",
    "Overlap",
    "Placement",
    "Subject",
    "System",
    "Timed",
    "Transfer",
    "Wires",
    "Work",
    "crossed",
    "load_system",
    "parse_system",
    "place",
    "read_durations",
    "system_names",
]
