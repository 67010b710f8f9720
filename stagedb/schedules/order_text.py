"""Orders of tasks as text, `F0 F1 B0 W0.1`, as people write them and plans store them. Read and checked here."""

import re
from collections.abc import Sequence

from stagedb.errors import UsageError
from stagedb.schedules.order_replay import replay
from stagedb.schedules.task import Order, Task, TaskKind, splits

EXPLICIT = "explicit"
"""The schedule of a plan that contains its orders itself, in the word `task_order`."""

LETTERS = {
    "F": TaskKind.FORWARD,
    "B": TaskKind.BACKWARD,
    "I": TaskKind.INPUT_GRADIENT,
    "W": TaskKind.WEIGHT_GRADIENT,
}
_TASK = re.compile(r"([FBIW])([0-9]{1,9})(?:\.([0-9]{1,4}))?")
_FORM = "F, B, I or W (forward, backward, input gradient, weight gradient), a micro-batch, and .CHUNK where it is not 0"


def parse_order(text: str, where: str) -> tuple[Task, ...]:
    """The tasks of a stage, followed by the step. Raises UsageError, with `where`, for a word that is no task."""
    tasks = []
    for word in text.split():
        match = _TASK.fullmatch(word)
        if match is None:
            raise UsageError(f"{where}: {word!r} is no task; a task is {_FORM}, such as F3 or B3.1")
        tasks.append(Task(LETTERS[match[1]], int(match[2]), int(match[3] or 0)))
    return (*tasks, Task(TaskKind.STEP))


def order_text(order: Order) -> str:
    """The text that `parse_order` reads. The step is left out."""
    letter = {kind: letter for letter, kind in LETTERS.items()}
    return " ".join(
        f"{letter[task.kind]}{task.microbatch}" + (f".{task.chunk}" if task.chunk else "")
        for task in order
        if task.kind is not TaskKind.STEP
    )


def check_orders(orders: Sequence[Order], stages: int, microbatches: int) -> int:
    """The number of chunks of each stage. Raises UsageError if a plan cannot run these orders."""
    if len(orders) != stages:
        raise UsageError(
            f"the schedule has the orders of {len(orders)} stages, the plan has pp {stages}: take --pp {len(orders)}"
        )
    chunks = 1 + max(task.chunk for order in orders for task in order)
    split = any(map(splits, orders))
    backwards = (TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT) if split else (TaskKind.BACKWARD,)
    wanted = {
        Task(kind, microbatch, chunk)
        for kind in (TaskKind.FORWARD, *backwards)
        for microbatch in range(microbatches)
        for chunk in range(chunks)
    }
    kinds = list(TaskKind)
    for stage, order in enumerate(orders):
        own = order[:-1]
        twice = sorted({task for task in own if own.count(task) > 1}) if len(set(own)) < len(own) else []
        if twice:
            raise UsageError(f"the schedule's stage {stage} runs {order_text(twice[:1])} twice")
        for tasks, word in ((wanted - set(own), "does not run"), (set(own) - wanted, "runs")):
            if tasks:
                first = order_text([min(tasks, key=lambda task: (task.microbatch, task.chunk, kinds.index(task.kind)))])
                raise UsageError(
                    f"the schedule's stage {stage} {word} {first}: this plan has micro-batches 0 to {microbatches - 1} "
                    f"(--global-batch-size, --micro-batch-size and --dp set the number), chunks 0 to {chunks - 1}, and "
                    f"{'I and W' if split else 'B'} for each of them"
                )
    replay(orders)
    return chunks
