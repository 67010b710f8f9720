"""Attention of one rank of cp with gathered keys, in calls for parts of its queries."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, symbol
from stagedb.ir.operators._base import Array, RankPlace, Size, fused_gradient
from stagedb.ir.operators.attention import Attention
from stagedb.ir.operators.heads import fold_heads, repeat_heads
from stagedb.ir.operators.scored_pairs import heads_here, scaled_products

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


def _parts(balanced: bool) -> int:
    return 2 if balanced else 1


@dataclass(frozen=True)
class PartAttention(Attention):
    """Queries of one rank of cp with gathered keys: each part of them reads the keys up to its end, no further.

    Transformer Engine's context parallelism by all-gather. balanced: rank r of c has the r-th and the (2c-1-r)-th of 2c
    chunks, one after the other, each in a call of its own (`step` 1 and 2, see `stagedb.graphs.block`);
    otherwise the r-th of c parts. The keys of the `step` are in the order of the sequence. Putting them in order costs
    nothing here.
    """

    balanced: bool = True

    alike: ClassVar[str] = "each part of a rank's queries reads the keys up to its own end"

    def chunk(self) -> Expression:
        """The number of the part of the sequence that has this call's queries."""
        rank, step, ranks = symbol("cp_rank") - 1, symbol("step") - 1, symbol("cp")
        return rank + step * (2 * ranks - 1 - 2 * rank) if self.balanced else rank

    def dims(self, size: Size) -> tuple[Expression, ...]:
        parts = _parts(self.balanced)
        keys = (self.chunk() + 1) * size("kseq") / (parts * symbol("cp"))
        queries = (size("batch"), size("heads"), size(self.kv_heads), size("seq") / parts)
        values = () if self.value == self.head else (size(self.value),)
        return (*queries, keys, size(self.head), *values)

    def _pairs(self, size: Size) -> Expression:
        batch, heads, _, queries, keys, *_ = self.dims(size)
        return batch * heads * queries * keys

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        operator = PartAttentionGradient(
            balanced=self.balanced,
            softcap=self.softcap,
            scale=self.scale,
            head=self.head,
            kv_heads=self.kv_heads,
            value=self.value,
        )
        yield from fused_gradient(tracer, op, operator, grads, op.inputs)

    def rows(self, place: RankPlace, length: int) -> slice:
        """This call's part of a rank's `length` of queries."""
        half = length // _parts(self.balanced)
        return slice(place.step * half, (place.step + 1) * half)

    def keys(self, place: RankPlace, length: int) -> Array:
        """Indices of the keys that this call reads, among the gathered ones, in the order of the sequence.

        length: the number of gathered keys.
        """
        ranks, rank = place.degrees["cp"], place.member["cp"]
        chunk = rank if place.step == 0 else 2 * ranks - 1 - rank
        order = np.arange(length) if place.order is None else np.argsort(place.order)
        return np.asarray(order[: (chunk + 1) * length // (_parts(self.balanced) * ranks)])

    def products(self, q: Array, k: Array) -> Array:
        """Scaled products of queries and keys.

        q, k: (batch, seq, heads, head_dim). Returns (batch, heads, queries, keys).
        """
        return scaled_products(q, k, self.factor(q.shape[-1]))

    def scores(self, place: RankPlace, products: Array, rows: slice) -> Array:
        """Scores of these products, without those of later keys.

        products: (batch, heads, queries, keys) of some queries. rows: which of this rank's queries these are.
        """
        at = place.indices("seq")[rows]
        scored = self.scored(products, at, heads_here(place), place.sizes["heads"])
        return np.where(self.seen(at, np.arange(products.shape[-1])), scored, -np.inf)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v, *so_far = inputs
        rows, columns, heads = self.rows(place, q.shape[1]), self.keys(place, k.shape[1]), q.shape[2]
        products = self.products(q[:, rows], repeat_heads(k[:, columns], heads))
        scores = self.scores(place, products, rows)
        top = scores.max(axis=-1)
        lse = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))
        weights = np.exp(scores - lse[..., None])
        made = [np.einsum("bhqk,bkhd->bqhd", weights, repeat_heads(v[:, columns], heads)), lse]
        if place.step == 0:
            return made
        return [np.concatenate([so_far[0], made[0]], axis=1), np.concatenate([so_far[1], made[1]], axis=2)]


@dataclass(frozen=True)
class PartAttentionGradient(PartAttention):
    """The backward of `PartAttention`: dq, dk, dv of one call; a call after the first adds to the earlier values."""

    backward: ClassVar[bool] = True

    def flops(self, size: Size) -> Expression:
        return 2 * self._pairs(size) * (3 * size(self.head) + 2 * size(self.value))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        do, q, k, v, o, lse, *so_far = inputs
        rows, columns = self.rows(place, q.shape[1]), self.keys(place, k.shape[1])
        heads, kv_heads = q.shape[2], k.shape[2]
        dq, dk, dv = ([np.zeros_like(x) for x in (q, k, v)]) if place.step == 0 else [x.copy() for x in so_far]
        wide_k, wide_v = (repeat_heads(x[:, columns], heads) for x in (k, v))
        part, do, o = q[:, rows], do[:, rows], o[:, rows]
        products = self.products(part, wide_k)
        p = np.exp(self.scores(place, products, rows) - lse[:, :, rows, None])
        ds = p * (np.einsum("bqhd,bkhd->bhqk", do, wide_v) - np.einsum("bqhd,bqhd->bhq", do, o)[..., None])
        ds = ds * self.slope(products) * self.factor(q.shape[-1])
        dq[:, rows] += np.einsum("bhqk,bkhd->bqhd", ds, wide_k)
        dk[:, columns] += fold_heads(np.einsum("bhqk,bqhd->bkhd", ds, part), kv_heads)
        dv[:, columns] += fold_heads(np.einsum("bhqk,bqhd->bkhd", p, do), kv_heads)
        return [dq, dk, dv]
