"""Heads apart and packed, and heads of keys and values once for each query head of their group.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim). A packed tensor
(batch, seq, kv_heads, packed, head_dim) holds for each K/V head its queries, then its key, then its value: the layout
of Megatron's fused QKV weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import KEYS
from stagedb.ir.operators._base import QUERIES, Array, Labels, Operator, RankPlace, arriving, joined_gradient, over
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

KV_HEADS, COPIES = "kv_heads", "kv_copies"
"""The heads of keys and values, and their copies: as many as ranks of tp and cp together, or one each."""


def unpack(inputs: list[Array]) -> tuple[Array, Array, Array]:
    """q, k, v from three arrays or from a packed one.

    inputs: three arrays (batch, seq, heads, head_dim), or one (batch, seq, kv_heads, q per kv head + 2, head_dim).
    """
    if len(inputs) == 3:
        return inputs[0], inputs[1], inputs[2]
    packed = inputs[0]
    batch, seq, kv_heads, parts, head_dim = packed.shape
    q = packed[..., : parts - 2, :].reshape(batch, seq, kv_heads * (parts - 2), head_dim)
    return q, packed[..., -2, :], packed[..., -1, :]


def pack(q: Array, k: Array, v: Array) -> Array:
    """One array (batch, seq, kv_heads, q per kv head + 2, head_dim) of q, k and v (batch, seq, heads, head_dim)."""
    batch, seq, kv_heads, head_dim = k.shape
    queries = q.reshape(batch, seq, kv_heads, -1, head_dim)
    return np.concatenate([queries, k[..., None, :], v[..., None, :]], axis=-2)


def repeat_heads(k: Array, heads: int) -> Array:
    """Keys or values (batch, seq, kv_heads, head_dim) copied to as many heads as queries have.

    k: keys or values. heads: of queries, a multiple of kv_heads.
    """
    return np.repeat(k, heads // k.shape[2], axis=2)


def fold_heads(dk: Array, kv_heads: int) -> Array:
    """The gradient of `repeat_heads`: sums over the copies of each head of keys or values.

    dk: (batch, seq, heads, head_dim). kv_heads: of the result.
    """
    batch, seq, heads, head_dim = dk.shape
    return np.asarray(dk.reshape(batch, seq, kv_heads, heads // kv_heads, head_dim).sum(axis=3))


@dataclass(frozen=True)
class SplitHeads(Operator):
    """A packed tensor into q, k and v (copies, for matmuls that need them contiguous).

    gated: a K/V head has gates between its queries and its key, as many as queries: into q, k, v and gates.
    """

    gated: bool = False

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from joined_gradient(tracer, op, PackHeads(self.gated), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        if not self.gated:
            return list(unpack(inputs))
        per = inputs[0].shape[3] // 2 - 1
        q, k, v = unpack([np.delete(inputs[0], np.s_[per : 2 * per], axis=3)])
        return [q, k, v, inputs[0][..., per : 2 * per, :].reshape(q.shape)]


@dataclass(frozen=True)
class SplitViews(SplitHeads):
    """A packed tensor into q, a view of it, and copies of k and v, which are gathered."""

    in_place: ClassVar[bool] = True


@dataclass(frozen=True)
class PackHeads(Operator):
    """q, k and v into a packed tensor. gated: as in `SplitHeads`."""

    gated: bool = False

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        packed = pack(*inputs[:3])
        if not self.gated:
            return [packed]
        per = packed.shape[3] - 2
        gates = inputs[3].reshape(*packed.shape[:3], per, -1)
        return [np.concatenate([packed[..., :per, :], gates, packed[..., per:, :]], axis=3)]


class _AsDealt(Operator):
    """Ranks that share a sequence have the keys of their own part, before these are gathered."""

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple(over(QUERIES, t.axes) for t in inputs), tuple(over(QUERIES, t.axes) for t in outputs)


@dataclass(frozen=True)
class RepeatHeads(_AsDealt):
    """Each K/V head once for every query head of its group (grouped-query attention without a fused kernel).

    Its result has the keys of all positions.
    """

    kind: ClassVar[str] = "copy"

    def operands(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(replace(tensor, axes=over(KEYS, tensor.axes)) for tensor in inputs)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, FoldHeads(), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [repeat_heads(inputs[0], place.lengths["heads"])]


@dataclass(frozen=True)
class FoldHeads(_AsDealt):
    """The sum over each group of query heads."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [fold_heads(inputs[0], place.lengths["kv_heads"])]


@dataclass(frozen=True)
class CopyHeads(Operator):
    """A rank's K/V heads, each as often in a row as there are ranks that compute with it.

    Ulysses over more ranks than K/V heads sends them then: `repeat_interleave` with `kv_replication_factor` in
    DeepSpeed's `UlyssesSPAttentionHF` (runtime/sequence_parallel/ulysses_sp.py).
    """

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [repeat_heads(inputs[0], place.lengths[COPIES])]


@dataclass(frozen=True)
class SumCopies(Operator):
    """The gradient of a rank's K/V heads, from those of their copies: the sum over the ranks that compute with each."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [fold_heads(inputs[0], place.lengths[KV_HEADS])]


# Queries of a token's experts as heads of attention, and the results of heads for these experts (JetMoe).
#
# Each expert that a token chooses makes a query for each K/V head, so that a token has `choices · query_heads` queries:
# (batch, seq, choices, query_heads, head_dim). Attention has those of a K/V head next to each other:
# (batch, seq, heads, head_dim), where head `h · choices + c` is the query of choice c for K/V head h.

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class ChoicesToHeads(Operator):
    """Queries by choice, (batch, seq, choices, query_heads, head_dim), to (batch, seq, heads, head_dim)."""

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, HeadsToChoices(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        return [np.swapaxes(x, 2, 3).reshape(*x.shape[:2], -1, x.shape[-1])]


@dataclass(frozen=True)
class HeadsToChoices(Operator):
    """Results of heads, (batch, seq, heads, head_dim), to (batch, seq, choices, query_heads, head_dim)."""

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, ChoicesToHeads(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        apart = x.reshape(*x.shape[:2], -1, place.sizes["choices"], x.shape[-1])
        return [np.swapaxes(apart, 2, 3)]


OPERATORS: tuple[type[Operator], ...] = (ChoicesToHeads, HeadsToChoices)
"""The operators of this module."""
