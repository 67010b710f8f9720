"""A replay of orders. It runs each task after those that it depends on, proves that orders end, and times bubbles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.errors import UsageError
from stagedb.schedules.chunk_placement import LOOP, ChunkPlacement
from stagedb.schedules.task import Order, Task
from stagedb.workflows import Template

Result = tuple[Template, int, int]
"""What a template makes for a micro-batch of a chunk."""


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

    task, stage: the sending task and where it runs. stages: how many there are. chunks: how many a stage has.
    placement: where they are. The receiver may be on the same stage, which hands over without a message. None if
    nothing is sent: at the ends of the pipeline, and for weight gradients and the step. The receiver may run this half
    of a backward as a part of a whole one.
    """
    hop = task.kind.hop
    place = _Pipeline(stages, chunks, placement).neighbour(stage, task.chunk, hop) if hop else None
    return None if place is None else (place[0], Task(task.kind, task.microbatch, place[1]))


def sending(order: Order) -> Mapping[Result, Task]:
    """The tasks of an order that send and receive, by what they send: of the same of their neighbours they receive."""
    return {sent(task): task for task in order if task.kind.sends}


def sent(task: Task) -> Result:
    """What a task sends: a backward, whole or its first half, sends the gradient of its input."""
    return task.kind.templates[0], task.microbatch, task.chunk


def replay(
    orders: Sequence[Order],
    cost: Callable[[Task], Fraction | int] = lambda task: unit_cost(task),
    placement: ChunkPlacement = LOOP,
) -> tuple[tuple[Span, ...], ...]:
    """Run the orders, and return the spans of every stage.

    A stage runs one task at a time, after those it depends on. Tasks that run together are one: it begins when nothing
    is missing, and all its results are there when it ends. A forward depends on the previous forward in the pipeline. A
    backward depends on the next one's and on its own forward. A weight gradient depends on its input gradient. A whole
    backward is both halves.

    orders: a sequence of tasks for each stage. cost: how long a task takes, in any unit; 1 for a forward by default.
    placement: of chunks on stages. Raises UsageError, which names the waiting tasks, if the orders cannot end.
    """
    stages = len(orders)
    chunks = 1 + max((task.chunk for order in orders for task in order), default=0)
    pipeline = _Pipeline(stages, chunks, placement)
    ends: dict[tuple[int, Result], Fraction] = {}
    spans: list[list[Span]] = [[] for _ in orders]
    clocks = [Fraction(0)] * stages
    positions = [0] * stages
    waiting: dict[tuple[int, Result], list[int]] = {}
    ready = list(range(stages))
    while ready:
        stage = ready.pop()
        while positions[stage] < len(orders[stage]):
            tasks = _joined_tasks(orders[stage], positions[stage])
            needs = pipeline.needs_of(stage, tasks)
            missing = next((need for need in needs if need not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            clocks[stage] = max([clocks[stage], *(ends[need] for need in needs)])
            for task in tasks:
                start, clocks[stage] = clocks[stage], clocks[stage] + cost(task)
                spans[stage].append(Span(task, start, clocks[stage]))
            positions[stage] += len(tasks)
            for made in (each for task in tasks for each in _made(stage, task)):
                ends[made] = clocks[stage]
                ready += waiting.pop(made, [])
    stuck = [
        f"stage {stage} waits to run {_text(order[position])}"
        for stage, (order, position) in enumerate(zip(orders, positions, strict=True))
        if position < len(order)
    ]
    if stuck:
        raise UsageError("this schedule never ends: " + "; ".join(stuck))
    return tuple(tuple(stage) for stage in spans)


def _joined_tasks(order: Order, begin: int) -> Order:
    """The task at a place of an order, and those that run together with it."""
    end = begin + 1
    while end < len(order) and order[end].joined:
        end += 1
    return order[begin:end]


def _made(stage: int, task: Task) -> list[tuple[int, Result]]:
    return [(stage, (template, task.microbatch, task.chunk)) for template in task.kind.templates]


def unit_cost(task: Task) -> int:
    """Forward 1, backward 2, each half of a backward 1, step 0. Publications give bubbles in these units."""
    return task.kind.cost


def bubble(orders: Sequence[Order], placement: ChunkPlacement = LOOP) -> Fraction:
    """The share of its time that a stage idles, from 0 to 1: the mean over stages, in unit costs.

    orders: the tasks of each stage. placement: the places of chunks in the pipeline.
    """
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

    def neighbour(self, stage: int, chunk: int, hop: int) -> tuple[int, int] | None:
        """The stage and chunk that are `hop` numbers later in the pipeline."""
        number = self.placement.position(stage, chunk, self.stages) + hop
        return self.placement.located(number, self.stages) if 0 <= number < self.stages * self.chunks else None

    def needs(self, stage: int, task: Task) -> list[tuple[int, Result]]:
        """The stages and results that must be there before this task runs."""
        hop = task.kind.hop
        place = self.neighbour(stage, task.chunk, -hop) if hop else None
        found = [] if place is None else [(place[0], (task.kind.templates[0], task.microbatch, place[1]))]
        if task.kind.after is not None:
            found.append((stage, (task.kind.after.templates[0], task.microbatch, task.chunk)))
        return found

    def needs_of(self, stage: int, tasks: Order) -> list[tuple[int, Result]]:
        """The stages and results that must be there before these tasks run together.

        A half of a backward does not wait for the half before it, if both are among the tasks.
        """
        found, halves = [], set[tuple[int, Result]]()
        for task in tasks:
            found += [need for need in self.needs(stage, task) if need not in halves]
            halves |= set(_made(stage, task)) if task.kind.half else set()
        return found


def _text(task: Task) -> str:
    if task.kind.once:
        return f"the {task.kind}"
    return f"{task.kind} of micro-batch {task.microbatch}" + (f" of chunk {task.chunk}" if task.chunk else "")
