"""Attention: the fused kernel, the pieces of the plain one, rotary positions, grouped heads.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim). A packed tensor
(batch, seq, kv_heads, packed, head_dim) holds for each K/V head its queries, then its key, then its value: the layout
of Megatron's fused QKV weight.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.expressions import Expression, smallest, symbol
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, arriving, fused_gradient
from stagedb.ir.tags import Tag
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


def _unpack(inputs: list[Array]) -> tuple[Array, Array, Array]:
    """q, k, v from three arrays or from a packed one."""
    if len(inputs) == 3:
        return inputs[0], inputs[1], inputs[2]
    packed = inputs[0]
    batch, seq, kv_heads, parts, head_dim = packed.shape
    q = packed[..., : parts - 2, :].reshape(batch, seq, kv_heads * (parts - 2), head_dim)
    return q, packed[..., -2, :], packed[..., -1, :]


def _pack(q: Array, k: Array, v: Array) -> Array:
    batch, seq, kv_heads, head_dim = k.shape
    queries = q.reshape(batch, seq, kv_heads, -1, head_dim)
    return np.concatenate([queries, k[..., None, :], v[..., None, :]], axis=-2)


def _repeat(k: Array, heads: int) -> Array:
    return np.repeat(k, heads // k.shape[2], axis=2)


def _fold(dk: Array, kv_heads: int) -> Array:
    batch, seq, heads, head_dim = dk.shape
    return np.asarray(dk.reshape(batch, seq, kv_heads, heads // kv_heads, head_dim).sum(axis=3))


@dataclass(frozen=True)
class ScoredPairs(Operator):
    """The rules by which queries score keys, of a fused kernel or of a softmax on its own.

    window: the number of keys that a query sees, its own included (Beltagy et al. 2020; Jiang et al. 2023); None: all
    before it. chunk_tokens: the sequence is in chunks of so many tokens, and a query sees keys of its own chunk alone
    (Llama 4); None: one chunk. softcap: scores are `softcap · tanh(score / softcap)` (Gemma 2); 0: as they are.
    scale: the factor of scores; 0: one over the root of the head's size. alibi: a score is lowered by the distance of
    its key, with a slope for each head (Press et al. 2022). sinks: the last operand has a score for each head that
    takes part in the softmax and has no value (gpt-oss).
    """

    window: int | None = None
    chunk_tokens: int | None = None
    softcap: float = 0.0
    scale: float = 0.0
    alibi: bool = False
    sinks: bool = False

    later: ClassVar[frozenset[str]] = frozenset({"chunk_tokens", "softcap", "scale", "alibi", "sinks"})

    def seen(self, rows: Array, columns: Array) -> Array:
        """Whether the query of each row sees the key of each column, by their positions. It sees no later key."""
        apart = rows[:, None] - columns[None, :]
        found = apart >= 0
        if self.window is not None:
            found &= apart < self.window
        if self.chunk_tokens is not None:
            found &= rows[:, None] // self.chunk_tokens == columns[None, :] // self.chunk_tokens
        return np.asarray(found)

    def keys_seen(self, keys: Expression) -> Expression:
        """The number of keys, of so many, with which a kernel scores a query."""
        for limit in (self.window, self.chunk_tokens):
            keys = keys if limit is None else smallest(keys, limit)
        return keys

    def factor(self, head_dim: int) -> float:
        """The factor of the products of queries and keys."""
        return self.scale or 1 / math.sqrt(head_dim)

    def scored(self, products: Array, rows: Array, heads: Array, all_heads: int) -> Array:
        """Scores (batch, heads, queries, keys) from scaled products, before the mask. rows: positions of queries."""
        scores = self.softcap * np.tanh(products / self.softcap) if self.softcap else products
        if not self.alibi:
            return scores
        apart = np.arange(scores.shape[-1])[None, :] - rows[:, None]
        return np.asarray(scores + slopes(all_heads)[heads][:, None, None] * apart)

    def slope(self, products: Array) -> Array | float:
        """The derivative of scores by scaled products."""
        return 1 - np.tanh(products / self.softcap) ** 2 if self.softcap else 1.0


def slopes(heads: int) -> Array:
    """ALiBi's slope of each head: powers of two, and between them those of twice as many heads (Press et al. 2022)."""
    power = 2 ** int(math.log2(heads))
    found = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    more = [2 ** (-8 * (n + 1) / (2 * power)) for n in range(0, 2 * power, 2)]
    return np.asarray(found + more[: heads - power])


def _products(q: Array, k: Array, factor: float) -> Array:
    return np.asarray(np.einsum("bqhd,bkhd->bhqk", q, k) * factor)


_SEES_ALL = ScoredPairs()


def _scores(q: Array, k: Array, rows: Array) -> Array:
    """Scaled scores of queries at positions `rows` and all keys, masked pairs at minus infinity."""
    scores = _products(q, k, 1 / math.sqrt(q.shape[-1]))
    return np.where(_SEES_ALL.seen(rows, np.arange(k.shape[1])), scores, -np.inf)


def _keys(axes: Labels) -> Labels:
    return tuple("kseq" if axis == "seq" else axis for axis in axes)


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
    """

    masked: bool = False
    head: str = "head_dim"
    kv_heads: str = "kv_heads"
    value: str = "head_dim"

    kind: ClassVar[str] = "attention"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})
    later: ClassVar[frozenset[str]] = ScoredPairs.later | {"head", "kv_heads", "value"}

    def _operands(self, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
        """q, k, v of the operands. Sinks and an explicit mask may follow them."""
        return _unpack(list(inputs[: len(inputs) - self.masked - self.sinks]))

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        # Keys and values, and their gradients, run over a sequence of their own.
        inside, made = [t.axes for t in inputs], [t.axes for t in outputs]
        at = 1 if isinstance(self, AttentionGradient | PartAttentionGradient) else 0
        if "packed" not in inside[at]:
            inside[at + 1 : at + 3] = [_keys(axes) for axes in inside[at + 1 : at + 3]]
            if at:
                made[1:3] = [_keys(axes) for axes in made[1:3]]
        return tuple(inside), tuple(made)

    def _keys_seen(self, size: Size) -> Expression:
        return size("kseq") if self.masked else self.keys_seen(size("kseq"))

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
        own = op.inputs[: len(op.inputs) - self.masked]
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        yield from fused_gradient(tracer, op, AttentionGradient(**fields), grads, own)

    def _weights(self, place: RankPlace, q: Array, k: Array, sinks: Array | None, lse: Array | None) -> _Weights:
        """Scaled products, weights and log-sum-exp of each row, which is made if it is not given."""
        rows, columns = place.indices("seq"), np.arange(k.shape[1])
        products = _products(q, k, self.factor(q.shape[-1]))
        scores = self.scored(products, rows, _heads(place), place.sizes["heads"])
        scores = np.where(self.seen(rows, columns), scores, -np.inf)
        if lse is None:
            lse = _log_sum(scores, sinks)
        return _Weights(products, np.exp(scores - lse[..., None]), lse)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v = self._operands(inputs)
        heads = q.shape[2]
        made = self._weights(place, q, _repeat(k, heads), inputs[-1 - self.masked] if self.sinks else None, None)
        return [np.einsum("bhqk,bkhd->bqhd", made.weights, _repeat(v, heads)), made.lse]


def _heads(place: RankPlace) -> Array:
    return place.indices("heads")


def _log_sum(scores: Array, sinks: Array | None) -> Array:
    top = scores.max(axis=-1)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None])
    total = np.exp(scores - top[..., None]).sum(axis=-1)
    if sinks is not None:
        total = total + np.exp(sinks[:, None] - top)
    return np.asarray(top + np.log(total))


@dataclass(frozen=True)
class AttentionGradient(Attention):
    """dq, dk, dv from the saved output and log-sum-exp: five matmuls, which compute the scores again. Then dsinks."""

    def flops(self, size: Size) -> Expression:
        return 2 * self._pairs(size) * (3 * size(self.head) + 2 * size(self.value))

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        do, o, lse = inputs[0], inputs[-2], inputs[-1]
        own = inputs[1:-2]
        q, k, v = self._operands(own)
        heads, kv_heads, factor = q.shape[2], k.shape[2], self.factor(q.shape[-1])
        wide_k, wide_v = _repeat(k, heads), _repeat(v, heads)
        sinks = own[-1 - self.masked] if self.sinks else None
        made = self._weights(place, q, wide_k, sinks, lse)
        dv = np.einsum("bhqk,bqhd->bkhd", made.weights, do)
        dp = np.einsum("bqhd,bkhd->bhqk", do, wide_v)
        delta = np.einsum("bqhd,bqhd->bhq", do, o)
        ds = made.weights * (dp - delta[..., None]) * self.slope(made.products) * factor
        dq, dk = np.einsum("bhqk,bkhd->bqhd", ds, wide_k), np.einsum("bhqk,bqhd->bkhd", ds, q)
        dk, dv = _fold(dk, kv_heads), _fold(dv, kv_heads)
        packed = len(own) - self.masked - self.sinks == 1
        grads = [_pack(dq, dk, dv)] if packed else [dq, dk, dv]
        if sinks is not None:
            grads.append(-(np.exp(sinks[:, None] - lse) * delta).sum(axis=(0, 2)))
        return grads


def _parts(balanced: bool) -> int:
    return 2 if balanced else 1


@dataclass(frozen=True)
class PartAttention(Attention):
    """Queries of one rank of cp with gathered keys: each part of them reads the keys up to its end, no further.

    Transformer Engine's context parallelism by all-gather. balanced: rank r of c has the r-th and the (2c-1-r)-th of 2c
    chunks, one after the other, each in a call of its own (`step` 1 and 2; `stagedb.build.ring_turns` writes them out);
    otherwise the r-th of c parts. The keys of the `step` are in the order of the sequence. Putting them in order costs
    nothing here.
    """

    balanced: bool = True

    def chunk(self) -> Expression:
        """The number of the part of the sequence that has this call's queries."""
        rank, step, ranks = symbol("cp_rank") - 1, symbol("step") - 1, symbol("cp")
        return rank + step * (2 * ranks - 1 - 2 * rank) if self.balanced else rank

    def dims(self, size: Size) -> tuple[Expression, ...]:
        parts = _parts(self.balanced)
        keys = (self.chunk() + 1) * size("kseq") / (parts * symbol("cp"))
        return (
            size("batch"), size("heads"), size("kv_heads"), size("seq") / parts, keys, size("head_dim")
        )  # fmt: skip

    def _pairs(self, size: Size) -> Expression:
        batch, heads, _, queries, keys, _ = self.dims(size)
        return batch * heads * queries * keys

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield from fused_gradient(tracer, op, PartAttentionGradient(balanced=self.balanced), grads, op.inputs)

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

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v, *so_far = inputs
        rows, columns, heads = self.rows(place, q.shape[1]), self.keys(place, k.shape[1]), q.shape[2]
        scores = _scores(q[:, rows], _repeat(k[:, columns], heads), place.indices("seq")[rows])
        top = scores.max(axis=-1)
        lse = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))
        weights = np.exp(scores - lse[..., None])
        made = [np.einsum("bhqk,bkhd->bqhd", weights, _repeat(v[:, columns], heads)), lse]
        if place.step == 0:
            return made
        return [np.concatenate([so_far[0], made[0]], axis=1), np.concatenate([so_far[1], made[1]], axis=2)]


@dataclass(frozen=True)
class PartAttentionGradient(PartAttention):
    """dq, dk, dv of one call; a call after the first adds to the earlier values."""

    def flops(self, size: Size) -> Expression:
        return 10 * self._pairs(size) * size(self.head)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        do, q, k, v, o, lse, *so_far = inputs
        rows, columns = self.rows(place, q.shape[1]), self.keys(place, k.shape[1])
        heads, kv_heads = q.shape[2], k.shape[2]
        dq, dk, dv = ([np.zeros_like(x) for x in (q, k, v)]) if place.step == 0 else [x.copy() for x in so_far]
        wide_k, wide_v = (_repeat(x[:, columns], heads) for x in (k, v))
        part, do, o = q[:, rows], do[:, rows], o[:, rows]
        p = np.exp(_scores(part, wide_k, place.indices("seq")[rows]) - lse[:, :, rows, None])
        ds = p * (np.einsum("bqhd,bkhd->bhqk", do, wide_v) - np.einsum("bqhd,bqhd->bhq", do, o)[..., None])
        ds = ds / np.sqrt(q.shape[-1])
        dq[:, rows] += np.einsum("bhqk,bkhd->bqhd", ds, wide_k)
        dk[:, columns] += _fold(np.einsum("bhqk,bqhd->bkhd", ds, part), kv_heads)
        dv[:, columns] += _fold(np.einsum("bhqk,bqhd->bkhd", p, do), kv_heads)
        return [dq, dk, dv]


@dataclass(frozen=True)
class AdditiveMask(ScoredPairs):
    """The causal mask of this rank's queries as numbers to add, for a kernel without a mask of its own."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.where(self.seen(place.indices("seq"), place.indices("kseq")), 0.0, -np.inf)]


@dataclass(frozen=True)
class SplitHeads(Operator):
    """A packed tensor into q, k and v (copies, for matmuls that need them contiguous)."""

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        present = tuple(g for g in grads if g is not None)
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, PackHeads(), present, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return list(_unpack(inputs))


@dataclass(frozen=True)
class SplitViews(SplitHeads):
    """A packed tensor into q, a view of it, and copies of k and v, which are gathered."""

    in_place: ClassVar[bool] = True


@dataclass(frozen=True)
class PackHeads(Operator):
    """q, k and v into a packed tensor."""

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_pack(*inputs)]


@dataclass(frozen=True)
class RepeatHeads(Operator):
    """Each K/V head once for every query head of its group (grouped-query attention without a fused kernel)."""

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, FoldHeads(), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_repeat(inputs[0], place.lengths["heads"])]


@dataclass(frozen=True)
class FoldHeads(Operator):
    """The sum over each group of query heads."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_fold(inputs[0], place.lengths["kv_heads"])]


@dataclass(frozen=True)
class Softmax(ScoredPairs):
    """Scale, causal mask and softmax over the keys. head: the axis of a head of queries and keys.

    Its operands are the products of queries and keys, and the sinks if there are some.
    """

    head: str = "head_dim"

    kind: ClassVar[str] = "softmax"
    later: ClassVar[frozenset[str]] = ScoredPairs.later | {"head"}

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

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        products = inputs[0] * self.factor(place.sizes[self.head])
        scores = self.scored(products, place.indices("seq"), _heads(place), place.sizes["heads"])
        scores = np.where(self.seen(place.indices("seq"), place.indices("kseq")), scores, -np.inf)
        return [np.exp(scores - _log_sum(scores, inputs[1] if self.sinks else None)[..., None])]


@dataclass(frozen=True)
class SoftmaxGradient(Operator):
    """The gradient through scale, mask and softmax."""

    head: str = "head_dim"
    scale: float = 0.0

    kind: ClassVar[str] = "softmax"
    later: ClassVar[frozenset[str]] = frozenset({"head", "scale"})

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

    size: how many of a head's first dimensions (`last`: of its last ones) are turned; 0: all.
    """

    packed: bool = False
    inverse: bool = False
    size: int = 0
    last: bool = False

    kind: ClassVar[str] = "rotary"
    later: ClassVar[frozenset[str]] = frozenset({"size", "last"})

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        operator = Rotary(self.packed, not self.inverse, self.size, self.last)
        tracer.emit(grad.name, operator, (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        at = inputs[0].shape[-1] - self.size if self.last else 0
        x = inputs[0][..., at : at + self.size if self.size else None]
        half = x.shape[-1] // 2
        angles = place.indices("seq")[:, None] / 10000 ** (np.arange(half) / half)
        angles = angles.reshape(1, len(angles), *(1,) * (x.ndim - 3), half) * (-1 if self.inverse else 1)
        cos, sin = np.cos(angles), np.sin(angles)
        low, high = x[..., :half], x[..., half:]
        before, after = inputs[0][..., :at], inputs[0][..., at + x.shape[-1] :]
        turned = np.concatenate([before, low * cos - high * sin, low * sin + high * cos, after], axis=-1)
        if self.packed:
            turned[..., -1, :] = inputs[0][..., -1, :]
        return [turned]


@dataclass(frozen=True)
class SplitLast(Operator):
    """The last axis in two parts, the axes `first` and `second`: one copy each."""

    first: str
    second: str

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        present = tuple(each for each in grads if each is not None)
        tracer.emit(grad.name, JoinLast(), present, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        at = place.sizes[self.first]
        return [inputs[0][..., :at], inputs[0][..., at:]]


@dataclass(frozen=True)
class JoinLast(Operator):
    """Two tensors joined along their last axes."""

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.concatenate(inputs, axis=-1)]


@dataclass(frozen=True)
class LatentKeys(Operator):
    """Keys and values of latent attention: from (batch, seq, heads, nope + value) and the heads' shared part of keys.

    Each head's key is its own part and the shared one, (batch, seq, rope).
    """

    kind: ClassVar[str] = "copy"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        present = tuple(each for each in grads if each is not None)
        tracer.emit(f"{op.name}.input_gradient", LatentKeysGradient(), present, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        made, shared = inputs
        at = made.shape[-1] - place.sizes["value_dim"]
        wide = np.broadcast_to(shared[:, :, None, :], (*made.shape[:3], shared.shape[-1]))
        return [np.concatenate([made[..., :at], wide], axis=-1), made[..., at:]]


@dataclass(frozen=True)
class LatentKeysGradient(Operator):
    """The gradients of the heads' own parts, and of the shared one, summed over heads."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dk, dv = inputs
        at = dk.shape[-1] - place.sizes["rope_dim"]
        return [np.concatenate([dk[..., :at], dv], axis=-1), dk[..., at:].sum(axis=2)]
