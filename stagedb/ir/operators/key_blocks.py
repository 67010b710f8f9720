"""Attention that sees blocks of keys (MiniMax-M3): an indexer with a head for each K/V head chooses them.

The score of a block is the largest product of an indexer's query with its keys. A query sees the keys of its `top` best
blocks, the `local` blocks that end with its own always among them. Nothing of it goes back: a choice has no gradient.

Queries of the indexer have axes (batch, seq, kv_heads, block_index_dim), its keys (batch, seq, block_index_dim), the
numbers of chosen blocks (batch, seq, kv_heads, index_blocks), -1 where fewer blocks have keys that a query may see.

Source: `modeling_minimax_m3_vl.py` of transformers 5.24.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, smallest
from stagedb.ir.facts import KEYS, Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, fused_gradient, over
from stagedb.ir.operators.attention import Attention, AttentionGradient, Softmax

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class KeyBlockIndex(Operator):
    """The blocks of keys that an indexer chooses for each query, by their numbers, in one kernel.

    FLOPs `2·b·s·s·h·d`: the products of queries and keys. block: keys of a block. top: how many blocks are chosen.
    local: how many of the last blocks, up to the query's own, are always among them.
    """

    block: int
    top: int
    local: int

    kind: ClassVar[str] = "attention_index"
    over_requests: ClassVar[tuple[str, ...]] = (KEYS,)
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        q, k = (tensor.axes for tensor in inputs)
        return (q, over(KEYS, k)), tuple(tensor.axes for tensor in outputs)

    def dims(self, size: Size) -> tuple[Expression, ...]:
        return size("batch") * size("kv_heads"), size("seq"), size(KEYS), size("block_index_dim")

    def flops(self, size: Size) -> Expression:
        return 2 * size("batch") * size("kv_heads") * size("seq") * size(KEYS) * size("block_index_dim")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from ()

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k = inputs
        rows, keys = place.positions(), k.shape[1]
        scores = np.einsum("bqhd,bkd->bqhk", q, k)
        scores = np.where((np.arange(keys) > rows[:, None])[:, None], -np.inf, scores)
        blocks = -(-keys // self.block)
        scores = np.pad(scores, [(0, 0)] * 3 + [(0, blocks * self.block - keys)], constant_values=-np.inf)
        best = scores.reshape(*scores.shape[:3], blocks, self.block).max(axis=-1)
        own = rows // self.block
        near = (np.arange(blocks) <= own[:, None]) & (np.arange(blocks) > own[:, None] - self.local)
        best = np.where(near[:, None], np.inf, best)
        chosen = np.full((*best.shape[:3], self.top), -1)
        order = np.argsort(-best, axis=-1, kind="stable")[..., : self.top]
        found = np.take_along_axis(best, order, axis=-1) > -np.inf
        chosen[..., : order.shape[-1]] = np.where(found, order, -1)
        return [chosen]


def _in_blocks(chosen: Array, block: int, keys: int, heads: int) -> Array:
    """Whether each key is in a chosen block: (batch, heads, queries, keys)."""
    blocks = -(-keys // block)
    found = (chosen[..., None] == np.arange(blocks)).any(axis=-2)
    wide = np.repeat(found, block, axis=-1)[..., :keys]
    return np.asarray(np.repeat(np.moveaxis(wide, 2, 1), heads // wide.shape[2], axis=1))


@dataclass(frozen=True)
class _OfBlocks:
    """The keys of attention that sees chosen blocks, whose numbers are its last operand. block, top: as in
    `KeyBlockIndex`."""

    block: int = 0
    top: int = 0

    def _in_chosen(self, chosen: Array, keys: int, heads: int) -> Array:
        return _in_blocks(chosen, self.block, keys, heads)


@dataclass(frozen=True)
class KeyBlockAttention(_OfBlocks, Attention):
    """Attention of each query to the chosen blocks of keys, in one fused kernel.

    FLOPs: each query with `top·block` keys, or all if these are fewer.
    """

    @property
    def _more(self) -> int:
        return self.sinks + 1

    def _keys_seen(self, size: Size) -> Expression:
        return smallest(size(KEYS), self.top * self.block)

    def keys_read(self, size: Size) -> Expression:
        return smallest(size(KEYS), size("seq") * (self.top * self.block))

    def pairs_seen(self, positions: int) -> int:
        at = np.arange(positions)
        return int((at % self.block + 1 + np.minimum(self.top - 1, at // self.block) * self.block).sum())

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        operator = KeyBlockAttentionGradient(**given, lse_gradient=grads[1] is not None)
        yield from fused_gradient(tracer, op, operator, grads, op.inputs[:-1])

    def _mask(self, place: RankPlace, inputs: Sequence[Array], keys: int) -> Array:
        chosen = self._in_chosen(inputs[-1], keys, place.lengths["heads"])
        return np.asarray(self.seen(place.positions(), np.arange(keys)) & chosen)


@dataclass(frozen=True)
class KeyBlockAttentionGradient(KeyBlockAttention, AttentionGradient):
    """The backward of `KeyBlockAttention`: dq, dk, dv, and dsinks, with the scores made again."""

    def flops(self, size: Size) -> Expression:
        return AttentionGradient.flops(self, size)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return AttentionGradient.run(self, place, inputs)


@dataclass(frozen=True)
class KeyBlockSoftmax(_OfBlocks, Softmax):
    """The softmax over the keys of chosen blocks, of products with all keys."""

    def allowed(self, inputs: list[Array]) -> Array:
        heads, keys = inputs[0].shape[1], inputs[0].shape[-1]
        return self._in_chosen(inputs[-1], keys, heads)


OPERATORS = (KeyBlockAttention, KeyBlockAttentionGradient, KeyBlockIndex, KeyBlockSoftmax)
"""Its operators, which the store names."""
