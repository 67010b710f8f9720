"""Breadth-first pipeline parallelism (Lamy-Poirier 2022), the looped BFS of torch."""

from stagedb.schedules.schedule import Schedule
from stagedb.schedules.task import Task
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """All micro-batches run through one chunk, then the next: forward, then backward. GPipe is this with one chunk."""
    del stage, stages  # every stage does the same
    batches = range(microbatches)
    forwards = [Task(FORWARD_TASK, index, chunk) for chunk in range(chunks) for index in batches]
    backwards = [Task(BACKWARD_TASK, index, chunk) for chunk in reversed(range(chunks)) for index in batches]
    return (*forwards, *backwards, Task(STEP_TASK))


BREADTH_FIRST = Schedule(
    "breadth-first",
    "all micro-batches through one chunk of layers after the other",
    order,
    several_chunks=True,
    one_stage="virtual_stages {chunks} with pp 1 has no bubble to shrink",
)
