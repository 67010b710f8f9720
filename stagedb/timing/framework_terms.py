"""What kernels take in a framework's step, as against each alone.

Six terms, by what a system's `overlap` has of its framework. Kernels with a measured time are slower in a step, where
power limits the clocks and other kernels use caches and memory: their time is stretched. Casts to fp8 that the kernel
before makes on the way take no time; those of weights are made once a step, with their transposes. Gradients of
weights are added to a sum in fp32, which is read and written once more than the table's kernel does, or by a kernel of
its own, which reads them too. Turns of a ring are merged, and keys copied to all heads (`op_durations`).
Collectives of data-parallel ranks take multiprocessors from what computes while they run.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stagedb.collectives import gathers, resizes
from stagedb.ir.facts import Casts
from stagedb.lowering.columns import (
    COLLECTIVE,
    COMPUTE,
    DATA,
    EVERY,
    LAST,
    TEMPLATES,
    ClassColumns,
    Ints,
    Ops,
    Workload,
    issued_on,
)
from stagedb.plans import FORMAT_BYTES
from stagedb.systems import System
from stagedb.systems.system import MERGES, Accelerator, inverse
from stagedb.timing.lanes import Lane, group_of
from stagedb.timing.op_durations import REPEATED, SHARDS, JobDurations, LaneDurations, casts_made, repeat_ns
from stagedb.workflows.training import FORWARD, STEP, WEIGHT_GRADIENT

# What communication costs where a framework runs it in pieces during other work: only the rest that it cannot hide.
#
# Tokens that are sent to nodes and from there to ranks go through both networks at the same time, piece by piece, in
# one kernel (DeepEP), so that the exchange inside nodes takes what it is longer than that between them.
#
# Three more rules, each by what a system's `overlap` has of its framework. Collectives of an axis run in chunks during
# the matmul that makes or reads them. Gradients are reduced in buckets during the last backward. Updated parameters are
# gathered in buckets during the next forward, which in a sequence of equal steps is that of this step. In each of them
# one piece is left, the first or the last, and what computing is too short for.

DATA_AXES = ("dp", "dp_replicate", "dp_reshard", "edp", "data")
"""Axes over which gradients are reduced and parameters are gathered."""

_FORWARD, _STEP = TEMPLATES.index(FORWARD.name), TEMPLATES.index(STEP.name)


def hidden(workload: Workload, lanes: Sequence[Lane], durations: JobDurations, system: System) -> JobDurations:
    """The durations in which collectives that a framework runs in chunks during a matmul take only the time that it
    does not hide, and exchanges inside nodes only what they are longer than those between them.

    lanes: all of them, in the order of `durations`. system: its `overlap` names what runs in chunks. Only ns change,
    not bytes.
    """
    overlap = system.overlap
    relays = {"epn", "epr"} <= set(workload.groups.axis)
    if not (overlap.chunked or relays):
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
        of_lanes.append(replace(lasts, ns=ns))
    return replace(durations, lanes=tuple(of_lanes))


def in_buckets(
    workload: Workload, rank_classes: Sequence[int], durations: JobDurations, system: System
) -> JobDurations:
    """The durations in which reductions and gathers in buckets take only the time that computing does not hide.

    rank_classes: the class of each lane. durations: with all that makes computing longer. system: its `overlap` has
    the bytes of a bucket. Measured durations stay as they are.
    """
    overlap = system.overlap
    if not (overlap.reduced or overlap.gathered):
        return durations
    by_number = {each.number: each for each in workload.classes}
    of_lanes: list[LaneDurations] = []
    for number, lasts in zip(rank_classes, durations.lanes, strict=True):
        ns = lasts.ns.copy()
        _in_buckets(by_number[number], ns, overlap.reduced, overlap.gathered)
        if durations.coverage.measured_ops:
            ns = np.where(lasts.measured, lasts.ns, ns)
        of_lanes.append(replace(lasts, ns=ns, spared=lasts.ns - ns))
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


# What a turn of ring attention adds to the results of the turns before, on top of its attention kernel.
#
# A measured attention kernel ends with its own result. `eager` is PyTorch's ring
# (torch/distributed/tensor/experimental/ _context_parallel/_attention.py): `_SDPAMerger` casts the result of each turn
# to fp32 and merges it by a subtraction, a product and another subtraction; the backward adds to fp32 gradients, and
# joins those of keys and values in one message. Where only half of the rows take part, the halves are joined again.
# `fused` is Transformer Engine's ring (context_parallel.py): one kernel of torch.compile reads a result and adds it to
# the sum, in the kernel's own format.

_, FUSED = MERGES
_NARROW, _WIDE = 2, 4
"""Bytes an element of what a kernel returns, and of PyTorch's sums."""

_CAST = _NARROW + _WIDE
_MERGED = 3 * _WIDE + 2 * _WIDE + 3 * _WIDE
"""Two subtractions with two operands, and a product with a column."""

_ADDED = _NARROW + 2 * _WIDE
_JOINED = 2 * _WIDE
_SUMMED, _FIRST = 3 * _NARROW, 2 * _NARROW


def merge_ns(ops: Ops, op: int, merges: str, repeated: bool, accelerator: Accelerator) -> int:
    """ns that an op takes to merge a turn of a ring; 0 for an op that is none. repeated: keys have all heads.

    op: its row in the class. merges: how the ring merges, as `moved` takes it. accelerator: whose memory bandwidth
    counts.
    """
    if ops.facts[op].ring is None or len(ops.dims[op]) < 6:
        return 0
    batch, heads, kv_heads, *sizes = ops.dims[op]
    dims = batch, heads, heads if repeated else kv_heads, *sizes
    size = moved(dims, ops.turn[op] == 0, ops.facts[op].origin is not None, merges)
    return round(size / accelerator.memory.at(max(size, 1)) * inverse(accelerator.bandwidth))


def moved(dims: Sequence[int], first: bool, backward: bool, merges: str) -> int:
    """Bytes that are read and written to merge the result of one turn of a ring into the sum.

    dims: (batch, heads, heads of keys, queries, keys, head_dim) of the turn's kernel. A kernel with fewer queries than
    keys has the second half of the queries, and one with fewer keys has the first half of the keys. first: the turn is
    the ring's first. backward: gradients are merged. merges: `eager` or `fused`.
    """
    batch, heads, kv_heads, queries, keys, width = dims[:6]
    of_queries, of_keys = batch * heads * queries * width, 2 * batch * kv_heads * keys * width
    if merges == FUSED:
        return of_queries * (_FIRST if first else _SUMMED)
    whole_queries = of_queries * (2 if queries < keys else 1)
    whole_keys = of_keys * (2 if keys < queries else 1)
    joined = _JOINED * (whole_queries if queries < keys else 0)
    if not backward:
        return of_queries * (_CAST if first else _CAST + _MERGED) + joined
    zeroed = _WIDE * (whole_queries + whole_keys) if first else 0
    joined += _JOINED * (whole_keys if keys < queries else 0)
    return _ADDED * (of_queries + of_keys) + joined + zeroed + _JOINED * whole_keys


# What FSDP copies around its collectives, on the multiprocessors that compute.
#
# A unit's parameters are gathered into one buffer, and its gradients are reduced from one. With `parameters`
# (fully_shard of PyTorch 2.4 and later, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) every parameter is a
# tensor of its own: each gather ends with a copy out of the buffer, each reduction begins with a copy into it. With
# `flat` (FullyShardedDataParallel, torch/distributed/fsdp/_flat_param.py and _runtime_utils.py) parameters are views of
# the buffer. But the gradients of the views are joined into one tensor, which is cast to the format of the reduction if
# that is another one, and divided before it.


def add_copies(columns: ClassColumns, ns: Ints, copies: str, dtype: str, accelerator: Accelerator) -> None:
    """Lengthen what computes next to a collective of a unit by what is copied for it.

    A copy is added to the first kernel that reads the parameters or the last that makes gradients; to the collective,
    where those run more often than it. ns: the duration of each op, changed in place. copies: what a framework copies,
    as in its profile. dtype: the format in which gradients are made. accelerator: whose memory bandwidth counts.
    """
    ops, edges = columns.ops, columns.edges
    data = edges.kind == DATA
    for op in np.flatnonzero(ops.type == COLLECTIVE).tolist():
        if ops.axis[op] not in DATA_AXES or not resizes(ops.kind[op]):
            continue
        after = gathers(ops.kind[op])
        near = edges.target[data & (edges.source == op)] if after else edges.source[data & (edges.target == op)]
        kernels = [
            kernel for kernel in near.tolist() if ops.type[kernel] == COMPUTE and ops.when[kernel] == ops.when[op]
        ]
        if not near.size:
            continue
        pace = inverse(accelerator.bandwidth)
        if not after and not kernels:
            # Reduced once a step: each micro-batch adds its gradients to a sum in the format of the reduction.
            makers = [kernel for kernel in near.tolist() if ops.type[kernel] == COMPUTE]
            added = _elements(columns, op) * (FORMAT_BYTES[dtype] + 2 * FORMAT_BYTES[ops.dtype[op]])
            if makers:
                ns[max(makers)] += round(added / accelerator.memory.at(max(added, 1)) * pace)
        moved = _gathered(int(ops.result[op]), copies) if after else _reduced(columns, op, copies, dtype)
        took = round(moved / accelerator.memory.at(max(moved, 1)) * pace)
        ns[(min(kernels) if after else max(kernels)) if kernels else op] += took


def _gathered(size: int, copies: str) -> int:
    """Bytes that are read and written after a gather. size: bytes of the gathered parameters."""
    return 2 * size if copies == "parameters" else 0


def _reduced(columns: ClassColumns, op: int, copies: str, dtype: str) -> int:
    """Bytes that are read and written before a reduction."""
    made, wire = FORMAT_BYTES[dtype], FORMAT_BYTES[columns.ops.dtype[op]]
    elements = _elements(columns, op)
    if copies == "parameters":
        return elements * (made + wire)
    cast = made + wire if made != wire else 0
    return elements * (2 * made + cast + 2 * wire)


def _elements(columns: ClassColumns, op: int) -> int:
    return int(columns.ops.operand[op]) // FORMAT_BYTES[columns.ops.dtype[op]]


TABLE, FUSED_MERGES, APART = "table:", "fused", "apart"
_WEIGHTS = TEMPLATES.index(WEIGHT_GRADIENT.name)


def in_step(workload: Workload, rank_classes: Sequence[int], durations: JobDurations, system: System) -> JobDurations:
    """The durations with the terms of the system's framework. rank_classes: the class of each lane."""
    overlap = system.overlap
    if not overlap.of_kernels:
        return durations
    factors = dict(overlap.stretch)
    by_number = {columns.number: columns for columns in workload.classes}
    of_lanes: list[LaneDurations] = []
    for number, lane in zip(rank_classes, durations.lanes, strict=True):
        ops, tasks = by_number[number].ops, by_number[number].tasks
        microbatches = 1 + int(tasks.microbatch.max(initial=0))
        ns = lane.ns.copy()
        made = casts_made(by_number[number], int(workload.plan.get("tp", 1))) if overlap.casts == SHARDS else {}
        for op in np.flatnonzero(ops.type == COMPUTE).tolist():
            casts = ops.facts[op].casts
            if op in made:
                ns[op] = ns[op] // made[op] if made[op] else 0
            elif overlap.casts == FUSED_MERGES and casts is Casts.INPUT:
                ns[op] = 0
            elif overlap.casts and casts in (Casts.WEIGHT, Casts.WEIGHT_AGAIN):
                ns[op] = 0 if casts is Casts.WEIGHT_AGAIN else ns[op] // microbatches
            elif lane.rule[op].startswith(TABLE):
                ns[op] = round(int(ns[op]) * factors.get(_measured(ops, op), 1))
            if overlap.sums and ops.template[op] == _WEIGHTS and ops.kind[op] == "matmul":
                ns[op] += _summed(math.prod(ops.dims[op][:-1]), _bytes_of_sum(workload.plan, overlap.sums), system)
            if overlap.merges:
                ns[op] += merge_ns(ops, op, overlap.merges, overlap.keys == REPEATED, system.accelerator)
            if overlap.keys == REPEATED:
                ns[op] += repeat_ns(ops, op, system.accelerator)
        if overlap.copies:
            dtype = str(workload.plan.get("dtype", "bf16"))
            add_copies(by_number[number], ns, overlap.copies, dtype, system.accelerator)
        _slow_down(ops, ns, overlap.taken)
        of_lanes.append(replace(lane, ns=ns))
    return replace(durations, lanes=tuple(of_lanes))


def _measured(ops: Ops, op: int) -> str:
    """The operator whose table has an op's time, as `stretch` names it."""
    if ops.kind[op].startswith("attention"):
        return "attention"
    return "matmul-fp8" if ops.dtype[op].startswith("fp8") else "matmul"


def _bytes_of_sum(plan: Mapping[str, Any], sums: str) -> int:
    """Bytes an element that adding a gradient moves: the sum twice, and itself where a kernel of its own reads it."""
    if sums != APART:
        return 2 * FORMAT_BYTES["fp32"]
    return 2 * FORMAT_BYTES[str(plan["grad_dtype"])] + FORMAT_BYTES[str(plan["dtype"])]


def _summed(elements: int, width: int, system: System) -> int:
    """ns in which elements are moved. width: bytes of each element that are moved."""
    size, memory = max(elements * width, 1), system.accelerator
    return round(size / memory.memory.at(size) * inverse(memory.bandwidth))


def _slow_down(ops: Ops, ns: Ints, taken: int) -> None:
    """Lengthen what computes by its share of the time in which collectives of dp run in each micro-batch."""
    if not taken:
        return
    apart = np.array([axis in DATA_AXES for axis in ops.axis], bool) & (ops.type == COLLECTIVE) & (ops.when == EVERY)
    for template in np.unique(ops.template[apart]).tolist():
        of_template = ops.template == template
        computes = of_template & (ops.type == COMPUTE)
        alone, beyond = int(ns[computes].sum()), int(ns[of_template & apart].sum())
        if alone:
            ns[computes] += ns[computes] * min(alone, beyond) * taken // (1000 * alone)
