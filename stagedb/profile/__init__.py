"""An instance on accelerators: what every rank class holds in memory over a step, and how long its parts take.

`load_system` reads a system, a preset or a file; `Costs` times operators, collectives and messages on it; measured
`Durations` take the model's place where there are some.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagedb.profile.cost import Costs, Message, Timed, Transfer, Work
    from stagedb.profile.durations import Coverage, Durations, Measured, Subject, read_durations
    from stagedb.profile.lifetimes import Category
    from stagedb.profile.memory import ClassMemory, analyse, record
    from stagedb.profile.placement import Placement, place
    from stagedb.profile.system_files import load_system, parse_system, system_names
    from stagedb.profile.systems import Accelerator, Curve, Dimension, Overlap, System
    from stagedb.profile.usage import Alive, Point, Usage

__all__ = [
    "Accelerator",
    "Alive",
    "Category",
    "ClassMemory",
    "Costs",
    "Coverage",
    "Curve",
    "Dimension",
    "Durations",
    "Measured",
    "Message",
    "Overlap",
    "Placement",
    "Point",
    "Subject",
    "System",
    "Timed",
    "Transfer",
    "Usage",
    "Work",
    "analyse",
    "load_system",
    "parse_system",
    "place",
    "read_durations",
    "record",
    "system_names",
]

_MODULES = {
    "cost": ("Costs", "Message", "Timed", "Transfer", "Work"),
    "durations": ("Coverage", "Durations", "Measured", "Subject", "read_durations"),
    "lifetimes": ("Category",),
    "memory": ("ClassMemory", "analyse", "record"),
    "placement": ("Placement", "place"),
    "system_files": ("load_system", "parse_system", "system_names"),
    "systems": ("Accelerator", "Curve", "Dimension", "Overlap", "System"),
    "usage": ("Alive", "Point", "Usage"),
}


def __getattr__(name: str) -> Any:
    """Load on first use: a system needs neither the store nor a graph."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
