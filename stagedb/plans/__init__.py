"""How a model is spread over ranks: the options that shape its graph, the plan with degrees and batches, the mesh and
its communicator groups."""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.plans.dtypes import FORMAT_BYTES, Dtypes
    from stagedb.plans.graph_options import GraphOptions
    from stagedb.plans.layer_split import uneven_chunks
    from stagedb.plans.mesh import GROUP_AXES, AxisGroups, Mesh, RankLayout, expert_axis, groups, members
    from stagedb.plans.plan import Plan, plan_for, plan_for_ranks
    from stagedb.plans.written_words import WORDS, read_plan_file, typed_words

__all__ = [
    "FORMAT_BYTES",
    "GROUP_AXES",
    "WORDS",
    "AxisGroups",
    "Dtypes",
    "GraphOptions",
    "Mesh",
    "Plan",
    "RankLayout",
    "expert_axis",
    "groups",
    "members",
    "plan_for",
    "plan_for_ranks",
    "read_plan_file",
    "typed_words",
    "uneven_chunks",
]

_MODULES = {
    "dtypes": (
        "Dtypes",
        "FORMAT_BYTES",
    ),
    "layer_split": ("uneven_chunks",),
    "mesh": (
        "AxisGroups",
        "GROUP_AXES",
        "Mesh",
        "RankLayout",
        "expert_axis",
        "groups",
        "members",
    ),
    "graph_options": ("GraphOptions",),
    "plan": (
        "Plan",
        "plan_for",
        "plan_for_ranks",
    ),
    "written_words": (
        "WORDS",
        "read_plan_file",
        "typed_words",
    ),
}

# The command line reads the words of a plan and needs nothing else of this package.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
