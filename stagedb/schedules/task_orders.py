"""Orders of a schedule's tasks: as text, run again to prove that they end, and with the messages a runtime posts."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.schedules.schedule import LOOP, ChunkPlacement, Order, Task
from stagedb.workflows import DEFAULT, TASK_KINDS, Template, Workflow

# A replay of orders. It runs each task after those that it depends on, proves that orders end, and times bubbles.

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


# Orders of tasks as text, `F0 F1 B0 W0.1`, as people write them and plans store them. Read and checked here.

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


# The order in which a runtime of several chunks posts its messages: `torch.distributed.pipelining`.
#
# Its schedules name only compute. Its runtime adds to each stage's list when chunks are gathered and given back, and
# puts their reductions right after their last backward. Then it adds each message once, by a walk over all stages in
# turns: every stage runs its next entry if what that receives has been posted. The send comes right after the task, and
# the receive after the latest entry of the receiving stage so far, which may be several tasks ahead of its use. A stage
# that hands over to itself posts nothing.


@dataclass(frozen=True)
class PostedReceive:
    """A receive for a task of the same stage."""

    task: Task


@dataclass(frozen=True)
class PostedGathers:
    """The gathers of all of a chunk's parameters."""

    chunk: int


@dataclass(frozen=True)
class PostedReductions:
    """The reductions of all of a chunk's gradients."""

    chunk: int


Posting = Task | PostedReceive | PostedGathers | PostedReductions

ACTIVE = 3
"""The chunks that the runtime keeps gathered: those of the next tasks."""


@dataclass(frozen=True)
class _Release:
    """A turn of the walk in which a chunk's parameters are given back."""


def _makes_gradients(task: Task) -> bool:
    return any(template.gradients == "weights" for template in task.kind.templates)


def _entries(order: Order) -> Iterator[Task | PostedGathers | PostedReductions | _Release]:
    """The tasks of a stage with its gathers, reductions and releases."""
    active: set[int] = set()
    tasks = [task for task in order if not task.kind.once]
    last = {task.chunk: place for place, task in enumerate(tasks) if _makes_gradients(task)}
    for place, task in enumerate(tasks):
        ahead = list(dict.fromkeys(each.chunk for each in tasks[place:]))[:ACTIVE]
        for _ in active - set(ahead):
            yield _Release()
        for chunk in ahead:
            if chunk not in active:
                yield PostedGathers(chunk)
        active = set(ahead)
        yield task
        if last.get(task.chunk) == place:
            yield PostedReductions(task.chunk)
    for _ in active:
        yield _Release()
    yield from order[len(tasks) :]


def posted(orders: Sequence[Order], chunks: int, placement: ChunkPlacement = LOOP) -> tuple[tuple[Posting, ...], ...]:
    """The tasks of every stage, and its messages where they are posted.

    orders: by stage. chunks: how many a stage has. UsageError if the orders cannot end.
    """
    stages = len(orders)
    lists: list[list[Posting]] = [[] for _ in orders]
    entries = [list(_entries(order)) for order in orders]
    receiving = [sending(order) for order in orders]

    def receiver_of(task: Task, stage: int) -> tuple[int, Result] | None:
        to = receiver(task, stage, stages, chunks, placement)
        return None if to is None else (to[0], sent(to[1]))

    awaited = {
        to for stage, order in enumerate(orders) for task in order if (to := receiver_of(task, stage)) is not None
    }
    arrived: set[tuple[int, Result]] = set()
    places = [0] * stages
    while any(place < len(own) for place, own in zip(places, entries, strict=True)):
        moved = False
        for stage, own in enumerate(entries):
            if places[stage] == len(own):
                continue
            task = own[places[stage]]
            if not isinstance(task, Task):
                moved = True
                places[stage] += 1
                if not isinstance(task, _Release):
                    lists[stage].append(task)
                continue
            waits = (stage, sent(task))
            if task.kind.sends and waits in awaited and waits not in arrived:
                continue
            moved = True
            places[stage] += 1
            lists[stage].append(task)
            to = receiver_of(task, stage)
            if to is not None:
                arrived.add(to)
                if to[0] != stage:
                    lists[to[0]].append(PostedReceive(receiving[to[0]][to[1]]))
        if not moved:
            raise UsageError("no stage can run its next task: this order of tasks never ends")
    return tuple(map(tuple, lists))
