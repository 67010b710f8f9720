"""The ops of one rank of a run matched with those of its plan: what was planned, what was seen, and what is left.

Both sequences are aligned as a whole, so that an op is known by what is around it. What is left is then looked for in
the same gap, and elsewhere: it was moved, has another size, is of another kind, is missing, or is extra.
"""

import json
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from stagedb.lowering import Program
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, RECV, SEND, ClassColumns, Ints
from stagedb.lowering.issue_order import issued
from stagedb.plans import Mesh
from stagedb.runs.alignment import Alignment, Gap, align
from stagedb.runs.clocks import BARRIER, MESSAGES
from stagedb.runs.degrees import GroupCall
from stagedb.runs.lane_rows import ELEMENT_BYTES
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.rank_trace import NONE
from stagedb.runs.stored_run import RunOpFacts, StoredRun
from stagedb.schedules import Task

# What a plan expects of each rank, in the order of issue: its matmuls, its attentions and what it communicates.

MATMUL, ATTENTION = "matmul", "attention"

WORK = (MATMUL, ATTENTION)
"""Kinds of what is computed and compared."""


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """An op that a run should have.

    op: row of the class's `Ops`. task: place in the tasks of the rank. kind: matmul, attention, all_gather, send …
    name: its module's path and what it does there, such as `layer.1.attn.wq.weight_gradient`. layer: its number in the
    model. phase: forward, backward, recompute or optimizer. dims: of a matmul `[batch,] m, n, k` with m and n sorted;
    of an attention as in `Ops`; empty for others. group: global ranks, in ring order; for a message this rank and its
    peer. axis: of the group. sent, received: bytes of a rank's operand and result. dtype: on the wire, or of operands.
    """

    op: int
    task: int
    kind: str
    name: str
    layer: int | None
    phase: str
    dims: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    axis: str = ""
    sent: int = 0
    received: int = 0
    dtype: str = ""


def matmul_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions `[batch,] m, n, k` of a matmul, the same if its two sides change places; a batch of 1 is none.

    dims: as the plan or the recording has them.
    """
    *batch, m, n, k = dims
    return (*(each for each in batch if each != 1), *sorted((m, n)), k)


@dataclass(frozen=True)
class PlannedRun:
    """The ops that a program's ranks should run, computed rank by rank."""

    program: Program

    @cached_property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.program.workload.ranks)

    @cached_property
    def groups(self) -> Mapping[str, Mapping[int, tuple[int, ...]]]:
        """By axis, the ranks of the group that each rank is in."""
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        groups, first = self.program.workload.groups, 0
        for axis, size in zip(groups.axis, groups.sizes.tolist(), strict=True):
            ranks = tuple(groups.ranks[first : first + size].tolist())
            found.setdefault(axis, {}).update(dict.fromkeys(ranks, ranks))
            first += size
        return found

    @property
    def stops_early(self) -> bool:
        """Whether a recomputation ends as soon as all that the backward reads is there."""
        options = self.program.plan.options
        return options.framework.early_stop if options.early_stop is None else options.early_stop

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return int(Mesh.of(self.program.plan).coordinates(rank)["pp"])

    def tasks_of(self, rank: int) -> tuple[Task, ...]:
        """The tasks of a rank, in their order."""
        return tuple(self.program.plan.tasks()[self.stage_of(rank)])

    def alike(self, rank: int) -> tuple[int, int]:
        """Class and stage: ranks with the same ones expect the same ops, on other groups.

        rank: its number in the world.
        """
        return int(self.program.workload.ranks.number[rank]), self.stage_of(rank)

    def ops(self, rank: int) -> list[PlannedOp]:
        """The matmuls, attentions and communications that a rank should run, in the order of issue."""
        columns, stage = self.program.workload.class_of(rank), self.stage_of(rank)
        order = issued(self.program.plan, columns, stage)
        rows = {op: self._op(columns, op, stage, rank) for op in np.unique(order.op).tolist()}
        pairs = zip(order.op.tolist(), order.task.tolist(), strict=True)
        return [replace(found, task=task) for op, task in pairs if (found := rows[op]) is not None]

    def _op(self, columns: ClassColumns, op: int, stage: int, rank: int) -> PlannedOp | None:
        ops, kind = columns.ops, columns.ops.kind[op]
        layer = columns.layer_in_model(op, stage)
        # A layer's number is that in the model, and in a chunk's names it is that in the chunk.
        name = ops.name[op]
        if layer is not None:
            name = f"layer.{layer}.{name.split('.', 2)[2]}" if name.startswith("layer.") else name
        if ops.type[op] == COMPUTE:
            if kind not in WORK:
                return None
            dims = matmul_dims(ops.dims[op]) if kind == MATMUL else ops.dims[op]
            return PlannedOp(op, 0, kind, name, layer, ops.phase[op], dims, dtype=ops.dtype[op])
        axis = ops.axis[op]
        group = self._ends(columns, op, rank) if ops.type[op] in (SEND, RECV) else self.groups[axis].get(rank, (rank,))
        if ops.type[op] == COLLECTIVE and len(group) < 2:
            return None
        sizes = int(ops.operand[op]), int(ops.result[op])
        return PlannedOp(op, 0, kind, name, layer, ops.phase[op], (), group, axis, *sizes, ops.dtype[op])

    def _ends(self, columns: ClassColumns, op: int, rank: int) -> tuple[int, ...]:
        """The two ranks of a message, this one first."""
        ops, ranks = columns.ops, self.program.workload.ranks
        onwards = int(ops.towards[op]) > 0
        table: Ints
        if ops.rings[op]:
            table = ranks.ring_next if onwards else ranks.ring_previous
            other = rank
            for _ in range(max(1, abs(int(ops.peer[op])))):
                other = int(table[other])
            return rank, other
        table = ranks.next if onwards else ranks.previous
        return rank, int(table[rank])


# What ranks of a recorded run computed and communicated, in the order of issue, in the terms of a plan.

DTYPES: Mapping[str, str] = {
    "Float": "fp32",
    "float": "fp32",
    "BFloat16": "bf16",
    "c10::BFloat16": "bf16",
    "Half": "fp16",
    "c10::Half": "fp16",
    "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8",
}
"""PyTorch's names of formats, and those of plans."""

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class SeenOp:
    """An op that a rank executed.

    place: among the ops of its lane. kind: matmul, attention, all_gather, send … dims: as those of `PlannedOp`, None if
    no shapes were recorded. group: global ranks, ascending, None if they are not known; for a message this rank and
    its peer. sent: bytes of the operand, None if unknown. dtype: as plans write it. scalar:
    a barrier, or a collective of one element, by which programs agree on a number. name: of the kernel or operator.
    start, end: in ns from the begin of the run.
    """

    place: int
    kind: str
    dims: tuple[int, ...] | None
    group: tuple[int, ...] | None
    sent: int | None
    dtype: str
    scalar: bool
    name: str
    phase: str
    step: int | None
    start: int
    end: int


def seen_ops(run: StoredRun, rank: int) -> list[SeenOp]:
    """The matmuls, attentions and communications of a rank, in the order of issue."""
    lane, timed = run.lane_of[rank], run.timed[rank]
    groups = run.groups_of[rank]
    found = []
    for place in sorted(range(len(lane.ops)), key=_issued(timed).__getitem__):
        op = lane.ops[place]
        if op.type == "compute" and op.kind in WORK:
            dims = _dims(op)
            if dims is None and op.shapes is not None:
                continue
        elif op.type not in ("collective", *MESSAGES):
            continue
        else:
            dims = None
        group = groups.get(place)
        found.append(_seen(op, place, dims, group, int(timed.start[place]), int(timed.end[place])))
    return found


def _seen(
    op: RunOpFacts, place: int, dims: tuple[int, ...] | None, group: tuple[int, ...] | None, start: int, end: int
) -> SeenOp:
    return SeenOp(
        place=place,
        kind=op.kind,
        dims=dims,
        group=group,
        sent=op.message or None,
        dtype=DTYPES.get(op.dtype or "", op.dtype or ""),
        scalar=_is_scalar(op),
        name=op.name,
        phase=op.phase,
        step=op.step_number,
        start=start,
        end=end,
    )


def _dims(op: RunOpFacts) -> tuple[int, ...] | None:
    """The dimensions of a matmul or attention from the shapes of its operator; None for one that has no known form."""
    if op.shapes is None:
        return None
    shapes = json.loads(op.shapes)
    operator = (op.launcher or op.name).removeprefix("aten::")
    if op.kind == ATTENTION:
        return _attention(operator, shapes)
    made = _MATMULS.get(operator)
    try:
        return None if made is None else matmul_dims(made(shapes))
    except (IndexError, ValueError):
        return None


def _mm(shapes: Shapes) -> tuple[int, ...]:
    (m, k), (_, n) = shapes[0], shapes[1]
    return m, n, k


def _bmm(shapes: Shapes) -> tuple[int, ...]:
    (batch, m, k), (_, _, n) = shapes[0], shapes[1]
    return batch, m, n, k


def _linear(shapes: Shapes) -> tuple[int, ...]:
    *rows, k = shapes[0]
    return prod(rows), shapes[1][0], k


_MATMULS: Mapping[str, Callable[[Shapes], tuple[int, ...]]] = {
    "mm": _mm,
    "addmm": lambda shapes: _mm(shapes[1:]),
    "_scaled_mm": _mm,
    "bmm": _bmm,
    "baddbmm": lambda shapes: _bmm(shapes[1:]),
    "linear": _linear,
}
"""Operators of matmuls, and the dimensions `[batch,] m, n, k` from the shapes of their operands."""


def _attention(operator: str, shapes: Shapes) -> tuple[int, ...] | None:
    """Batch, heads, heads of keys, queries, keys, head; the gradient of the result is before these operands.

    Kernels of requests of several lengths have one axis of all their tokens: the first, fourth and fifth are then 0.
    """
    operands = [shape for shape in shapes if len(shape) == 4]
    if "backward" in operator:
        operands = operands[1:]
    if len(operands) < 3:
        return _packed_attention(shapes)
    (batch, heads, queries, head), (_, key_heads, keys, _), (_, _, _, value) = operands[:3]
    return (batch, heads, key_heads, queries, keys, head, *(() if value == head else (value,)))


def _packed_attention(shapes: Shapes) -> tuple[int, ...] | None:
    operands = [shape for shape in shapes[:3] if len(shape) == 3]
    if len(operands) < 3 or operands[0][2] != operands[1][2]:
        return None
    (_, heads, head), (_, key_heads, _), (_, _, value) = operands
    return (0, heads, key_heads, 0, 0, head, *(() if value == head else (value,)))


def is_packed(op: SeenOp) -> bool:
    """Whether an op is an attention of requests of several lengths, whose recorded shapes do not have these lengths."""
    return op.kind == ATTENTION and op.dims is not None and not op.dims[3]


def group_calls(run: StoredRun) -> dict[int, list[GroupCall]]:
    """What each rank communicates in the first step that was recorded, with the share of its computing before that.

    Left out: barriers and sums of one number, by which programs agree, and collectives whose ranks are not known.
    """
    steps = [op.step_number for lane in run.lanes for op in lane.ops if op.step_number is not None]
    first = min(steps, default=None)
    found = {}
    for rank, timed in run.timed.items():
        lane, groups = run.lane_of[rank], run.groups_of[rank]
        ops = [place for place, op in enumerate(lane.ops) if first is None or op.step_number == first]
        computing = [(int(timed.start[place]), int(timed.end[place] - timed.start[place])) for place in ops
                     if lane.ops[place].type == "compute"]  # fmt: skip
        begins = np.array([begin for begin, _ in computing], np.int64)
        done = np.concatenate(([0], np.cumsum([length for _, length in computing])))
        own, issued = [], _issued(timed)
        for place in sorted(ops, key=issued.__getitem__):
            op = lane.ops[place]
            group = groups.get(place)
            if op.type not in ("collective", *MESSAGES) or group is None or _is_scalar(op):
                continue
            before = int(done[np.searchsorted(begins, issued[place])])
            begin = int(timed.start[place])
            own.append(GroupCall(op.kind, group, op.message or 0, before / max(int(done[-1]), 1), begin, op.gradients))
        found[rank] = own
    return found


def _issued(timed: TimedOps) -> list[int]:
    """When each op of a rank was issued: launched, or begun where its launch is not known."""
    found: list[int] = np.where(timed.launched == NONE, timed.start, timed.launched).tolist()
    return found


def _is_scalar(op: RunOpFacts) -> bool:
    """Whether it is a barrier, or a collective of one element."""
    element = ELEMENT_BYTES.get(op.dtype or "", 0)
    return op.kind == BARRIER or (op.type == "collective" and 0 < (op.message or 0) <= element)


# The order in which a rank ran the tasks of its micro-batches, by what it computed.


def in_seen_order(planned: Sequence[PlannedOp], keys: Sequence[Hashable], seen: Sequence[Hashable]) -> list[int] | None:
    """Places of planned ops with their tasks in the order of a run; None if it is the planned one, or not known.

    keys: what must be the same of each planned op. seen: that of the seen matmuls and attentions. Micro-batches are
    alike, so that the first task of a kind in the run is the first one of it in the plan.
    """
    work: dict[int, list[Hashable]] = defaultdict(list)
    for op, key in zip(planned, keys, strict=True):
        if op.kind in WORK:
            work[op.task].append(key)
    waiting: dict[frozenset[tuple[Hashable, int]], list[int]] = defaultdict(list)
    for task in sorted(work):
        waiting[frozenset(Counter(work[task]).items())].append(task)
    order: list[int] = []
    at = 0
    while at < len(seen):
        # If the ops of one task are the first ops of another, the longer task is tried first.
        for kind in sorted(waiting, key=lambda each: -sum(count for _, count in each)):
            count = sum(number for _, number in kind)
            if waiting[kind] and frozenset(Counter(seen[at : at + count]).items()) == kind:
                order.append(waiting[kind].pop(0))
                at += count
                break
        else:
            return None
    if any(waiting.values()) or order == sorted(order):
        return None
    return _moved(planned, order)


def _moved(planned: Sequence[PlannedOp], order: Sequence[int]) -> list[int]:
    """Places with the tasks of an order where the tasks were; those without work stay between the same tasks."""
    tasks: dict[int, list[int]] = defaultdict(list)
    for place, op in enumerate(planned):
        tasks[op.task].append(place)
    ordered = iter(order)
    known = set(order)
    return [place for task in sorted(tasks) for place in tasks[next(ordered) if task in known else task]]


@dataclass(frozen=True)
class Known:
    """What the recording has: dims of most matmuls, ranks of groups, bytes of collectives.

    Kernels of a graph that is replayed have no shapes, and those around it do. packed: attentions are of requests of
    several lengths, and have the sizes of heads alone.
    """

    dims: bool
    groups: bool
    sizes: bool
    packed: bool = False

    @classmethod
    def of(cls, seen: Sequence[SeenOp]) -> "Known":
        """The facts that the recording has of these ops."""
        communicates = [each for each in seen if each.kind not in WORK]
        works = [bool(each.dims) for each in seen if each.kind in WORK]
        return cls(
            2 * sum(works) > len(works),
            any(each.group for each in communicates),
            any(each.sent for each in communicates),
            any(map(is_packed, seen)),
        )

    def planned(self, op: PlannedOp) -> Hashable:
        """The key of a planned op: it is the same as that of the recorded op which it may be matched with."""
        if op.kind == ATTENTION and self.packed:
            _, heads, kv_heads, _, _, head, *_ = op.dims
            return op.kind, (0, heads, kv_heads, 0, 0, head)
        if op.kind in WORK:
            return op.kind, op.dims if self.dims else None
        return op.kind, self._group(op.group), (op.sent if op.kind != "recv" else op.received) * self.sizes

    def seen(self, op: SeenOp) -> Hashable:
        """The key of a recorded op: it is the same as that of the planned op which it may be matched with."""
        if op.kind == ATTENTION and self.packed and op.dims is not None:
            return op.kind, op.dims[:6]
        if op.kind in WORK:
            return op.kind, op.dims if self.dims else None
        return op.kind, self._group(op.group), (op.sent or 0) * self.sizes

    def _group(self, group: tuple[int, ...] | None) -> Hashable:
        if not self.groups or group is None:
            return None
        return tuple(sorted(group))


@dataclass(frozen=True, slots=True)
class OpPair:
    """A planned and a seen op that are the same, by places in both lists. moved: it is somewhere else in the order."""

    planned: int
    seen: int
    moved: bool = False


@dataclass
class RankMatch:
    """The ops that one rank ran in a step, matched with those that its plan has.

    planned, seen: both lists of ops, in the order of issue. matched: pairs of the same op. changed: pairs of one op
    with another size, type, group or kind. missing, extra: places of planned and of seen ops without a counterpart.
    reordered: the tasks of micro-batches ran in another order, in which `planned` is.
    """

    planned: Sequence[PlannedOp]
    seen: Sequence[SeenOp]
    matched: list[OpPair] = field(default_factory=list)
    changed: list[OpPair] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    reordered: bool = False

    @property
    def pairs(self) -> list[OpPair]:
        """All pairs, in the order of the run."""
        return sorted((*self.matched, *self.changed), key=lambda each: each.seen)

    def beyond_plan(self, early_stop: bool) -> list[int]:
        """Places of the extra ops that count.

        Barriers, sums of one number, and matmuls in which a recomputation stops do not. early_stop: whether
        recomputations end as soon as all that the backward reads is there.
        """
        stopped = self.stopped(early_stop)
        return [place for place in self.extra if not self.seen[place].scalar and place not in stopped]

    def stopped(self, early_stop: bool) -> set[int]:
        """Extra matmuls in which a recomputation stopped: a profiler has such an operator, and it computed nothing.

        early_stop: whether recomputations end so. PyTorch stops as soon as all tensors for the backward are saved, in
        the operator that saves the last one.
        """
        phases = {pair.seen: self.planned[pair.planned].phase for pair in self.pairs}
        ends = sorted(phases)
        found = set()
        for place in self.extra if early_stop else ():
            at = bisect_left(ends, place)
            before, after = ([phases[each] for each in ends[of]] for of in (slice(at - 1, at), slice(at, at + 1)))
            if self.seen[place].kind == MATMUL and before == ["recompute"] and after != ["recompute"]:
                found.add(place)
        return found


def match_rank(planned: Sequence[PlannedOp], seen: Sequence[SeenOp], known: Known) -> RankMatch:
    """Match the ops of a step of a rank, both in the order of issue.

    planned: of the plan. seen: of the recording.
    """
    keys = [known.planned(each) for each in planned], [known.seen(each) for each in seen]
    work = [key for key, each in zip(keys[1], seen, strict=True) if each.kind in WORK]
    order = in_seen_order(planned, keys[0], work)
    if order is not None:
        planned, keys = [planned[place] for place in order], ([keys[0][place] for place in order], keys[1])
    found = RankMatch(planned, seen, reordered=order is not None)
    return _Matching(found, *keys, align(*keys)).done()


@dataclass
class _Matching:
    found: RankMatch
    planned_keys: Sequence[Hashable]
    seen_keys: Sequence[Hashable]
    aligned: Alignment

    def done(self) -> RankMatch:
        found, gaps = self.found, self.aligned.gaps
        found.matched += [OpPair(*pair) for pair in self.aligned.pairs]
        left = [_Left(gap) for gap in gaps]
        for each in left:
            # The order of matmuls between two messages does not count.
            found.matched += each.paired(lambda one, other: self.planned_keys[one] == self.seen_keys[other])
            found.matched += each.paired(self._lacks_dims)
        found.matched += self._moved(left)
        found.changed = [each for each in found.matched if self._has_other_dims(each)]
        found.matched = [each for each in found.matched if not self._has_other_dims(each)]
        for fits in (self._resized, self._replaced):
            for each in left:
                found.changed += each.paired(fits)
        found.missing = sorted(place for each in left for place in each.planned)
        found.extra = sorted(place for each in left for place in each.seen)
        return found

    def _moved(self, left: "Sequence[_Left]") -> Iterator[OpPair]:
        """Ops that are left in one gap, and their counterparts that are left in another one, in their order."""
        elsewhere: dict[Hashable, deque[tuple[_Left, int]]] = defaultdict(deque)
        for each in left:
            for place in each.seen:
                elsewhere[self.seen_keys[place]].append((each, place))
        between = _Between(self.found, self.aligned)
        for each in left:
            for place in list(each.planned):
                if waiting := elsewhere[self.planned_keys[place]]:
                    other, seen = waiting.popleft()
                    each.planned.remove(place)
                    other.seen.remove(seen)
                    yield OpPair(place, seen, moved=between.differs(place, seen))

    def _has_other_dims(self, pair: OpPair) -> bool:
        """Whether a recorded op has another size than the planned one, where most have none."""
        planned, seen = self.found.planned[pair.planned], self.found.seen[pair.seen]
        return planned.kind == MATMUL and bool(seen.dims) and planned.dims != seen.dims

    def _lacks_dims(self, one: int, other: int) -> bool:
        """Whether a recorded op is of the kind of a planned one, and has no size."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        return planned.kind in WORK and planned.kind == seen.kind and not seen.dims

    def _resized(self, one: int, other: int) -> bool:
        """Whether a planned and a recorded op have one kind, so that they differ in size or ranks alone."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        return planned.kind == seen.kind and not seen.scalar

    def _replaced(self, one: int, other: int) -> bool:
        """Another collective on the same ranks."""
        planned, seen = self.found.planned[one], self.found.seen[other]
        if seen.scalar or any(each.kind in (*WORK, *MESSAGES) for each in (planned, seen)):
            return False
        return seen.group is None or sorted(planned.group) == sorted(seen.group)


class _Left:
    """A gap between matched ops: the places in both lists that have no partner."""

    def __init__(self, gap: Gap) -> None:
        self.planned = list(range(gap.first[0], gap.last[0]))
        self.seen = list(range(gap.first[1], gap.last[1]))

    def paired(self, fits: Callable[[int, int], bool]) -> list[OpPair]:
        """Pairs of a planned and a recorded op that fit, in the order of the planned ones; both are taken out.

        fits: whether two ops, by their places, are a pair.
        """
        found = []
        for place in list(self.planned):
            other = next((each for each in self.seen if fits(place, each)), None)
            if other is not None:
                self.planned.remove(place)
                self.seen.remove(other)
                found.append(OpPair(place, other))
        return found


class _Between:
    """How many aligned messages are before each place of both lists."""

    def __init__(self, found: RankMatch, aligned: Alignment) -> None:
        messages = [pair for pair in aligned.pairs if found.planned[pair[0]].kind not in WORK]
        work = [pair for pair in aligned.pairs if found.planned[pair[0]].kind in WORK]
        self.found = found
        self.ends = [[pair[side] for pair in messages] for side in (0, 1)]
        self.work_ends = [[pair[side] for pair in work] for side in (0, 1)]

    def differs(self, planned: int, seen: int) -> bool:
        """Whether an op is between other messages, or a message between other work, than planned."""
        works = self.found.planned[planned].kind in WORK
        ends = self.ends if works else self.work_ends
        return bisect_left(ends[0], planned) != bisect_left(ends[1], seen)
