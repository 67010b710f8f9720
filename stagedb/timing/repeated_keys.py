"""Keys and values that a framework repeats for every head of the queries, before attention.

torchtitan's models do so until SDPA is called with enable_gqa (`repeat_kv` in torchtitan/models/llama3/model/model.py,
0.1.0): a forward copies keys and values to all heads, and a backward sums their gradients over the heads of a group.
The ring of context-parallel ranks then sends keys, values and their gradients for all heads.
"""

from stagedb.lowering.columns import COLLECTIVE, ClassColumns, Ops
from stagedb.systems.system import Accelerator, inverse

REPEATED = "repeated"
"""The word of `overlap.keys` for it."""

_BYTES = 2
"""Bytes an element of keys and values, which are in a half-precision format."""


def ring_repeats(columns: ClassColumns) -> dict[int, int]:
    """For each collective of a ring, how many times more it sends with repeated keys."""
    ops, layers = columns.ops, columns.origins.layer

    def ring(op: int) -> tuple[int, int, str | None]:
        return int(ops.chunk[op]), int(layers[op]), ops.facts[op].ring

    rings = [op for op in range(len(ops)) if ops.facts[op].ring is not None]
    groups = {ring(op): ops.dims[op][1] // ops.dims[op][2] for op in rings if _is_grouped(ops, op)}
    return {op: groups[ring(op)] for op in rings if ops.type[op] == COLLECTIVE and ring(op) in groups}


def repeat_ns(ops: Ops, op: int, accelerator: Accelerator) -> int:
    """ns in which an attention's keys and values are copied to all heads, or their gradients summed; 0 for other ops.

    op: its place among `ops`. In a ring of cp only the attention of the rank's own keys copies; the later ones read its
    copy.
    """
    if not _is_grouped(ops, op) or ops.turn[op] > 0:
        return 0
    batch, heads, kv_heads, _, keys, width = ops.dims[op][:6]
    size = 2 * _BYTES * batch * (heads + kv_heads) * keys * width
    return round(size / accelerator.memory.at(max(size, 1)) * inverse(accelerator.bandwidth))


def _is_grouped(ops: Ops, op: int) -> bool:
    """Whether an op is an attention whose heads share keys. dims: batch, heads, heads of keys, queries, keys, width."""
    dims = ops.dims[op]
    return ops.kind[op].startswith("attention") and len(dims) > 5 and dims[1] > dims[2] > 0
