"""Attention: the fused kernel, the pieces of the plain one, rotary positions, grouped heads.

Queries have axes (batch, seq, heads, head_dim), keys and values (batch, seq, kv_heads, head_dim). A packed tensor
(batch, seq, kv_heads, packed, head_dim) holds for each K/V head its queries, then its key, then its value: the layout
of Megatron's fused QKV weight.
"""

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


def _seen(rows: Array, columns: Array, window: int | None) -> Array:
    """Whether the query of each row sees the key of each column, by their positions.

    It sees no later key, and of the others the last `window`, its own included.
    """
    apart = rows[:, None] - columns[None, :]
    return np.asarray((apart >= 0) if window is None else (apart >= 0) & (apart < window))


def _scores(q: Array, k: Array, rows: Array, window: int | None = None) -> Array:
    """Scaled scores of queries at positions `rows` and all keys, masked pairs at minus infinity."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    return np.where(_seen(rows, np.arange(k.shape[1]), window), scores, -np.inf)


def _keys(axes: Labels) -> Labels:
    return tuple("kseq" if axis == "seq" else axis for axis in axes)


@dataclass(frozen=True)
class Attention(Operator):
    """Causal attention in one kernel (Dao et al. 2022): outputs the context and the log-sum-exp of each row.

    FLOPs `4·b·a·s·s·d`: two matmuls, without halving for the causal mask, as the field's counters do.

    window: the number of keys that a query sees, its own included (Beltagy et al. 2020; Jiang et al. 2023); None: all
    before it. Kernels leave out blocks of keys that no query of a block sees, so that a query counts `min(s, window)`
    keys: `4·b·a·s·min(s, window)·d`. The corner where the first queries see fewer keys is counted, like the one above
    the diagonal. A kernel that reads an explicit mask (`masked`) computes all pairs.
    """

    masked: bool = False
    window: int | None = None

    kind: ClassVar[str] = "attention"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def _operands(self, inputs: Sequence[Array]) -> tuple[Array, Array, Array]:
        """q, k, v of the operands. An explicit mask may follow them."""
        return _unpack(list(inputs[:-1] if self.masked else inputs))

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        # Keys and values, and their gradients, run over a sequence of their own.
        inside, made = [t.axes for t in inputs], [t.axes for t in outputs]
        at = 1 if isinstance(self, AttentionGradient | PartAttentionGradient) else 0
        if "packed" not in inside[at]:
            inside[at + 1 : at + 3] = [_keys(axes) for axes in inside[at + 1 : at + 3]]
            if at:
                made[1:] = [_keys(axes) for axes in made[1:]]
        return tuple(inside), tuple(made)

    def _keys_seen(self, size: Size) -> Expression:
        if self.window is None or self.masked:
            return size("kseq")
        return smallest(size("kseq"), self.window)

    def _pairs(self, size: Size) -> Expression:
        return size("batch") * size("heads") * size("seq") * self._keys_seen(size) * size("head_dim")

    def flops(self, size: Size) -> Expression:
        return 4 * self._pairs(size)

    def dims(self, size: Size) -> tuple[Expression, ...]:
        queries = tuple(size(axis) for axis in ("batch", "heads", "kv_heads", "seq"))
        return (*queries, self._keys_seen(size), size("head_dim"))

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        own = op.inputs[:-1] if self.masked else op.inputs
        yield from fused_gradient(tracer, op, AttentionGradient(self.masked, self.window), grads, own)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v = self._operands(inputs)
        heads = q.shape[2]
        scores = _scores(q, _repeat(k, heads), place.indices("seq"), self.window)
        top = scores.max(axis=-1)
        lse = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1))
        weights = np.exp(scores - lse[..., None])
        return [np.einsum("bhqk,bkhd->bqhd", weights, _repeat(v, heads)), lse]


@dataclass(frozen=True)
class AttentionGradient(Attention):
    """dq, dk, dv from the saved output and log-sum-exp: five matmuls, which compute the scores again."""

    def flops(self, size: Size) -> Expression:
        return 10 * self._pairs(size)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        do, o, lse = inputs[0], inputs[-2], inputs[-1]
        q, k, v = self._operands(inputs[1:-2])
        heads, kv_heads, scale = q.shape[2], k.shape[2], 1 / np.sqrt(q.shape[-1])
        wide_k, wide_v = _repeat(k, heads), _repeat(v, heads)
        p = np.exp(_scores(q, wide_k, place.indices("seq"), self.window) - lse[..., None])
        dv = np.einsum("bhqk,bqhd->bkhd", p, do)
        dp = np.einsum("bqhd,bkhd->bhqk", do, wide_v)
        ds = p * (dp - np.einsum("bqhd,bqhd->bhq", do, o)[..., None]) * scale
        dq, dk = np.einsum("bhqk,bkhd->bqhd", ds, wide_k), np.einsum("bhqk,bqhd->bkhd", ds, q)
        dk, dv = _fold(dk, kv_heads), _fold(dv, kv_heads)
        return [dq, dk, dv] if len(inputs) > 5 else [_pack(dq, dk, dv)]


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
        batch, heads, _, queries, keys, head_dim = self.dims(size)
        return batch * heads * queries * keys * head_dim

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
        return 10 * self._pairs(size)

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
class AdditiveMask(Operator):
    """The causal mask of this rank's queries as numbers to add, for a kernel without a mask of its own.

    window: as in `Attention`.
    """

    window: int | None = None

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.where(_seen(place.indices("seq"), place.indices("kseq"), self.window), 0.0, -np.inf)]


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
class Softmax(Operator):
    """Scale, causal mask and softmax over the keys. window: as in `Attention`."""

    window: int | None = None

    kind: ClassVar[str] = "softmax"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        reads = (arriving(grads), op.outputs[0])
        tracer.emit(grad.name, SoftmaxGradient(), reads, grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scores = inputs[0] / np.sqrt(place.sizes["head_dim"])
        scores = np.where(_seen(place.indices("seq"), place.indices("kseq"), self.window), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return [weights / weights.sum(axis=-1, keepdims=True)]


@dataclass(frozen=True)
class SoftmaxGradient(Operator):
    """The gradient through scale, mask and softmax."""

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dp, p = inputs
        return [p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / np.sqrt(place.sizes["head_dim"])]


@dataclass(frozen=True)
class Rotary(Operator):
    """Rotary positions (Su et al. 2021) on queries or keys; in a packed tensor the values remain unchanged."""

    packed: bool = False
    inverse: bool = False

    kind: ClassVar[str] = "rotary"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        operator = Rotary(self.packed, not self.inverse)
        tracer.emit(grad.name, operator, (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x = inputs[0]
        half = x.shape[-1] // 2
        angles = place.indices("seq")[:, None] / 10000 ** (np.arange(half) / half)
        angles = angles.reshape(1, len(angles), *(1,) * (x.ndim - 3), half) * (-1 if self.inverse else 1)
        cos, sin = np.cos(angles), np.sin(angles)
        low, high = x[..., :half], x[..., half:]
        turned = np.concatenate([low * cos - high * sin, low * sin + high * cos], axis=-1)
        if self.packed:
            turned[..., -1, :] = x[..., -1, :]
        return [turned]
