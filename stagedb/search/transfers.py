"""What a layer does to the clocks of a rank: a map in max-plus algebra. The product of maps is that of a task.

A rank's state is a vector of times [ns]: when its compute stream is free, when what the next layer reads is there, when
the parameters that were gathered last are there, and when each stream of communication is free. A layer turns it into
the state after the layer: each new time is the latest of the old ones plus a constant (`ClockMap`). Nothing of the
order on streams is lost, so that a product is as long as the timeline of its layers. What a layer waits for that the
state does not have is left out: a map is a lower bound.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stagedb.collectives import gathers
from stagedb.lowering.columns import CLOSED, COLLECTIVE, COMPUTE, DATA, FIRST, LAST, RECV, ClassColumns, Ints
from stagedb.lowering.stage_blocks import PSEUDO_BLOCKS
from stagedb.plans import Plan
from stagedb.schedules import Order, Task, TaskPosition, task_positions
from stagedb.timing.framework_terms import DATA_AXES

ClockMap = npt.NDArray[np.int64]
"""[states, states], ns: the new state i is the maximum over j of the old state j plus the entry [i, j]."""

NEVER = -(1 << 58)
"""The time of what nothing waits for."""

COMPUTED, READ, COMBINED, GATHERED, STREAMS = 0, 1, 2, 3, 5
"""Indices of the states. When the compute stream is free; when what the next layer reads is computed, and when the
results of collectives that it reads are there; when the last two gathers of parameters have ended; the streams."""

Part = tuple[str, bool]
"""A block of the model, and whether it is a layer that recomputes."""


@dataclass(frozen=True)
class LayerPlace:
    """A part of a chunk, the part that a task runs before it (None if it is the first), and the next parts after it.

    What is gathered for later layers is issued during earlier ones. others: the blocks of the chunk that are no layers:
    their buckets may be issued during a layer, too.
    """

    part: Part
    earlier: Part | None
    later: tuple[Part, ...]
    others: frozenset[str] = frozenset()


def identity(states: int) -> ClockMap:
    """The map of a task without operators. states: the length of a state."""
    return np.where(np.eye(states, dtype=bool), 0, NEVER).astype(np.int64)


def after(second: ClockMap, first: ClockMap) -> ClockMap:
    """The map of one layer and another one after it."""
    found: ClockMap = np.maximum((second[:, :, None] + first[None, :, :]).max(axis=1), NEVER)
    return found


def repeated(one: ClockMap, times: int) -> ClockMap:
    """The map of a number of equal layers, one after the other. one: that of a layer. times: 1 or more."""
    found, power = None, one
    while True:
        if times & 1:
            found = power if found is None else after(power, found)
        times >>= 1
        if not times:
            return found if found is not None else power
        power = after(power, power)


@dataclass(frozen=True)
class _Segment:
    """The operators of one position, in issue order, with those that are issued between them and the next one."""

    key: tuple[int, int]
    rows: list[int]


def transfers(
    columns: ClassColumns,
    ns: Ints,
    templates: Sequence[int],
    streams: Mapping[str, int],
    parts: Mapping[tuple[int, int], Part],
    *,
    layers: frozenset[str],
    ahead: int,
    opened: bool,
    last: bool,
) -> dict[LayerPlace, ClockMap]:
    """The maps of the parts of a rank class in a task of these templates.

    ns: the duration of each op. templates: the codes of those of the task. streams: the state of each axis that
    communicates. parts: by chunk and position. layers: blocks that are layers. ahead: the number of parts in
    `LayerPlace.later`. opened, last: as the task has them (`stagedb.schedules.TaskPosition`). Where a part is several
    times in a class, its map has the least of each entry.
    """
    rows_of = _Rows.of(columns, ns, templates, opened=opened, last=last)
    states = STREAMS + len(set(streams.values()))
    found: dict[LayerPlace, ClockMap] = {}
    for chunk in sorted({chunk for chunk, _ in parts}):
        segments = _segments(rows_of, rows_of.of_chunk(chunk))
        others = frozenset(block for (of, _), (block, _) in parts.items() if of == chunk and block not in layers)
        read_later = _read_later(rows_of, segments)
        for at, segment in enumerate(segments):
            part = parts.get(segment.key)
            if part is None:
                continue
            later = tuple(parts[each.key] for each in segments[at + 1 : at + 1 + ahead] if each.key in parts)
            earlier = parts.get(segments[at - 1].key) if at else None
            place = LayerPlace(part, earlier, later, others)
            one = _transfer(rows_of, segments, at, read_later, streams, states)
            found[place] = np.minimum(found[place], one) if place in found else one
    return found


@dataclass(frozen=True)
class _Rows:
    """The operators of a rank class as `transfers` needs them, one entry a row.

    wanted: whether the task runs it. ns: its duration. types, chunks, orders: its columns. gathers: whether it gathers
    parameters. before: by row, the operators whose results it reads. handed: rows that are read by other chunks.
    """

    columns: ClassColumns
    wanted: npt.NDArray[np.bool_]
    ns: Sequence[int]
    types: Sequence[int]
    chunks: Sequence[int]
    orders: Sequence[int]
    gathers: Sequence[bool]
    before: Mapping[int, Sequence[int]]
    handed: frozenset[int]

    @classmethod
    def of(cls, columns: ClassColumns, ns: Ints, templates: Sequence[int], *, opened: bool, last: bool) -> "_Rows":
        ops, edges = columns.ops, columns.edges
        wanted = np.isin(ops.template, templates) & (ops.when != FIRST)
        wanted &= (ops.when != LAST) | last
        wanted &= (ops.when != CLOSED) | (not opened)
        types, chunks = ops.type.tolist(), ops.chunk.tolist()
        counts = (edges.kind == DATA) & wanted[edges.source] & wanted[edges.target]
        before = defaultdict[int, list[int]](list)
        for source, target in zip(edges.source[counts].tolist(), edges.target[counts].tolist(), strict=True):
            before[target].append(source)
        return cls(
            columns,
            wanted,
            ns.tolist(),
            types,
            chunks,
            ops.order.tolist(),
            [
                type_ == COLLECTIVE and axis in DATA_AXES and gathers(kind)
                for type_, axis, kind in zip(types, ops.axis, ops.kind, strict=True)
            ],
            before,
            frozenset(source for target, of in before.items() for source in of if chunks[source] != chunks[target]),
        )

    def of_chunk(self, chunk: int) -> list[int]:
        """The rows of a chunk that the task runs, in issue order."""
        ops = self.columns.ops
        rows = np.flatnonzero(self.wanted & (ops.chunk == chunk))
        found: list[int] = rows[np.argsort(ops.order[rows], kind="stable")].tolist()
        return found

    def sends(self, row: int) -> bool:
        """Whether it is a message that leaves."""
        return self.types[row] not in (COMPUTE, COLLECTIVE, RECV)


def _read_later(rows: _Rows, segments: Sequence[_Segment]) -> set[int]:
    """The operators whose results a later segment reads, without gathers of parameters."""
    segment_of = {row: at for at, each in enumerate(segments) for row in each.rows}
    return {
        source
        for row, at in segment_of.items()
        for source in rows.before.get(row, ())
        if segment_of.get(source, at) < at and not rows.gathers[source]
    }


def _segments(rows: _Rows, of_task: Sequence[int]) -> list[_Segment]:
    """The rows of a task, position by position. Each position has what is issued before the next one computes."""
    origins = rows.columns.origins
    found: list[_Segment] = []
    early: list[int] = []
    for row in of_task:
        if rows.types[row] == COMPUTE and origins.block[row] not in PSEUDO_BLOCKS:
            key = (rows.chunks[row], int(origins.position[row]))
            if not found or found[-1].key != key:
                found.append(_Segment(key, [*early, row] if not found else [row]))
                continue
        if found:
            found[-1].rows.append(row)
        else:
            early.append(row)
    return found


def _transfer(
    rows: _Rows,
    segments: Sequence[_Segment],
    at: int,
    read_later: set[int],
    streams: Mapping[str, int],
    states: int,
) -> ClockMap:
    """The map of a segment: one time for each state of before, with all others long ago. read_later: by others."""
    own, axes = segments[at], rows.columns.ops.axis
    mine = set(own.rows)
    previous = set(segments[at - 1].rows) if at else set[int]()
    gathered = sorted(
        (row for each in segments[:at] for row in each.rows if rows.gathers[row]), key=lambda row: -rows.orders[row]
    )
    slots = {row: GATHERED + slot for slot, row in enumerate(gathered[: STREAMS - GATHERED])}
    times = list(identity(states))
    never, begun = np.full(states, NEVER, np.int64), times[COMPUTED]
    ends: dict[int, npt.NDArray[np.int64]] = {}
    fresh: list[npt.NDArray[np.int64]] = []
    for row in own.rows:
        kind = rows.types[row]
        if kind not in (COMPUTE, COLLECTIVE):
            if kind == RECV:
                ends[row] = times[READ]
            continue
        stream = COMPUTED if kind == COMPUTE else streams[axes[row]]
        begin, waits = times[stream], False
        for source in rows.before.get(row, ()):
            awaited = None
            if source in mine:
                awaited = ends.get(source)
                waits = waits or rows.types[source] != RECV
            elif source in slots:
                awaited = times[slots[source]]
            elif rows.chunks[source] != rows.chunks[row]:
                awaited = times[READ]
            elif source in previous and not rows.gathers[source]:
                awaited = times[COMBINED if rows.types[source] == COLLECTIVE else READ]
            if awaited is not None:
                begin = np.maximum(begin, awaited)
        if at == 0 and not waits:
            begin = np.maximum(begin, begun)
        ends[row] = times[stream] = np.maximum(begin + rows.ns[row], NEVER)
        if rows.gathers[row]:
            fresh.append(ends[row])
    sent = {source for row in own.rows if rows.sends(row) for source in rows.before.get(row, ()) if source in mine}
    read = mine & read_later
    combined = {row for row in read if rows.types[row] == COLLECTIVE}
    read = (read - combined) | sent | (mine & rows.handed)
    # Nothing is read from the layer that computes last: what follows waits for its compute stream.
    times[READ] = np.minimum.reduce([ends[row] for row in read]) if read else times[COMPUTED]
    times[COMBINED] = np.minimum.reduce([ends[row] for row in combined]) if combined else never
    times[GATHERED:STREAMS] = [*fresh[::-1], *times[GATHERED:STREAMS]][: STREAMS - GATHERED]
    found: ClockMap = np.maximum(np.array(times), NEVER)
    return found


# A pipeline's tasks in their order, each with the least time that it takes: a bound of the step with its bubbles.
#
# A rank runs its tasks one after the other, and a task needs the message of its neighbour. What a task does to the
# clocks of its rank is a map (`ClockMap`).


class TaskSort(NamedTuple):
    """Tasks that take the same time.

    kind: name of the kind of task. chunk: its number in the pipeline. opened, last: as in
    `stagedb.schedules.TaskPosition`. stage: the rank's place in the pipeline. hop: stages from the rank that sends it a
    message; 0 without a message.
    """

    kind: str
    chunk: int
    opened: bool
    last: bool
    stage: int
    hop: int


@dataclass(frozen=True)
class TaskMap:
    """What a task does to the clocks of its rank. message: ns of the message that it waits for."""

    message: int
    transfer: ClockMap


@dataclass(frozen=True)
class TaskOrder:
    """The tasks of all stages, in an order in which each comes after those that it waits for.

    sorts: each once. sort: the index of each task's. source: the task whose message it receives, or -1. joined: whether
    it runs together with the task before it on its stage.
    """

    stages: int
    sorts: tuple[TaskSort, ...]
    sort: tuple[int, ...]
    source: tuple[int, ...]
    joined: tuple[bool, ...]

    @classmethod
    def of(cls, plan: Plan) -> "TaskOrder":
        """The order of a plan's tasks, without those that run once a step."""
        orders = [[task for task in order if not task.kind.once] for order in plan.tasks()]
        numbers = [plan.placement.chunks_of(stage, plan.pp, plan.virtual_stages) for stage in range(plan.pp)]
        sorts: dict[TaskSort, int] = {}
        stage_of: list[int] = []
        sort, source, joined = [], [], []
        for stage, task, mark, sent_by in _in_turn(orders, numbers):
            hop = 0 if sent_by < 0 else stage - stage_of[sent_by]
            one = TaskSort(task.kind.name, numbers[stage][task.chunk], mark.opened, mark.last, stage, hop)
            sort.append(sorts.setdefault(one, len(sorts)))
            source.append(sent_by)
            joined.append(task.joined)
            stage_of.append(stage)
        return cls(plan.pp, tuple(sorts), tuple(sort), tuple(source), tuple(joined))

    def ends(self, times: Sequence[TaskMap]) -> list[list[int]]:
        """The clocks of each stage after its tasks, at the earliest: COMPUTED, and those of the streams.

        times: those of each sort.
        """
        if any(self.joined):
            return self._ends_of_pairs(times)
        states = len(times[0].transfer)
        kept = [COMPUTED, *range(STREAMS, states)]
        stage, message = [each.stage for each in self.sorts], [each.message for each in times]
        # Most entries are NEVER.
        rows = [
            [[(j, int(row[j])) for j in range(states) if row[j] > NEVER // 2] for row in each.transfer]
            for each in times
        ]
        clocks = [[0 if state == COMPUTED else NEVER for state in range(states)] for _ in range(self.stages)]
        sent: list[int] = []
        for number, source in zip(self.sort, self.source, strict=True):
            clock = clocks[stage[number]]
            clock[READ] = sent[source] + message[number] if source >= 0 else NEVER
            new = [max([clock[j] + ns for j, ns in row], default=NEVER) for row in rows[number]]
            sent.append(new[READ])
            clocks[stage[number]] = new
        return [[clock[state] for state in kept] for clock in clocks]

    def _ends_of_pairs(self, times: Sequence[TaskMap]) -> list[list[int]]:
        """The clocks of `ends`, where some tasks run together: each starts with its own message, and all end when the
        time of all is over.
        """
        stage = [each.stage for each in self.sorts]
        computed, before, busy = [0] * self.stages, [0] * self.stages, [0] * self.stages
        sent: list[int] = []
        for number, source, joined in zip(self.sort, self.source, self.joined, strict=True):
            at, one = stage[number], times[number].transfer
            if not joined:
                before[at], busy[at] = computed[at], 0
            arrived = sent[source] + times[number].message if source >= 0 else NEVER
            busy[at] += int(one[COMPUTED, COMPUTED])
            computed[at] = max(
                computed[at],
                before[at] + int(one[COMPUTED, COMPUTED]),
                arrived + int(one[COMPUTED, READ]),
                before[at] + busy[at],
            )
            sent.append(max(before[at] + int(one[READ, COMPUTED]), arrived + int(one[READ, READ])))
        return [[each] for each in computed]


def _in_turn(
    orders: Sequence[Order], numbers: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Task, TaskPosition, int]]:
    """The stage, the task, its position and the place of what it receives from, each task after that one.

    numbers: by stage and chunk, the number in the pipeline. Raises ValueError for orders that cannot end.
    """
    made: dict[tuple[bool, int, int], int] = {}
    waiting: dict[tuple[bool, int, int], int] = {}
    rows = [list(zip(order, task_positions(order), strict=True)) for order in orders]
    last = max(map(max, numbers))
    done, count, ready = [0] * len(orders), 0, list(range(len(orders)))
    while ready:
        stage = ready.pop()
        row, own = rows[stage], numbers[stage]
        while done[stage] < len(row):
            task, mark = row[done[stage]]
            number, hop = own[task.chunk], task.kind.hop
            needs = (hop > 0, task.microbatch, number - hop)
            source = made.get(needs, -1) if hop else -1
            if hop and source < 0 and 0 <= number - hop <= last:
                waiting[needs] = stage
                break
            yield stage, task, mark, source
            if hop:
                key = (hop > 0, task.microbatch, number)
                made[key] = count
                if key in waiting:
                    ready.append(waiting.pop(key))
            done[stage] += 1
            count += 1
    if count < sum(map(len, rows)):
        raise ValueError("these orders of tasks never end")
