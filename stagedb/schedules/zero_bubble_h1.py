"""ZB-H1, a zero-bubble schedule (Qi et al. 2023)."""

from stagedb.schedules import one_f_one_b
from stagedb.schedules.schedule import Schedule
from stagedb.schedules.task import Task, TaskKind


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """1F1B in which weight gradients come `stage` micro-batches after their input gradients.

    Each stage holds as much for waiting weight gradients and input gradients together as the first stage holds.
    """
    found: list[Task] = []
    for task in one_f_one_b.order(stage, stages, microbatches, chunks):
        if task.kind is TaskKind.BACKWARD:
            found.append(Task(TaskKind.INPUT_GRADIENT, task.microbatch))
            if task.microbatch >= stage:
                found.append(Task(TaskKind.WEIGHT_GRADIENT, task.microbatch - stage))
        elif task.kind is TaskKind.FORWARD:
            found.append(task)
    rest = range(max(microbatches - stage, 0), microbatches)
    return (*found, *(Task(TaskKind.WEIGHT_GRADIENT, index) for index in rest), Task(TaskKind.STEP))


ZERO_BUBBLE_H1 = Schedule(
    "zb-h1",
    "1F1B with split backwards, whose weight gradients fill the bubble",
    order,
    one_stage="schedule {name} with pp 1 has no bubble to fill",
)
