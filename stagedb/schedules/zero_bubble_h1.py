"""ZB-H1, a zero-bubble schedule (Qi et al. 2023)."""

from stagedb.schedules import one_f_one_b
from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows.training import INPUT_GRADIENT_TASK, STEP_TASK, WEIGHT_GRADIENT_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: 1F1B in which weight gradients come `stage` micro-batches after their input gradients.

    Each stage holds as much for waiting weight gradients and input gradients together as the first stage holds. stage,
    stages: the index of the stage, and how many there are. microbatches: of a step. chunks: 1.
    """
    found: list[Task] = []
    for task in one_f_one_b.order(stage, stages, microbatches, chunks):
        if task.kind.differentiates:
            found.append(Task(INPUT_GRADIENT_TASK, task.microbatch))
            if task.microbatch >= stage:
                found.append(Task(WEIGHT_GRADIENT_TASK, task.microbatch - stage))
        elif not task.kind.once:
            found.append(task)
    rest = range(max(microbatches - stage, 0), microbatches)
    return (*found, *(Task(WEIGHT_GRADIENT_TASK, index) for index in rest), Task(STEP_TASK))


ZERO_BUBBLE_H1 = Schedule(
    "zb-h1",
    "1F1B with split backwards, whose weight gradients fill the bubble",
    order,
    halves=True,
    one_stage="schedule {name} with pp 1 has no bubble to fill",
)
