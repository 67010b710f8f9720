"""A graph under a plan, lowered to the columns of what each rank class runs. No store is needed for it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from stagedb.graphs.model_graph import build_graph
from stagedb.ir.facts import OpFacts
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.columns import (
    ClassColumns,
    Workload,
    class_of,
    group_table,
    placed,
    rank_table,
    tasks_of_rows,
    with_calls,
)
from stagedb.lowering.copied_rows import (
    CopiedRows,
    IndexedGraph,
    Row,
    class_rows,
    rank_layout,
    rows_by_class,
    rows_of,
    task_rows,
)
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.lowering.preparing import prepare
from stagedb.lowering.rank_classes import RankClass, operators_digest
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan

BucketWeights = Mapping[int, tuple[tuple[int, str, int], ...]]
"""By place of a bucket among the ops of a class: position, name and chunk of the weights that it carries."""


@dataclass(frozen=True)
class Program:
    """What the rank classes of a graph run under a plan: their columns, the ranks and the groups.

    It is lowered in memory (`lower`), or read from a store, which has copied it in Cypher: both are equal. carried: by
    class, the weights of its buckets.
    """

    graph: SymGraph
    plan: Plan
    workload: Workload
    carried: Mapping[int, BucketWeights]


def program_of(card: Card, plan: Plan) -> Program:
    """The program of a model under a plan: all passes from its card to the columns of its rank classes.

    Raises UsageError if the plan does not suit the model.
    """
    return lower(_indexed(card, plan.options), plan)


@lru_cache(maxsize=16)
def _indexed(card: Card, options: GraphOptions) -> IndexedGraph:
    """The graph of a model with its rows, which plans that differ in numbers alone share."""
    return IndexedGraph.of(build_graph(card, options))  # layers traced, backward, layouts, collectives, the optimizer


def lower(graph: IndexedGraph, plan: Plan, first_of_cp: bool = False) -> Program:
    """The program of a graph under a plan. Raises UsageError if the plan does not suit the graph.

    first_of_cp: whether all ranks of cp are taken to run what the first one does. In a ring of 256 each rank has
    another program with 256 turns, of which bounds need one.

    The instance of a store has the same (`stagedb.store.contents.instances.read_program`).
    """
    words: dict[str, Any] = json.loads(plan.to_json())
    # Checked, its expressions evaluated, stages dealt to classes, and groups.
    made = prepare(graph.stored, plan, first_of_cp)
    like = _alike(made.classes)
    rows = rows_of(graph, plan, made, [one for one in made.classes if like[one.number] == one.number])
    classes: Sequence[ClassColumns] = _columns(graph.graph, plan, rows, like)
    classes = [placed(columns, words) for columns in classes]  # where its messages lead
    classes = [joined_tasks(columns, words) for columns in classes]  # tasks that run operator by operator together
    group_columns = group_table(made.groups)
    classes = with_calls(classes, group_columns)  # calls of ranks with unequal loads
    workload = Workload(
        instance=made.id,
        name=graph.stored.name,
        graph=graph.stored.id,
        model=graph.stored.name,
        plan=words,
        degrees=tuple(int(words[axis]) for axis in words["rank_order"]),
        classes=tuple(classes),
        ranks=rank_table(rank_layout(made.classes, plan, made.groups)),
        groups=group_columns,
    )
    carried = _carried(rows)
    return Program(graph.graph, plan, workload, {number: carried[of] for number, of in like.items()})


def _alike(classes: Sequence[RankClass]) -> dict[int, int]:
    """For each class the first one with the same operators: it differs in the order of its tasks alone."""
    first: dict[str, int] = {}
    return {one.number: first.setdefault(operators_digest(one.work), one.number) for one in classes}


def _columns(graph: SymGraph, plan: Plan, rows: CopiedRows, like: Mapping[int, int]) -> list[ClassColumns]:
    """The columns of all classes. rows: those of the classes that others are alike."""
    made, facts = rows.made, {op.name: op.facts for op in graph.ops}
    columns = {row["class"]: _class(row, rows, facts) for row in rows.classes}
    counts = {number: len(columns[of].ops) for number, of in like.items()}
    tasks = rows_by_class(task_rows(made.id, made.classes))
    class_facts = class_rows(made.classes, plan, counts)
    return [_with_tasks(columns[like[row["class"]]], row, tasks[row["class"]], made.id) for row in class_facts]


def _carried(rows: CopiedRows) -> dict[int, dict[int, tuple[tuple[int, str, int], ...]]]:
    """By class, the weights of its buckets."""
    carried: dict[int, dict[int, tuple[tuple[int, str, int], ...]]] = {row["class"]: {} for row in rows.classes}
    for row in rows.buckets:
        members = tuple(
            (member["position"], member["weight"].partition("/")[2], member["chunk"]) for member in row["members"]
        )
        carried[row["class"]][row["copy"]["index"]] = members
    return carried


def _class(row: Row, rows: CopiedRows, facts: Mapping[str, OpFacts]) -> ClassColumns:
    """The columns of a class, from rows in the form of the statements of `cypher/workload`."""
    ops, tasks = rows.ops[row["class"]], rows.tasks[row["class"]]
    ends = [(ops[source]["index"], ops[target]["index"], kind) for source, target, kind in rows.edges[row["class"]]]
    return class_of(
        {**row, "number": row["class"]},
        {name: [op[name] for op in ops.values()] for name in next(iter(ops.values()))},
        {name: [end[at] for end in ends] for at, name in enumerate(("source", "target", "kind"))},
        {name: [task[name] for task in tasks] for name in tasks[0]},
        facts,
    )


def _with_tasks(columns: ClassColumns, row: Row, tasks: Sequence[Row], instance: str) -> ClassColumns:
    """A class with the operators of another one, which differs in its tasks. row: of `class_rows`."""
    number = row["class"]
    if columns.number == number:
        return columns
    beginning = len(f"{instance}/{columns.number}")
    origins = replace(
        columns.origins,
        id=tuple(f"{instance}/{number}{id[beginning:]}" for id in columns.origins.id),
        tasks=tuple(task["id"] for task in tasks),
        first_layers=tuple(row["first_layers"]),
        member=(row["cp"], row["ep"], row["dp"]),
    )
    task_columns = tasks_of_rows({name: [task[name] for task in tasks] for name in tasks[0]})
    return replace(
        columns, number=number, digest=row["digest"], stages=tuple(row["stages"]), tasks=task_columns, origins=origins
    )
