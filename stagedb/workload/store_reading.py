"""An instance read from the store as columns: a few statements a class, each of which gives one row of lists."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.inputs import shown
from stagedb.instances.stored_digests import check_digests, check_unchanged, groups_digest, ranks_digest
from stagedb.ir.facts import OpFacts
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.models.named_facts import op_facts, turn_of
from stagedb.plans import AxisGroups, RankLayout
from stagedb.plans.mesh import TOKEN_AXES
from stagedb.store import DamagedError, Store, json_mapping, layout_of, read_whole, reading
from stagedb.workload.instance_columns import (
    COLLECTIVE,
    EDGE_KINDS,
    TASK_KINDS,
    TEMPLATES,
    TYPES,
    WHENS,
    ClassColumns,
    Edges,
    Groups,
    Ints,
    Ops,
    Origins,
    RankTable,
    Tasks,
    Workload,
)
from stagedb.workload.message_routes import placed, steps, towards
from stagedb.workload.overlapped_pairs import joined_tasks

READERS = 4
"""How many statements of an instance run at the same time."""

NO_EDGES: Mapping[str, Any] = {"source": (), "target": (), "kind": ()}


def find(store: Store, instance: str) -> Mapping[str, Any]:
    """The row of an instance. Raises UsageError if the store has none with this id."""
    rows = store.read("workload/instance", instance=instance)
    if not rows:
        raise UsageError(f"no instance {shown(instance)} in the store; `stagedb ls` lists them")
    return rows[0]


def read_workload(store: Store, instance: str) -> Workload:
    """The columns of an instance that an export or a timeline needs. Raises UsageError if the store has none."""
    return read_whole(store, "Instance", instance, partial(_read, store, instance))


def _read(store: Store, instance: str) -> Workload:
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        return _workload(store, instance, row)


def _workload(store: Store, instance: str, row: Mapping[str, Any]) -> Workload:
    plan = json_mapping(row["plan"], "plan")
    layout = layout_of(row)
    # The store answers one statement while the answer to another is decoded.
    with ThreadPoolExecutor(READERS) as pool:
        ranks = pool.submit(_ranks, store, instance, row, layout, int(plan.get("ulysses", 1)))
        groups = pool.submit(_groups, store, instance, row, layout)
        classes = tuple(pool.map(partial(read_class, store), store.read("workload/classes", instance=instance)))
    return Workload(
        instance=instance,
        name=row["name"],
        graph=row["graph"],
        model=row["model"],
        plan=plan,
        degrees=tuple(int(plan[axis]) for axis in plan["rank_order"]),
        classes=with_calls([joined_tasks(placed(each, plan), plan) for each in classes]),
        ranks=ranks.result(),
        groups=groups.result(),
    )


def with_calls(classes: Sequence[ClassColumns]) -> tuple[ClassColumns, ...]:
    """The classes with the sizes of their calls: ranks of ep whose experts have unequal loads call with the largest.

    All members of such a group are on one stage, and issue the same calls in the same order.
    """
    return with_largest(
        classes, {each.number: issued_on(each.ops, TOKEN_AXES) for each in classes}, lambda ops: ops.operand
    )


def with_largest(
    classes: Sequence[ClassColumns], calls: Mapping[int, Ints], sizes: Callable[[Ops], Ints]
) -> tuple[ClassColumns, ...]:
    """The classes with one size for each of their calls: the largest of all classes of the stage.

    calls: by class, the rows of its calls in issue order. sizes: by row, the bytes that a class itself has.
    """
    largest: dict[tuple[tuple[int, ...], int], Ints] = {}
    for each in classes:
        own = sizes(each.ops)[calls[each.number]]
        key = each.stages, len(own)
        largest[key] = np.maximum(largest.get(key, own), own)
    found = []
    for each in classes:
        size = each.ops.size.copy()
        size[calls[each.number]] = largest[each.stages, len(calls[each.number])]
        found.append(replace(each, ops=replace(each.ops, size=size)))
    return tuple(found)


def issued_on(ops: Ops, axes: Sequence[str]) -> Ints:
    """The collectives on some axes, in issue order."""
    rows = np.flatnonzero((ops.type == COLLECTIVE) & np.array([each in axes for each in ops.axis], bool))
    return rows[np.lexsort((ops.order[rows], ops.template[rows], ops.chunk[rows]))].astype(np.int64)


def read_class(store: Store, row: Mapping[str, Any], edges: bool = True) -> ClassColumns:
    """The columns of one rank class. row: its row of `workload/classes`. edges: whether they are wanted.

    Raises DamagedError if the class was changed after it was made.
    """
    where = {"class": row["id"]}
    ops, tasks = store.read("workload/ops", **where)[0], store.read("workload/tasks", **where)[0]
    links = store.read("workload/edges", **where)[0] if edges else None
    facts = _facts(store.read("workload/facts", **where), ops)
    _order(row, ops)
    check_digests(row, ops, links, tasks)
    return class_of(row, ops, NO_EDGES if links is None else links, tasks, facts)


def _facts(rows: Sequence[Mapping[str, Any]], ops: Mapping[str, Any]) -> dict[str, OpFacts]:
    """What the operators of a graph are, by name. rows: the answer of `workload/facts`. ops: their copies.

    Raises DamagedError where the graph lacks some.
    """
    row: Mapping[str, Any] = rows[0] if rows else {"format": None, "name": ()}
    missing = {sym.partition("/")[2] for sym in ops["sym"]} - {*row["name"]}
    if missing:
        raise DamagedError(f"its graph lacks {len(missing)} of its operators, such as {shown(min(missing))}")
    if row["format"] != FORMAT:
        return {name: op_facts(name) for name in row["name"]}
    names = [field.name for field in fields(OpFacts)]
    values = zip(*(row[name] for name in names), strict=True)
    made = (OpFacts.of(dict(zip(names, each, strict=True))) for each in values)
    return dict(zip(row["name"], made, strict=True))


def class_of(
    row: Mapping[str, Any],
    ops: Mapping[str, Any],
    edges: Mapping[str, Any],
    tasks: Mapping[str, Any],
    facts: Mapping[str, OpFacts],
) -> ClassColumns:
    """The columns of one rank class. row: its row of `workload/classes`; the others: the answers for its content.

    facts: those of the graph's operators, by name.
    """
    order = _order(row, ops)
    return ClassColumns(
        number=int(row["number"]),
        digest=row["digest"],
        stages=tuple(row["stages"]),
        ops=_ops(ops, order, facts),
        edges=_edges(edges),
        tasks=_tasks(tasks),
        origins=_origins(row, ops, order, tasks),
    )


def _order(row: Mapping[str, Any], ops: Mapping[str, Any]) -> Ints:
    """The order of the ops by their places in the class. Raises DamagedError if some are missing."""
    index = _ints(ops["index"])
    order = np.argsort(index)
    if not np.array_equal(index[order], np.arange(int(row["ops"]))):
        raise DamagedError(f"rank class {row['number']} has {len(index)} of its {row['ops']} ops")
    return order


def _ops(row: Mapping[str, Any], order: Ints, facts: Mapping[str, OpFacts]) -> Ops:
    # Sorted, so that equal instances give equal bytes from every engine.
    def numbers(name: str) -> Ints:
        return _ints(row[name])[order]

    def texts(name: str) -> tuple[str, ...]:
        return tuple(row[name][at] for at in order)

    template, type_ = _codes(row["template"], TEMPLATES)[order], _codes(row["type"], TYPES)[order]
    axis, peer = texts("axis"), numbers("peer")
    direction = towards(axis, template, type_, peer)
    return Ops(
        name=texts("name"),
        chunk=numbers("chunk"),
        template=template,
        order=numbers("order"),
        type=type_,
        when=_codes(row["when"], WHENS)[order],
        kind=texts("kind"),
        phase=texts("phase"),
        axis=axis,
        dtype=texts("dtype"),
        flops=numbers("flops"),
        bytes=numbers("bytes"),
        size=numbers("size"),
        operand=numbers("size"),
        result=numbers("result"),
        peer=peer,
        towards=direction,
        step=steps(axis, type_, peer, direction),
        dims=tuple(tuple(map(int, row["dims"][at])) for at in order),
        turn=np.array([turn_of(row["sym"][at], row["name"][at], row["block"][at]) for at in order], np.int64),
        facts=tuple(facts[row["sym"][at].partition("/")[2]] for at in order),
    )


def _origins(row: Mapping[str, Any], ops: Mapping[str, Any], order: Ints, tasks: Mapping[str, Any]) -> Origins:
    return Origins(
        id=tuple(ops["id"][at] for at in order),
        sym=tuple(ops["sym"][at].partition("/")[2] for at in order),
        block=tuple(ops["block"][at] for at in order),
        position=_ints(ops["position"])[order],
        layer=_ints(ops["layer"])[order],
        temporary=_ints(ops["temporary"])[order],
        tasks=tuple(tasks["id"][at] for at in np.argsort(_ints(tasks["index"]))),
        first_layers=tuple(row["first_layers"]),
        member=(row["cp"], row["ep"]),
    )


def _edges(row: Mapping[str, Any]) -> Edges:
    source, target, kind = _ints(row["source"]), _ints(row["target"]), _codes(row["kind"], EDGE_KINDS)
    order = np.lexsort((kind, source, target))
    return Edges(source[order], target[order], kind[order])


def _tasks(row: Mapping[str, Any]) -> Tasks:
    order = np.argsort(_ints(row["index"]))
    return Tasks(
        kind=_codes(row["kind"], TASK_KINDS)[order],
        microbatch=_ints(row["microbatch"])[order],
        chunk=_ints(row["chunk"])[order],
        first=np.array(row["first"], bool)[order],
        last=np.array(row["last"], bool)[order],
    )


def _ranks(store: Store, instance: str, row: Mapping[str, Any], layout: RankLayout | None, distance: int) -> RankTable:
    if layout is not None:
        check_unchanged("ranks", row["ranks_digest"], ranks_digest(layout.rank_columns()))
        return rank_table(layout)
    found, world = store.read("workload/ranks", instance=instance)[0], int(row["world"])
    numbers = _ints(found["number"])
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(world)):
        raise DamagedError(f"it has {len(numbers)} of its {world} ranks")
    check_unchanged("ranks", row["ranks_digest"], ranks_digest(found))
    coordinates = {axis: _ints(found[axis])[order] for axis in ("tp", "cp", "dp", "pp")}
    return RankTable.of(coordinates, _ints(found["class"])[order], distance)


def rank_table(layout: RankLayout) -> RankTable:
    """The ranks of a layout."""
    return RankTable.of(layout.coordinates(), layout.numbers(), layout.plan.ulysses)


def class_of_rank(store: Store, instance: str, rank: int) -> int:
    """The rank class of one rank of an instance."""
    row = find(store, instance)
    with reading(f"instance {instance[:12]} ({shown(row['name'])})"):
        layout = layout_of(row)
        if layout is not None:
            return layout.class_of(rank)
        return int(store.read("reference/class_of", instance=instance, rank=rank)[0]["class"])


def _groups(store: Store, instance: str, row: Mapping[str, Any], layout: RankLayout | None) -> Groups:
    if layout is not None:
        check_unchanged("groups", row["groups_digest"], groups_digest(layout.group_columns()))
        return group_table(layout.groups)
    found = store.read("workload/groups", instance=instance)[0]
    check_unchanged("groups", row["groups_digest"], groups_digest(found))
    order = np.argsort(_ints(found["gid"]))
    members = [found["members"][at] for at in order]
    return Groups(
        gid=_ints(found["gid"])[order],
        axis=tuple(found["axis"][at] for at in order),
        sizes=np.fromiter(map(len, members), np.int64, len(members)),
        ranks=np.fromiter(chain.from_iterable(members), np.int64),
    )


def group_table(made: Sequence[AxisGroups]) -> Groups:
    """The groups of all axes."""
    ranks, none = [], np.zeros(0, np.int64)
    for each in made:
        index, member = np.arange(each.count)[:, None], np.arange(each.members)[None, :]
        starts = index // each.stride * each.stride * each.size + index % each.stride
        ranks.append((starts + member * each.step).ravel())
    counts = [each.count for each in made]
    return Groups(
        gid=np.concatenate([np.arange(each.first, each.first + each.count) for each in made] or [none]),
        axis=tuple(each.axis for each in made for _ in range(each.count)),
        sizes=np.repeat(np.array([each.members for each in made], np.int64), counts),
        ranks=np.concatenate(ranks or [none]),
    )


def _ints(values: Sequence[int]) -> Ints:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise UsageError(
            f"one operator of the plan has {max(values):.1e} FLOPs or bytes, more than the 64 bits that are counted: "
            "take a smaller --seq-len or --micro-batch-size"
        ) from None


def _codes(values: Sequence[str], words: Sequence[str]) -> Ints:
    number = {word: index for index, word in enumerate(words)}
    try:
        return np.array([number[value] for value in values], np.int64)
    except KeyError as error:
        raise StagedbError(
            f"the instance has {shown(error.args[0])}, where this version knows {', '.join(words)}: "
            "it was made by a newer stagedb"
        ) from None
