"""1F1B (Narayanan et al. 2021). On one stage it runs in pairs as Megatron-Core's combined 1F1B without a pipeline."""

from stagedb.schedules.interleaved import paired_order
from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows.training import BACKWARD_TASK, FORWARD_TASK, STEP_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: `stages - stage - 1` forwards of warm-up, then a forward and a backward in turn.

    stage, stages: the index of the stage, and how many there are. microbatches: of a step. chunks: 1.
    """
    del chunks
    warm_up = min(stages - stage - 1, microbatches)
    found = [Task(FORWARD_TASK, index) for index in range(warm_up)]
    for index in range(microbatches):
        if warm_up + index < microbatches:
            found.append(Task(FORWARD_TASK, warm_up + index))
        found.append(Task(BACKWARD_TASK, index))
    return (*found, Task(STEP_TASK))


ONE_F_ONE_B = Schedule(
    "1f1b",
    "a warm-up of forwards, then a forward and a backward in turn",
    order,
    chunked="interleaved",
    alternates=True,
    paired=paired_order,
    pairs_alone=True,
)
