"""The memory of every rank class of an instance over a step, computed from the store and written to it."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stagedb.inputs import shown
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.memory.class_program import Carried, Item, PlacedWeight, Program, programs, tasks_of
from stagedb.memory.share_place import FIRST, SharePlace
from stagedb.memory.tensor_lifetimes import lives, saved
from stagedb.memory.usage import Alive, Point, Together, Usage
from stagedb.plans import Plan
from stagedb.schedules import Task
from stagedb.store import Store, json_mapping, read_graph, read_whole, reading
from stagedb.workflows import TASK_KINDS, TaskKind
from stagedb.workload.instance_columns import ClassColumns
from stagedb.workload.memory_proofs import memory_digest
from stagedb.workload.overlapped_pairs import interleaved, joined_tasks
from stagedb.workload.store_reading import READERS, find, read_class


@dataclass(frozen=True)
class ClassMemory:
    """The memory of one rank of a class. `usage`: live bytes at every point of the step; one program a chunk."""

    rank_class: ClassColumns
    programs: tuple[Program, ...]
    usage: Usage

    @property
    def program(self) -> Program:
        """The program of the first chunk, which is the program of the stage if it has one chunk."""
        return self.programs[0]

    @cached_property
    def peak(self) -> Point:
        """The point of the step at which the most is held."""
        return self.usage.peak()

    @property
    def kinds(self) -> tuple[TaskKind, ...]:
        """The kinds of tasks of all chunks: one may split its backward and another not."""
        found = {kind for program in self.programs for kind in program.items}
        return tuple(kind for kind in TASK_KINDS.values() if kind in found)

    def ends(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category before the step, and after the last task of each phase."""
        yield "start", {str(category): size for category, size in self.usage.before().items()}
        for phase in dict.fromkeys(kind.phase for kind in self.kinds if not kind.once):
            last = max(i for i, task in enumerate(self.usage.tasks) if task.kind.phase == phase)
            yield f"{phase}_end", {str(category): size for category, size in self.usage.after(last).items()}
        yield "step_end", {str(c): size for c, size in self.usage.after(len(self.usage.tasks) - 1).items()}

    def peaks(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category at the peak of each phase, and at the peak of the step."""
        for phase in dict.fromkeys(kind.phase for kind in self.kinds):
            kinds = [kind for kind in self.kinds if kind.phase == phase]
            found = self.usage.at(self.usage.peak(kinds))
            yield f"{phase}_peak", {str(category): size for category, size in found.items()}
        yield "peak", {str(category): size for category, size in self.usage.at(self.peak).items()}

    def saved(self, chunk: int = 0) -> dict[int, dict[str, int]]:
        """Bytes that one micro-batch's forward of a chunk saves for its backward, by position of the reader.

        Received inputs count, wherever they are stored; tensors that a pipeline keeps in addition do not.
        """
        return saved(self.programs[chunk])

    def alive(self) -> list[Alive]:
        """The tensors that live at the peak, the biggest first."""
        found = self.usage.alive(self.peak)
        return sorted(found, key=lambda each: (-each.bytes, each.name, -1 if each.layer is None else each.layer))

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
        return [(each.chunk, item) for each in chosen for item in each.items[task.kind]]


def analyse(
    store: Store, instance: str, place: SharePlace = FIRST, classes: Sequence[ClassColumns] = ()
) -> tuple[ClassMemory, ...]:
    """The memory of a rank of every class of a stored instance. Reads the store alone, and writes nothing.

    place: of the rank among those that share weights. The first one has the most of weights whose rows do not divide.
    classes: those of the instance that were read already. Raises UsageError where the store has no such
    instance.
    """

    def analysed() -> tuple[ClassMemory, ...]:
        row = find(store, instance)
        with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
            return _analyse(store, instance, row, place, {each.number: each for each in classes})

    return read_whole(store, "Instance", instance, analysed)


def _analyse(
    store: Store, instance: str, row: Mapping[str, Any], place: SharePlace, known: Mapping[int, ClassColumns]
) -> tuple[ClassMemory, ...]:
    words = json_mapping(row["plan"], "plan")
    plan = Plan.from_mapping(words)

    def read(each: Mapping[str, Any]) -> tuple[ClassColumns, Carried]:
        buckets = store.read("workload/buckets", **{"class": each["id"]})
        columns = known.get(each["number"]) or joined_tasks(read_class(store, each, edges=False), words)
        return columns, {
            int(bucket["op"]): tuple(map(PlacedWeight, bucket["position"], bucket["weight"])) for bucket in buckets
        }

    with ThreadPoolExecutor(READERS) as pool:
        asked = pool.submit(read_graph, store, row["graph"])
        classes = tuple(pool.map(read, store.read("workload/classes", instance=instance)))
    graph = asked.result()
    return tuple(class_memory(graph, plan, columns, carried, place) for columns, carried in classes)


def class_memory(
    graph: SymGraph, plan: Plan, columns: ClassColumns, carried: Carried, place: SharePlace = FIRST
) -> ClassMemory:
    """The memory of a rank of one class of a graph's instance under a plan. carried: the weights of its buckets.

    place: as in `analyse`.
    """
    made = programs(graph, plan, columns, carried, place)
    lengths = {(kind, one.chunk): len(items) for one in made for kind, items in one.items.items()}
    for kind in plan.workflow.ending:
        lengths[kind, 0] = sum(len(one.items[kind]) for one in made)
    tasks = tasks_of(columns)
    together = {
        tuple((task.kind, task.chunk) for task in tasks[begin:stop]): _together(columns, made, tasks[begin:stop])
        for begin, stop in columns.pairs
    }
    return ClassMemory(columns, made, Usage(lives(made, plan), tasks, lengths, together, columns.pairs))


def _together(columns: ClassColumns, made: tuple[Program, ...], tasks: Sequence[Task]) -> Together:
    """The order of the items of tasks that run together."""
    rows = [np.array([item.row for item in made[each.chunk].items[each.kind]], np.int64) for each in tasks]
    found: list[list[int]] = [[] for _ in tasks]
    for at, number in enumerate(number for number, part in interleaved(columns, rows) for _ in part):
        found[number].append(at)
    return Together(tuple(map(tuple, found)))


def record(store: Store, instance: str, found: tuple[ClassMemory, ...]) -> None:
    """Write the result into the store, linked to the instance. A repeated call changes nothing.

    Everything of a class is written in one transaction, so that a reader finds all of it or nothing.
    """
    graph = find(store, instance)["graph"]
    known = frozenset(name for each in found for program in each.programs for name in program.tensors)
    for each in found:
        row = stored_row(graph, instance, known, each)
        sealed = {**row, "values": {**row["values"], "content": memory_digest(row)}}
        store.write_rows("memory/record", [sealed], instance=instance)


def stored_row(graph: str, instance: str, known: frozenset[str], each: ClassMemory) -> dict[str, Any]:
    """The memory of a class as the store has it. known: names of tensors that the graph has; others are buffers."""
    number, point = each.rank_class.number, each.peak
    task, op, name = each.at(point)
    origins = each.rank_class.origins
    return {
        "class": number,
        "task": origins.tasks[point.task],
        "op": None if op is None else origins.id[op],
        "values": {
            "instance": instance,
            "class": number,
            "peak": sum(each.usage.at(point).values()),
            "phase": task.kind.phase,
            "task": point.task,
            "microbatch": None if task.kind.once else task.microbatch,
            "name": name,
        },
        "levels": [
            {"moment": moment, "category": category, "bytes": size}
            for moment, sizes in (*each.ends(), *each.peaks())
            for category, size in sizes.items()
        ],
        "tensors": [
            {
                "place": place,
                "sym": f"{graph}/{alive.name}" if alive.name in known else None,
                "name": alive.name,
                "layer": alive.layer,
                "category": str(alive.category),
                "count": alive.count,
                "bytes": alive.bytes,
            }
            for place, alive in enumerate(each.alive())
        ],
    }
