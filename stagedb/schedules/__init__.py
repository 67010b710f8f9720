"""Pipeline schedules, a file each: the order of tasks on every stage, and a replay that proves an order can run.

A new schedule is a file with a `Schedule`, and a line in the imports and in the tuple below.
"""

from collections.abc import Mapping

from stagedb.schedules.breadth_first import BREADTH_FIRST
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.gpipe import GPIPE
from stagedb.schedules.interleaved import INTERLEAVED
from stagedb.schedules.one_f_one_b import ONE_F_ONE_B
from stagedb.schedules.order_replay import Span, bubble, receiver, replay, unit_cost
from stagedb.schedules.order_text import EXPLICIT, check_orders, order_text, parse_order
from stagedb.schedules.posted_receives import PostedReceive, posted
from stagedb.schedules.schedule import Schedule
from stagedb.schedules.task import Marks, Order, Task, marks, splits
from stagedb.schedules.zero_bubble_h1 import ZERO_BUBBLE_H1
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
    )
}
"""Schedules by the name that a plan uses."""

DEFAULT = ONE_F_ONE_B
"""The schedule of a plan that does not name one."""

__all__ = [
    "DEFAULT",
    "EXPLICIT",
    "LOOP",
    "SCHEDULES",
    "ChunkPlacement",
    "Marks",
    "Order",
    "PostedReceive",
    "Schedule",
    "Span",
    "Task",
    "bubble",
    "check_orders",
    "marks",
    "order_text",
    "parse_order",
    "placement_of",
    "posted",
    "receiver",
    "replay",
    "splits",
    "stage_orders",
    "unit_cost",
]


def stage_orders(
    schedule: str, stages: int, microbatches: int, chunks: int = 1, workflow: Workflow = TRAINING
) -> tuple[tuple[Task, ...], ...]:
    """The order of every stage under the schedule with this name, without tasks that the workflow does not have."""
    orders = SCHEDULES[schedule].orders(stages, microbatches, chunks)
    return tuple(tuple(task for task in order if task.kind in workflow.kinds) for order in orders)


def placement_of(schedule: str) -> ChunkPlacement:
    """Where the schedule with this name has its chunks. Explicit orders have them in loops."""
    return SCHEDULES[schedule].placement if schedule in SCHEDULES else LOOP
