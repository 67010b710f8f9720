"""The memory of every rank class of a stored instance: computed from what the store has of it, and written to it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stagedb.files import shown
from stagedb.files.stored_values import json_mapping
from stagedb.lowering.columns import BucketWeights, ClassColumns
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.memory.class_memory import ClassMemory, memory_of_classes
from stagedb.memory.class_program import FIRST, SharePlace
from stagedb.plans import Plan
from stagedb.store import Store, read_graph, read_whole, reading
from stagedb.store.contents.proofs import memory_digest
from stagedb.store.contents.stored_programs import READERS, find, read_carried, read_class, read_facts


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

    def read(each: Mapping[str, Any]) -> tuple[ClassColumns, BucketWeights]:
        columns = known.get(each["number"]) or joined_tasks(read_class(store, facts, each, edges=False), words)
        return columns, read_carried(store, each["id"])

    rows = store.read("workload/classes", instance=instance)
    facts = {} if all(each["number"] in known for each in rows) else read_facts(store, instance)
    with ThreadPoolExecutor(READERS) as pool:
        asked = pool.submit(read_graph, store, row["graph"])
        classes = tuple(pool.map(read, rows))
    return memory_of_classes(asked.result(), plan, classes, place)


def record(store: Store, instance: str, found: tuple[ClassMemory, ...]) -> None:
    """Write the result into the store, linked to the instance. A repeated call changes nothing.

    Everything of a class is written in one transaction, so that a reader finds all of it or nothing. instance: its id.
    found: the memory of each rank class.
    """
    graph = find(store, instance)["graph"]
    known = frozenset(name for each in found for program in each.programs for name in program.tensors)
    for each in found:
        row = stored_row(graph, instance, known, each)
        sealed = {**row, "values": {**row["values"], "content": memory_digest(row)}}
        store.write_rows("memory/record", [sealed], instance=instance)


def stored_row(graph: str, instance: str, known: frozenset[str], each: ClassMemory) -> dict[str, Any]:
    """The memory of a class as the store has it. known: names of tensors that the graph has; others are buffers.

    graph, instance: their ids. each: the class's memory.
    """
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
