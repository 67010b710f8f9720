"""Accelerators and the networks between them, as data, and the time that operators, collectives and messages take.

`load_system` reads a system from a preset or a file. `Costs` times the work of ranks on it. Measured `Durations`
replace modelled times where there are any.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
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

_MODULES = {
    "cost_model": (
        "CollectiveWork",
        "Costs",
        "Timed",
        "Transfer",
        "Wires",
        "Work",
    ),
    "group_placement": (
        "Placement",
        "crossed",
        "place",
    ),
    "measured_durations": (
        "Coverage",
        "Durations",
        "Measured",
        "Subject",
        "read_durations",
    ),
    "system": (
        "Accelerator",
        "Collectives",
        "Curve",
        "Dimension",
        "Overlap",
        "System",
    ),
    "system_files": (
        "DEFAULT",
        "load_system",
        "parse_system",
        "system_names",
    ),
}

# What writes traces reads one rule of its tables, and needs no costs.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
