"""The gated delta rule (Yang et al. 2025; Qwen3-Next): a state that forgets, and that learns what it does not predict.

Axes: queries, keys and values in one tensor (batch, seq, delta_groups, rows). The rows of a group are a query, a key,
and the values of the heads that share them. A head's state is a matrix (delta_key, delta_value).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, ceiling, number
from stagedb.ir.operators._base import Array, Operator, RankPlace, Size, fused_gradient
from stagedb.ir.operators.state_space import ChunkedScan, Gradients, Matmul

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

UNDER_ROOT = 1e-6
"""What is added to the sum of squares of a query or key before the root."""


@dataclass(frozen=True)
class DeltaScan(ChunkedScan):
    """`S = α·S; S = S + β·k·(v - Sᵀk)ᵀ; y = Sᵀq`, of normalised queries and keys, with `β = sigmoid(b)`.

    negative: β is twice as large, so that a state may change its sign along a key (Grazzi et al. 2025).

    Operands: queries, keys and values as the convolution leaves them; b and a (batch, seq, groups, heads); A_log and
    the bias of a (groups, heads), of which `α = exp(-exp(A_log)·softplus(a + bias))`. Queries are divided by the root
    of their size too. Results: y (batch, seq, groups, values); and what the backward reads: the exponents of α summed
    from the beginning of each chunk, and (batch, seq, groups, heads, chunk) the inverse of each chunk's triangular
    system.

    FLOPs are those of its matmuls over chunks of `chunk` tokens, of which the last one is padded, for each head: keys
    with keys, and queries with keys, `[Q, Q, K]`; what the state predicts of values, and its results, `[Q, V, K]`;
    results inside a chunk `[Q, V, Q]`; the state's update `[K, V, Q]`. The solution of the triangular system is no
    matmul, and neither is what one token alone (`one`) does. keeps: requests keep states (batch, groups, heads, key,
    value), in place of the sums and the inverses.
    """

    chunk: int
    keeps: bool = False
    one: bool = False
    negative: bool = False

    @property
    def most(self) -> float:
        """The largest β."""
        return 2.0 if self.negative else 1.0

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Sequences of all heads, chunks, tokens of a chunk, size of a key, size of a head of values.

        Empty for one token.
        """
        if self.one:
            return ()
        heads = size("batch") * size("delta_groups") * size("delta_heads")
        return heads, ceiling(size("seq") / self.chunk), number(self.chunk), size("delta_key"), size("delta_value")

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        if not dims:
            return ()
        heads, chunks, tokens, key, value = dims
        once, every = number(1), heads * chunks
        return (
            (once, every, tokens, tokens, key),
            (once, every, tokens, tokens, key),
            (chunks, heads, tokens, value, key),
            (chunks, heads, tokens, value, key),
            (chunks, heads, tokens, value, tokens),
            (chunks, heads, key, value, tokens),
        )

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        operator = DeltaScanGradient(self.chunk, negative=self.negative)
        yield from fused_gradient(tracer, op, operator, grads[:1], op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        found = _Delta.of(place, inputs, self.most)
        y, state = np.zeros_like(found.v), inputs[5] if len(inputs) > 5 else np.zeros(found.state)
        for at in range(found.v.shape[1]):
            state, _ = found.learned(at, state)
            y[:, at] = np.einsum("bgk,bghkv->bghv", found.q[:, at], state)
        made = y.reshape(*y.shape[:3], -1)
        return [made, state] if self.keeps else [made, *found.chunks(self.chunk)]


@dataclass(frozen=True)
class _Delta:
    """q, k: (batch, seq, groups, key), normalised. v: (batch, seq, groups, heads, value). beta, exponent: of heads.

    roots: 1 over the norms of queries and of keys.
    """

    q: Array
    k: Array
    v: Array
    beta: Array
    exponent: Array
    roots: tuple[Array, Array]

    @classmethod
    def of(cls, place: RankPlace, inputs: list[Array], most: float) -> "_Delta":
        qkv, b, a, a_log, bias = inputs[:5]
        key = (qkv.shape[-1] - place.sizes["delta_values"]) // 2
        q, k, v = np.split(qkv, (key, 2 * key), axis=-1)
        roots = tuple(1 / np.sqrt((each**2).sum(axis=-1, keepdims=True) + UNDER_ROOT) for each in (q, k))
        exponent = -np.exp(a_log) * np.logaddexp(0, a + bias)
        beta = most / (1 + np.exp(-b))
        scaled = q * roots[0] / np.sqrt(key)
        return cls(scaled, k * roots[1], v.reshape(*b.shape, -1), beta, exponent, (roots[0], roots[1]))

    @property
    def state(self) -> tuple[int, ...]:
        batch, _, groups, heads, value = self.v.shape
        return batch, groups, heads, self.k.shape[-1], value

    def learned(self, at: int, state: Array) -> tuple[Array, Array]:
        """The state after a token, and what it did not predict of the token's values."""
        kept = state * np.exp(self.exponent[:, at, ..., None, None])
        left = self.v[:, at] - np.einsum("bgk,bghkv->bghv", self.k[:, at], kept)
        step = left * self.beta[:, at, ..., None]
        return kept + np.einsum("bgk,bghv->bghkv", self.k[:, at], step), left

    def chunks(self, chunk: int) -> tuple[Array, Array]:
        """The exponents summed within chunks, and the inverse of each chunk's triangular system, row by row."""
        summed, inverse = np.zeros_like(self.exponent), np.zeros((*self.exponent.shape, chunk))
        for start in range(0, self.v.shape[1], chunk):
            rows = slice(start, start + chunk)
            sums = self.exponent[:, rows].cumsum(axis=1)
            summed[:, rows] = sums
            apart = np.einsum("bighm->bghim", sums[..., None]) - np.einsum("bjghm->bghmj", sums[..., None])
            products = np.einsum("bigk,bjgk->bgij", self.k[:, rows], self.k[:, rows])[:, :, None]
            system = np.tril(products * np.exp(np.minimum(apart, 0)), -1)
            system = np.eye(system.shape[-1]) + system * np.moveaxis(self.beta[:, rows], 1, -1)[..., None]
            inverse[:, rows, ..., : system.shape[-1]] = np.moveaxis(np.linalg.inv(system), -2, 1)
        return summed, inverse


@dataclass(frozen=True)
class DeltaScanGradient(DeltaScan):
    """The backward of `DeltaScan`: the gradients of all operands, with products of keys and queries, and states, made
    again.

    Each matmul of the forward has two; products with keys, predictions and updates of the state run once more (fla,
    `chunk_gated_delta_rule_bwd`).
    """

    runs: ClassVar[tuple[int, ...]] = (3, 3, 3, 2, 2, 3)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        own = inputs[1:6]
        found = _Delta.of(place, own, self.most)
        dy, (_, _, a, a_log, bias) = inputs[0].reshape(found.v.shape), own
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
        dq = of_norm(dq / np.sqrt(dq.shape[-1]), found.q * np.sqrt(dq.shape[-1]), found.roots[0])
        dk = of_norm(dk, found.k, found.roots[1])
        db = d_beta * found.beta * (1 - found.beta / self.most)
        da = -d_exponent * np.exp(a_log) / (1 + np.exp(-(a + bias)))
        d_rate = (d_exponent * found.exponent).sum(axis=(0, 1))
        return [np.concatenate([dq, dk, dv.reshape(*dv.shape[:3], -1)], axis=-1), db, da, d_rate, da.sum(axis=(0, 1))]


def _one_token(
    found: _Delta, made: list[Array], at: int, dy: Array, d_state: Array, states: list[Array], left: Array
) -> Array:
    """The gradient of the state before a token, from that of the state behind it. made: gets those of its operands."""
    dq, dk, dv, d_beta, d_exponent = made
    q, k, beta = found.q[:, at], found.k[:, at], found.beta[:, at, ..., None]
    decay = np.exp(found.exponent[:, at, ..., None, None])
    d_state = d_state + np.einsum("bgk,bghv->bghkv", q, dy)
    dq[:, at] = np.einsum("bghkv,bghv->bgk", states[at + 1], dy)
    d_step = np.einsum("bgk,bghkv->bghv", k, d_state)
    d_left = d_step * beta
    dk[:, at] = np.einsum("bghkv,bghv->bgk", d_state, left * beta)
    dk[:, at] -= np.einsum("bghkv,bghv->bgk", states[at] * decay, d_left)
    dv[:, at] = d_left
    d_beta[:, at] = (d_step * left).sum(axis=-1)
    d_kept = d_state - np.einsum("bgk,bghv->bghkv", k, d_left)
    d_exponent[:, at] = (d_kept * states[at] * decay).sum(axis=(-1, -2))
    return np.asarray(d_kept * decay)


def of_norm(dy: Array, y: Array, root: Array) -> Array:
    """The gradient of x, where y = x · root and root is 1 over the norm of x. dy: the gradient of y."""
    return np.asarray(root * (dy - y * (y * dy).sum(axis=-1, keepdims=True)))


OPERATORS: tuple[type[Operator], ...] = (DeltaScan, DeltaScanGradient)
"""The operators of this module."""
