"""Attention: the fused kernel, the pieces of the plain one, rotary positions.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim), or both are packed
(`heads`). Kernels read keys and values over `kseq`: those of the positions before the queries too.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, smallest
from stagedb.ir.facts import KEYS, Tag
from stagedb.ir.operators._base import (
    BEFORE,
    QUERIES,
    Array,
    Labels,
    Operator,
    RankPlace,
    Size,
    arriving,
    fused_gradient,
    over,
)
from stagedb.ir.operators.heads import fold_heads, pack, repeat_heads, unpack
from stagedb.ir.operators.scored_pairs import ScoredPairs, dealt, dealt_positions, heads_here, log_sum, scaled_products
from stagedb.ir.operators.sparse import ChosenWeights, IndexTarget, index_loss
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class _Weights:
    """products, weights: (batch, heads, queries, keys). lse: the log of the sum of a row's exponentials."""

    products: Array
    weights: Array
    lse: Array


@dataclass(frozen=True)
class Attention(ScoredPairs):
    """Causal attention in one kernel (Dao et al. 2022): outputs the context and the log-sum-exp of each row.

    FLOPs `4·b·a·s·s·d`: two matmuls, without halving for the causal mask, as the field's counters do. Values may have a
    size of their own: `2·b·a·s·s·(d + d_v)`.

    Kernels leave out blocks of keys that no query of a block sees, so that a query counts `min(s, window)` keys (or
    `min(s, chunk_tokens)`). The corner where the first queries see fewer keys is counted, like the one above the
    diagonal. A kernel that reads an explicit mask (`masked`) computes all pairs.

    head, kv_heads, value: the axes of a head of queries and keys, of the heads of keys, and of a head of values.
    chosen: a query sees the keys that an indexer chose (`sparse.KeyIndex`), whose scores and places are two more
    operands; its backward has the indexer's loss.
    dealt: ranks of cp share the cache (`scored_pairs`): keys are those of this rank, and results have an axis of the
    parts in front. A query counts those of the keys that the last one sees that are on the rank.
    """

    masked: bool = False
    head: str = "head_dim"
    kv_heads: str = "kv_heads"
    value: str = "head_dim"
    chosen: bool = False
    dealt: bool = False

    kind: ClassVar[str] = "attention"
    over_requests: ClassVar[tuple[str, ...]] = ("batch", QUERIES, KEYS)
    backward: ClassVar[bool] = False
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def _operands(self, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
        """q, k, v of the operands. Sinks, an indexer's scores and places, and an explicit mask may follow them."""
        return unpack(list(inputs[: len(inputs) - self._more]))

    @property
    def _more(self) -> int:
        return self.masked + self.sinks + 2 * self.chosen

    def _sinks(self, inputs: Sequence[Array]) -> Array | None:
        return inputs[len(inputs) - self._more] if self.sinks else None

    def _chosen(self, inputs: Sequence[Array]) -> Array | None:
        return inputs[-1 - self.masked] if self.chosen else None

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        # Keys and values, and their gradients, run over a sequence of their own.
        inside, made = [t.axes for t in inputs], [t.axes for t in outputs]
        at = 1 if self.backward else 0
        if "packed" not in inside[at]:
            inside[at + 1 : at + 3] = [over(KEYS, axes) for axes in inside[at + 1 : at + 3]]
            if at:
                made[1:3] = [over(KEYS, axes) for axes in made[1:3]]
        return tuple(inside), tuple(made)

    def operands(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return tuple(
            dataclasses.replace(tensor, axes=over(KEYS, tensor.axes)) if "packed" in tensor.axes else tensor
            for tensor in super().operands(inputs, outputs)
        )

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        packed = [tensor for tensor in inputs if "packed" in tensor.axes]
        if not packed:
            return super().reads(inputs, outputs)
        # A key and a value of each position before, and none of its queries.
        further = dataclasses.replace(packed[0], axes=("batch", BEFORE, "kv_heads", packed[0].axes[-1]))
        return (*inputs, further, further)

    def deals_keys(self) -> bool:
        return self.dealt

    def _keys_seen(self, size: Size) -> Expression:
        if self.dealt:
            return dealt(self.keys_seen(size(KEYS)), size(KEYS))
        return size(KEYS) if self.masked else self.keys_seen(size("index_top" if self.chosen else KEYS))

    def keys_kept(self, size: Size) -> Expression:
        return size(KEYS) if self.masked else self.keys_seen(size(KEYS))

    def keys_read(self, size: Size) -> Expression:
        if self.masked:
            return size(KEYS)
        if self.chosen:
            return smallest(size(KEYS), size("seq") * size("index_top"))
        return self.keys_reached(size("seq"), size(KEYS))

    def _pairs(self, size: Size) -> Expression:
        return size("batch") * size("heads") * size("seq") * self._keys_seen(size)

    def flops(self, size: Size) -> Expression:
        return 2 * self._pairs(size) * (size(self.head) + size(self.value))

    def dims(self, size: Size) -> tuple[Expression, ...]:
        queries = tuple(size(axis) for axis in ("batch", "heads", self.kv_heads, "seq"))
        values = () if self.value == self.head else (size(self.value),)
        return (*queries, self._keys_seen(size), size(self.head), *values)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        own = op.inputs[: len(op.inputs) - self.masked - 2 * self.chosen]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        operator = AttentionGradient(**fields, lse_gradient=grads[1] is not None)
        yield from fused_gradient(tracer, op, operator, grads, own)
        if self.chosen:
            (q, k), (best, chosen) = op.inputs[:2], op.inputs[len(own) : len(own) + 2]
            reads = (q, k, op.outputs[1], chosen)
            yield len(own), index_loss(tracer, op, best, IndexTarget(self.scale, self.head), reads)

    def _mask(self, place: RankPlace, inputs: Sequence[Array], keys: int) -> Array:
        return np.asarray(self.seen(place.positions(), self._columns(place, keys)) & among(self._chosen(inputs), keys))

    def _columns(self, place: RankPlace, keys: int) -> Array:
        """The positions of the keys that the rank has. keys: how many."""
        return dealt_positions(place, keys) if self.dealt else np.arange(keys)

    def _weights(
        self, place: RankPlace, q: Array, k: Array, inputs: Sequence[Array], lse: Array | None = None
    ) -> _Weights:
        """Scaled products, weights and log-sum-exp of each row, which is made if it is not given."""
        products = scaled_products(q, k, self.factor(q.shape[-1]))
        columns = self._columns(place, k.shape[1])
        scores = self.scored(products, place.positions(), heads_here(place), place.sizes["heads"], columns)
        scores = np.where(self._mask(place, inputs, k.shape[1]), scores, -np.inf)
        if lse is None:
            lse = log_sum(scores, self._sinks(inputs))
        return _Weights(products, np.exp(scores - np.where(lse == -np.inf, 0, lse)[..., None]), lse)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v = self._operands(inputs)
        q = q[:, -place.lengths["seq"] :]  # a packed tensor of all positions has further ones
        heads = q.shape[2]
        made = self._weights(place, q, repeat_heads(k, heads), inputs)
        found = [np.einsum("bhqk,bkhd->bqhd", made.weights, repeat_heads(v, heads)), made.lse]
        return [each[None] for each in found] if self.dealt else found


@dataclass(frozen=True)
class AttentionGradient(Attention):
    """The backward of `Attention`: dq, dk, dv from the saved output and log-sum-exp: five matmuls, which compute the
    scores again. Then dsinks.

    lse_gradient: the last operand is the gradient of the log-sum-exp.
    """

    lse_gradient: bool = False

    backward: ClassVar[bool] = True

    def flops(self, size: Size) -> Expression:
        return 2 * self._pairs(size) * (3 * size(self.head) + 2 * size(self.value))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        further = inputs.pop() if self.lse_gradient else None
        do, o, lse = inputs[0], inputs[-2], inputs[-1]
        own = inputs[1:-2]
        q, k, v = self._operands(own)
        heads, kv_heads, factor = q.shape[2], k.shape[2], self.factor(q.shape[-1])
        wide_k, wide_v = repeat_heads(k, heads), repeat_heads(v, heads)
        sinks = self._sinks(own)
        made = self._weights(place, q, wide_k, own, lse)
        dv = np.einsum("bhqk,bqhd->bkhd", made.weights, do)
        dp = np.einsum("bqhd,bkhd->bhqk", do, wide_v)
        delta = np.einsum("bqhd,bqhd->bhq", do, o) - (0 if further is None else further)
        ds = made.weights * (dp - delta[..., None]) * self.slope(made.products) * factor
        dq, dk = np.einsum("bhqk,bkhd->bqhd", ds, wide_k), np.einsum("bhqk,bqhd->bkhd", ds, q)
        dk, dv = fold_heads(dk, kv_heads), fold_heads(dv, kv_heads)
        packed = len(own) - self._more == 1
        grads = [pack(dq, dk, dv)] if packed else [dq, dk, dv]
        if sinks is not None:
            grads.append(-(np.exp(sinks[:, None] - lse) * delta).sum(axis=(0, 2)))
        return grads


def among(chosen: Array | None, keys: int) -> Array:
    """Whether each key is among the chosen ones of a query: (batch, 1, queries, keys), or true for all."""
    if chosen is None:
        return np.asarray(True)
    found = np.zeros((*chosen.shape[:2], keys), bool)
    np.put_along_axis(found, chosen, True, axis=-1)
    return found[:, None]


@dataclass(frozen=True)
class AdditiveMask(ScoredPairs):
    """The causal mask of this rank's queries as numbers to add, for a kernel without a mask of its own."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.where(self.seen(place.positions(), place.indices(KEYS)), 0.0, -np.inf)]


@dataclass(frozen=True)
class Softmax(ScoredPairs):
    """Scale, causal mask and softmax over the keys. head: the axis of a head of queries and keys.

    Its operands are the products of queries and keys, and the sinks if there are some. chosen: as in `Attention`.
    """

    head: str = "head_dim"
    chosen: bool = False

    kind: ClassVar[str] = "softmax"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.sinks or self.softcap:
            yield from fused_gradient(tracer, op, ScoresGradient(**fields), grads, op.inputs)
            return
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(grad.name, SoftmaxGradient(head=self.head, scale=self.scale), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad
        if self.chosen:
            best, chosen = op.inputs[-2:]
            yield len(op.inputs) - 2, index_loss(tracer, op, best, ChosenWeights(), (op.outputs[0], chosen))

    def allowed(self, inputs: list[Array]) -> Array:
        """The keys among which a query sees some: those that an indexer chose, or all.

        inputs: the operands. The first is the scores (batch, heads, queries, keys); with an indexer, the last one has
        its choice.
        """
        return among(inputs[-1] if self.chosen else None, inputs[0].shape[-1])

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        products = inputs[0] * self.factor(place.sizes[self.head])
        scores = self.scored(products, place.positions(), heads_here(place), place.sizes["heads"])
        seen = self.seen(place.positions(), place.indices(KEYS)) & self.allowed(inputs)
        scores = np.where(seen, scores, -np.inf)
        return [np.exp(scores - log_sum(scores, inputs[1] if self.sinks else None)[..., None])]


@dataclass(frozen=True)
class SoftmaxGradient(Operator):
    """The backward of `Softmax`: the gradient through scale, mask and softmax."""

    head: str = "head_dim"
    scale: float = 0.0

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dp, p = inputs
        factor = self.scale or 1 / np.sqrt(place.sizes[self.head])
        return [p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * factor]


@dataclass(frozen=True)
class ScoresGradient(Softmax):
    """The gradients of products and sinks, where the softmax is of capped scores or has sinks."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dp, p = inputs[0], inputs[-1]
        factor = self.factor(place.sizes[self.head])
        delta = (dp * p).sum(axis=-1)
        ds = p * (dp - delta[..., None]) * self.slope(inputs[1] * factor) * factor
        if not self.sinks:
            return [ds]
        # A row's weights leave the sink's own out of one.
        return [ds, -((1 - p.sum(axis=-1)) * delta).sum(axis=(0, 2))]


@dataclass(frozen=True)
class Rotary(Operator):
    """Rotary positions (Su et al. 2021) on queries or keys; in a packed tensor the values remain unchanged.

    size: how many of a head's first dimensions (`last`: of its last ones) are turned; 0: all. stride: the operand has
    keys of blocks of so many tokens, on an axis of their own, and each has the position of its block's first token.
    """

    packed: bool = False
    inverse: bool = False
    size: int = 0
    last: bool = False
    stride: int = 0

    kind: ClassVar[str] = "rotary"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        operator = Rotary(self.packed, not self.inverse, self.size, self.last, self.stride)
        tracer.emit(grad.name, operator, (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        at = inputs[0].shape[-1] - self.size if self.last else 0
        x = inputs[0][..., at : at + self.size if self.size else None]
        half = x.shape[-1] // 2
        positions = np.arange(x.shape[1]) * self.stride if self.stride else place.positions()
        angles = positions[:, None] / 10000 ** (np.arange(half) / half)
        angles = angles.reshape(1, len(angles), *(1,) * (x.ndim - 3), half) * (-1 if self.inverse else 1)
        cos, sin = np.cos(angles), np.sin(angles)
        low, high = x[..., :half], x[..., half:]
        before, after = inputs[0][..., :at], inputs[0][..., at + x.shape[-1] :]
        turned = np.concatenate([before, low * cos - high * sin, low * sin + high * cos, after], axis=-1)
        if self.packed:
            turned[..., -1, :] = inputs[0][..., -1, :]
        return [turned]


# Sinks outside the attention kernel: its result is scaled by what the sink leaves of the softmax (torchtitan).


@dataclass(frozen=True)
class SinkShare(Operator):
    """The share of keys in a softmax that a sink is part of: `sigmoid(lse - sink)`.

    lse (batch, heads, seq) is the log-sum-exp without the sink, whose scores are (heads). The share is (batch, seq,
    heads).
    """

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(name, SinkShareGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        lse, sinks = inputs
        return [1 / (1 + np.exp(sinks - lse.transpose(0, 2, 1)))]


@dataclass(frozen=True)
class SinkShareGradient(Operator):
    """The backward of `SinkShare`: the gradients of log-sum-exp and sinks, from the share `p`: `dlse = dp · p · (1 -
    p)`, and its negative sum.
    """

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dp, p = inputs
        slope = dp * p * (1 - p)
        return [slope.transpose(0, 2, 1), -slope.sum(axis=(0, 1))]
