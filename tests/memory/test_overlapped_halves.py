"""Memory while a forward and a backward run together: both are alive, in the order in which their operators run."""

from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pytest

from stagedb.lowering import program_of
from stagedb.lowering.columns import ClassColumns, Program
from stagedb.lowering.issue_order import sequence
from stagedb.memory import ClassMemory
from stagedb.memory.class_memory import class_memory
from stagedb.memory.class_program import PlacedWeight
from stagedb.memory.lifetimes import Moment
from stagedb.plans import Plan
from stagedb.schedules import task_positions
from tests.ir.tiny import card

PLANS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one stage": ("moe", 3, {"recipe": "megatron", "dp": 2, "ep": 2, "global_batch_size": 6}),
    "one stage, torch": ("deepseek", 3, {"dp": 2, "ep": 2, "zero": 1, "global_batch_size": 8}),
    "recomputed": ("moe", 2, {"dp": 2, "ep": 2, "recompute": "full", "global_batch_size": 6}),
    "interleaved": (
        "moe",
        4,
        {"recipe": "megatron", "dp": 2, "ep": 2, "zero": 1, "pp": 2, "virtual_stages": 2, "global_batch_size": 8},
    ),
    "dualpipev": (
        "moe",
        8,
        {"recipe": "megatron", "dp": 2, "ep": 2, "pp": 2, "virtual_stages": 2, "schedule": "dualpipev"}
        | {"global_batch_size": 10},
    ),
}


@cache
def made(name: str) -> Program:
    style, layers, words = PLANS[name]
    plan = Plan.from_mapping({"seq_len": 8, "overlap_experts": True, **words})
    return program_of(card(style, layers=layers), plan)


def memories(name: str, together: bool = True) -> list[ClassMemory]:
    """The memory of each class. together: as it runs, or with the tasks of each pair one after the other."""
    found, instance = [], made(name)
    for columns in instance.workload.classes:
        own = columns if together else replace(columns, pairs=())
        found.append(class_memory(instance.graph, instance.plan, own, carried(instance, columns)))
    return found


def carried(instance: Program, columns: ClassColumns) -> dict[int, tuple[PlacedWeight, ...]]:
    """The weights of a class's buckets."""
    rows = instance.carried[columns.number].items()
    return {op: tuple(PlacedWeight(*each) for each in of) for op, of in rows}


def levels_of_nodes(memory: ClassMemory) -> list[int]:
    """Bytes before each node of the issue order and while it runs, from the lives alone.

    A tensor is there from the begin of the node that makes it to the end of the last one that reads it.
    """
    columns, tasks = memory.rank_class, memory.usage.tasks
    nodes = sequence(columns)
    at: dict[tuple[int, int], int] = {}
    for row, task in enumerate(nodes.task.tolist()):
        for op in nodes.layouts[nodes.layout[row]].ops.tolist():
            at[task, op] = len(at)
    changes = [0] * (2 * len(at) + 2)
    of_kind: dict[tuple[object, int], list[int]] = {}
    for number, task in enumerate(tasks):
        of_kind.setdefault((task.kind, task.chunk), []).append(number)
    places = list(task_positions(tasks))
    ran = [[at.get((number, item.row)) for _, item in memory.items(task)] for number, task in enumerate(tasks)]

    def when(task: int, moment: Moment, begins: bool) -> int:
        before = [node for node in ran[task][: moment.index] if node is not None]
        after = [node for node in ran[task][moment.index :] if node is not None]
        if begins or moment.prepared:
            node = after[0] if after else before[-1] + 1
            return 2 * node + (begins is not moment.prepared)
        return 2 * (before[-1] + 1) if before else 2 * after[0]

    for life in memory.usage.held.lives:
        for sign, moments in ((1, (life.begin,)), (-1, life.ends)):
            for moment in moments:
                for task in of_kind.get((moment.kind, moment.chunk), ()):
                    if moment.which.fits(places[task]):
                        changes[when(task, moment, sign > 0)] += sign * life.bytes
    changes[0] += sum(memory.usage.before().values())
    return list(accumulate(changes))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_the_peak_is_that_of_a_walk_over_the_nodes(name: str, together: bool) -> None:
    for memory in memories(name, together):
        levels = levels_of_nodes(memory)
        peak = sum(memory.usage.at(memory.peak).values())
        assert peak == max(levels)
        assert sum(each.bytes for each in memory.alive()) == peak
        assert sum(memory.usage.after(len(memory.usage.tasks) - 1).values()) == levels[-1]
        tops = [int(memory.usage.levels(task).sum(axis=0).max()) for task in range(len(memory.usage.tasks))]
        assert max(tops) == peak


@pytest.mark.parametrize("name", ["one stage", "one stage, torch", "recomputed", "interleaved"])
def test_pairs_hold_more_than_tasks_one_after_the_other(name: str) -> None:
    """One more forward runs before the first backward. A pair leaves what its tasks leave one by one, and holds
    no more than a forward that is over before its backward begins.
    """
    style, layers, words = PLANS[name]
    plain = Plan.from_mapping({"seq_len": 8, **words})
    others = program_of(card(style, layers=layers), plain)
    for memory, apart, columns in zip(memories(name), memories(name, False), others.workload.classes, strict=True):
        without = class_memory(others.graph, plain, columns, carried(others, columns))
        assert _peak(memory) > _peak(without)
        assert _peak(memory) <= _peak(apart)
        inside = {task for pair in memory.rank_class.pairs for task in range(*pair)}
        for task in set(range(len(memory.usage.tasks))) - inside:
            assert memory.usage.after(task) == apart.usage.after(task)


def _peak(memory: ClassMemory) -> int:
    return sum(memory.usage.at(memory.peak).values())
