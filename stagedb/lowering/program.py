"""A graph under a plan, lowered to the columns of what each rank class runs. No store is needed for it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.ir.symbolic_graph import SymGraph
from stagedb.lowering.copied_rows import Edge, IndexedGraph, copy_rows
from stagedb.lowering.copies import Row
from stagedb.lowering.statement_rows import rank_layout
from stagedb.plans import Plan
from stagedb.workload.class_columns import class_of, group_table, rank_table, with_calls
from stagedb.workload.instance_columns import ClassColumns, Workload
from stagedb.workload.message_routes import placed
from stagedb.workload.overlapped_pairs import joined_tasks

BucketWeights = Mapping[int, tuple[tuple[int, str], ...]]
"""By place of a bucket among the ops of a class: position and name of the weights that it carries."""


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


def lower(graph: IndexedGraph, plan: Plan) -> Program:
    """The program of a graph under a plan. Raises UsageError if the plan does not suit the graph.

    The instance of a store has the same (`stagedb.store.contents.instance_reading.read_program`).
    """
    rows = copy_rows(graph, plan)
    made, ops, edges, tasks = rows.made, rows.ops, rows.edges, rows.tasks
    carried: dict[int, dict[int, tuple[tuple[int, str], ...]]] = {row["class"]: {} for row in rows.classes}
    for row in rows.buckets:
        members = tuple((member["position"], member["weight"].partition("/")[2]) for member in row["members"])
        carried[row["class"]][row["copy"]["index"]] = members
    words: dict[str, Any] = json.loads(plan.to_json())
    classes = [_class(row, ops[row["class"]], edges[row["class"]], tasks[row["class"]]) for row in rows.classes]
    workload = Workload(
        instance=made.id,
        name=graph.stored.name,
        graph=graph.stored.id,
        model=graph.stored.name,
        plan=words,
        degrees=tuple(int(words[axis]) for axis in words["rank_order"]),
        classes=with_calls([joined_tasks(placed(each, words), words) for each in classes]),
        ranks=rank_table(rank_layout(made.classes, plan, made.groups)),
        groups=group_table(made.groups),
    )
    return Program(graph.graph, plan, workload, carried)


def _class(row: Row, ops: Mapping[str, Row], edges: Iterable[Edge], tasks: Sequence[Row]) -> ClassColumns:
    """The columns of a class, from rows in the form of the statements of `cypher/workload`."""
    ends = [(ops[source]["index"], ops[target]["index"], kind) for source, target, kind in edges]
    return class_of(
        {**row, "number": row["class"]},
        {name: [op[name] for op in ops.values()] for name in next(iter(ops.values()))},
        {name: [end[at] for end in ends] for at, name in enumerate(("source", "target", "kind"))},
        {name: [task[name] for task in tasks] for name in tasks[0]},
    )
