"""Pipeline schedules, a file each: the order of tasks on every stage, and a replay that proves an order can run.

A new schedule is a file with a `Schedule`, and a line in the imports and in the tuple below.
"""

from collections.abc import Mapping

from stagedb.schedules.breadth_first import BREADTH_FIRST
from stagedb.schedules.dual_pipe_v import DUAL_PIPE_V
from stagedb.schedules.gpipe import GPIPE
from stagedb.schedules.interleaved import INTERLEAVED
from stagedb.schedules.interleaved_zero_bubble import INTERLEAVED_ZERO_BUBBLE
from stagedb.schedules.one_f_one_b import ONE_F_ONE_B
from stagedb.schedules.schedule import (
    LOOP,
    PLACEMENTS,
    ChunkPlacement,
    ChunkRoute,
    Order,
    Schedule,
    Task,
    TaskPosition,
    V,
    map_text,
    mapped,
    pairs,
    splits,
    stages_of,
    task_positions,
    two_by_two,
    whole,
    whole_backwards,
)
from stagedb.schedules.task_orders import (
    ACTIVE,
    EXPLICIT,
    PostedGathers,
    PostedReceive,
    PostedReductions,
    Posting,
    Span,
    bubble,
    check_orders,
    order_text,
    parse_order,
    posted,
    receiver,
    replay,
    sending,
    sent,
    unit_cost,
)
from stagedb.schedules.zero_bubble_h1 import ZERO_BUBBLE_H1
from stagedb.schedules.zero_bubble_v import ZERO_BUBBLE_V
from stagedb.workflows import DEFAULT as TRAINING
from stagedb.workflows import Workflow

SCHEDULES: Mapping[str, Schedule] = {
    each.name: each
    for each in (
        GPIPE,
        ONE_F_ONE_B,
        INTERLEAVED,
        ZERO_BUBBLE_H1,
        BREADTH_FIRST,
        INTERLEAVED_ZERO_BUBBLE,
        ZERO_BUBBLE_V,
        DUAL_PIPE_V,
    )
}
"""Schedules by the name that a plan uses."""

DEFAULT = ONE_F_ONE_B
"""The schedule of a plan that does not name one."""

__all__ = [
    "ACTIVE",
    "DEFAULT",
    "EXPLICIT",
    "LOOP",
    "PLACEMENTS",
    "SCHEDULES",
    "ChunkPlacement",
    "ChunkRoute",
    "Order",
    "PostedGathers",
    "PostedReceive",
    "PostedReductions",
    "Posting",
    "Schedule",
    "Span",
    "Task",
    "TaskPosition",
    "V",
    "bubble",
    "check_orders",
    "map_text",
    "mapped",
    "order_text",
    "pairs",
    "parse_order",
    "placement_of",
    "posted",
    "receiver",
    "replay",
    "sending",
    "sent",
    "splits",
    "stage_orders",
    "stages_of",
    "task_positions",
    "unit_cost",
    "whole",
    "whole_backwards",
]


def stage_orders(
    schedule: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    workflow: Workflow = TRAINING,
    paired: bool = False,
) -> tuple[tuple[Task, ...], ...]:
    """The order of every stage under the schedule with this name, without tasks that the workflow does not have.

    stages: how many the pipeline has. microbatches: in a step. chunks: on each stage. paired: with forwards and
    backwards that run together, where the schedule has them; in a workflow without a backward with every two forwards.
    """
    forwards = paired and not workflow.differentiates
    orders = SCHEDULES[schedule].orders(stages, microbatches, chunks, paired and not forwards)
    found = (tuple(task for task in order if task.kind in workflow.kinds) for order in orders)
    return tuple(two_by_two(order) if forwards else order for order in found)


def placement_of(schedule: str, placement: str | None = None) -> ChunkPlacement:
    """The places of the chunks in the pipeline.

    schedule: its name. placement: a name or a map that a plan gives; None: the schedule's. Explicit orders have them in
    loops. Raises UsageError for a text that is neither name nor map.
    """
    if placement is None:
        return SCHEDULES[schedule].placement if schedule in SCHEDULES else LOOP
    return PLACEMENTS.get(placement) or mapped(stages_of(placement))
