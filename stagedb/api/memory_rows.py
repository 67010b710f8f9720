"""The memory of an instance as rows: those of the store, or computed without a write."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stagedb.api import system_choice
from stagedb.api.results import InstanceInfo, Memory, Rows
from stagedb.store import Store, load, read_whole

if TYPE_CHECKING:
    from stagedb.lowering import Program
    from stagedb.memory import ClassMemory
    from stagedb.systems.system import System

TABLES = ("peaks", "levels", "tensors")


def read_memory(
    store: Store, instance: InstanceInfo, system: "System | None", analysed: Callable[[], Sequence["ClassMemory"]]
) -> Memory:
    """The memory of an instance, with what an accelerator has for it. Writes nothing.

    system: the one whose accelerator is to hold it; None: that of the newest profile. analysed: the result of `analyse`
    for the instance, for one that the store has no memory of.
    """
    tables = rows_of(store, instance, keep=False, analysed=analysed)
    has = system_choice.accelerator_of(store, instance, system)
    room, reserve = (None, {}) if has is None else (has.room, has.reserved)
    return Memory(instance, *tables, room, reserve)


def rows_of(
    store: Store, instance: InstanceInfo, keep: bool, analysed: Callable[[], Sequence["ClassMemory"]] | None = None
) -> tuple[Rows, Rows, Rows]:
    """Peaks, levels and tensors of an instance. What the store does not have is computed, and written if `keep` is set.

    Each class is written as a whole, and an interrupted run may have left some classes out. analysed: the result of
    `analyse` for the instance, where others need it too; None: computed here.
    """
    if len(store.read("memory/all_peaks", instance=instance.id)) < instance.classes:
        from stagedb.store.contents.memory import analyse, record

        found = analyse(store, instance.id) if analysed is None else tuple(analysed())
        if not keep:
            ranks = {row["number"]: row["ranks"] for row in store.read("workload/classes", instance=instance.id)}
            return _computed([_values(each, ranks) for each in found])
        record(store, instance.id, found)
    peaks, levels, tensors = read_whole(
        store, "Instance", instance.id, lambda: [_stored(store, name, instance.id) for name in TABLES]
    )
    return peaks, levels, tensors


def rows_of_program(program: "Program") -> tuple[Rows, Rows, Rows]:
    """Peaks, levels and tensors of a program, computed in memory."""
    from stagedb.memory import memory_of

    ranks = Counter(program.workload.ranks.number.tolist())
    return _computed([_values(each, ranks) for each in memory_of(program)])


def _stored(store: Store, table: str, instance: str) -> Rows:
    return _rows(table, store.read(f"memory/all_{table}", instance=instance))


def _rows(table: str, found: list[dict[str, Any]]) -> Rows:
    columns = tuple(column.name for column in load(f"memory/all_{table}").columns)
    return Rows(columns, tuple(tuple(row[name] for name in columns) for row in found))


def _values(each: "ClassMemory", ranks: Mapping[int, int]) -> Mapping[str, Any]:
    from stagedb.store.contents.memory import stored_row

    found = each.rank_class
    return {**stored_row("", "", frozenset(), each), "stages": list(found.stages), "ranks": ranks[found.number]}


def _computed(classes: list[Mapping[str, Any]]) -> tuple[Rows, Rows, Rows]:
    """The rows of the three tables, in the order of their statements."""
    classes = sorted(classes, key=lambda each: int(each["class"]))
    peaks = [{**each["values"], "stages": each["stages"], "ranks": each["ranks"]} for each in classes]
    levels = [
        {"class": each["class"], **level}
        for each in classes
        for level in sorted(each["levels"], key=lambda level: (level["moment"], level["category"]))
    ]
    return _rows("peaks", peaks), _rows("levels", levels), _rows("tensors", [*_tensors(classes)])


def _tensors(classes: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The largest first; those without a layer come last among equals, as in Cypher."""
    for each in classes:
        for row in sorted(
            each["tensors"],
            key=lambda row: (-row["bytes"], row["name"], row["layer"] is None, row["layer"] or 0, row["category"]),
        ):
            yield {"class": each["class"], **row}
