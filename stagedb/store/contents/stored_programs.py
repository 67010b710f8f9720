"""Instances read from the store as columns: a few statements a class, each of which gives one row of lists.

Nothing here makes an instance (`stagedb.store.contents.instances` does), so that an export needs no builder of graphs.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.ir.facts import OpFacts
from stagedb.lowering.columns import (
    NO_EDGES,
    BucketWeights,
    ClassColumns,
    Groups,
    Program,
    RankTable,
    Workload,
    class_of,
    group_table,
    ints,
    op_order,
    placed,
    rank_table,
    with_calls,
)
from stagedb.lowering.overlapped_pairs import joined_tasks
from stagedb.mentions import call
from stagedb.plans import Plan
from stagedb.store import Store, layout_of, read_graph, read_whole, reading
from stagedb.store.contents.graphs import check_form
from stagedb.store.contents.instance_digests import (
    check_digests,
    check_layout,
    check_unchanged,
    groups_digest,
    ranks_digest,
)

READERS = 4
"""How many statements of an instance run at the same time."""


def find(store: Store, instance: str) -> Mapping[str, Any]:
    """The row of an instance. Raises UsageError if the store has none with this id."""
    rows = store.read("workload/instance", instance=instance)
    if not rows:
        raise UsageError(f"no instance {shown(instance)} in the store; {call('ls')} lists them")
    return rows[0]


def read_workload(store: Store, instance: str) -> Workload:
    """The columns of an instance that an export or a timeline needs. Raises UsageError if the store has none."""
    return read_whole(store, "Instance", instance, partial(_read, store, instance))


def read_program(store: Store, instance: str) -> Program:
    """The program of an instance: equal to that of `lower` for its graph and its plan. UsageError if there is none."""

    def read() -> Program:
        row = find(store, instance)
        with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
            plan = Plan.from_mapping(json_mapping(row["plan"], "plan"))
            classes = store.read("workload/classes", instance=instance)
            carried = {int(each["number"]): read_carried(store, each["id"]) for each in classes}
            return Program(read_graph(store, row["graph"]), plan, _workload(store, instance, row), carried)

    return read_whole(store, "Instance", instance, read)


def read_carried(store: Store, rank_class: str) -> BucketWeights:
    """The weights that the buckets of a class carry. rank_class: its id."""
    rows = store.read("workload/buckets", **{"class": rank_class})
    return {int(row["op"]): tuple(zip(row["position"], row["weight"], row["chunk"], strict=True)) for row in rows}


def _read(store: Store, instance: str) -> Workload:
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        return _workload(store, instance, row)


def _workload(store: Store, instance: str, row: Mapping[str, Any]) -> Workload:
    plan = json_mapping(row["plan"], "plan")
    layout = layout_of(row)
    if layout is not None:
        check_layout(row, layout)
    facts = read_facts(store, instance)
    # The store answers one statement while the answer to another is decoded.
    with ThreadPoolExecutor(READERS) as pool:
        # A thread would keep the memory that it used: a hundred megabytes for a job of a million ranks.
        ranks: Callable[[], RankTable] = (
            pool.submit(_ranks, store, instance, row, int(plan.get("ulysses", 1))).result
            if layout is None
            else partial(rank_table, layout)
        )
        groups: Callable[[], Groups] = (
            pool.submit(_groups, store, instance, row).result if layout is None else partial(group_table, layout.groups)
        )
        classes = tuple(pool.map(partial(read_class, store, facts), store.read("workload/classes", instance=instance)))
    group_columns = groups()
    return Workload(
        instance=instance,
        name=row["name"],
        graph=row["graph"],
        model=row["model"],
        plan=plan,
        degrees=tuple(int(plan[axis]) for axis in plan["rank_order"]),
        classes=with_calls([joined_tasks(placed(each, plan), plan) for each in classes], group_columns),
        ranks=ranks(),
        groups=group_columns,
    )


def read_class(store: Store, facts: Mapping[str, OpFacts], row: Mapping[str, Any], edges: bool = True) -> ClassColumns:
    """The columns of one rank class. facts: of the instance's graph (`read_facts`). row: its row of `workload/classes`.

    edges: whether they are wanted. Raises DamagedError if the class was changed after it was made, and where the graph
    lacks operators.
    """
    where = {"class": row["id"]}
    ops, tasks = store.read("workload/ops", **where)[0], store.read("workload/tasks", **where)[0]
    links = store.read("workload/edges", **where)[0] if edges else None
    missing = {sym.partition("/")[2] for sym in ops["sym"]} - facts.keys()
    if missing:
        raise DamagedError(f"its graph lacks {len(missing)} of its operators, such as {shown(min(missing))}")
    op_order(row, ops)
    check_digests(row, ops, links, tasks)
    return class_of(row, ops, NO_EDGES if links is None else links, tasks, facts)


def read_facts(store: Store, instance: str) -> dict[str, OpFacts]:
    """What the operators of an instance's graph are, by name: once for all of its classes."""
    rows = store.read("workload/facts", instance=instance)
    if not rows:
        return {}  # of a graph without operators
    (row,) = rows
    check_form(row["graph"], row["format"])
    names = [field.name for field in fields(OpFacts)]
    values = zip(*(row[name] for name in names), strict=True)
    made = (OpFacts.of(dict(zip(names, each, strict=True))) for each in values)
    return dict(zip(row["name"], made, strict=True))


def _ranks(store: Store, instance: str, row: Mapping[str, Any], distance: int) -> RankTable:
    found, world = store.read("workload/ranks", instance=instance)[0], int(row["world"])
    numbers = ints(found["number"])
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(world)):
        raise DamagedError(f"it has {len(numbers)} of its {world} ranks")
    check_unchanged("ranks", row["ranks_digest"], ranks_digest(found))
    coordinates = {axis: ints(found[axis])[order] for axis in ("tp", "cp", "dp", "pp")}
    return RankTable.of(coordinates, ints(found["class"])[order], distance)


def class_of_rank(store: Store, instance: str, rank: int) -> int:
    """The rank class of one rank of an instance."""
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        layout = layout_of(row)
        if layout is not None:
            return layout.class_of(rank)
        return int(store.read("reference/class_of", instance=instance, rank=rank)[0]["class"])


def _groups(store: Store, instance: str, row: Mapping[str, Any]) -> Groups:
    found = store.read("workload/groups", instance=instance)[0]
    check_unchanged("groups", row["groups_digest"], groups_digest(found))
    order = np.argsort(ints(found["gid"]))
    members = [found["members"][at] for at in order]
    return Groups(
        gid=ints(found["gid"])[order],
        axis=tuple(found["axis"][at] for at in order),
        sizes=np.fromiter(map(len, members), np.int64, len(members)),
        ranks=np.fromiter(chain.from_iterable(members), np.int64),
    )
