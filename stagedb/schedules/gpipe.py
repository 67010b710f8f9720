"""GPipe (Huang et al. 2019)."""

from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: all forwards, then all backwards, then the step.

    The parameters are those of `breadth_first.order`.
    """
    del stage, stages, chunks  # every stage does the same
    forwards = [Task(FORWARD_TASK, index) for index in range(microbatches)]
    backwards = [Task(BACKWARD_TASK, index) for index in range(microbatches)]
    return (*forwards, *backwards, Task(STEP_TASK))


GPIPE = Schedule("gpipe", "all forwards, then all backwards", order)
