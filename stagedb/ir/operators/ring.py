"""Ring attention over context-parallel ranks, as PyTorch and Transformer Engine run it.

Balanced causal work: rank r of c has the r-th and the (2c-1-r)-th of 2c chunks of the sequence. In turn i it has the
keys and values of rank r - i. Its own keys have the causal mask. Among an earlier rank's keys, all its queries see only
the first half. Among a later rank's keys, only its second half of queries sees keys, and it sees all of them.
Contiguous: rank r has the r-th of c parts, sees all of an earlier rank's keys, and computes nothing in the turns with a
later rank's keys.

`RingAttention` represents all turns until layouts are known; then `stagedb.graphs.block` writes them out. The
symbol of a turn is `step`, that of a rank `cp_rank`, both counted from 1, as symbols are above 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from stagedb.ir.expressions import Expression, largest, number, smallest, symbol
from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import QUERIES, Array, Labels, Operator, RankPlace, Size, arriving, fused_gradient, over
from stagedb.ir.operators.attention import Attention
from stagedb.ir.operators.heads import fold_heads, repeat_heads
from stagedb.ir.operators.scored_pairs import ScoredPairs, heads_here, scaled_products

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

STEP, RANK, RANKS = symbol("step") - 1, symbol("cp_rank") - 1, symbol("cp")

Passing = Literal["gathered", "rotated", "sent"]
"""How a rank gets the keys of others: all at once, or each turn by a collective, or by a send and a receive."""


@dataclass(frozen=True)
class RingAttention(Operator):
    """Context and log-sum-exp of each row from q, k, v.

    axis: the mesh axis of the ring. balanced: how the sequence is dealt. softcap, scale: those of `ScoredPairs`, which
    do not need all keys of a row, as its sum of exponentials does. value: the axis of values; empty: they have the
    axes of keys.
    """

    passing: Passing
    axis: str = "cp"
    balanced: bool = True
    softcap: float = 0.0
    scale: float = 0.0
    value: str = ""

    kind: ClassVar[str] = "attention"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        # Each rank has the keys of its own queries, which other ranks get turn by turn.
        return tuple(over(QUERIES, t.axes) for t in inputs), tuple(over(QUERIES, t.axes) for t in outputs)

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        operator = RingAttentionGradient(self.passing, self.axis, self.balanced, self.softcap, self.scale, self.value)
        yield from fused_gradient(tracer, op, operator, grads, op.inputs)


@dataclass(frozen=True)
class RingAttentionGradient(Operator):
    """The backward of `RingAttention`: dq, dk, dv from the tensors saved by the forward."""

    passing: Passing
    axis: str = "cp"
    balanced: bool = True
    softcap: float = 0.0
    scale: float = 0.0
    value: str = ""

    kind: ClassVar[str] = "attention"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple(over(QUERIES, t.axes) for t in inputs), tuple(over(QUERIES, t.axes) for t in outputs)


@dataclass(frozen=True)
class PackKeys(Operator):
    """Keys and values in one message: axes (batch, seq, kv_heads, two, head_dim).

    joined: they have sizes of their own, and one axis for both: (batch, seq, heads, key_and_value).
    """

    joined: bool = False

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.concatenate(inputs, axis=-1) if self.joined else np.stack(inputs, axis=3)]


def _apart(both: Array, value: int) -> tuple[Array, Array]:
    """Keys and values of a message. value: the size of a value, where keys have another; 0: they have an axis."""
    return (both[..., :-value], both[..., -value:]) if value else (both[:, :, :, 0], both[:, :, :, 1])


@dataclass(frozen=True)
class UnpackGradients(Operator):
    """dq, dk, dv in the activations' format from the sums of all turns. value: as in `RingAttention`."""

    value: str = ""

    kind: ClassVar[str] = "cast"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dq, dkv = inputs
        return [dq, *_apart(dkv, place.sizes[self.value] if self.value else 0)]


@dataclass(frozen=True)
class UnpackKeys(Operator):
    """dk and dv as views of one tensor: no kernel runs. value: as in `RingAttention`."""

    value: str = ""

    kind: ClassVar[str] = "copy"

    def present(self) -> Expression | None:
        return number(0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (dkv,) = inputs
        return [*_apart(dkv, place.sizes[self.value] if self.value else 0)]


@dataclass(frozen=True)
class AddReceived(Operator):
    """The gradient of a rank's keys: its own turn's gradient added to the one that came with the keys.

    No gradient comes in the first turn. A turn that computes nothing adds nothing.
    """

    kind: ClassVar[str] = "elementwise"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        there = [x for x in inputs if x.size]
        return [np.sum(there, axis=0) if there else inputs[0]]


@dataclass(frozen=True)
class RingStep(Operator):
    """One turn: attention of this rank's queries to one rank's keys, merged into the result of the turns before.

    Operands: q, the packed keys of all ranks (gathered) or of the first turn, then (unless gathered) the received keys,
    context and log-sum-exp so far. back: the turns go from the last rank's keys to the rank's own. value: as in
    `RingAttention`; head, kv_heads: the axes of the other sizes.
    """

    gathered: bool
    axis: str = "cp"
    balanced: bool = True
    back: bool = False
    softcap: float = 0.0
    scale: float = 0.0
    value: str = ""
    head: str = "head_dim"
    kv_heads: str = "kv_heads"

    kind: ClassVar[str] = "attention"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})
    alike: ClassVar[str] = "a ring deals the queries and the keys of the same positions to its ranks"
    matmuls: ClassVar[int] = 2

    def turn(self) -> Expression:
        """How many ranks back the keys of this turn come from."""
        return symbol(self.axis) - 1 - STEP if self.back else STEP

    def rank(self) -> Expression:
        """This rank's place on the ring; if the ring is not all of cp, neighbours share a place."""
        return RANK if self.axis == "cp" else RANK // symbol("cpa")

    def present(self) -> Expression | None:
        return None if self.balanced else largest(self.rank() - self.turn() + 1, 0)

    def dims(self, size: Size) -> tuple[Expression, ...]:
        # Gathered keys cover the whole sequence. A turn reads those of one rank, as many as there are queries.
        queries = keys = size("seq")
        if self.balanced:
            earlier = smallest(largest(self.rank() - self.turn() + 1, 0), 1)  # or its own
            own = 1 - smallest(self.turn(), 1)
            queries, keys = size("seq") / 2 * (1 + earlier), size("seq") / 2 * (1 + largest(1 - earlier, own))
        values = (size(self.value),) if self.value else ()
        return size("batch"), size("heads"), size(self.kv_heads), queries, keys, size(self.head), *values

    def flops(self, size: Size) -> Expression:
        batch, heads, _, queries, keys, head_dim, *value = self.dims(size)
        pairs = 2 * batch * heads * queries * keys
        if not value:
            return pairs * self.matmuls * head_dim
        # Two of the five matmuls of a backward are over values, and so is one of the two of a forward.
        return pairs * ((self.matmuls + 1) // 2 * head_dim + self.matmuls // 2 * value[0])

    def apart(self, place: RankPlace) -> int:
        """How many ranks back the keys of this turn come from."""
        return place.degrees[self.axis] - 1 - place.step if self.back else place.step

    def parts(self, place: RankPlace, length: int) -> tuple[slice, slice]:
        """The queries and the keys of one rank's `length` that this turn computes."""
        if self.apart(place) == 0 or not self.balanced:
            return slice(None), slice(None)
        half = length // 2
        earlier = self.apart(place) <= place.member[self.axis]
        return (slice(None), slice(half)) if earlier else (slice(half, None), slice(None))

    def keys(self, place: RankPlace, first: Array, came: Array | None, length: int) -> tuple[Array, Array]:
        """Keys and values that this turn reads.

        first: this rank's own ones, or those of all ranks if they are gathered. came: those received in this turn.
        length: positions of one rank.
        """
        held = first if came is None else came
        if self.gathered:
            ranks = first.shape[1] // length
            at = (place.member[self.axis] - self.apart(place)) % ranks * length
            held = first[:, at : at + length]
        return _apart(held, place.sizes[self.value] if self.value else 0)

    @property
    def rules(self) -> ScoredPairs:
        """How queries score keys."""
        return ScoredPairs(softcap=self.softcap, scale=self.scale)

    def products(self, q: Array, k: Array) -> Array:
        """Scaled products of queries and keys.

        q, k: (batch, seq, heads, head_dim); k may have fewer heads. Returns (batch, heads, queries, keys).
        """
        return scaled_products(q, repeat_heads(k, q.shape[2]), self.rules.factor(q.shape[-1]))

    def scores(self, place: RankPlace, products: Array) -> Array:
        """Scores of these products; causal inside the rank's own part."""
        rows, heads = np.arange(products.shape[2]), np.arange(products.shape[1])
        scores = self.rules.scored(products, rows, heads, len(heads))
        if self.apart(place) == 0:
            scores = np.where(rows[None, :] <= rows[:, None], scores, -np.inf)
        return np.asarray(scores)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, first, *came, out, lse = inputs
        k, v = self.keys(place, first, came[0] if came and place.step else None, q.shape[1])
        rows, columns = self.parts(place, q.shape[1])
        q, k, v = q[:, rows], k[:, columns], v[:, columns]
        scores = self.scores(place, self.products(q, k))
        own = np.log(np.exp(scores - scores.max()).sum(axis=-1)) + scores.max()
        block = np.einsum("bhqk,bkhd->bqhd", np.exp(scores - own[..., None]), repeat_heads(v, q.shape[2]))
        if place.step == 0:
            return [block, own, np.zeros(3)]
        both = np.logaddexp(lse[:, :, rows], own)
        merged, total = out.copy(), lse.copy()
        old, new = (np.exp(x - both).transpose(0, 2, 1)[..., None] for x in (lse[:, :, rows], own))
        merged[:, rows], total[:, :, rows] = out[:, rows] * old + block * new, both
        return [merged, total, np.zeros(3)]


@dataclass(frozen=True)
class RingStepGradient(RingStep):
    """The backward of `RingStep`: adds one turn to dq, and makes the gradient of the keys that it has.

    Operands: the output's gradient, q, the packed keys, (unless gathered) the received keys, context, log-sum-exp,
    random state, dq so far. adds: also the gradient that came with the keys, to which it adds.
    """

    adds: bool = True

    matmuls: ClassVar[int] = 5

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dkv_came = inputs[-1] if self.adds else np.empty(0)
        do, q, first, *came, o, lse, _, dq_sum = inputs[:-1] if self.adds else inputs
        length, kv_heads, whole = q.shape[1], first.shape[2], q
        k, v = self.keys(place, first, came[0] if came and place.step else None, length)
        rows, columns = self.parts(place, length)
        q, k, v, do, o, lse = q[:, rows], k[:, columns], v[:, columns], do[:, rows], o[:, rows], lse[:, :, rows]
        heads = q.shape[2]
        products = self.products(q, k)
        p = np.exp(self.scores(place, products) - lse[..., None])
        dp = np.einsum("bqhd,bkhd->bhqk", do, repeat_heads(v, heads))
        ds = p * (dp - np.einsum("bqhd,bqhd->bhq", do, o)[..., None])
        ds = ds * self.rules.slope(products) * self.rules.factor(q.shape[-1])
        dq = dq_sum.copy() if dq_sum.size else np.zeros_like(whole)
        size = (k.shape[-1] + v.shape[-1],) if self.value else (2, k.shape[-1])
        dkv = dkv_came.copy() if dkv_came.size else np.zeros((*whole.shape[:2], kv_heads, *size), whole.dtype)
        dk, dv = _apart(dkv, place.sizes[self.value] if self.value else 0)  # views
        dq[:, rows] += np.einsum("bhqk,bkhd->bqhd", ds, repeat_heads(k, heads))
        dk[:, columns] += fold_heads(np.einsum("bhqk,bqhd->bkhd", ds, q), kv_heads)
        dv[:, columns] += fold_heads(np.einsum("bhqk,bqhd->bkhd", p, do), kv_heads)
        return [dq, dkv]


@dataclass(frozen=True)
class Contiguous(Operator):
    """A copy of the result in the order that the next matmul reads; its gradient is a view.

    A rank that merged only a part of its queries has the result in another order: all ranks but the last.
    """

    kind: ClassVar[str] = "copy"
    linear: ClassVar[bool] = True

    def present(self) -> Expression | None:
        return RANKS - 1 - RANK

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs


# Attention of one rank of cp with gathered keys, in calls for parts of its queries.


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
