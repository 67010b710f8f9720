"""Queries, keys and values of one matmul whose heads have different sizes, or whose values are keys.

A packed tensor (batch, seq, kv_heads, packed_rows) holds for each K/V head its queries, its key and its value, one
after another; without its value where values are keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, joined_gradient

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class SplitRows(Operator):
    """A packed tensor into q, k and v (copies).

    value: the axis of a head of values; empty: there are none. head: that of a head of queries and keys.
    """

    value: str
    head: str = "head_dim"

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from joined_gradient(tracer, op, PackRows(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (packed,) = inputs
        size, value = place.sizes[self.head], place.sizes[self.value] if self.value else 0
        at = packed.shape[-1] - size - value
        q = packed[..., :at].reshape(*packed.shape[:2], -1, size)
        return [q, packed[..., at : at + size], *([packed[..., at + size :]] if self.value else [])]


@dataclass(frozen=True)
class PackRows(Operator):
    """q and k, or q, k and v, into a packed tensor."""

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, *others = inputs
        return [np.concatenate([q.reshape(*others[0].shape[:3], -1), *others], axis=-1)]
