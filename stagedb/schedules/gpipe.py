"""GPipe (Huang et al. 2019)."""

from stagedb.schedules.schedule import Schedule
from stagedb.schedules.task import Task, TaskKind


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """All forwards, then all backwards, then the step."""
    del stage, stages, chunks  # every stage does the same
    forwards = [Task(TaskKind.FORWARD, index) for index in range(microbatches)]
    backwards = [Task(TaskKind.BACKWARD, index) for index in range(microbatches)]
    return (*forwards, *backwards, Task(TaskKind.STEP))


GPIPE = Schedule("gpipe", "all forwards, then all backwards", order)
