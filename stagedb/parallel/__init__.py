"""How a model is spread over ranks: options that shape its graph, the plan of degrees and batches, the mesh and its
communicator groups, and pipeline schedules as data."""

from stagedb.parallel.dtypes import WIDTHS, Dtypes
from stagedb.parallel.mesh import GROUP_AXES, AxisGroups, Mesh, expert_axis, groups, members
from stagedb.parallel.options import GraphOptions
from stagedb.parallel.plan import Plan, plan_for, plan_for_ranks
from stagedb.parallel.schedule import (
    SCHEDULES,
    Order,
    Span,
    Task,
    TaskKind,
    bubble,
    first_and_last,
    receiver,
    replay,
    splits,
    stage_orders,
)
from stagedb.parallel.words import WORDS, option, read_plan_file, typed_words

__all__ = [
    "GROUP_AXES",
    "SCHEDULES",
    "WIDTHS",
    "WORDS",
    "AxisGroups",
    "Dtypes",
    "GraphOptions",
    "Mesh",
    "Order",
    "Plan",
    "Span",
    "Task",
    "TaskKind",
    "bubble",
    "expert_axis",
    "first_and_last",
    "groups",
    "members",
    "option",
    "plan_for",
    "plan_for_ranks",
    "read_plan_file",
    "receiver",
    "replay",
    "splits",
    "stage_orders",
    "typed_words",
]
