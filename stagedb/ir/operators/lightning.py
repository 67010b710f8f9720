"""Lightning attention (MiniMax-01, arXiv 2501.08313): linear attention with constant decays.

Axes: queries, keys and values in one tensor (batch, seq, lightning_heads, rows). The rows of a head are its query, its
key and its values, each of the size `lightning_dim`. A head's state is a matrix (lightning_dim, lightning_value).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, number
from stagedb.ir.operators._base import Array, Operator, RankPlace, Size, arriving
from stagedb.ir.operators.state_space import ChunkedScan, Gradients, Matmul
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

HEADS = "lightning_heads"

SMALL = 1e-5
"""What the share of a layer in the decays of its heads is larger by, so that no layer keeps everything."""


@dataclass(frozen=True)
class LightningScan(ChunkedScan):
    """`S = λ·S + k·vᵀ; y = Sᵀq`, where λ is a constant of the head and of the layer.

    Head h of H, in layer l of L, has `λ = exp(-2^(-8·(h + 1) / H) · (1 - l / (L - 1)))`, with 10⁻⁵ more in the last
    factor. The operand is queries, keys and values behind their function; the result (batch, seq, heads, dim). The
    backward reads the operand alone.

    FLOPs are those of its matmuls over chunks of `chunk` tokens, of which the last one may be shorter, for each head:
    queries with keys `[Q, Q, D]`, those scores with values `[Q, D, Q]`, queries with the state `[Q, D, D]`, and what
    the chunk adds to the state `[D, D, Q]`. One token alone (`one`) is added to the state, which its query reads:
    `[D, D, 1]` and `[1, D, D]`. layers: L. keeps: requests keep states (batch, heads, dim, value).
    """

    chunk: int
    layers: int
    keeps: bool = False
    one: bool = False

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Sequences of all heads, whole chunks, tokens of a chunk, tokens of the rest, size of a head."""
        seq, whole = size("seq"), size("seq") // self.chunk
        heads = size("batch") * size(HEADS)
        return heads, whole, number(self.chunk), seq - whole * self.chunk, size("lightning_dim")

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        heads, whole, chunk, rest, dim = dims
        once = number(1)
        if self.one:
            return ((once, heads, dim, dim, once), (once, heads, once, dim, dim))
        pieces = ((whole, chunk), (once, rest))
        return tuple(
            (count, heads, *matmul)
            for count, tokens in pieces
            for matmul in ((tokens, tokens, dim), (tokens, dim, tokens), (tokens, dim, dim), (dim, dim, tokens))
        )

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        operator = LightningScanGradient(self.chunk, self.layers)
        tracer.emit(made.name, operator, (arriving(grads), op.inputs[0]), made, template=INPUT_GRADIENT)
        yield 0, made

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        q, k, v = np.split(inputs[0], 3, axis=-1)
        y, decay = np.zeros_like(v), self._decays(place)
        state = inputs[1] if len(inputs) > 1 else np.zeros((*v[:, 0].shape, v.shape[-1]))
        for at in range(v.shape[1]):
            state = state * decay + np.einsum("bhk,bhv->bhkv", k[:, at], v[:, at])
            y[:, at] = np.einsum("bhk,bhkv->bhv", q[:, at], state)
        return [y, state] if self.keeps else [y]

    def _decays(self, place: RankPlace) -> Array:
        """λ of this rank's heads, (heads, 1, 1)."""
        rates = 2.0 ** (-8 * (place.indices(HEADS) + 1) / place.sizes[HEADS])
        share = 1 - place.layer / (self.layers - 1 + SMALL) + SMALL
        return np.asarray(np.exp(-rates * share)[:, None, None])


@dataclass(frozen=True)
class LightningScanGradient(LightningScan):
    """The backward of `LightningScan`: the gradient of queries, keys and values, with scores and states made again
    (fla, `chunk_simple_gla_bwd`).
    """

    runs: ClassVar[tuple[int, ...]] = (3, 2, 2, 3) * 2

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, (q, k, v) = inputs[0], np.split(inputs[1], 3, axis=-1)
        decay, states = self._decays(place), [np.zeros((*v[:, 0].shape, v.shape[-1]))]
        for at in range(v.shape[1]):
            states.append(states[-1] * decay + np.einsum("bhk,bhv->bhkv", k[:, at], v[:, at]))
        dq, dk, dv, d_state = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros_like(states[0])
        for at in reversed(range(v.shape[1])):
            dq[:, at] = np.einsum("bhv,bhkv->bhk", dy[:, at], states[at + 1])
            d_state = d_state + np.einsum("bhk,bhv->bhkv", q[:, at], dy[:, at])
            dk[:, at] = np.einsum("bhv,bhkv->bhk", v[:, at], d_state)
            dv[:, at] = np.einsum("bhk,bhkv->bhv", k[:, at], d_state)
            d_state = d_state * decay
        return [np.concatenate([dq, dk, dv], axis=-1)]


OPERATORS: tuple[type[Operator], ...] = (LightningScan, LightningScanGradient)
"""The operators of this module."""
