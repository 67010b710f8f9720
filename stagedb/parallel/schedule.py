"""Pipeline schedules as data: the order of tasks on each stage, and a replay that proves an order can run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from stagedb.errors import UsageError


class TaskKind(StrEnum):
    """What a task runs. `backward` computes both gradients; the next two are its halves, for split schedules."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    STEP = "step"


@dataclass(frozen=True, order=True)
class Task:
    """One run of a template: for a microbatch of a chunk (virtual stage). The step has neither: both are 0."""

    kind: TaskKind
    microbatch: int = 0
    chunk: int = 0


@dataclass(frozen=True)
class Span:
    """When a task ran in a replay, in the units of its cost."""

    task: Task
    start: Fraction
    end: Fraction


Order = Sequence[Task]
"""Tasks of one stage, in the order in which it runs them."""


def gpipe(stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """All forwards, then all backwards (Huang et al. 2019), then the step."""
    del stage, stages  # every stage does the same
    forwards = [Task(TaskKind.FORWARD, index) for index in range(microbatches)]
    backwards = [Task(TaskKind.BACKWARD, index) for index in range(microbatches)]
    return (*forwards, *backwards, Task(TaskKind.STEP))


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """1F1B (Narayanan et al. 2021): `stages - stage - 1` forwards of warm-up, then forward and backward in turn."""
    warm_up = min(stages - stage - 1, microbatches)
    order = [Task(TaskKind.FORWARD, index) for index in range(warm_up)]
    for index in range(microbatches):
        if warm_up + index < microbatches:
            order.append(Task(TaskKind.FORWARD, warm_up + index))
        order.append(Task(TaskKind.BACKWARD, index))
    return (*order, Task(TaskKind.STEP))


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> tuple[Task, ...]:
    """Interleaved 1F1B (Narayanan et al. 2021, section 2.2), with Megatron's count of warm-up forwards.

    Groups of `stages` micro-batches pass through one chunk after the other; needs micro-batches in whole groups.
    """
    total = microbatches * chunks
    warm_up = min(warm_up_forwards(stage, stages, chunks), total)

    def at(kind: TaskKind, index: int) -> Task:
        group, rest = divmod(index, stages * chunks)
        chunk, inside = divmod(rest, stages)
        forward = kind is TaskKind.FORWARD
        return Task(kind, group * stages + inside, chunk if forward else chunks - 1 - chunk)

    order = [at(TaskKind.FORWARD, index) for index in range(warm_up)]
    for index in range(total):
        if warm_up + index < total:
            order.append(at(TaskKind.FORWARD, warm_up + index))
        order.append(at(TaskKind.BACKWARD, index))
    return (*order, Task(TaskKind.STEP))


def warm_up_forwards(stage: int, stages: int, chunks: int) -> int:
    """Forwards that Megatron's interleaved schedule runs on a stage before its first backward's own."""
    return 2 * (stages - stage - 1) + (chunks - 1) * stages


def zero_bubble_h1(stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """ZB-H1 (Qi et al. 2023): 1F1B whose weight gradients come `stage` micro-batches after their input gradients.

    What a stage holds for weight gradients that wait and for input gradients is together what the first stage holds.
    """
    order: list[Task] = []
    for task in one_f_one_b(stage, stages, microbatches):
        if task.kind is TaskKind.BACKWARD:
            order.append(Task(TaskKind.INPUT_GRADIENT, task.microbatch))
            if task.microbatch >= stage:
                order.append(Task(TaskKind.WEIGHT_GRADIENT, task.microbatch - stage))
        elif task.kind is TaskKind.FORWARD:
            order.append(task)
    rest = range(max(microbatches - stage, 0), microbatches)
    return (*order, *(Task(TaskKind.WEIGHT_GRADIENT, index) for index in rest), Task(TaskKind.STEP))


INTERLEAVED = "interleaved"
SCHEDULES: Mapping[str, Callable[[int, int, int, int], tuple[Task, ...]]] = {
    "gpipe": lambda stage, stages, microbatches, chunks: gpipe(stage, stages, microbatches),
    "1f1b": lambda stage, stages, microbatches, chunks: one_f_one_b(stage, stages, microbatches),
    INTERLEAVED: interleaved,
    "zb-h1": lambda stage, stages, microbatches, chunks: zero_bubble_h1(stage, stages, microbatches),
}
"""Schedules by the name that a plan uses: (stage, stages, microbatches, chunks) to the stage's order. One alone has
more than one chunk."""


def stage_orders(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> tuple[tuple[Task, ...], ...]:
    """The order of every stage under a schedule of this name."""
    order = SCHEDULES[schedule]
    return tuple(order(stage, stages, microbatches, chunks) for stage in range(stages))


def splits(order: Order) -> bool:
    """Whether backwards run as their halves."""
    return any(task.kind in (TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT) for task in order)


def first_and_last(order: Order) -> Iterator[tuple[bool, bool]]:
    """For each task, whether it is the first and the last of its kind and chunk on this stage."""
    seen: dict[tuple[TaskKind, int], list[int]] = {}
    for index, task in enumerate(order):
        seen.setdefault((task.kind, task.chunk), []).append(index)
    for index, task in enumerate(order):
        indexes = seen[task.kind, task.chunk]
        yield index == indexes[0], index == indexes[-1]


def receiver(task: Task, stage: int, stages: int, chunks: int = 1) -> tuple[int, Task] | None:
    """The stage and task that wait for what this task sends: the next after a forward, the previous after a backward.

    Chunk c of stage i is number `c * stages + i` in the pipeline. None where nothing is sent: at the ends of the
    pipeline, and by weight gradients and the step.
    """
    hop = _hop(task)
    return _neighbour(task, stage, stages, chunks, hop) if hop else None


def replay(
    orders: Sequence[Order], cost: Callable[[Task], Fraction | int] = lambda task: unit_cost(task)
) -> tuple[tuple[Span, ...], ...]:
    """Run the orders, each stage one task at a time, each task after what it depends on; the spans of every stage.

    A forward depends on the one before it in the pipeline, a backward on the next one's and on its own forward, a
    weight gradient on its input gradient. Raises UsageError, naming the waiting tasks, when the orders cannot end.
    """
    stages = len(orders)
    chunks = 1 + max((task.chunk for order in orders for task in order), default=0)
    ends: dict[tuple[int, Task], Fraction] = {}
    spans: list[list[Span]] = [[] for _ in orders]
    clocks = [Fraction(0)] * stages
    positions = [0] * stages
    waiting: dict[tuple[int, Task], list[int]] = {}
    ready = list(range(stages))
    while ready:
        stage = ready.pop()
        while positions[stage] < len(orders[stage]):
            task = orders[stage][positions[stage]]
            needs = _needs(stage, task, stages, chunks)
            missing = next((need for need in needs if need not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            start = max([clocks[stage], *(ends[need] for need in needs)])
            clocks[stage] = ends[stage, task] = start + cost(task)
            spans[stage].append(Span(task, start, clocks[stage]))
            positions[stage] += 1
            ready += waiting.pop((stage, task), [])
    stuck = [
        f"stage {stage} waits to run {_text(order[position])}"
        for stage, (order, position) in enumerate(zip(orders, positions, strict=True))
        if position < len(order)
    ]
    if stuck:
        raise UsageError("this schedule never ends: " + "; ".join(stuck))
    return tuple(tuple(stage) for stage in spans)


def unit_cost(task: Task) -> int:
    """Forward 1, backward 2, each half of a backward 1, step 0: the units in which bubbles are published."""
    return {TaskKind.STEP: 0, TaskKind.BACKWARD: 2}.get(task.kind, 1)


def bubble(orders: Sequence[Order]) -> Fraction:
    """The share of a stage's time that it idles, the mean over stages, in unit costs."""
    spans = replay(orders)
    makespan = max(stage[-1].end for stage in spans)
    busy = sum(unit_cost(task) for order in orders for task in order)
    return 1 - Fraction(busy) / (makespan * len(orders))


def _hop(task: Task) -> int:
    """Along the pipeline, which way a task's message goes: 0 where it has none."""
    return {TaskKind.FORWARD: 1, TaskKind.BACKWARD: -1, TaskKind.INPUT_GRADIENT: -1}.get(task.kind, 0)


def _neighbour(task: Task, stage: int, stages: int, chunks: int, hop: int) -> tuple[int, Task] | None:
    chunk, neighbour = divmod(task.chunk * stages + stage + hop, stages)
    return (neighbour, Task(task.kind, task.microbatch, chunk)) if 0 <= chunk < chunks else None


def _needs(stage: int, task: Task, stages: int, chunks: int) -> list[tuple[int, Task]]:
    hop = _hop(task)
    sender = _neighbour(task, stage, stages, chunks, -hop) if hop else None
    needs = [] if sender is None else [sender]
    if task.kind in (TaskKind.BACKWARD, TaskKind.INPUT_GRADIENT):
        needs.append((stage, Task(TaskKind.FORWARD, task.microbatch, task.chunk)))
    if task.kind is TaskKind.WEIGHT_GRADIENT:
        needs.append((stage, Task(TaskKind.INPUT_GRADIENT, task.microbatch, task.chunk)))
    return needs


def _text(task: Task) -> str:
    if task.kind is TaskKind.STEP:
        return "the step"
    return f"{task.kind} of micro-batch {task.microbatch}" + (f" of chunk {task.chunk}" if task.chunk else "")
