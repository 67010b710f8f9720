"""What a turn of ring attention adds to the results of the turns before, on top of its attention kernel.

A measured attention kernel ends with its own result. `eager` is PyTorch's ring (torch/distributed/tensor/experimental/
_context_parallel/_attention.py): `_SDPAMerger` casts the result of each turn to fp32 and merges it by a subtraction, a
product and another subtraction; the backward adds to fp32 gradients, and joins those of keys and values in one message.
Where only half of the rows take part, the halves are joined again. `fused` is Transformer Engine's ring
(context_parallel.py): one kernel of torch.compile reads a result and adds it to the sum, in the kernel's own format.
"""

from collections.abc import Sequence

from stagedb.lowering.columns import Ops
from stagedb.systems.system import MERGES, Accelerator, inverse

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
