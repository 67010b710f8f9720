"""The sparse indexer of latent attention (DeepSeek-V3.2 2025): which keys a query sees, and the loss that trains it.

Small heads score all keys. The best `index_top` of a query are the keys of its attention. The indexer learns from a
loss of its own, the divergence of its softmax over them from the mean of the attention's weights of all heads. That
loss joins the backward alone: nothing of it goes back to the hidden state, and no gradient of the model to the indexer.

Queries have axes (batch, seq, index_heads, index_dim), keys (batch, seq, index_dim), weights (batch, seq, index_heads),
scores and places of keys (batch, seq, index_top).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression
from stagedb.ir.facts import KEYS, Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, arriving, fused_gradient, over
from stagedb.ir.operators.contraction import Einsum
from stagedb.workflows.training import INPUT_GRADIENT, WEIGHT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]
Axes = tuple[tuple[Labels, ...], tuple[Labels, ...]]


@dataclass(frozen=True)
class DetachedEinsum(Einsum):
    """A linear layer whose input gets no gradient."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[1], f"{op.name}.weight_gradient")
        reads = (arriving(grads), op.inputs[0])
        tracer.emit(grad.name, Einsum(self.out, self.a, self.b), reads, grad, template=WEIGHT_GRADIENT)
        yield 1, grad


@dataclass(frozen=True)
class KeyIndex(Operator):
    """The scores and places of each query's best keys, in one kernel: `Σ_h w_h · relu(q_h · k)`, then top-k.

    FLOPs `2·b·s·s·h·(d + 1)`: the products, and the sum over heads. The best of fewer keys than `index_top` include
    later ones, at minus infinity.
    """

    kind: ClassVar[str] = "attention_index"
    over_requests: ClassVar[tuple[str, ...]] = (KEYS,)
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def labels(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> Axes:
        q, k, w = (tensor.axes for tensor in inputs)
        return (q, over(KEYS, k), w), tuple(tensor.axes for tensor in outputs)

    def dims(self, size: Size) -> tuple[Expression, ...]:
        return size("batch") * size("seq"), size("index_heads"), size(KEYS), size("index_dim")

    def flops(self, size: Size) -> Expression:
        queries = size("batch") * size("seq") * size("index_heads")
        return 2 * queries * size(KEYS) * (size("index_dim") + 1)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from fused_gradient(tracer, op, KeyIndexGradient(), grads, op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, w = inputs
        scores = np.einsum("bqh,bqhk->bqk", w, np.maximum(_products(q, k), 0)) / np.sqrt(q.shape[2])
        later = np.arange(k.shape[1])[None, :] > place.positions()[:, None]
        scores = np.where(later, -np.inf, scores)
        best = np.argsort(-scores, axis=-1, kind="stable")[..., : place.sizes["index_top"]]
        return [np.take_along_axis(scores, best, axis=-1), best]


def _products(q: Array, k: Array) -> Array:
    return np.asarray(np.einsum("bqhd,bkd->bqhk", q, k) / np.sqrt(q.shape[-1]))


@dataclass(frozen=True)
class KeyIndexGradient(Operator):
    """The backward of `KeyIndex`: dq, dk, dw from the gradient of the chosen scores, with the products of the chosen
    keys made again.
    """

    kind: ClassVar[str] = "attention_index"

    def labels(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> Axes:
        read, made = [tensor.axes for tensor in inputs], [tensor.axes for tensor in outputs]
        read[2], made[1] = over(KEYS, read[2]), over(KEYS, made[1])
        return tuple(read), tuple(made)

    def flops(self, size: Size) -> Expression:
        pairs = size("batch") * size("seq") * size("index_top") * size("index_heads")
        return 2 * pairs * (3 * size("index_dim") + 1)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dbest, q, k, w, _, chosen = inputs
        dscores = np.zeros((*q.shape[:2], k.shape[1]))
        np.put_along_axis(dscores, chosen, dbest, axis=-1)
        dscores /= np.sqrt(q.shape[2])
        products = _products(q, k)
        dw = np.einsum("bqk,bqhk->bqh", dscores, np.maximum(products, 0))
        dproducts = np.einsum("bqk,bqh->bqhk", dscores, w) * (products > 0) / np.sqrt(q.shape[-1])
        return [np.einsum("bqhk,bkd->bqhd", dproducts, k), np.einsum("bqhk,bqhd->bkd", dproducts, q), dw]


@dataclass(frozen=True)
class IndexTarget(Operator):
    """The attention's weights of the chosen keys, summed over heads, from queries, keys, log-sum-exp and places.

    FLOPs `2·b·a·s·top·d`: the products are made again.
    """

    scale: float = 0.0
    head: str = "head_dim"

    kind: ClassVar[str] = "attention_index"

    def labels(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> Axes:
        q, k, lse, chosen = (tensor.axes for tensor in inputs)
        return (q, over(KEYS, k), lse, chosen), tuple(tensor.axes for tensor in outputs)

    def flops(self, size: Size) -> Expression:
        return 2 * size("batch") * size("heads") * size("seq") * size("index_top") * size(self.head)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, lse, chosen = inputs
        factor = self.scale or 1 / np.sqrt(q.shape[-1])
        weights = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) * factor - lse[..., None])
        weights *= np.arange(k.shape[1])[None, :] <= place.positions()[:, None]
        return [np.take_along_axis(weights.sum(axis=1), chosen, axis=-1)]


@dataclass(frozen=True)
class ChosenWeights(Operator):
    """The attention's weights (batch, heads, seq, kseq) of the chosen keys, summed over heads."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.take_along_axis(inputs[0].sum(axis=1), inputs[1], axis=-1)]


@dataclass(frozen=True)
class IndexLossGradient(Operator):
    """The gradient of the indexer's loss by its chosen scores: their softmax less the mean weight of all heads.

    The loss is the mean of the divergences of all tokens of the step.
    """

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores, target = inputs
        own = np.exp(scores - scores.max(axis=-1, keepdims=True))
        tokens = place.sizes["batch"] * place.sizes["seq"]
        apart = own / own.sum(axis=-1, keepdims=True) - target / place.sizes["heads"]
        return [apart * place.loss_share / tokens]


def index_loss(
    tracer: "Tracer", op: "Operation", best: "Tensor", target: Operator, reads: tuple["Tensor", ...]
) -> "Tensor":
    """Emit the gradient of the scores `best`. target: makes the weights that the loss compares them with.

    op: the forward's operation. best: the indexer's scores. reads: what `target` reads.
    """
    made = tracer.gradient(best, f"{op.name}.index_target")
    tracer.emit(made.name, target, reads, made, template=INPUT_GRADIENT)
    grad = tracer.gradient(best, f"{op.name}.index_gradient")
    tracer.emit(grad.name, IndexLossGradient(), (best, made), grad, template=INPUT_GRADIENT)
    return grad
