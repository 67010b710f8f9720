"""An instance read from the store as columns: a few statements a class, each of which gives one row of lists."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.issue.columns import (
    EDGE_KINDS,
    STEP,
    TASK_KINDS,
    TEMPLATES,
    TYPES,
    WHENS,
    ClassColumns,
    Edges,
    Groups,
    Ints,
    Ops,
    RankTable,
    Tasks,
    Workload,
)
from stagedb.store import Store

PART = 1 << 40
"""What the statement of the edges multiplies an op's chunk and part by."""


def find(store: Store, instance: str) -> Mapping[str, Any]:
    """The row of an instance. Raises UsageError where the store has none of this id."""
    rows = store.read("export/instance", instance=instance)
    if not rows:
        raise UsageError(f"no instance {instance!r} in the store; `stagedb ls` lists them")
    return rows[0]


def read_workload(store: Store, instance: str, row: Mapping[str, Any] | None = None) -> Workload:
    """Everything that an export or a timeline of an instance needs. `row` is what `find` gave for it."""
    row = row or find(store, instance)
    plan: dict[str, Any] = json.loads(row["plan"])
    classes = store.read("export/classes", instance=instance)
    return Workload(
        instance=instance,
        name=row["name"],
        graph=row["graph"],
        model=row["model"],
        plan=plan,
        degrees=tuple(int(plan[axis]) for axis in plan["rank_order"]),
        classes=tuple(_class(store, instance, each) for each in classes),
        ranks=_ranks(store, instance, int(row["world"]), int(plan.get("ulysses", 1))),
        groups=_groups(store.read("export/groups", instance=instance)[0]),
    )


def _class(store: Store, instance: str, row: Mapping[str, Any]) -> ClassColumns:
    number = int(row["number"])
    where = {"instance": instance, "class": number}
    ops = _ops(store.read("export/ops", **where)[0])
    return ClassColumns(
        number=number,
        digest=row["digest"],
        stages=tuple(row["stages"]),
        ops=ops,
        edges=_edges(store.read("export/edges", **where)[0], ops, number),
        tasks=_tasks(store.read("export/tasks", **where)[0]),
    )


def _ops(row: Mapping[str, Any]) -> Ops:
    # Sorted, so that the same instance gives the same bytes from every engine.
    template = _codes(row["template"], TEMPLATES)
    order = np.lexsort((_ints(row["order"]), template, _ints(row["chunk"])))

    def numbers(name: str) -> Ints:
        return _ints(row[name])[order]

    def texts(name: str) -> tuple[str, ...]:
        return tuple(row[name][at] for at in order)

    return Ops(
        name=texts("name"),
        chunk=numbers("chunk"),
        template=template[order],
        order=numbers("order"),
        type=_codes(row["type"], TYPES)[order],
        when=_codes(row["when"], WHENS)[order],
        kind=texts("kind"),
        phase=texts("phase"),
        axis=texts("axis"),
        dtype=texts("dtype"),
        flops=numbers("flops"),
        bytes=numbers("bytes"),
        size=numbers("size"),
        result=numbers("result"),
        peer=numbers("peer"),
    )


def _edges(row: Mapping[str, Any], ops: Ops, number: int) -> Edges:
    part = np.select([ops.template == 0, ops.template == STEP], [0, 2], 1)
    keys = (ops.chunk * 4 + part) * PART + ops.order
    at = np.argsort(keys, kind="stable")
    keys = keys[at]
    source, target = _ints(row["source"]), _ints(row["target"])
    if (keys[1:] == keys[:-1]).any() or not (np.isin(source, keys).all() and np.isin(target, keys).all()):
        raise StagedbError(
            f"the ops of rank class {number} have no single issue order: the instance is broken; remove it with "
            "`stagedb rm` and make it again"
        )
    ends = at[np.searchsorted(keys, source)], at[np.searchsorted(keys, target)]
    kind = _codes(row["kind"], EDGE_KINDS)
    order = np.lexsort((kind, *ends))
    return Edges(ends[0][order], ends[1][order], kind[order])


def _tasks(row: Mapping[str, Any]) -> Tasks:
    order = np.argsort(_ints(row["index"]))
    return Tasks(
        kind=_codes(row["kind"], TASK_KINDS)[order],
        microbatch=_ints(row["microbatch"])[order],
        chunk=_ints(row["chunk"])[order],
        first=np.array(row["first"], bool)[order],
        last=np.array(row["last"], bool)[order],
    )


def _ranks(store: Store, instance: str, world: int, distance: int) -> RankTable:
    row = store.read("export/ranks", instance=instance)[0]
    numbers = _ints(row["number"])
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(world)):
        raise StagedbError(
            f"the instance has {len(numbers)} of its {world} ranks: remove it with `stagedb rm` and make it again"
        )
    coordinates = {axis: _ints(row[axis])[order] for axis in ("tp", "cp", "dp", "pp")}
    return RankTable.of(coordinates, _ints(row["class"])[order], distance)


def _groups(row: Mapping[str, Any]) -> Groups:
    order = np.argsort(_ints(row["gid"]))
    members = [row["members"][at] for at in order]
    return Groups(
        gid=_ints(row["gid"])[order],
        axis=tuple(row["axis"][at] for at in order),
        sizes=np.fromiter(map(len, members), np.int64, len(members)),
        ranks=np.fromiter(chain.from_iterable(members), np.int64),
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def _codes(values: Sequence[str], words: Sequence[str]) -> Ints:
    number = {word: index for index, word in enumerate(words)}
    try:
        return np.array([number[value] for value in values], np.int64)
    except KeyError as error:
        raise StagedbError(
            f"the instance says {error.args[0]!r}, where this version knows {', '.join(words)}: "
            "it was made by a newer stagedb"
        ) from None
