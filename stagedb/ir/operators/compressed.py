"""Compressed keys (DeepSeek V4): blocks of neighbouring tokens become one key each, and attention reads them behind a
window of the sequence's own.

Queries have axes (batch, seq, heads, head_dim). One head has all keys, which are the values too: (batch, seq, one,
head_dim). Behind them are those of whole blocks of `ratio` tokens. A query sees the blocks that have ended: block w
from token `(w + 1) · ratio - 1` on. An indexer may choose some of them. It learns as that of DeepSeek V3.2 (`sparse`),
from the attention's weights of the blocks that it chose, as shares of their sum: the model's published code has no loss
for it.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, smallest
from stagedb.ir.facts import KEYS, Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, arriving, fused_gradient, over
from stagedb.ir.operators.attention import Attention, AttentionGradient, among
from stagedb.ir.operators.heads import repeat_heads
from stagedb.ir.operators.scored_pairs import scaled_products
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


def _ended(rows: Array, blocks: int, ratio: int) -> Array:
    """Whether each block has ended where a query is: (queries, blocks)."""
    return np.asarray(np.arange(blocks)[None, :] < ((rows + 1) // ratio)[:, None])


def ended_pairs(positions: int, ratio: int, most: int) -> int:
    """The number of pairs of a query and a compressed block of keys that ended before it, over a whole sequence.

    positions: tokens of the sequence. ratio: tokens a block. most: how many blocks a query sees at most.
    """
    most = min(most, positions // ratio)
    return most * (positions + 1) - ratio * most * (most + 1) // 2


@dataclass(frozen=True)
class Compress(Operator):
    """The key of each whole block: a softmax-weighted sum of its tokens, channel by channel.

    Operands: values and logits (batch, seq, series), and what is added to the logits (ratio, series). overlaps: series
    has two halves, and a block's sum runs over its own tokens (the second half) and those of the block before (the
    first).
    """

    ratio: int
    overlaps: bool = False

    kind: ClassVar[str] = "softmax"
    alike: ClassVar[str] = "blocks of keys are made from the tokens of the whole sequence"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return _whole(inputs), _whole(outputs)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        operator = CompressGradient(self.ratio, self.overlaps)
        tracer.emit(name, operator, (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        values, shares = _in_blocks(self.ratio, self.overlaps, *inputs)
        return [(values * shares).sum(axis=2)]


@dataclass(frozen=True)
class CompressGradient(Compress):
    """The backward of `Compress`: the gradients of values, logits and what is added to these."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, *operands = inputs
        values, shares = _in_blocks(self.ratio, self.overlaps, *operands)
        wide = dy[:, :, None, :]
        of_values = shares * wide
        of_logits = shares * (values * wide - (values * wide * shares).sum(axis=2, keepdims=True))
        shape = operands[0].shape
        made = [_back(self.ratio, self.overlaps, each, shape) for each in (of_values, of_logits)]
        blocks = made[1][:, : shape[1] // self.ratio * self.ratio].reshape(shape[0], -1, self.ratio, shape[-1])
        return [*made, blocks.sum(axis=(0, 1))]


def _whole(tensors: Sequence["Tensor"]) -> tuple[Labels, ...]:
    """The axes of tensors whose sequence an operator needs whole."""
    return tuple(over(KEYS, t.axes) for t in tensors)


def _in_blocks(ratio: int, overlaps: bool, values: Array, logits: Array, added: Array) -> tuple[Array, Array]:
    """Values and the softmax of logits (batch, blocks, tokens, channels). What comes before the sequence counts 0."""
    batch, tokens, series = values.shape
    blocks = tokens // ratio
    parts = [x[:, : blocks * ratio].reshape(batch, blocks, ratio, series) for x in (values, logits)]
    own, scores = parts[0], parts[1] + added
    if overlaps:
        half = series // 2
        own = np.concatenate([_shifted(own[..., :half], 0.0), own[..., half:]], axis=2)
        scores = np.concatenate([_shifted(scores[..., :half], -np.inf), scores[..., half:]], axis=2)
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    return own, shares / shares.sum(axis=2, keepdims=True)


def _shifted(blocks: Array, first: float) -> Array:
    """Each block's place has the block before."""
    return np.concatenate([np.full_like(blocks[:, :1], first), blocks[:, :-1]], axis=1)


def _back(ratio: int, overlaps: bool, grad: Array, shape: tuple[int, ...]) -> Array:
    """Gradients (batch, blocks, tokens, channels) as those of tokens; a rest of a block has none."""
    if overlaps:
        before = np.concatenate([grad[:, 1:, :ratio], np.zeros_like(grad[:, :1, :ratio])], axis=1)
        grad = np.concatenate([before, grad[:, :, ratio:]], axis=-1)
    made = np.zeros(shape)
    made[:, : grad.shape[1] * ratio] = grad.reshape(shape[0], -1, shape[-1])
    return made


@dataclass(frozen=True)
class JoinKeys(Operator):
    """The sequence's own keys, and those of blocks behind them."""

    kind: ClassVar[str] = "copy"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return _whole(inputs), _whole(outputs)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        tracer.emit(name, SplitKeys(), (arriving(grads),), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        own, blocks = inputs
        return [np.concatenate([own, blocks[:, :, None, :]], axis=1)]


@dataclass(frozen=True)
class SplitKeys(Operator):
    """The gradients of own keys and of those of blocks."""

    kind: ClassVar[str] = "copy"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return _whole(inputs), _whole(outputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        at = place.sizes["seq"]
        return [inputs[0][:, :at], inputs[0][:, at:, 0]]


@dataclass(frozen=True)
class _BehindWindow(Attention):
    """Pairs of queries with keys of a window, and with those of blocks behind them."""

    ratio: int = 1
    blocks: str = ""
    top: str = ""

    @property
    def _more(self) -> int:
        return self.masked + self.sinks + 2 * self.chosen

    def _keys_seen(self, size: Size) -> Expression:
        own = size(KEYS) if self.window is None else smallest(size(KEYS), self.window)
        return own + size(self.top if self.chosen else self.blocks)

    def _mask(self, place: RankPlace, inputs: Sequence[Array], keys: int) -> Array:
        rows, own = place.indices("seq"), place.sizes["seq"]
        ended = _ended(rows, keys - own, self.ratio)[None, None] & among(self._chosen(inputs), keys - own)
        near = np.broadcast_to(self.seen(rows, np.arange(own)), (*ended.shape[:2], len(rows), own))
        return np.concatenate([near, ended], axis=-1)


@dataclass(frozen=True)
class BlockAttention(_BehindWindow):
    """Attention over a window and over keys of blocks, in one kernel, which leaves out what a query does not see.

    FLOPs `4·b·a·s·(min(s, window) + blocks)·d`, as for a window; chosen: with the number of blocks that an indexer
    chooses (`top`) in place of all. blocks, top: axes.
    """

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        own = op.inputs[: len(op.inputs) - 2 * self.chosen]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        operator = BlockAttentionGradient(**fields, lse_gradient=grads[1] is not None)
        yield from fused_gradient(tracer, op, operator, grads, own)
        if self.chosen:
            best, places = op.inputs[-2:]
            reads = (*op.inputs[:2], op.outputs[1], places)
            yield len(own), _index_loss(tracer, op, best, BlockIndexTarget(self.ratio, self.top, self.scale), reads)


@dataclass(frozen=True)
class BlockAttentionGradient(_BehindWindow, AttentionGradient):
    """The backward of `BlockAttention`: the gradients of queries, of keys as keys and as values, and of sinks."""


@dataclass(frozen=True)
class BlockIndex(Operator):
    """The scores and places of each query's best blocks, in one kernel: `Σ_h w_h · relu(q_h · k)`, then top-k.

    FLOPs `2·b·s·blocks·h·d`: the products. The best of fewer ended blocks than `top` include later ones, at minus
    infinity.
    """

    ratio: int
    blocks: str
    top: str

    kind: ClassVar[str] = "attention_index"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def dims(self, size: Size) -> tuple[Expression, ...]:
        return size("batch") * size("seq"), size("index_heads"), size(self.blocks), size("index_dim")

    def flops(self, size: Size) -> Expression:
        queries = size("batch") * size("seq") * size("index_heads")
        return 2 * queries * size(self.blocks) * size("index_dim")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        operator = BlockIndexGradient(self.ratio, self.blocks, self.top)
        yield from fused_gradient(tracer, op, operator, grads, op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, w = inputs
        scores = np.einsum("bqh,bqhk->bqk", w, np.maximum(_products(q, k), 0)) / np.sqrt(q.shape[2])
        scores = np.where(_ended(place.indices("seq"), k.shape[1], self.ratio), scores, -np.inf)
        best = np.argsort(-scores, axis=-1, kind="stable")[..., : place.sizes[self.top]]
        return [np.take_along_axis(scores, best, axis=-1), best]


def _products(q: Array, k: Array) -> Array:
    return np.asarray(np.einsum("bqhd,bkd->bqhk", q, k) / np.sqrt(q.shape[-1]))


@dataclass(frozen=True)
class BlockIndexGradient(Operator):
    """The backward of `BlockIndex`: dq, dk, dw from the gradient of the chosen scores, with the products of the chosen
    blocks made again.
    """

    ratio: int
    blocks: str
    top: str

    kind: ClassVar[str] = "attention_index"

    def flops(self, size: Size) -> Expression:
        pairs = size("batch") * size("seq") * size(self.top) * size("index_heads")
        return 2 * pairs * 3 * size("index_dim")

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
class BlockIndexTarget(Operator):
    """The attention's weights of the chosen blocks, summed over heads, from queries, keys, log-sum-exp and places.

    FLOPs `2·b·a·s·top·d`: the products are made again.
    """

    ratio: int
    top: str
    scale: float = 0.0

    kind: ClassVar[str] = "attention_index"

    def flops(self, size: Size) -> Expression:
        return 2 * size("batch") * size("heads") * size("seq") * size(self.top) * size("head_dim")

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, keys, lse, chosen = inputs
        k = repeat_heads(keys[:, place.sizes["seq"] :], q.shape[2])
        weights = np.exp(scaled_products(q, k, self.scale or 1 / np.sqrt(q.shape[-1])) - lse[..., None])
        weights *= _ended(place.indices("seq"), k.shape[1], self.ratio)
        return [np.take_along_axis(weights.sum(axis=1), chosen, axis=-1)]


@dataclass(frozen=True)
class BlockIndexLossGradient(Operator):
    """The gradient of the indexer's loss by its chosen scores: their softmax less the shares of the target.

    The loss is the mean of the divergences of all tokens of the step; a query before the first block's end has none.
    """

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores, target = inputs
        top = scores.max(axis=-1, keepdims=True)
        own = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        total, weights = own.sum(axis=-1, keepdims=True), target.sum(axis=-1, keepdims=True)
        apart = own / np.where(total > 0, total, 1.0) - target / np.where(total > 0, weights, 1.0)
        return [apart * place.loss_share / (place.sizes["batch"] * place.sizes["seq"])]


def _index_loss(
    tracer: "Tracer", op: "Operation", best: "Tensor", target: Operator, reads: tuple["Tensor", ...]
) -> "Tensor":
    """Emit the gradient of the scores `best`."""
    made = tracer.gradient(best, f"{op.name}.index_target")
    tracer.emit(made.name, target, reads, made, template=INPUT_GRADIENT)
    grad = tracer.gradient(best, f"{op.name}.index_gradient")
    tracer.emit(grad.name, BlockIndexLossGradient(), (best, made), grad, template=INPUT_GRADIENT)
    return grad


@dataclass(frozen=True)
class GroupHeads(Operator):
    """Heads in groups: (batch, seq, heads, head_dim) to (batch, seq, out_groups, group_heads, head_dim), and back.

    The result is a view.
    """

    back: bool = False

    kind: ClassVar[str] = "copy"
    views: ClassVar[tuple[int, ...]] = (0,)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, GroupHeads(not self.back), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (x,) = inputs
        inner = (x.shape[2] * x.shape[3],) if self.back else (-1, place.sizes["heads"] // place.sizes["out_groups"])
        return [x.reshape(*x.shape[:2], *inner, x.shape[-1])]


OPERATORS = (
    BlockAttention,
    BlockAttentionGradient,
    BlockIndex,
    BlockIndexGradient,
    BlockIndexLossGradient,
    BlockIndexTarget,
    Compress,
    CompressGradient,
    GroupHeads,
    JoinKeys,
    SplitKeys,
)
"""The operators of compressed keys."""
