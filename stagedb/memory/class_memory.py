"""The memory of every rank class of a program over a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.columns import BucketWeights, ClassColumns, Program
from stagedb.lowering.overlapped_pairs import interleaved
from stagedb.memory.class_program import (
    FIRST,
    Carried,
    ChunkProgram,
    Item,
    PlacedWeight,
    SharePlace,
    local_chunk,
    programs,
    tasks_of,
)
from stagedb.memory.lifetimes import Lives
from stagedb.memory.tensor_lifetimes import lives, saved
from stagedb.memory.usage import Alive, JointOrder, Point, Usage
from stagedb.plans import Plan
from stagedb.schedules import Task, splits
from stagedb.workflows import TASK_KINDS, TaskKind


@dataclass(frozen=True)
class ClassMemory:
    """The memory of one rank of a class over a step.

    rank_class: the number of the class. programs: one for each chunk of its stage. usage: bytes that are held at every
    point of the step.
    """

    rank_class: ClassColumns
    programs: tuple[ChunkProgram, ...]
    usage: Usage

    @property
    def program(self) -> ChunkProgram:
        """The program of the first chunk, which is the program of the stage if it has one chunk."""
        return self.programs[0]

    @cached_property
    def peak(self) -> Point:
        """The point of the step at which the most is held."""
        return self.usage.peak()

    @property
    def kinds(self) -> tuple[TaskKind, ...]:
        """The kinds of tasks of all chunks: one may split its backward and another not."""
        used = {kind for program in self.programs for kind in program.items}
        return tuple(kind for kind in TASK_KINDS.values() if kind in used)

    def ends(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category before the step, and after the last task of each phase; `host`: in its host's memory."""
        yield "start", {str(category): size for category, size in self.usage.before().items()}
        for phase in dict.fromkeys(kind.phase for kind in self.kinds if not kind.once):
            last = max(i for i, task in enumerate(self.usage.tasks) if task.kind.phase == phase)
            yield f"{phase}_end", {str(category): size for category, size in self.usage.after(last).items()}
        if host := self.usage.on_host():
            yield "host", {str(category): size for category, size in host.items()}
        yield "step_end", {str(c): size for c, size in self.usage.after(len(self.usage.tasks) - 1).items()}

    def peaks(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category at the peak of each phase, and at the peak of the step."""
        for phase in dict.fromkeys(kind.phase for kind in self.kinds):
            kinds = [kind for kind in self.kinds if kind.phase == phase]
            by_category = self.usage.at(self.usage.peak(kinds))
            yield f"{phase}_peak", {str(category): size for category, size in by_category.items()}
        yield "peak", {str(category): size for category, size in self.usage.at(self.peak).items()}

    def saved(self, chunk: int = 0) -> dict[int, dict[str, int]]:
        """Bytes that one micro-batch's forward of a chunk saves for its backward, by position of the reader.

        Received inputs count, wherever they are stored; tensors that a pipeline keeps in addition do not.
        """
        return saved(self.programs[chunk])

    def alive(self) -> list[Alive]:
        """The tensors that live at the peak, the biggest first."""
        tensors = self.usage.alive(self.peak)
        return sorted(
            tensors, key=lambda tensor: (-tensor.bytes, tensor.name, -1 if tensor.layer is None else tensor.layer)
        )

    def at(self, point: Point) -> tuple[Task, int | None, str]:
        """The task of a point, and the place in the class and the name of the op that runs then.

        There is no op at a task's end.
        """
        task = self.usage.tasks[point.task]
        items = self.items(task)
        if point.index == len(items):
            return task, None, "the end"
        row = items[point.index][1].row
        return task, row, self.rank_class.ops.name[row]

    def items(self, task: Task) -> list[tuple[int, Item]]:
        """The items of a task, each with its chunk: a step runs those of all chunks."""
        chosen = self.programs if task.kind.once else self.programs[task.chunk : task.chunk + 1]
        return [(program.chunk, item) for program in chosen for item in program.items[task.kind]]


def memory_of(program: Program, place: SharePlace = FIRST) -> tuple[ClassMemory, ...]:
    """The memory of a rank of every class of a program.

    place: of the rank among those that share weights. The first one has the most of weights whose rows do not divide.
    """
    classes = [(columns, program.carried.get(columns.number, {})) for columns in program.workload.classes]
    return memory_of_classes(program.graph, program.plan, classes, place)


def memory_of_classes(
    graph: SymGraph, plan: Plan, classes: Sequence[tuple[ClassColumns, BucketWeights]], place: SharePlace = FIRST
) -> tuple[ClassMemory, ...]:
    """The memory of a rank of each of some classes of a graph under a plan.

    classes: the columns of each class, and the weights of its buckets. place: as in `memory_of`.
    """
    shared: Shared = {}
    of_classes = []
    for columns, weights in classes:
        carried = {op: tuple(PlacedWeight(*weight) for weight in of) for op, of in weights.items()}
        of_classes.append(class_memory(graph, plan, columns, carried, place, shared))
    return tuple(of_classes)


def peak_of(memory: Sequence[ClassMemory]) -> int:
    """Bytes of the fullest rank class at its peak.

    memory: that of every rank class.
    """
    return max(sum(of_class.usage.at(of_class.peak).values()) for of_class in memory)


Shared = dict[object, tuple[tuple[ChunkProgram, ...], Lives]]
"""Programs and lives by what they follow from. Stages that differ in their order of tasks alone share them."""


def class_memory(
    graph: SymGraph,
    plan: Plan,
    columns: ClassColumns,
    carried: Carried,
    place: SharePlace = FIRST,
    shared: Shared | None = None,
) -> ClassMemory:
    """The memory of a rank of one class of a graph's instance under a plan. carried: the weights of its buckets.

    place: as in `memory_of`. shared: what was made for other classes of the same instance, and gets this one's.
    """
    known: Shared = {} if shared is None else shared
    key = _content(plan, columns, carried)
    if key not in known:
        made = programs(graph, plan, columns, carried, place)
        known[key] = made, lives(made, plan)
    made, held = known[key]
    lengths = {(kind, one.chunk): len(items) for one in made for kind, items in one.items.items()}
    for kind in plan.workflow.ending:
        lengths[kind, 0] = sum(len(one.items[kind]) for one in made)
    tasks = tasks_of(columns)
    together = {
        tuple((task.kind, task.chunk) for task in tasks[begin:stop]): _joint_order(columns, made, tasks[begin:stop])
        for begin, stop in columns.pairs
    }
    return ClassMemory(columns, made, Usage(held, tasks, lengths, together, columns.pairs))


def _content(plan: Plan, columns: ClassColumns, carried: Carried) -> object:
    """All of a class that its programs follow from: equal ones have equal programs."""
    ops, origins = columns.ops, columns.origins
    numbers = (
        *(ops.chunk, ops.template, ops.order, ops.operand, ops.result),
        *(origins.position, origins.layer, origins.temporary),
    )
    texts = (ops.name, origins.sym, origins.block, origins.member)
    chunks = range(1 + int(ops.chunk.max(initial=0)))
    tasks = tasks_of(columns)
    split = tuple(splits([task for task in tasks if task.chunk == chunk]) for chunk in chunks)
    ways = tuple(local_chunk(plan, columns, chunk, towards) for chunk in chunks for towards in (-1, 1))
    return (*(each.tobytes() for each in numbers), *texts, split, ways, tuple(sorted(carried.items())))


def _joint_order(columns: ClassColumns, made: tuple[ChunkProgram, ...], tasks: Sequence[Task]) -> JointOrder:
    """The order of the items of tasks that run together."""
    rows = [np.array([item.row for item in made[each.chunk].items[each.kind]], np.int64) for each in tasks]
    places: list[list[int]] = [[] for _ in tasks]
    for at, number in enumerate(number for number, part in interleaved(columns, rows) for _ in part):
        places[number].append(at)
    return JointOrder(tuple(map(tuple, places)))
