"""A replay of orders. It runs each task after those that it depends on, proves that orders end, and times bubbles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.errors import UsageError
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.task import Order, Task


@dataclass(frozen=True)
class Span:
    """When a task ran in a replay, in the units of its cost."""

    task: Task
    start: Fraction
    end: Fraction


def receiver(
    task: Task, stage: int, stages: int, chunks: int = 1, placement: ChunkPlacement = LOOP
) -> tuple[int, Task] | None:
    """The stage and task that receive from this task: the next number after a forward, the previous after a backward.

    None if nothing is sent: at the ends of the pipeline, and for weight gradients and the step.
    """
    hop = task.kind.hop
    return _Pipeline(stages, chunks, placement).neighbour(task, stage, hop) if hop else None


def replay(
    orders: Sequence[Order],
    cost: Callable[[Task], Fraction | int] = lambda task: unit_cost(task),
    placement: ChunkPlacement = LOOP,
) -> tuple[tuple[Span, ...], ...]:
    """Run the orders, and return the spans of every stage. A stage runs one task at a time, after those it depends on.

    A forward depends on the previous forward in the pipeline. A backward depends on the next one's and on its own
    forward. A weight gradient depends on its input gradient. Raises UsageError, which names the waiting tasks, if the
    orders cannot end.
    """
    stages = len(orders)
    chunks = 1 + max((task.chunk for order in orders for task in order), default=0)
    pipeline = _Pipeline(stages, chunks, placement)
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
            needs = pipeline.needs(stage, task)
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
    """Forward 1, backward 2, each half of a backward 1, step 0. Publications give bubbles in these units."""
    return task.kind.cost


def bubble(orders: Sequence[Order], placement: ChunkPlacement = LOOP) -> Fraction:
    """The share of its time that a stage idles, the mean over stages, in unit costs."""
    spans = replay(orders, placement=placement)
    makespan = max(stage[-1].end for stage in spans)
    busy = sum(unit_cost(task) for order in orders for task in order)
    return 1 - Fraction(busy) / (makespan * len(orders))


@dataclass(frozen=True)
class _Pipeline:
    """Stages with `chunks` chunks each, in the pipeline that `placement` describes."""

    stages: int
    chunks: int
    placement: ChunkPlacement

    def neighbour(self, task: Task, stage: int, hop: int) -> tuple[int, Task] | None:
        """The stage and task of this kind that is `hop` numbers later in the pipeline."""
        number = self.placement.position(stage, task.chunk, self.stages) + hop
        if not 0 <= number < self.stages * self.chunks:
            return None
        neighbour, chunk = self.placement.located(number, self.stages)
        return neighbour, Task(task.kind, task.microbatch, chunk)

    def needs(self, stage: int, task: Task) -> list[tuple[int, Task]]:
        """The stages and tasks that must have ended before this one."""
        hop = task.kind.hop
        sender = self.neighbour(task, stage, -hop) if hop else None
        found = [] if sender is None else [sender]
        if task.kind.after is not None:
            found.append((stage, Task(task.kind.after, task.microbatch, task.chunk)))
        return found


def _text(task: Task) -> str:
    if task.kind.once:
        return f"the {task.kind}"
    return f"{task.kind} of micro-batch {task.microbatch}" + (f" of chunk {task.chunk}" if task.chunk else "")
