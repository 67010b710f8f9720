"""Breadth-first pipeline parallelism (Lamy-Poirier 2022), the looped BFS of torch."""

from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: all micro-batches run through one chunk, then the next, forward and then backward.

    stage, stages: the index of the stage, and how many there are. microbatches: of a step. chunks: on each stage. With
    one chunk it is GPipe.
    """
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
