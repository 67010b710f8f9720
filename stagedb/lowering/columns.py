"""An instance as columns: the ops, edges and tasks of each rank class, the ranks, the groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb import workflows
from stagedb.collectives import gathers
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError
from stagedb.ir.facts import NO_FACTS, OpFacts
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.mentions import Word
from stagedb.plans import AxisGroups, Plan, RankLayout
from stagedb.plans.mesh import OWNED_AXES, TOKEN_AXES
from stagedb.schedules import LOOP, placement_of

Ints = npt.NDArray[np.int64]
TEMPLATES = tuple(workflows.TEMPLATES)
TYPES = ("compute", "collective", "send", "recv")
WHENS = ("every", "first", "last", "closed")
TASK_KINDS = tuple(workflows.TASK_KINDS)
EDGE_KINDS = ("data", "program", "limit")

COMPUTE, COLLECTIVE, SEND, RECV = range(4)
EVERY, FIRST, LAST, CLOSED = range(4)
DATA, PROGRAM, LIMIT = range(3)

RING_AXES = ("cp", "cpr")
"""Axes of messages around a ring: all ranks of cp, or the places between which neighbours exchange heads."""

CACHES = "cache"
"""The axis of messages with caches, from the ranks of one instance to those of another."""

RUNS: Mapping[int, tuple[int, ...]] = {
    number: tuple(TEMPLATES.index(template.name) for template in kind.templates)
    for number, kind in enumerate(workflows.TASK_KINDS.values())
}
"""Templates that a task of each kind (an index of TASK_KINDS) runs."""

UPWARD = np.array([template.upward for template in workflows.TEMPLATES.values()])
"""Whether a template walks a stage from first block to last and sends to the next stage; by index of TEMPLATES."""
ONCE = np.array([template.once for template in workflows.TEMPLATES.values()])
"""Whether a template runs once a step, for all chunks; by index of TEMPLATES."""
OPENS = np.array([kind.differentiates for kind in workflows.TASK_KINDS.values()])
"""Whether a task is a part of a backward; by index of TASK_KINDS."""
SENDS = np.array([kind.sends for kind in workflows.TASK_KINDS.values()])
"""Whether a task sends to the next or the previous stage; by index of TASK_KINDS."""
ONCE_A_STEP = np.array([kind.once for kind in workflows.TASK_KINDS.values()])
"""Whether a task runs once a step, for no micro-batch; by index of TASK_KINDS."""


@dataclass(frozen=True)
class Ops:
    """The operators of a rank class, one a row. `template`, `type` and `when` are indexes of the tuples above.

    Compute: `flops`, with `dtype` if there are some, `bytes` (read and written), `dims` of a matmul (`[batch,] m, n,
    k`; of experts with uneven loads as if all had that of the fullest, so that `flops` are fewer) or an attention
    (batch, heads, heads of keys, queries, keys, head, and a value if that differs). Others: `size` (of the call, which
    is one for all of its members: their largest operand), this rank's `operand` and `result` in bytes, `axis`, `dtype`;
    messages: `peer` (how many stages away the other end is; around a ring, how many ranks of cp; of caches, its place
    in `RankTable.others`), `towards` (the direction of the other end: 1 the next stage or rank of a ring, -1 the one
    before; around the ends too; 0 of caches), `step` (of a send between stages, the chunk of the other end minus its
    own). `turn`: of its loop, from 0; -1 outside loops. `facts`: what it is to its model. A field that an op does not
    have is 0 or "".
    """

    name: tuple[str, ...]
    chunk: Ints
    template: Ints
    order: Ints
    type: Ints
    when: Ints
    kind: tuple[str, ...]
    phase: tuple[str, ...]
    axis: tuple[str, ...]
    dtype: tuple[str, ...]
    flops: Ints
    bytes: Ints
    size: Ints
    operand: Ints
    result: Ints
    peer: Ints
    towards: Ints
    step: Ints
    dims: tuple[tuple[int, ...], ...]
    turn: Ints
    facts: tuple[OpFacts, ...]

    def __len__(self) -> int:
        return len(self.name)

    @property
    def rings(self) -> npt.NDArray[np.bool_]:
        """Which ops are messages around a ring of context parallelism."""
        return self._messages(RING_AXES)

    @property
    def handed(self) -> npt.NDArray[np.bool_]:
        """Which ops are messages with caches. Those that are on no ring either are between stages."""
        return self._messages((CACHES,))

    def _messages(self, axes: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        along = np.array([axis in axes for axis in self.axis], bool)
        found: npt.NDArray[np.bool_] = along & ((self.type == SEND) | (self.type == RECV))
        return found

    def tags(self, tasks: "Tasks") -> Ints:
        """The part of a message's tag by which messages of one task differ.

        One for each direction and step between the chunks of both ends, since a message may lead to another chunk of
        the other end. Messages of a ring come after these, numbered within the task; sender and receiver count them
        alike.
        """
        tags: Ints = ~UPWARD[self.template] + 2 * self.step
        on_ring = np.flatnonzero(self.rings)
        part = (self.chunk * 2 + ~UPWARD[self.template]) * len(TYPES) + self.type
        on_ring = on_ring[np.lexsort((self.order[on_ring], part[on_ring]))]
        begins = np.flatnonzero(np.diff(part[on_ring], prepend=-1))
        number = np.arange(len(on_ring)) - np.repeat(begins, np.diff(np.append(begins, len(on_ring))))
        tags[on_ring] += tasks.span * (1 + number)
        return tags


@dataclass(frozen=True)
class Edges:
    """`source` (a row of Ops) before `target`, for a reason of `kind` (an index of EDGE_KINDS)."""

    source: Ints
    target: Ints
    kind: Ints


@dataclass(frozen=True)
class Tasks:
    """The tasks of a rank class in the order in which they run, one a row.

    kind: an index of TASK_KINDS. microbatch, chunk: 0 for a task that runs once a step. first, last: whether it is the
    first and the last of its kind and chunk.
    """

    kind: Ints
    microbatch: Ints
    chunk: Ints
    first: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def opened(self) -> npt.NDArray[np.bool_]:
        """By task, whether a backward of its chunk ran since the chunk's latest forward."""
        found = np.zeros(len(self), bool)
        for chunk in np.unique(self.chunk):
            own = self.chunk == chunk
            latest = np.maximum.accumulate(np.where(own & SENDS[self.kind], np.arange(len(self)), -1))
            before = np.concatenate([[-1], latest[:-1]])
            found |= own & (before >= 0) & OPENS[self.kind[before]]
        return found

    @property
    def tags(self) -> Ints:
        """The first tag of each task's messages: by micro-batch, then by the chunk that they are for."""
        chunks = 1 + int(self.chunk.max(initial=0))
        tags: Ints = 2 * (self.microbatch * chunks + self.chunk)
        return tags

    @property
    def span(self) -> int:
        """The number of tags of messages between stages."""
        return 2 * (1 + int(self.microbatch.max(initial=0))) * (1 + int(self.chunk.max(initial=0)))


@dataclass(frozen=True)
class Origins:
    """Where the ops and tasks of a rank class come from, in the order of its `Ops` and `Tasks`.

    id: the id of each op in the store. sym: name of its symbolic op. block, position: its block and the block's
    position on the stage. layer: counted over the chunks of the stage, -1 outside layers. temporary: bytes that it
    allocates only while it runs. tasks: ids of the tasks. first_layers: by stage and chunk, the number to add to a
    layer's number to get its number in the model. member: coordinates on cp, ep and dp of the ranks that do this work.
    """

    id: tuple[str, ...] = ()
    sym: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    position: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    layer: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    temporary: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    tasks: tuple[str, ...] = ()
    first_layers: tuple[int, ...] = ()
    member: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class ClassColumns:
    """A rank class: the columns that all its ranks have in common.

    number, digest: of the class. stages: indexes of the pipeline stages with this work. origins: where ops and tasks
    come from. pairs: tasks that run together, operator by operator: the place of the first task of each pair, and that
    after its last.
    """

    number: int
    digest: str
    stages: tuple[int, ...]
    ops: Ops
    edges: Edges
    tasks: Tasks
    origins: Origins = Origins()
    pairs: tuple[tuple[int, int], ...] = ()

    def layer_in_model(self, op: int, stage: int) -> int | None:
        """The number of an op's layer in the model, on one of the class's stages; None outside layers.

        op: its row in the class. stage: of the pipeline.
        """
        layer, first = int(self.origins.layer[op]), self.origins.first_layers
        if layer < 0:
            return None
        chunks = len(first) // len(self.stages)
        return first[self.stages.index(stage) * chunks + int(self.ops.chunk[op])] + layer


@dataclass(frozen=True)
class Groups:
    """The communicator groups of an instance.

    gid, axis: id and mesh axis, by group. sizes: ranks, by group. ranks: the ranks of all groups in ring order, in one
    list.
    """

    gid: Ints
    axis: tuple[str, ...]
    sizes: Ints
    ranks: Ints

    def of_axis(self, axis: str, world: int) -> Ints:
        """For every rank the id of its group on an axis, 0 for a rank without one.

        world: ranks of the job.
        """
        found = np.zeros(world, np.int64)
        chosen = np.array([each == axis for each in self.axis], bool)
        found[self.ranks[np.repeat(chosen, self.sizes)]] = np.repeat(self.gid[chosen], self.sizes[chosen])
        return found


@dataclass(frozen=True)
class RankTable:
    """By rank, its class and its neighbours.

    number: of the class. next, previous: ranks of the neighbouring stages, around the ends of the pipeline. ring_next,
    ring_previous: neighbours on the ring of cp. others: a row a rank, the ranks of another instance that it sends
    caches to or gets them from; -1 fills a row up.
    """

    number: Ints
    next: Ints
    previous: Ints
    ring_next: Ints
    ring_previous: Ints
    others: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, coordinates: Mapping[str, Ints], number: Ints, distance: int = 1) -> "RankTable":
        """The table from each rank's coordinates on `tp`, `cp`, `dp` and `pp`.

        number: each rank's class. distance: how many ranks of cp apart neighbours on a ring are (above 1 if Ulysses
        groups are inside the ring).
        """
        return cls(number, *_neighbours(coordinates, "pp", 1), *_neighbours(coordinates, "cp", distance))


def _neighbours(coordinates: Mapping[str, Ints], along: str, distance: int) -> tuple[Ints, Ints]:
    """For every rank the ranks at this distance forwards and backwards along an axis, around its ends."""
    lines = np.lexsort((coordinates[along], *(coordinates[axis] for axis in ("pp", "dp", "cp", "tp") if axis != along)))
    # In this order the ranks of one row of the mesh along the axis are next to each other.
    rows = lines.reshape(-1, int(coordinates[along].max(initial=0)) + 1)
    onwards, back = np.empty(len(lines), np.int64), np.empty(len(lines), np.int64)
    onwards[rows] = np.roll(rows, -distance, axis=1)
    back[rows] = np.roll(rows, distance, axis=1)
    return onwards, back


Step = tuple[str, Mapping[str, Any]]
"""An instance, and its plan."""


@dataclass(frozen=True)
class Workload:
    """An instance in the form that exports and timelines need.

    instance, name, graph, model: ids of the instance and of its graph, and the names of the instance and of the model.
    plan: the words of the plan. degrees: of the mesh, innermost first. classes, ranks, groups: columns of all of them.
    steps: the instances that a window runs one after another (`stagedb.lowering.windows`), each with its plan; empty
    for one step. engines: the steps of each of two instances on ranks of their own, one numbered behind the other
    (`stagedb.lowering.engine_pairs`).
    """

    instance: str
    name: str
    graph: str
    model: str
    plan: Mapping[str, Any]
    degrees: tuple[int, ...]
    classes: tuple[ClassColumns, ...]
    ranks: RankTable
    groups: Groups
    steps: tuple[Step, ...] = ()
    engines: tuple[tuple[Step, ...], ...] = ()

    def class_of(self, rank: int) -> ClassColumns:
        """The columns of the class of a rank."""
        number = int(self.ranks.number[rank])
        return next(each for each in self.classes if each.number == number)


# Where messages between stages lead: the direction of the other end, and its chunk, from the chunk placement.


def towards(axis: tuple[str, ...], template: Ints, type_: Ints, peer: Ints) -> Ints:
    """For each message, the direction of its other end in a loop of stages: 1 to the next stage, -1 to the one before.

    axis, template, type_, peer: columns of `Ops`.
    """
    along: Ints = np.where(UPWARD[template] == (type_ == SEND), 1, -1)
    return np.where(_on_ring(axis), np.sign(peer), along)


def steps(axis: tuple[str, ...], type_: Ints, peer: Ints, direction: Ints) -> Ints:
    """For each send in a loop of stages, the chunk of its other end minus its own.

    It is one chunk where a message goes around the ends. axis, type_, peer: columns of `Ops`. direction: of `towards`.
    """
    around = (type_ == SEND) & (peer * direction < 0) & ~_on_ring(axis)
    found: Ints = np.where(around, direction, 0)
    return found


def placed(each: ClassColumns, plan: Mapping[str, Any]) -> ClassColumns:
    """A class whose messages lead where the plan places its chunks, in place of a loop. plan: its words."""
    placement, stages = placement_of(plan["schedule"], plan.get("chunk_placement")), int(plan["pp"])
    if placement is LOOP:
        return each
    ops, stage = each.ops, each.stages[0]
    direction, step = ops.towards.copy(), ops.step.copy()
    for op in (row for row, axis in enumerate(ops.axis) if axis == "pp" and ops.type[row] in (SEND, RECV)):
        onwards, sends = (1 if UPWARD[ops.template[op]] else -1), ops.type[op] == SEND
        chunk = int(ops.chunk[op])
        way = placement.route(placement.position(stage, chunk, stages), onwards if sends else -onwards, stages)
        # With two stages each is next to the other in both directions.
        if stages > 2:
            direction[op] = 1 if way.hop % stages == 1 else -1
        step[op] = way.step if sends else 0
    return replace(each, ops=replace(ops, towards=direction, step=step))


def _on_ring(axis: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([each in RING_AXES for each in axis], bool)


# The columns of rank classes, ranks and groups from rows: of a lowered plan, or as a store answers them.

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


# Messages that are added to a class behind the ops of its instance: columns with rows for them.

_SIZES = ("size", "operand", "result")


def messages_of(type_: int, sizes: Ints, **columns: Any) -> dict[str, Any]:
    """The columns of messages, for `with_messages`.

    type_: `SEND` or `RECV`. sizes: bytes of each. columns: what else they have: a value for all, or an array.
    """
    count, kind = len(sizes), TYPES[type_]
    usual: Mapping[str, Any] = {"type": type_, "when": EVERY, "turn": -1, "kind": kind, "dims": (), "facts": NO_FACTS}
    given = {**usual, "dtype": "", **dict.fromkeys(_SIZES, sizes), **columns}
    made: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, np.ndarray | list):
            made[name] = value
        else:
            made[name] = np.full(count, value) if isinstance(value, int) else (value,) * count
    return made


def with_messages(ops: Ops, made: Mapping[str, Any], count: int) -> Ops:
    """The ops, and behind them messages. made: of `messages_of`. count: their number. Other columns have zeros."""
    joined: dict[str, Any] = {}
    for each in fields(Ops):
        own, more = getattr(ops, each.name), made.get(each.name, np.zeros(count, np.int64))
        joined[each.name] = np.concatenate([own, more]) if isinstance(own, np.ndarray) else (*own, *more)
    return Ops(**joined)


def origins_with_messages(own: Origins, count: int, block: str) -> Origins:
    """The origins of ops with messages behind them. count: of the messages. block: theirs."""
    if not own.id:
        return own
    outside = np.full(count, -1, np.int64)
    return replace(
        own,
        id=(*own.id, *("",) * count),
        sym=(*own.sym, *("",) * count),
        block=(*own.block, *(block,) * count),
        position=np.concatenate([own.position, outside]),
        layer=np.concatenate([own.layer, outside]),
        temporary=np.concatenate([own.temporary, np.zeros(count, np.int64)]),
    )


def turn_of(sym: str, name: str, block: str) -> int:
    """The turn of its loop that a copy of an operator runs in, from 0; -1 outside loops.

    sym: the operator's name in its graph, or its id. name: the copy's, which ends with the turn. A bucket's ends with
    its number. block: of the operator; `bucket` for a bucket.
    """
    last = name.rpartition(".")[2]
    looped = block != "bucket" and last.isdecimal() and sym.rpartition(".")[2] != last
    return int(last) if looped else -1


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
