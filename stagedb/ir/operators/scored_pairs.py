"""The rules by which queries score keys: masks, windows, caps, biases, sinks."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagedb.ir.expressions import Expression, ceiling, number, smallest, symbol
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace

if TYPE_CHECKING:
    from stagedb.ir.tensors import Tensor


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

    def seen(self, rows: Array, columns: Array) -> Array:
        """Whether the query of each row sees the key of each column, by their positions. It sees no later key.

        rows, columns: positions in the sequence. Returns a bool for each pair (rows, columns).
        """
        apart = rows[:, None] - columns[None, :]
        found = apart >= 0
        if self.window is not None:
            found &= apart < self.window
        if self.chunk_tokens is not None:
            found &= rows[:, None] // self.chunk_tokens == columns[None, :] // self.chunk_tokens
        return np.asarray(found)

    def keys_seen(self, keys: Expression) -> Expression:
        """The number of keys with which a kernel scores a query. keys: those before the query, its own included."""
        for limit in (self.window, self.chunk_tokens):
            keys = keys if limit is None else smallest(keys, limit)
        return keys

    def keys_reached(self, queries: Expression, keys: Expression) -> Expression:
        """The number of keys that any query of a part of the sequence sees.

        queries: the last so many positions. keys: all positions.
        """
        reached = keys if self.window is None else smallest(keys, queries + self.window - 1)
        if self.chunk_tokens is None:
            return reached
        return smallest(reached, keys - (keys - queries) // self.chunk_tokens * self.chunk_tokens)

    def pairs_seen(self, positions: int) -> int:
        """The number of pairs of a query and a key that no mask leaves out: the sum of `seen`. positions: of the
        sequence.
        """
        chunk = min(self.chunk_tokens or positions, positions)
        whole, rest = divmod(positions, chunk)
        return whole * _in_window(chunk, self.window) + _in_window(rest, self.window)

    def factor(self, head_dim: int) -> float:
        """The factor of the products of queries and keys.

        head_dim: the width of a head, whose root divides the products if no scale is set.
        """
        return self.scale or 1 / math.sqrt(head_dim)

    def scored(self, products: Array, rows: Array, heads: Array, all_heads: int, columns: Array | None = None) -> Array:
        """Scores (batch, heads, queries, keys) from scaled products, before the mask. rows: positions of queries.

        heads: the numbers of the heads that this rank has. all_heads: how many the layer has, on which ALiBi's slopes
        depend. columns: positions of keys; None: from the first one on.
        """
        scores = self.softcap * np.tanh(products / self.softcap) if self.softcap else products
        if not self.alibi:
            return scores
        apart = (np.arange(scores.shape[-1]) if columns is None else columns)[None, :] - rows[:, None]
        return np.asarray(scores + slopes(all_heads)[heads][:, None, None] * apart)

    def slope(self, products: Array) -> Array | float:
        """The derivative of scores by scaled products."""
        return 1 - np.tanh(products / self.softcap) ** 2 if self.softcap else 1.0


def _in_window(positions: int, window: int | None) -> int:
    """The number of pairs of a query and a key in a causal window, or in a causal mask if `window` is None."""
    window = min(window or positions, positions)
    return window * (window + 1) // 2 + (positions - window) * window


def slopes(heads: int) -> Array:
    """ALiBi's slope of each head: powers of two, and between them those of twice as many heads (Press et al. 2022)."""
    power = 2 ** int(math.log2(heads))
    found = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    more = [2 ** (-8 * (n + 1) / (2 * power)) for n in range(0, 2 * power, 2)]
    return np.asarray(found + more[: heads - power])


def scaled_products(q: Array, k: Array, factor: float) -> Array:
    """Scaled products (batch, heads, queries, keys).

    q, k: (batch, seq, heads, head_dim). factor: multiplies each product.
    """
    return np.asarray(np.einsum("bqhd,bkhd->bhqk", q, k) * factor)


def heads_here(place: RankPlace) -> Array:
    """The numbers of the heads of a rank."""
    return place.indices("heads")


def log_sum(scores: Array, sinks: Array | None) -> Array:
    """The log of the sum of exponentials of each row, that of its head's sink included.

    scores: (batch, heads, queries, keys). sinks: one for each head; None without. Returns (batch, heads, queries).
    """
    top = scores.max(axis=-1, initial=-np.inf)
    if sinks is not None:
        top = np.maximum(top, sinks[:, None])
    top = np.where(top == -np.inf, 0, top)  # a rank may have no key that a query sees
    total = np.exp(scores - top[..., None]).sum(axis=-1)
    if sinks is not None:
        total = total + np.exp(sinks[:, None] - top)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(total))


# Attention of ranks that share the cache of each request: every rank has the keys of every cp-th position.
#
# Position p is on rank p modulo cp, as engines interleave the tokens of a cache (vLLM's decode context parallelism with
# an interleave of 1). All ranks have all queries. Each makes the context of its own keys, with their log-sum-exp; the
# log-sum-exps are gathered, each context is scaled by what its keys have of all exponentials, and the sum over ranks is
# the context of all keys (vLLM's `cp_lse_ag_out_ar`; the scaling is its `correct_attn_out`).

EVERY_PART, ADDED = "every_key_part", "added"
"""The axis of the parts of a sequence's keys where a rank has those of all ranks of cp, and that of the new positions
that are on a rank."""


def dealt(last: Expression, positions: Expression) -> Expression:
    """How many of the last positions of a sequence a rank of cp has.

    last: the number of these positions. positions: of the sequence. Expressions have the rank on cp as `cp_rank`,
    counted from 1; the first one has the most.
    """
    return before(positions) - before(positions - last)


def before(position: Expression) -> Expression:
    """How many positions before one a rank of cp has. position: counted from 0."""
    if position == number(0):
        return number(0)
    return ceiling((position + 1 - symbol("cp_rank")) / symbol("cp"))


def places(place: RankPlace, positions: Array) -> Array:
    """Which of some positions are on a rank, as bools. positions: counted from 0."""
    return np.asarray(positions % place.degrees["cp"] == place.member["cp"])


def dealt_positions(place: RankPlace, keys: int) -> Array:
    """The positions of a rank's keys, in order. keys: how many it has."""
    return np.asarray(place.member["cp"] + place.degrees["cp"] * np.arange(keys))


@dataclass(frozen=True)
class ScaleByParts(Operator):
    """A rank's context, scaled by what its keys have of the exponentials of all keys, so that ranks add them up.

    Operands: the context of the rank's keys (key_parts, batch, seq, heads, value), and the log-sum-exps of the keys of
    all ranks (every_key_part, batch, heads, seq).
    """

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        context, sums = (t.axes for t in inputs)
        return (context, (EVERY_PART, *sums[1:])), tuple(t.axes for t in outputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        context, sums = inputs
        share = np.exp(sums[place.member["cp"]] - _together(sums))
        return [context[0] * share.transpose(0, 2, 1)[..., None]]


@dataclass(frozen=True)
class SumOfParts(Operator):
    """The log-sum-exp of all keys from those of the keys of each rank: (every_key_part, batch, heads, seq)."""

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return tuple((EVERY_PART, *t.axes[1:]) for t in inputs), tuple(t.axes for t in outputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [_together(inputs[0])]


def _together(sums: Array) -> Array:
    """The log-sum-exp over the first axis."""
    top = sums.max(axis=0)
    return np.asarray(top + np.log(np.exp(sums - top).sum(axis=0)))
