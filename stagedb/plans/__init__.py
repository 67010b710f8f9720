"""How a model is spread over ranks: the options that shape its graph, the plan with degrees and batches, the mesh and
its communicator groups."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagedb.plans.dtypes import WIDTHS, Dtypes
    from stagedb.plans.graph_options import GraphOptions
    from stagedb.plans.mesh import GROUP_AXES, AxisGroups, Mesh, expert_axis, groups, members
    from stagedb.plans.plan import Plan, plan_for, plan_for_ranks
    from stagedb.plans.written_words import WORDS, option, read_plan_file, typed_words

__all__ = [
    "GROUP_AXES",
    "WIDTHS",
    "WORDS",
    "AxisGroups",
    "Dtypes",
    "GraphOptions",
    "Mesh",
    "Plan",
    "expert_axis",
    "groups",
    "members",
    "option",
    "plan_for",
    "plan_for_ranks",
    "read_plan_file",
    "typed_words",
]

_MODULES = {
    "dtypes": ("WIDTHS", "Dtypes"),
    "mesh": ("GROUP_AXES", "AxisGroups", "Mesh", "expert_axis", "groups", "members"),
    "graph_options": ("GraphOptions",),
    "plan": ("Plan", "plan_for", "plan_for_ranks"),
    "written_words": ("WORDS", "option", "read_plan_file", "typed_words"),
}


def __getattr__(name: str) -> Any:
    """Load on first use: the command line reads the words of a plan, and needs nothing else from this package."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
