"""What a layer does to the clocks of a rank: a map in max-plus algebra. The product of maps is that of a task.

A rank's state is a vector of times [ns]: when its compute stream is free, when what the next layer reads is there, when
the parameters that were gathered last are there, and when each stream of communication is free. A layer turns it into
the state after the layer: each new time is the latest of the old ones plus a constant (`ClockMap`). Nothing of the
order on streams is lost, so that a product is as long as the timeline of its layers. What a layer waits for that the
state does not have is left out: a map is a lower bound.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stagedb.collectives import gathers
from stagedb.lowering.columns import CLOSED, COLLECTIVE, COMPUTE, DATA, FIRST, LAST, RECV, ClassColumns, Ints
from stagedb.lowering.stage_blocks import PSEUDO_BLOCKS
from stagedb.timing.hidden_communication import DATA_AXES

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
