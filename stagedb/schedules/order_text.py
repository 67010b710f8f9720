"""Orders of tasks as text, `F0 F1 B0 W0.1`, as people write them and plans store them. Read and checked here."""

import re
from collections.abc import Callable, Iterable, Sequence

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.order_replay import replay
from stagedb.schedules.task import Order, Task
from stagedb.workflows import DEFAULT, TASK_KINDS, Workflow

EXPLICIT = "explicit"
"""The schedule of a plan that contains its orders itself, in the word `task_order`."""

LETTERS = {kind.letter: kind for kind in TASK_KINDS.values() if kind.letter}
_TASK = re.compile(rf"([{''.join(LETTERS)}])([0-9]{{1,9}})(?:\.([0-9]{{1,4}}))?")
*_FIRST, _LAST = LETTERS
_FORM = (
    f"{', '.join(_FIRST)} or {_LAST} ({', '.join(kind.words for kind in LETTERS.values())}), a micro-batch, "
    "and .CHUNK where it is not 0"
)


def parse_order(text: str, where: str, workflow: Workflow = DEFAULT) -> tuple[Task, ...]:
    """The tasks of a stage, followed by those that end every order of the workflow.

    text: tasks such as `F0 F1 B0`. where: the file or word, for errors. Raises UsageError, with `where`, for a word
    that is no task.
    """
    tasks = []
    for word in text.split():
        match = _TASK.fullmatch(word)
        if match is None:
            raise UsageError(f"{where}: {shown(word)} is no task; a task is {_FORM}, such as F3 or B3.1")
        tasks.append(Task(LETTERS[match[1]], int(match[2]), int(match[3] or 0)))
    return (*tasks, *map(Task, workflow.ending))


def order_text(order: Order) -> str:
    """The text that `parse_order` reads. The tasks that end every order are left out."""
    return " ".join(
        f"{task.kind.letter}{task.microbatch}" + (f".{task.chunk}" if task.chunk else "")
        for task in order
        if task.kind.letter
    )


def check_orders(
    orders: Sequence[Order],
    stages: int,
    microbatches: int,
    workflow: Workflow = DEFAULT,
    placement: Callable[[int], ChunkPlacement] = lambda chunks: LOOP,
) -> int:
    """The number of chunks of each stage. Raises UsageError if a plan cannot run these orders.

    orders: a sequence of tasks for each stage. stages: how many the pipeline has. microbatches: in a step. placement:
    the places of that many chunks a stage.
    """
    if len(orders) != stages:
        raise UsageError(
            f"the schedule has the orders of {len(orders)} stages, the plan has pp {stages}: take "
            f"{Word('pp', len(orders))}"
        )
    chunks = 1 + max((task.chunk for order in orders for task in order), default=0)
    for stage, order in enumerate(orders):
        _check_order(stage, order, microbatches, chunks, workflow)
    replay(orders, placement=placement(chunks))
    return chunks


def _check_order(stage: int, order: Order, microbatches: int, chunks: int, workflow: Workflow) -> None:
    """Raise UsageError if a stage does not run each micro-batch of each of its chunks once.

    A chunk splits all of its backwards, or none of them.
    """
    split = {task.chunk for task in order if task.kind.half}
    kinds = {chunk: [kind for kind in workflow.running(chunk in split) if not kind.once] for chunk in range(chunks)}
    wanted = {
        Task(kind, microbatch, chunk) for chunk in kinds for kind in kinds[chunk] for microbatch in range(microbatches)
    }
    letters = list(LETTERS.values())

    def first(found: Iterable[Task]) -> Task:
        return min(found, key=lambda task: (task.microbatch, task.chunk, letters.index(task.kind)))

    own = [task for task in order if task.kind.letter]
    twice = {task for task in own if own.count(task) > 1} if len(set(own)) < len(own) else set()
    if twice:
        raise UsageError(f"the schedule's stage {stage} runs {order_text((first(twice),))} twice")
    for tasks, word in ((wanted - set(own), "does not run"), (set(own) - wanted, "runs")):
        if not tasks:
            continue
        one = first(tasks)
        others = kinds.get(one.chunk, kinds[0])[1:]
        more = f"{' and '.join(kind.letter for kind in others)} for each of them"
        only = f"nothing else ({Word('workflow', workflow.name)})"
        raise UsageError(
            f"the schedule's stage {stage} {word} {order_text((one,))}: this plan has micro-batches 0 to "
            f"{microbatches - 1} ({Word('global_batch_size')}, {Word('micro_batch_size')} and {Word('dp')} set the "
            f"number), chunks 0 to {chunks - 1}, and "
            f"{more if others else only}"
        )
