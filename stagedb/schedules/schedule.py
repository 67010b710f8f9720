"""Schedules: tasks and their orders, the places of chunks in the pipeline, and the plans that a schedule suits."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.workflows import TaskKind

# Tasks of a pipeline stage, and facts about an order of them.


@dataclass(frozen=True)
class Task:
    """One run of a kind of task, for a micro-batch of a chunk (virtual stage). Both are 0 if it runs once a step.

    joined: it runs together with the task before it, operator by operator, in place of after it. It is the same task
    either way.
    """

    kind: TaskKind
    microbatch: int = 0
    chunk: int = 0
    joined: bool = field(default=False, compare=False)


Order = Sequence[Task]
"""Tasks of one stage in the order in which they run."""


class TaskPosition(NamedTuple):
    """The place of a task among those of its chunk on its stage.

    first, last: whether it is the first and the last of its kind. opened: whether a backward ran since the chunk's
    latest forward, so that what backwards leave gathered is gathered. pending: whether a second half of a backward ran
    since the chunk's latest first half. passed: whether there was a first half with something pending before.
    """

    first: bool
    last: bool
    opened: bool = False
    pending: bool = False
    passed: bool = False


def pairs(order: Order) -> Iterator[range]:
    """The places of tasks that run together, pair by pair: a forward, and a backward or its two halves."""
    begin = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or not order[index].joined:
            if index - begin > 1:
                yield range(begin, index)
            begin = index


def two_by_two(order: Order) -> tuple[Task, ...]:
    """The tasks with every second one run together with the one before it."""
    return tuple(replace(task, joined=bool(index % 2)) for index, task in enumerate(order))


def splits(order: Order) -> bool:
    """Whether an order of tasks runs backwards as two halves."""
    return any(task.kind.half for task in order)


def task_positions(order: Order) -> Iterator[TaskPosition]:
    """For each task, its place among those of its kind and chunk on this stage."""
    opened: dict[int, bool] = {}
    pending: dict[int, bool] = {}
    passed: dict[int, bool] = {}
    seen: dict[tuple[TaskKind, int], list[int]] = {}
    for index, task in enumerate(order):
        seen.setdefault((task.kind, task.chunk), []).append(index)
    for index, task in enumerate(order):
        indexes = seen[task.kind, task.chunk]
        waiting = pending.get(task.chunk, False)
        own = (opened.get(task.chunk, False), waiting, passed.get(task.chunk, False))
        yield TaskPosition(index == indexes[0], index == indexes[-1], *own)
        if task.kind.half:
            first = task.kind.sends
            pending[task.chunk] = not first
            passed[task.chunk] = passed.get(task.chunk, False) or (first and waiting)
        if task.kind.sends:
            opened[task.chunk] = task.kind.differentiates


def whole_backwards(order: Order, chunk: int) -> tuple[Task, ...]:
    """The tasks of a runtime that runs the whole backward of this chunk where its weight gradients are due.

    torch does so with the first number of the pipeline: its input needs no gradient, so that its input-gradient task
    has nothing to send and does nothing (`stage_index == 0` in `backward_weight_one_chunk`).
    """
    return tuple(
        whole(task) if task.chunk == chunk else task
        for task in order
        if task.chunk != chunk or not task.kind.half or not task.kind.sends
    )


def whole(task: Task) -> Task:
    """The task that runs both halves of a backward in the place of this half."""
    return task if task.kind.whole is None else replace(task, kind=task.kind.whole)


# The places of the stages' chunks in the pipeline: in loops, up and down, or as a map from number to stage.


@dataclass(frozen=True)
class ChunkRoute:
    """The way of a message from one chunk of the pipeline to the next.

    hop: number of the receiving stage minus that of the sending one. step: the same of their chunks.
    """

    hop: int
    step: int


@dataclass(frozen=True)
class ChunkPlacement:
    """Chunks have numbers in the pipeline, from 0, in the order of a forward. This maps stages to numbers and back.

    position: the number for (stage, chunk, stages). located: the stage and its chunk for (number, stages).
    """

    position: Callable[[int, int, int], int]
    located: Callable[[int, int], tuple[int, int]]

    def stage(self, number: int, stages: int) -> int:
        """The stage that runs a chunk. number: of the chunk in the pipeline. stages: how many the pipeline has."""
        return self.located(number, stages)[0]

    def route(self, number: int, towards: int, stages: int) -> ChunkRoute:
        """The way from a number to the next one (towards 1) or the previous one (-1), which must exist.

        number: of a chunk in the order of a forward. stages: of the pipeline.
        """
        (stage, chunk), (other, its) = self.located(number, stages), self.located(number + towards, stages)
        return ChunkRoute(other - stage, its - chunk)

    def chunks_of(self, stage: int, stages: int, chunks: int) -> tuple[int, ...]:
        """The numbers of a stage's chunks, in the order of its chunks.

        stage: its number. chunks: how many each stage has. stages: how many the pipeline has.
        """
        return tuple(self.position(stage, chunk, stages) for chunk in range(chunks))


def _loop_located(number: int, stages: int) -> tuple[int, int]:
    chunk, stage = divmod(number, stages)
    return stage, chunk


LOOP = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + stage, _loop_located)
"""Chunk c of stage i has the number c * stages + i: a message from the last stage goes round to the first."""


def _turned(place: int, chunk: int, stages: int) -> int:
    return stages - 1 - place if chunk % 2 else place


def _v_located(number: int, stages: int) -> tuple[int, int]:
    chunk, place = divmod(number, stages)
    return _turned(place, chunk, stages), chunk


V = ChunkPlacement(lambda stage, chunk, stages: chunk * stages + _turned(stage, chunk, stages), _v_located)
"""Every second chunk goes back from the last stage to the first: the stage where it turns has two numbers in a row."""

PLACEMENTS = {"loop": LOOP, "v": V}
"""Placements by the names that a plan uses."""


def mapped(of: Sequence[int]) -> ChunkPlacement:
    """The placement that has each number on the stage that `of` gives. A stage counts its chunks in this order."""
    counts: Counter[int] = Counter()
    located: list[tuple[int, int]] = []
    for stage in of:
        located.append((stage, counts[stage]))
        counts[stage] += 1
    numbers = {place: number for number, place in enumerate(located)}
    return ChunkPlacement(
        lambda stage, chunk, stages: numbers[stage, chunk],
        lambda number, stages: located[number],
    )


def stages_of(text: str) -> tuple[int, ...]:
    """The stages of a map as a plan writes it, `0,1,1,0`. text: for each chunk its stage. UsageError if it is none."""
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdecimal() and len(word.strip()) < 8 for word in words):
        raise UsageError(
            f"unknown chunk_placement {shown(text)}: {Word('chunk_placement')} is {' or '.join(PLACEMENTS)}, or the "
            "stage of each chunk in the order of a forward, such as 0,1,1,0"
        )
    return tuple(map(int, words))


def map_text(placement: ChunkPlacement, stages: int, chunks: int) -> str:
    """The placement as a text of a plan, `0,1,1,0`, which `stages_of` reads.

    chunks: how many a stage has. stages: of the pipeline.
    """
    return ",".join(str(placement.stage(number, stages)) for number in range(stages * chunks))


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule.

    name: its word in a plan. help: one line. order: the tasks of a stage, by (stage, stages, micro-batches, chunks).
    several_chunks: whether a stage has several chunks (virtual stages) instead of one. chunks: their number, if the
    schedule suits only one.
    chunked: the name of the schedule that replaces it when a plan asks for several chunks.
    one_stage: why a plan with one stage is refused, a text with {name} and {chunks}; empty if one stage suits.
    groups: why micro-batches must be a multiple of the stages, a text with {stages} and {microbatches}; empty if
    any number suits. fewest: why fewer micro-batches than two a stage are refused, a text with {name}, {least} and
    {stages}; empty if they suit. rounds: the same for micro-batches // stages equal rounds, a text with {rounds} too.
    paired: the order in which forwards and backwards run together in pairs; None if the schedule has none.
    pairs_alone: whether it has pairs on one stage only, because its warm-up is too short for those of a pipeline.
    halves: whether backwards run as two halves.
    alternates: whether, with one stage, the backward of each micro-batch follows its forward at once.
    placement: the places of chunks in the pipeline.
    """

    name: str
    help: str
    order: Callable[[int, int, int, int], tuple[Task, ...]]
    several_chunks: bool = False
    chunks: int | None = None
    chunked: str | None = None
    one_stage: str = ""
    groups: str = ""
    rounds: str = ""
    fewest: str = ""
    halves: bool = False
    alternates: bool = False
    placement: ChunkPlacement = LOOP
    paired: Callable[[int, int, int, int], tuple[Task, ...]] | None = None
    pairs_alone: bool = False

    def misfit(self, stages: int, microbatches: int) -> str:
        """Why this number of micro-batches does not suit; empty if it does.

        A multiple of twice the stages suits every schedule. microbatches: of a step.
        """
        if self.fewest and microbatches < 2 * stages:
            return self.fewest.format(name=self.name, least=2 * stages, stages=stages)
        rounds = max(1, microbatches // stages)
        why = self.groups if microbatches % stages else ""
        why = why or (self.rounds if microbatches % rounds else "")
        return why.format(stages=stages, microbatches=microbatches, rounds=rounds)

    def has_pairs(self, stages: int) -> bool:
        """Whether forwards and backwards can run together in pairs on this number of stages."""
        return self.paired is not None and not (self.pairs_alone and stages > 1)

    def orders(
        self, stages: int, microbatches: int, chunks: int = 1, pairs: bool = False
    ) -> tuple[tuple[Task, ...], ...]:
        """The tasks of every stage, in order.

        chunks: on each stage. pairs: run forwards and backwards together, if it can. microbatches: of a step. stages:
        of the pipeline.
        """
        order = self.paired if pairs and self.paired is not None else self.order
        return tuple(order(stage, stages, microbatches, chunks) for stage in range(stages))
