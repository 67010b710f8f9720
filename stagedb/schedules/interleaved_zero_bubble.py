"""Interleaved 1F1B with split backwards (Qi et al. 2024); torch's order.

`torch.distributed.pipelining.ScheduleInterleavedZeroBubble`.
"""

from stagedb.schedules.schedule import Schedule, Task
from stagedb.workflows import TaskKind
from stagedb.workflows.training import FORWARD_TASK, INPUT_GRADIENT_TASK, STEP_TASK, WEIGHT_GRADIENT_TASK


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: weight gradients come `stage` backwards late, micro-batches run in equal rounds.

    A round runs through one chunk, then the next. Rounds have as many micro-batches as there are stages, or more where
    these do not divide them. stage, stages: the index of the stage, and how many there are. microbatches: of a step.
    chunks: on each stage.
    """
    each = microbatches // max(1, microbatches // stages)
    total = microbatches * chunks
    warm_up = min((chunks - 1) * each + stages - 1 - stage, total)

    def at(kind: TaskKind, index: int) -> Task:
        group, rest = divmod(index, each * chunks)
        chunk, inside = divmod(rest, each)
        return Task(kind, group * each + inside, chunk if kind.upward else chunks - 1 - chunk)

    found = [at(FORWARD_TASK, index) for index in range(warm_up)]
    for index in range(total):
        if warm_up + index < total:
            found.append(at(FORWARD_TASK, warm_up + index))
        found.append(at(INPUT_GRADIENT_TASK, index))
        if index >= stage:
            found.append(at(WEIGHT_GRADIENT_TASK, index - stage))
    late = range(max(total - stage, 0), total)
    return (*found, *(at(WEIGHT_GRADIENT_TASK, index) for index in late), Task(STEP_TASK))


INTERLEAVED_ZERO_BUBBLE = Schedule(
    "interleaved-zb",
    "interleaved 1F1B with split backwards, whose weight gradients fill the bubble",
    order,
    halves=True,
    several_chunks=True,
    one_stage="virtual_stages {chunks} with pp 1 interleaves nothing",
    rounds="interleaved-zb runs micro-batches in {rounds} equal rounds, which do not divide the plan's {microbatches}",
)
