"""How a model is spread over ranks: options that shape its graph, the plan of degrees and batches, the mesh and its
communicator groups."""

from stagedb.parallel.dtypes import WIDTHS, Dtypes
from stagedb.parallel.mesh import GROUP_AXES, AxisGroups, Mesh, expert_axis, groups, members
from stagedb.parallel.options import GraphOptions
from stagedb.parallel.plan import Plan, plan_for, plan_for_ranks
from stagedb.parallel.recipes import RECIPES, Held
from stagedb.parallel.words import WORDS, option, read_plan_file, typed_words

__all__ = [
    "GROUP_AXES",
    "RECIPES",
    "WIDTHS",
    "WORDS",
    "AxisGroups",
    "Dtypes",
    "GraphOptions",
    "Held",
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
