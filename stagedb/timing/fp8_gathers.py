"""Gathers of tensor-parallel ranks whose result only fp8 matmuls read: each rank casts its part, and fp8 is gathered.

torchao's Float8ColwiseParallel, Float8RowwiseParallel and PrepareFloat8ModuleInput do so
(torchao/float8/float8_tensor_parallel.py).
"""

from collections import defaultdict

import numpy as np

from stagedb.collectives import gathers
from stagedb.ir.facts import Casts
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, DATA, ClassColumns

SHARDS = "shards"
"""The word of `overlap.casts` for it."""

_CASTS = (Casts.INPUT, Casts.GRADIENT)
"""Casts of what is gathered."""


def gathered_casts(columns: ClassColumns) -> dict[int, tuple[int, ...]]:
    """For each gather of tp that is in fp8, the casts that read it. With any other reader it is in its own format."""
    ops, edges = columns.ops, columns.edges
    gathers = [op for op in np.flatnonzero(ops.type == COLLECTIVE).tolist() if _may_be(columns, op)]
    if not gathers:
        return {}
    readers = defaultdict[int, list[int]](list)
    data = (edges.kind == DATA) & np.isin(edges.source, gathers)
    for source, target in zip(edges.source[data].tolist(), edges.target[data].tolist(), strict=True):
        if ops.type[target] == COMPUTE and ops.template[target] == ops.template[source]:
            readers[source].append(target)
    return {
        gather: tuple(casts)
        for gather, casts in readers.items()
        if all(ops.facts[cast].casts in _CASTS for cast in casts)
    }


def casts_made(columns: ClassColumns, ranks: int) -> dict[int, int]:
    """How many times less than its operator a cast takes; 0 for one that is not made. ranks: those of tp.

    Casts of one tensor for several matmuls are one kernel. What is gathered in fp8 is cast as a share of each rank.
    """
    ops, edges = columns.ops, columns.edges
    shared = {cast: gather for gather, casts in gathered_casts(columns).items() for cast in casts}
    data = edges.kind == DATA
    made: set[tuple[int, int]] = set()
    shares: dict[int, int] = {}
    for op in np.flatnonzero(ops.type == COMPUTE).tolist():
        if ops.facts[op].casts not in _CASTS:
            continue
        source = shared[op] if op in shared else int(edges.source[data & (edges.target == op)].min(initial=-1))
        key = (source, int(ops.template[op]))
        again = source >= 0 and key in made
        shares[op] = 0 if again else ranks if op in shared else 1
        made.add(key)
    return shares


def _may_be(columns: ClassColumns, op: int) -> bool:
    ops = columns.ops
    return bool(gathers(ops.kind[op]) and ops.axis[op] == "tp" and not ops.dtype[op].startswith("fp8"))
