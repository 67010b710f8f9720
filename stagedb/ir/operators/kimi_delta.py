"""The delta rule with a decay for each channel of a key (Kimi Linear, arXiv 2510.26692): Kimi delta attention.

Axes: queries, keys and values in one tensor (batch, seq, kda_heads, rows). The rows of a head are its query, its key
and its values, each of the size `kda_dim`. A head's state is a matrix (kda_dim, kda_value).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, ceiling, number
from stagedb.ir.operators._base import Array, Operator, RankPlace, Size, fused_gradient
from stagedb.ir.operators.delta_rule import UNDER_ROOT, of_norm
from stagedb.ir.operators.state_space import ChunkedScan, Gradients, Matmul

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


@dataclass(frozen=True)
class KimiDeltaScan(ChunkedScan):
    """`S = Diag(α)·S; S = S + β·k·(v - Sᵀk)ᵀ; y = Sᵀq`, of normalised queries and keys, with `β = sigmoid(b)`.

    Operands: queries, keys and values as the convolution leaves them; b (batch, seq, heads); f (batch, seq, heads,
    dim); A_log (heads), and the bias of f (heads, dim), of which `α = exp(-exp(A_log)·softplus(f + bias))`. Queries are
    divided by the root of their size too. Results: y (batch, seq, heads, dim); and what the backward reads: the
    exponents of α summed from the beginning of each chunk (batch, seq, heads, dim), and (batch, seq, heads, chunk) the
    inverse of each chunk's triangular system, and the scores of queries with keys.

    FLOPs are those of its matmuls over chunks of `chunk` tokens, of which the last one is padded, for each head: keys
    with keys, and queries with keys, `[Q, Q, D]`; the inverse times values, and times keys, `[Q, D, Q]`; results of the
    state, and what it predicts of values, `[Q, D, D]`; results inside a chunk `[Q, D, Q]`; the state's update
    `[D, D, Q]`. The solution of the triangular system is no matmul, and neither is what one token alone (`one`) does.
    keeps: requests keep states (batch, heads, dim, value), in place of what the backward reads.
    """

    chunk: int
    keeps: bool = False
    one: bool = False

    sums: ClassVar[int] = 2

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Sequences of all heads, chunks, tokens of a chunk, size of a key and of values. Empty for one token."""
        if self.one:
            return ()
        heads = size("batch") * size("kda_heads")
        return heads, ceiling(size("seq") / self.chunk), number(self.chunk), size("kda_dim")

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        if not dims:
            return ()
        heads, chunks, tokens, dim = dims
        once, every = number(1), heads * chunks
        return (
            (once, every, tokens, tokens, dim),
            (once, every, tokens, tokens, dim),
            (once, every, tokens, dim, tokens),
            (once, every, tokens, dim, tokens),
            (chunks, heads, tokens, dim, dim),
            (chunks, heads, tokens, dim, dim),
            (chunks, heads, tokens, dim, tokens),
            (chunks, heads, dim, dim, tokens),
        )

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from fused_gradient(tracer, op, KimiDeltaScanGradient(self.chunk), grads[:1], op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        found = _ChannelDelta.of(inputs)
        y, state = np.zeros_like(found.v), inputs[5] if len(inputs) > 5 else np.zeros(found.state)
        for at in range(found.v.shape[1]):
            state, _ = found.learned(at, state)
            y[:, at] = np.einsum("bhk,bhkv->bhv", found.q[:, at], state)
        return [y, state] if self.keeps else [y, *found.chunks(self.chunk)]


@dataclass(frozen=True)
class _ChannelDelta:
    """q, k: (batch, seq, heads, dim), normalised. v: alike. beta: (batch, seq, heads). exponent: of α, as k.

    roots: 1 over the norms of queries and of keys.
    """

    q: Array
    k: Array
    v: Array
    beta: Array
    exponent: Array
    roots: tuple[Array, Array]

    @classmethod
    def of(cls, inputs: list[Array]) -> "_ChannelDelta":
        qkv, b, f, a_log, bias = inputs[:5]
        q, k, v = np.split(qkv, 3, axis=-1)
        roots = tuple(1 / np.sqrt((each**2).sum(axis=-1, keepdims=True) + UNDER_ROOT) for each in (q, k))
        exponent = -np.exp(a_log)[:, None] * np.logaddexp(0, f + bias)
        scaled = q * roots[0] / np.sqrt(q.shape[-1])
        return cls(scaled, k * roots[1], v, 1 / (1 + np.exp(-b)), exponent, (roots[0], roots[1]))

    @property
    def state(self) -> tuple[int, ...]:
        batch, _, heads, dim = self.k.shape
        return batch, heads, dim, dim

    def learned(self, at: int, state: Array) -> tuple[Array, Array]:
        """The state after a token, and what it did not predict of the token's values."""
        kept = state * np.exp(self.exponent[:, at, ..., None])
        left = self.v[:, at] - np.einsum("bhk,bhkv->bhv", self.k[:, at], kept)
        return kept + np.einsum("bhk,bhv->bhkv", self.k[:, at], left * self.beta[:, at, ..., None]), left

    def chunks(self, chunk: int) -> tuple[Array, Array, Array]:
        """The exponents summed within chunks, the inverse of each chunk's triangular system, and its scores."""
        summed = np.zeros_like(self.exponent)
        inverse, scores = (np.zeros((*self.beta.shape, chunk)) for _ in range(2))
        for start in range(0, self.v.shape[1], chunk):
            rows = slice(start, start + chunk)
            sums = self.exponent[:, rows].cumsum(axis=1)
            summed[:, rows] = sums
            apart = np.exp(np.minimum(sums[:, :, None] - sums[:, None, :], 0))
            decayed = self.k[:, None, rows] * apart
            keys = np.tril(np.einsum("bihk,bijhk->bhij", self.k[:, rows], decayed), -1)
            system = np.eye(keys.shape[-1]) + keys * np.moveaxis(self.beta[:, rows], 1, -1)[..., None]
            inverse[:, rows, :, : keys.shape[-1]] = np.moveaxis(np.linalg.inv(system), 2, 1)
            found = np.tril(np.einsum("bihk,bijhk->bhij", self.q[:, rows], decayed))
            scores[:, rows, :, : keys.shape[-1]] = np.moveaxis(found, 2, 1)
        return summed, inverse, scores


@dataclass(frozen=True)
class KimiDeltaScanGradient(KimiDeltaScan):
    """The backward of `KimiDeltaScan`: the gradients of all operands, with the inverse's products, predictions and
    states made again.

    Each matmul of the forward has two; the inverse's products, predictions and updates of the state run once more (fla,
    `chunk_kda_bwd`).
    """

    runs: ClassVar[tuple[int, ...]] = (2, 2, 3, 3, 2, 3, 2, 3)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        found = _ChannelDelta.of(inputs[1:6])
        dy, (_, _, f, a_log, bias) = inputs[0], inputs[1:6]
        states, errors = [np.zeros(found.state)], []
        for at in range(found.v.shape[1]):
            state, left = found.learned(at, states[-1])
            states.append(state)
            errors.append(left)
        made = [np.zeros_like(each) for each in (found.q, found.k, found.v, found.beta, found.exponent)]
        d_state = np.zeros(found.state)
        for at in reversed(range(found.v.shape[1])):
            d_state = _one_token(found, made, at, dy[:, at], d_state, states, errors[at])
        dq, dk, dv, d_beta, d_exponent = made
        size = np.sqrt(dq.shape[-1])
        dq, dk = of_norm(dq / size, found.q * size, found.roots[0]), of_norm(dk, found.k, found.roots[1])
        db = d_beta * found.beta * (1 - found.beta)
        df = -d_exponent * np.exp(a_log)[:, None] / (1 + np.exp(-(f + bias)))
        d_rate = (d_exponent * found.exponent).sum(axis=(0, 1, -1))
        return [np.concatenate([dq, dk, dv], axis=-1), db, df, d_rate, df.sum(axis=(0, 1))]


def _one_token(
    found: _ChannelDelta, made: list[Array], at: int, dy: Array, d_state: Array, states: list[Array], left: Array
) -> Array:
    """One step of the backward through the scan: from the gradient of the state behind a token to that of the state
    before it.

    made: the gradients of the scan's operands, to which those of the token are written.
    """
    dq, dk, dv, d_beta, d_exponent = made
    q, k, beta = found.q[:, at], found.k[:, at], found.beta[:, at, ..., None]
    decay = np.exp(found.exponent[:, at, ..., None])
    d_state = d_state + np.einsum("bhk,bhv->bhkv", q, dy)
    dq[:, at] = np.einsum("bhkv,bhv->bhk", states[at + 1], dy)
    d_step = np.einsum("bhk,bhkv->bhv", k, d_state)
    d_left = d_step * beta
    dk[:, at] = np.einsum("bhkv,bhv->bhk", d_state, left * beta)
    dk[:, at] -= np.einsum("bhkv,bhv->bhk", states[at] * decay, d_left)
    dv[:, at] = d_left
    d_beta[:, at] = (d_step * left).sum(axis=-1)
    d_kept = d_state - np.einsum("bhk,bhv->bhkv", k, d_left)
    d_exponent[:, at] = (d_kept * states[at] * decay).sum(axis=-1)
    return np.asarray(d_kept * decay)


OPERATORS: tuple[type[Operator], ...] = (KimiDeltaScan, KimiDeltaScanGradient)
"""The operators of this module."""
