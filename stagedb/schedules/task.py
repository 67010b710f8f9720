"""Tasks of a pipeline stage, and facts about an order of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class TaskKind(StrEnum):
    """What a task runs. `backward` computes both gradients. The next two are its halves, if a schedule splits it."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    STEP = "step"


@dataclass(frozen=True, order=True)
class Task:
    """One run of a template, for a micro-batch of a chunk (virtual stage). Both are 0 for the step."""

    kind: TaskKind
    microbatch: int = 0
    chunk: int = 0


Order = Sequence[Task]
"""Tasks of one stage in the order in which they run."""


def splits(order: Order) -> bool:
    """Whether backwards run as two halves."""
    return any(task.kind in (TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT) for task in order)


def first_and_last(order: Order) -> Iterator[tuple[bool, bool]]:
    """For each task, whether it is the first and the last of its kind and chunk on this stage."""
    seen: dict[tuple[TaskKind, int], list[int]] = {}
    for index, task in enumerate(order):
        seen.setdefault((task.kind, task.chunk), []).append(index)
    for index, task in enumerate(order):
        indexes = seen[task.kind, task.chunk]
        yield index == indexes[0], index == indexes[-1]
