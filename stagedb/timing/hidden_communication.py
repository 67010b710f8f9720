"""What communication costs where a framework runs it in pieces during other work: only the rest that it cannot hide.

Tokens that are sent to nodes and from there to ranks go through both networks at the same time, piece by piece, in one
kernel (DeepEP), so that the exchange inside nodes takes what it is longer than that between them.

Three more rules, each by what a system's `overlap` has of its framework. Collectives of an axis run in chunks during
the matmul that makes or reads them. Gradients are reduced in buckets during the last backward. Updated parameters are
gathered in buckets during the next forward, which in a sequence of equal steps is that of this step. In each of them
one piece is left, the first or the last, and what computing is too short for.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stagedb.collectives import gathers, resizes
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, DATA, LAST, TEMPLATES, ClassColumns, Ints, Workload, issued_on
from stagedb.systems import System
from stagedb.timing.lanes import Lane, group_of
from stagedb.timing.op_durations import JobDurations, LaneDurations
from stagedb.workflows.training import FORWARD, STEP

DATA_AXES = ("dp", "dp_replicate", "dp_reshard", "edp", "data")
"""Axes over which gradients are reduced and parameters are gathered."""

_FORWARD, _STEP = TEMPLATES.index(FORWARD.name), TEMPLATES.index(STEP.name)


def hidden(workload: Workload, lanes: Sequence[Lane], durations: JobDurations, system: System) -> JobDurations:
    """The durations in which communication that a framework runs in pieces during computing takes only the time that
    computing does not hide.

    lanes: all of them, in the order of `durations`. system: its `overlap` names what runs in pieces. Only ns change,
    not bytes.
    """
    overlap = system.overlap
    relays = {"epn", "epr"} <= set(workload.groups.axis)
    if not (overlap.chunked or overlap.reduced or overlap.gathered or relays):
        return durations
    by_number = {each.number: each for each in workload.classes}
    axes = set(overlap.chunked) & set(workload.groups.axis)
    of_lanes: list[LaneDurations] = []
    for lane, lasts in zip(lanes, durations.lanes, strict=True):
        columns = by_number[lane.rank_class]
        ns = lasts.ns.copy()
        _relayed(columns, ns)
        members = {axis: len(group_of(workload.groups, axis, lane.rank)) for axis in axes}
        _chunked(columns, ns, members)
        _in_buckets(columns, ns, overlap.reduced, overlap.gathered)
        of_lanes.append(replace(lasts, ns=ns))
    return replace(durations, lanes=tuple(of_lanes))


def _relayed(columns: ClassColumns, ns: Ints) -> None:
    """Shorten each exchange inside nodes by the one between nodes that is next to it, in issue order.

    The two of a dispatch, or of a combine, follow each other in a layer and phase. One that runs again alone keeps its
    time.
    """
    ops, layers = columns.ops, columns.origins.layer
    exchanges_of = defaultdict[tuple[int, int, str], list[int]](list)
    for row in issued_on(ops, ("epn", "epr")).tolist():
        exchanges_of[int(ops.chunk[row]), int(layers[row]), ops.phase[row]].append(row)
    for rows in exchanges_of.values():
        for first, second in zip(rows[::2], rows[1::2], strict=False):
            near, far = (first, second) if ops.axis[first] == "epr" else (second, first)
            if ops.axis[near] != ops.axis[far]:
                ns[near] -= min(int(ns[near]), int(ns[far]))


def _chunked(columns: ClassColumns, ns: Ints, members: Mapping[str, int]) -> None:
    """Shorten collectives by what the matmul next to each hides. A matmul hides at most its own time."""
    ops, edges = columns.ops, columns.edges
    near = defaultdict[int, list[int]](list)
    for source, target, kind in zip(edges.source.tolist(), edges.target.tolist(), edges.kind.tolist(), strict=True):
        if kind == DATA:
            near[source].append(target)
            near[target].append(source)
    free = {op: int(ns[op]) for op in range(len(ops)) if ops.type[op] == COMPUTE and ops.flops[op] > 0}
    for op in np.flatnonzero(ops.type == COLLECTIVE).tolist():
        ranks = members.get(ops.axis[op], 0)
        if ranks < 2 or not resizes(ops.kind[op]):
            continue
        direct = near[op]
        casts = [each for each in direct if ops.type[each] == COMPUTE and ops.kind[each] == "cast"]
        reached = {*direct, *(far for each in casts for far in near[each])}
        near_it = [each for each in reached if each in free and ops.template[each] == ops.template[op]]
        if near_it:
            matmul = max(near_it, key=lambda each: free[each])
            saved = min(int(ns[op]), free[matmul]) * (ranks - 1) // ranks
            free[matmul] -= saved
            ns[op] -= saved


def _in_buckets(columns: ClassColumns, ns: Ints, reduced: int, gathered: int) -> None:
    """Shorten reductions of gradients by the last backward of their chunk, and gathers by the first forward."""
    ops = columns.ops
    computes = ops.type == COMPUTE
    once = ops.template == _STEP
    forward, backward = ops.template == _FORWARD, ~once & (ops.template != _FORWARD)
    free: dict[tuple[int, bool], int] = {}
    for op in np.flatnonzero(ops.type == COLLECTIVE).tolist():
        if ops.axis[op] not in DATA_AXES or (ops.when[op] != LAST and not once[op]):
            continue
        after = bool(once[op])
        bucket = gathered if after else reduced
        if not bucket or (after and not gathers(ops.kind[op])):
            continue
        chunk = int(ops.chunk[op])
        cover = forward if after else backward
        own = free.setdefault((chunk, after), int(ns[computes & cover & (ops.chunk == chunk)].sum()))
        pieces = max(1, -(-max(int(ops.operand[op]), int(ops.result[op])) // bucket))
        saved = min(int(ns[op]) * (pieces - 1) // pieces, own)
        free[chunk, after] = own - saved
        ns[op] -= saved
