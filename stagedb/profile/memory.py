"""What every rank class of an instance holds in memory over a step, computed from the store and written into it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stagedb.instance import RankClass, rank_classes
from stagedb.parallel import Plan, Task, TaskKind
from stagedb.profile.lifetimes import lives, saved
from stagedb.profile.program import Item, Program, programs
from stagedb.profile.usage import Alive, Point, Usage
from stagedb.store import Store, read_graph

PHASES: Mapping[str, tuple[TaskKind, ...]] = {
    "forward": (TaskKind.FORWARD,),
    "backward": (TaskKind.BACKWARD, TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT),
    "optimizer": (TaskKind.STEP,),
}


@dataclass(frozen=True)
class ClassMemory:
    """The memory of one rank of a class. `usage` tells live bytes at every point of the step; a program a chunk."""

    rank_class: RankClass
    programs: tuple[Program, ...]
    usage: Usage

    @property
    def program(self) -> Program:
        """The program of the first chunk: of the stage, where it has one."""
        return self.programs[0]

    @cached_property
    def peak(self) -> Point:
        """Where the most is held."""
        return self.usage.peak()

    def ends(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category before the step, and when the last task of each phase is over."""
        yield "start", {str(category): size for category, size in self.usage.before().items()}
        for phase in ("forward", "backward"):
            last = max(i for i, task in enumerate(self.usage.tasks) if task.kind in PHASES[phase])
            yield f"{phase}_end", {str(category): size for category, size in self.usage.after(last).items()}
        yield "step_end", {str(c): size for c, size in self.usage.after(len(self.usage.tasks) - 1).items()}

    def peaks(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Bytes by category at the peak of each phase, and at that of all."""
        for phase, kinds in PHASES.items():
            found = self.usage.at(self.usage.peak(kinds))
            yield f"{phase}_peak", {str(category): size for category, size in found.items()}
        yield "peak", {str(category): size for category, size in self.usage.at(self.peak).items()}

    def saved(self, chunk: int = 0) -> dict[int, dict[str, int]]:
        """What one micro-batch's forward of a chunk saves for its backward: bytes by position of who reads it there.

        Received inputs count, wherever they lie; what a pipeline keeps besides does not.
        """
        return saved(self.programs[chunk])

    def alive(self) -> list[Alive]:
        """The tensors that live at the peak, the biggest first."""
        found = self.usage.alive(self.peak)
        return sorted(found, key=lambda each: (-each.bytes, each.name, -1 if each.layer is None else each.layer))

    def at(self, point: Point) -> tuple[Task, str | None, str]:
        """The task of a point, and the id's end and the name of the op that runs then; no op at a task's end."""
        task = self.usage.tasks[point.task]
        items = self.items(task)
        if point.index == len(items):
            return task, None, "the end"
        chunk, item = items[point.index]
        layer, bucket = self.programs[chunk].layers.get(item.position), item.bucket
        if bucket is not None:
            name = f"{item.op.name}.{bucket.index}"
            return task, f"{chunk}/{item.position}/{name}", name
        name = item.op.name
        if layer is not None:
            head, _, rest = name.partition(".")
            name = f"{head}.{layer}.{rest}"
        return task, f"{chunk}/{item.position}/{item.op.name}", name

    def items(self, task: Task) -> list[tuple[int, Item]]:
        """What a task runs, with the chunk that each item is of: a step runs all chunks'."""
        chosen = self.programs if task.kind is TaskKind.STEP else self.programs[task.chunk : task.chunk + 1]
        return [(each.chunk, item) for each in chosen for item in each.items[task.kind]]


def analyse(store: Store, graph: str, plan: Plan) -> tuple[ClassMemory, ...]:
    """The memory of every rank class of a graph under a plan. Reads the graph, writes nothing."""
    symbolic = read_graph(store, graph)
    found = []
    for each in rank_classes(store, graph, plan):
        made = programs(symbolic, plan, each)
        lengths = {(kind, one.chunk): len(items) for one in made for kind, items in one.items.items()}
        lengths[TaskKind.STEP, 0] = sum(len(one.items[TaskKind.STEP]) for one in made)
        found.append(ClassMemory(each, made, Usage(lives(made, plan), each.work.tasks, lengths)))
    return tuple(found)


def record(store: Store, instance: str, found: tuple[ClassMemory, ...]) -> None:
    """Write what was found into the store, beside the instance. The same twice is once."""
    store.write_rows("memory/levels", list(_levels(found)), instance=instance)
    store.write_rows("memory/tensors", list(_tensors(found)), instance=instance)
    store.write_rows("memory/peaks", list(_peaks(instance, found)), instance=instance)


def _levels(found: tuple[ClassMemory, ...]) -> Iterator[dict[str, Any]]:
    for each in found:
        for moment, sizes in (*each.ends(), *each.peaks()):
            for category, size in sizes.items():
                row = {"class": each.rank_class.number, "moment": moment, "category": category, "bytes": size}
                yield row


def _tensors(found: tuple[ClassMemory, ...]) -> Iterator[dict[str, Any]]:
    for each in found:
        for place, alive in enumerate(each.alive()):
            yield {
                "class": each.rank_class.number,
                "place": place,
                "name": alive.name,
                "layer": alive.layer,
                "category": str(alive.category),
                "count": alive.count,
                "bytes": alive.bytes,
            }


def _peaks(instance: str, found: tuple[ClassMemory, ...]) -> Iterator[dict[str, Any]]:
    for each in found:
        number, point = each.rank_class.number, each.peak
        task, op, name = each.at(point)
        yield {
            "class": number,
            "peak": sum(each.usage.at(point).values()),
            "phase": next(phase for phase, kinds in PHASES.items() if task.kind in kinds),
            "task": point.task,
            "microbatch": None if task.kind is TaskKind.STEP else task.microbatch,
            "op": None if op is None else f"{instance}/{number}/{op}",
            "name": name,
        }
