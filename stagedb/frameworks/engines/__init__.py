"""Serving engines as data: their flags, and what each means for a step. A file of them is read as a plan's.

An engine is a table of this package, NAME.yaml: flags that a plan obeys, flags without effect on a step, and flags that
are refused, each with the reason and what works. Code reads the table and never compares the name of an engine.
"""

from typing import TYPE_CHECKING

from stagedb.frameworks.engines.names import ENGINES
from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.frameworks.engines.flags import Engine, EngineSettings, Flag, engine_file, find_engine, read_settings
    from stagedb.frameworks.engines.serving_steps import MEMORY, check_experts, plan_words, remarks

__all__ = [
    "ENGINES",
    "MEMORY",
    "Engine",
    "EngineSettings",
    "Flag",
    "check_experts",
    "engine_file",
    "find_engine",
    "plan_words",
    "read_settings",
    "remarks",
]

# The help of the command line has the names alone.
__getattr__ = lazily(
    __name__,
    {
        "flags": (
            "Engine",
            "EngineSettings",
            "Flag",
            "engine_file",
            "find_engine",
            "read_settings",
        ),
        "serving_steps": (
            "MEMORY",
            "check_experts",
            "plan_words",
            "remarks",
        ),
    },
)
__dir__ = listed(globals())
