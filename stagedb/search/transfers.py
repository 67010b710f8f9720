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
from stagedb.lowering.stage_blocks import PSEUDO_BLOCKS
from stagedb.timing.hidden_communication import DATA_AXES
from stagedb.workload.instance_columns import (
    CLOSED,
    COLLECTIVE,
    COMPUTE,
    DATA,
    FIRST,
    LAST,
    RECV,
    ClassColumns,
    Ints,
)

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
    """The map of a task without operators."""
    return np.where(np.eye(states, dtype=bool), 0, NEVER).astype(np.int64)


def after(second: ClockMap, first: ClockMap) -> ClockMap:
    """The map of one layer and another one after it."""
    found: ClockMap = np.maximum((second[:, :, None] + first[None, :, :]).max(axis=1), NEVER)
    return found


def repeated(one: ClockMap, times: int) -> ClockMap:
    """The map of so many equal layers, 1 or more."""
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

    streams: the state of each axis that communicates. parts: by chunk and position. layers: blocks that are layers.
    ahead: the number of parts in `LayerPlace.later`. opened, last: as the task has them
    (`stagedb.schedules.TaskPosition`). Where a part is several times in a class, its map has the least of each entry.
    """
    ops = columns.ops
    wanted = np.isin(ops.template, templates) & (ops.when != FIRST)
    wanted &= (ops.when != LAST) | last
    wanted &= (ops.when != CLOSED) | (not opened)
    before = defaultdict[int, list[int]](list)
    for source, target, kind in zip(
        columns.edges.source.tolist(), columns.edges.target.tolist(), columns.edges.kind.tolist(), strict=True
    ):
        if kind == DATA and wanted[source] and wanted[target]:
            before[target].append(source)
    handed = {source for target, of in before.items() for source in of if ops.chunk[source] != ops.chunk[target]}
    states = STREAMS + len(set(streams.values()))
    found: dict[LayerPlace, ClockMap] = {}
    for chunk in sorted({chunk for chunk, _ in parts}):
        rows = np.flatnonzero(wanted & (ops.chunk == chunk))
        rows = rows[np.argsort(ops.order[rows], kind="stable")]
        segments = _segments(columns, rows.tolist())
        others = frozenset(block for (of, _), (block, _) in parts.items() if of == chunk and block not in layers)
        for at, segment in enumerate(segments):
            part = parts.get(segment.key)
            if part is None:
                continue
            later = tuple(parts[each.key] for each in segments[at + 1 : at + 1 + ahead] if each.key in parts)
            earlier = parts.get(segments[at - 1].key) if at else None
            place = LayerPlace(part, earlier, later, others)
            one = _transfer(columns, ns, before, segments, at, handed, streams, states)
            found[place] = np.minimum(found[place], one) if place in found else one
    return found


def _segments(columns: ClassColumns, rows: Sequence[int]) -> list[_Segment]:
    """The rows of a task, position by position. Each position has what is issued before the next one computes."""
    ops, origins = columns.ops, columns.origins
    found: list[_Segment] = []
    early: list[int] = []
    for row in rows:
        if ops.type[row] == COMPUTE and origins.block[row] not in PSEUDO_BLOCKS:
            key = (int(ops.chunk[row]), int(origins.position[row]))
            if not found or found[-1].key != key:
                found.append(_Segment(key, [*early, row] if not found else [row]))
                continue
        if found:
            found[-1].rows.append(row)
        else:
            early.append(row)
    return found


def _transfer(
    columns: ClassColumns,
    ns: Ints,
    before: Mapping[int, Sequence[int]],
    segments: Sequence[_Segment],
    at: int,
    handed: set[int],
    streams: Mapping[str, int],
    states: int,
) -> ClockMap:
    """The map of a segment: it is run once for each state, with all others long ago. handed: read by other chunks."""
    ops, own = columns.ops, segments[at]
    mine = set(own.rows)
    earlier = {row for each in segments[:at] for row in each.rows}
    previous = set(segments[at - 1].rows) if at else set[int]()
    gathered = [row for row in sorted(earlier, key=lambda row: -int(ops.order[row])) if _gathers(columns, row)]
    slots = {row: GATHERED + slot for slot, row in enumerate(gathered[: STREAMS - GATHERED])}
    later = {row for each in segments[at + 1 :] for row in each.rows}
    read = {source for row in later for source in before[row] if source in mine and not _gathers(columns, source)}
    combined = {row for row in read if ops.type[row] == COLLECTIVE}
    read -= combined
    read |= {source for row in own.rows for source in before[row] if _sends(columns, row) and source in mine}
    read |= mine & handed
    found = np.full((states, states), NEVER, np.int64)
    for state in range(states):
        times = [NEVER] * states
        times[state] = 0
        ends: dict[int, int] = {}
        fresh: list[int] = []
        for row in own.rows:
            kind = ops.type[row]
            if kind not in (COMPUTE, COLLECTIVE):
                if kind == RECV:
                    ends[row] = times[READ]
                continue
            stream = COMPUTED if kind == COMPUTE else streams[ops.axis[row]]
            begin, waits = times[stream], False
            for source in before[row]:
                if source in mine:
                    begin = max(begin, ends.get(source, NEVER))
                    waits = waits or ops.type[source] != RECV
                elif source in slots:
                    begin = max(begin, times[slots[source]])
                elif ops.chunk[source] != ops.chunk[row]:
                    begin = max(begin, times[READ])
                elif source in previous and not _gathers(columns, source):
                    begin = max(begin, times[COMBINED if ops.type[source] == COLLECTIVE else READ])
            if at == 0 and not waits:
                begin = max(begin, 0 if state == COMPUTED else NEVER)
            ends[row] = max(begin + int(ns[row]), NEVER)
            times[stream] = ends[row]
            if _gathers(columns, row):
                fresh.append(ends[row])
        # Nothing is read from the layer that computes last: what follows waits for its compute stream.
        times[READ] = min((ends[row] for row in read), default=times[COMPUTED])
        times[COMBINED] = min((ends[row] for row in combined), default=NEVER)
        times[GATHERED:STREAMS] = [*fresh[::-1], *times[GATHERED:STREAMS]][: STREAMS - GATHERED]
        found[:, state] = times
    return np.maximum(found, NEVER)


def _gathers(columns: ClassColumns, row: int) -> bool:
    ops = columns.ops
    return ops.type[row] == COLLECTIVE and ops.axis[row] in DATA_AXES and gathers(ops.kind[row])


def _sends(columns: ClassColumns, row: int) -> bool:
    ops = columns.ops
    return ops.type[row] not in (COMPUTE, COLLECTIVE, RECV)
