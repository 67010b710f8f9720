"""ZB-V, a zero-bubble schedule over two chunks a stage, up and down (Qi et al. 2024, section 6); torch's order.

`torch.distributed.pipelining.ScheduleZBVZeroBubble`.
"""

from dataclasses import dataclass, field

from stagedb.schedules.schedule import Schedule, Task, V
from stagedb.workflows import TaskKind
from stagedb.workflows.training import FORWARD_TASK, INPUT_GRADIENT_TASK, STEP_TASK, WEIGHT_GRADIENT_TASK

UP, DOWN = 0, 1
"""The chunk of the way to the last stage, and that of the way back."""


@dataclass
class _Running:
    """The tasks so far. Each kind of task of a chunk runs its micro-batches in order."""

    tasks: list[Task] = field(default_factory=list)
    counts: dict[tuple[TaskKind, int], int] = field(default_factory=dict)

    def done(self, kind: TaskKind, chunk: int) -> int:
        return self.counts.get((kind, chunk), 0)

    def run(self, chunk: int, *kinds: TaskKind) -> None:
        """Run the next micro-batch of each kind."""
        for kind in kinds:
            number = self.done(kind, chunk)
            self.tasks.append(Task(kind, number, chunk))
            self.counts[kind, chunk] = number + 1

    def rest(self, chunk: int) -> None:
        """Run the weight gradients that wait."""
        while self.done(WEIGHT_GRADIENT_TASK, chunk) < self.done(INPUT_GRADIENT_TASK, chunk):
            self.run(chunk, WEIGHT_GRADIENT_TASK)


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage: a forward, then both halves of a backward of each chunk in turn, and a cool-down.

    The cool-down puts weight gradients off. Fewer than 2 * stages - 1 micro-batches run in the order of that number,
    without the tasks of those that are missing. stage, stages: the index of the stage, and how many there are.
    microbatches: of a step. chunks: 2.
    """
    del chunks
    full = max(2 * stages - 1, microbatches)
    halves = INPUT_GRADIENT_TASK, WEIGHT_GRADIENT_TASK
    now = _Running()
    for _ in range(2 * (stages - stage) - 1):
        now.run(UP, FORWARD_TASK)
    for _ in range(stage):
        now.run(DOWN, FORWARD_TASK)
        now.run(UP, FORWARD_TASK)
    for _ in range(stages - stage):
        now.run(DOWN, FORWARD_TASK, *halves)
    while now.done(FORWARD_TASK, DOWN) < full:
        if now.done(FORWARD_TASK, UP) < full:
            now.run(UP, FORWARD_TASK)
        now.run(UP, *halves)
        now.run(DOWN, FORWARD_TASK, *halves)
    for _ in range(stage):
        now.run(UP, INPUT_GRADIENT_TASK)
        now.run(DOWN, INPUT_GRADIENT_TASK)
    for _ in range(stages - stage):
        now.run(UP, *halves)
    now.rest(DOWN)
    now.rest(UP)
    return (*(task for task in now.tasks if task.microbatch < microbatches), Task(STEP_TASK))


ZERO_BUBBLE_V = Schedule(
    "zb-v",
    "a zero-bubble schedule over two chunks a stage, up and down the stages",
    order,
    halves=True,
    several_chunks=True,
    chunks=2,
    one_stage="schedule {name} with pp 1 has no bubble to fill",
    placement=V,
)
