"""DualPipeV, over two chunks a stage, up and down: DeepSeek's DualPipe (arXiv 2412.19437) without its two copies.

The order of `torch.distributed.pipelining.ScheduleDualPipeV` and of dualpipev.py in github.com/deepseek-ai/DualPipe.
Every backward is its two halves in a row, or apart where the order has weight gradients fill the bubble.
"""

from collections import deque
from dataclasses import dataclass, field

from stagedb.schedules.schedule import Schedule, Task, V
from stagedb.workflows import TaskKind
from stagedb.workflows.training import FORWARD_TASK, INPUT_GRADIENT_TASK, STEP_TASK, WEIGHT_GRADIENT_TASK

UP, DOWN = 0, 1
"""The chunk of the way to the last stage, and that of the way back."""


@dataclass
class _Issued:
    """The tasks so far. waiting: weight gradients that were put off, the oldest first."""

    pairs: bool
    tasks: list[Task] = field(default_factory=list)
    counts: dict[tuple[TaskKind, int], int] = field(default_factory=dict)
    waiting: deque[Task] = field(default_factory=deque)

    def _next(self, kind: TaskKind, chunk: int) -> int:
        number = self.counts.get((kind, chunk), 0)
        self.counts[kind, chunk] = number + 1
        return number

    def forward(self, chunk: int) -> None:
        """Run the next forward of a chunk."""
        self.tasks.append(Task(FORWARD_TASK, self._next(FORWARD_TASK, chunk), chunk))

    def backward(self, chunk: int, *, late: bool = False, joined: bool = False) -> None:
        """Run the next backward of a chunk; its weight gradients at once, or late.

        joined: together with the forward before it, if the order has pairs.
        """
        number, joined = self._next(INPUT_GRADIENT_TASK, chunk), joined and self.pairs
        self.tasks.append(Task(INPUT_GRADIENT_TASK, number, chunk, joined))
        (self.waiting if late else self.tasks).append(Task(WEIGHT_GRADIENT_TASK, number, chunk, joined))

    def weights(self) -> None:
        """Run the oldest weight gradient that waits, if one does."""
        if self.waiting:
            self.tasks.append(self.waiting.popleft())


def order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The tasks of a stage in the eight steps of the publication.

    From the fourth to the fifth step a forward and a backward make a pair. stage, stages: the index of the stage, and
    how many there are. microbatches: of a step. chunks: 2.
    """
    return _order(stage, stages, microbatches, pairs=False)


def paired_order(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """The order of `order` with pairs as one task each (torch's `OVERLAP_F_B`), but for the last stage's first pair.

    chunks: how many a stage has: two. stage: its number. stages: of the pipeline. microbatches: of a step.
    """
    return _order(stage, stages, microbatches, pairs=True)


def _order(stage: int, stages: int, microbatches: int, pairs: bool) -> tuple[Task, ...]:
    now, rest = _Issued(pairs), stages - stage - 1
    for _ in range(2 * rest):
        now.forward(UP)
    for _ in range(stage + 1):
        now.forward(UP)
        now.forward(DOWN)
    for _ in range(rest):
        now.backward(DOWN, late=True)
        now.weights()
        now.forward(DOWN)
    for turn in range(microbatches - 2 * stages + stage + 1):
        now.forward(UP)
        now.backward(DOWN, joined=turn > 0 or rest > 0)
        now.forward(DOWN)
        now.backward(UP, joined=True)
    for _ in range(rest):
        now.backward(DOWN)
        now.forward(DOWN)
        now.backward(UP, joined=True)
    late = False
    for turn in range(stage + 1):
        # From the middle turn on weight gradients are put off: from its first backward where the number of the stage is
        # odd, else from its second.
        late = late or (turn == (stage + 1) // 2 and stage % 2 == 1)
        now.backward(DOWN, late=late)
        late = late or turn == (stage + 1) // 2
        now.backward(UP, late=late)
    for _ in range(rest):
        now.weights()
        now.backward(UP, late=late)
    for _ in range(stage + 1):
        now.weights()
    return (*now.tasks, Task(STEP_TASK))


DUAL_PIPE_V = Schedule(
    "dualpipev",
    "DeepSeek's DualPipe over two chunks a stage, up and down the stages",
    order,
    halves=True,
    several_chunks=True,
    paired=paired_order,
    chunks=2,
    one_stage="schedule {name} with pp 1 has no bubble to fill",
    fewest="schedule {name} takes at least {least} micro-batches, two for each of its {stages} stages",
    placement=V,
)
