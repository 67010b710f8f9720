"""What FSDP copies around its collectives, on the multiprocessors that compute.

A unit's parameters are gathered into one buffer, and its gradients are reduced from one. With `parameters` (fully_shard
of PyTorch 2.4 and later, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) every parameter is a tensor of its
own: each gather ends with a copy out of the buffer, each reduction begins with a copy into it. With `flat`
(FullyShardedDataParallel, torch/distributed/fsdp/_flat_param.py and _runtime_utils.py) parameters are views of the
buffer. But the gradients of the views are joined into one tensor, which is cast to the format of the reduction if that
is another one, and divided before it.
"""

import numpy as np

from stagedb.collectives import gathers, resizes
from stagedb.lowering.columns import COLLECTIVE, COMPUTE, DATA, ClassColumns, Ints
from stagedb.plans import FORMAT_BYTES
from stagedb.systems.system import Accelerator, inverse
from stagedb.timing.hidden_communication import DATA_AXES


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
