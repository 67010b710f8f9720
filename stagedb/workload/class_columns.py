"""The columns of rank classes, ranks and groups from rows: of a lowered plan, or as a store answers them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stagedb.collectives import gathers
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError
from stagedb.ir.facts import OpFacts
from stagedb.mentions import Word
from stagedb.models.named_facts import turn_of
from stagedb.plans import AxisGroups, RankLayout
from stagedb.plans.mesh import OWNED_AXES, TOKEN_AXES
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
)
from stagedb.workload.message_routes import steps, towards

NO_EDGES: Mapping[str, Any] = {"source": (), "target": (), "kind": ()}


def with_calls(classes: Sequence[ClassColumns], groups: Groups) -> tuple[ClassColumns, ...]:
    """The classes with the sizes of their calls: ranks of ep whose experts have unequal loads call with the largest.

    All members of such a group are on one stage, and issue the same calls in the same order. A gather of unequal parts
    (NCCL's is a broadcast of each of them, in one launch) has the size of one of equal parts with the same result.
    groups: those of the ranks.
    """
    members = dict(zip(groups.axis, groups.sizes.tolist(), strict=True))
    return with_largest(
        [_evened(each, members) for each in classes],
        {each.number: issued_on(each.ops, TOKEN_AXES) for each in classes},
        lambda ops: ops.operand,
    )


def _evened(columns: ClassColumns, members: Mapping[str, int]) -> ClassColumns:
    """A class with the mean size of each gather whose ranks have unequal parts. members: of a group, by axis."""
    ops, size = columns.ops, columns.ops.size.copy()
    for row in issued_on(ops, OWNED_AXES).tolist():
        if gathers(ops.kind[row]):
            size[row] = -(-int(ops.result[row]) // members[ops.axis[row]])
    return columns if bool((size == ops.size).all()) else replace(columns, ops=replace(ops, size=size))


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
        same = bool((size == each.ops.size).all())
        found.append(each if same else replace(each, ops=replace(each.ops, size=size)))
    return tuple(found)


def issued_on(ops: Ops, axes: Sequence[str]) -> Ints:
    """The collectives on some axes, in issue order."""
    rows = np.flatnonzero((ops.type == COLLECTIVE) & np.array([each in axes for each in ops.axis], bool))
    return rows[np.lexsort((ops.order[rows], ops.template[rows], ops.chunk[rows]))].astype(np.int64)


def class_of(
    row: Mapping[str, Any],
    ops: Mapping[str, Any],
    edges: Mapping[str, Any],
    tasks: Mapping[str, Any],
    facts: Mapping[str, OpFacts],
) -> ClassColumns:
    """The columns of one rank class.

    row: its row of `workload/classes`. ops, edges, tasks: its rows of the statements with these names. facts: those of
    the graph's operators, by name.
    """
    order = op_order(row, ops)
    return ClassColumns(
        number=int(row["number"]),
        digest=row["digest"],
        stages=tuple(row["stages"]),
        ops=_ops(ops, order, facts),
        edges=_edges(edges),
        tasks=tasks_of_rows(tasks),
        origins=_origins(row, ops, order, tasks),
    )


def op_order(row: Mapping[str, Any], ops: Mapping[str, Any]) -> Ints:
    """The order of the ops by their places in the class.

    row: the class's properties, with the number of its `ops`. ops: their columns as a store returns them. Raises
    DamagedError if some are missing.
    """
    index = ints(ops["index"])
    order = np.argsort(index)
    if not np.array_equal(index[order], np.arange(int(row["ops"]))):
        raise DamagedError(f"rank class {row['number']} has {len(index)} of its {row['ops']} ops")
    return order


def _ops(row: Mapping[str, Any], order: Ints, facts: Mapping[str, OpFacts]) -> Ops:
    # Sorted, so that equal instances give equal bytes from every engine.
    def numbers(name: str) -> Ints:
        return ints(row[name])[order]

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
        position=ints(ops["position"])[order],
        layer=ints(ops["layer"])[order],
        temporary=ints(ops["temporary"])[order],
        tasks=tuple(tasks["id"][at] for at in np.argsort(ints(tasks["index"]))),
        first_layers=tuple(row["first_layers"]),
        member=(row["cp"], row["ep"], row["dp"] or 0),
    )


def _edges(row: Mapping[str, Any]) -> Edges:
    source, target, kind = ints(row["source"]), ints(row["target"]), _codes(row["kind"], EDGE_KINDS)
    order = np.lexsort((kind, source, target))
    return Edges(source[order], target[order], kind[order])


def tasks_of_rows(row: Mapping[str, Any]) -> Tasks:
    """The tasks of a class. row: their columns as lists."""
    order = np.argsort(ints(row["index"]))
    return Tasks(
        kind=_codes(row["kind"], TASK_KINDS)[order],
        microbatch=ints(row["microbatch"])[order],
        chunk=ints(row["chunk"])[order],
        first=np.array(row["first"], bool)[order],
        last=np.array(row["last"], bool)[order],
    )


def rank_table(layout: RankLayout) -> RankTable:
    """The table of all ranks of a layout: their classes and neighbours."""
    return RankTable.of(layout.coordinates(), layout.numbers(), layout.plan.ulysses)


def group_table(made: Sequence[AxisGroups]) -> Groups:
    """The communicator groups of all axes as columns.

    made: the groups of each axis.
    """
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


def ints(values: Sequence[int]) -> Ints:
    """A column of integers."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise UsageError(
            f"one operator of the plan has {max(values):.1e} FLOPs or bytes, more than the 64 bits that are counted: "
            f"take a smaller {Word('seq_len')} or {Word('micro_batch_size')}"
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
