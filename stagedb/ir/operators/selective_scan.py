"""The scan of Mamba-1 (Gu and Dao 2023): each channel has a state of its own, with a decay for each value of it.

Axes: (batch, seq, scan_inner), whose values are the channels. The state of a channel is a vector (scan_state). B and C
(batch, seq, scan_state) are those of all channels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, number
from stagedb.ir.operators._base import Array, Operator, RankPlace, Size, arriving, joined_gradient
from stagedb.ir.operators.activations import ACTIVATIONS
from stagedb.ir.operators.state_space import ChunkedScan, Gradients, Matmul, SplitParts
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

PIECE = 2048
"""Tokens behind which the kernel keeps a state, of which its backward makes those of the tokens before."""


@dataclass(frozen=True)
class SplitPair(Operator):
    """The two values of the last axis, which are views of the whole."""

    kind: ClassVar[str] = "copy"
    views: ClassVar[tuple[int, ...]] = (0, 1)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, JoinPair(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0][..., 0], inputs[0][..., 1]]


@dataclass(frozen=True)
class JoinPair(Operator):
    """Two tensors as the two values of a last axis."""

    kind: ClassVar[str] = "copy"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.stack(inputs, axis=-1)]


@dataclass(frozen=True)
class SplitShared(SplitParts):
    """The last axis in three parts, which all channels read. Where ranks have shares of gradients, the joined one is
    reduced."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, JoinShared(), grads)


@dataclass(frozen=True)
class JoinShared(Operator):
    """Tensors joined along their last axes."""

    kind: ClassVar[str] = "copy"
    linear: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.concatenate(inputs, axis=-1)]


@dataclass(frozen=True)
class SelectiveScan(ChunkedScan):
    """The recurrence of Mamba-1, `S = exp(Δ·A)·S + Δ·B·x` and `y = S·C + D·x`, and then `y · silu(z)`, in one kernel.

    Operands: x, dt and the gates z (batch, seq, inner); B and C (batch, seq, state); A_log (inner, state), D and the
    bias of dt (inner), where `A = -exp(A_log)` and `Δ = softplus(dt + bias)`. Results: the gated values; and what the
    backward reads: y, and (batch, inner, pieces, pair, state) behind each piece of `PIECE` tokens the product of their
    decays and the state. keeps: requests keep states (batch, inner, state), in place of those two.

    FLOPs are those of its matmul for each token: its channels' states with C, `[inner, 1, N]`.
    """

    keeps: bool = False

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Sequences, channels, tokens, size of the state."""
        return size("batch"), size("scan_inner"), size("seq"), size("scan_state")

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        batch, inner, tokens, state = dims
        return ((tokens, batch, inner, number(1), state),)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), *op.inputs, *op.outputs[1:])
        name = f"{op.name}.input_gradient"
        tracer.emit(name, SelectiveScanGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        scan = _SelectiveScan.of(inputs)
        held = inputs[8] if len(inputs) > 8 else np.zeros((*scan.x[:, 0].shape, scan.b.shape[-1]))
        states = scan.states(held)
        y = np.einsum("btin,btn->bti", states[:, 1:], scan.c) + scan.x * inputs[6]
        gated = y * ACTIVATIONS["silu"][0](inputs[2])
        return [gated, states[:, -1]] if self.keeps else [gated, y, scan.pieces(states)]


@dataclass(frozen=True)
class _SelectiveScan:
    """x, step (Δ): (batch, seq, inner). b, c: (batch, seq, state). rate (A): (inner, state)."""

    x: Array
    b: Array
    c: Array
    step: Array
    rate: Array

    @classmethod
    def of(cls, inputs: list[Array]) -> "_SelectiveScan":
        x, dt, _, b, c, a_log, _, bias = inputs[:8]
        return cls(x, b, c, np.logaddexp(0, dt + bias), -np.exp(a_log))

    def decay(self, at: int | slice) -> Array:
        """exp(Δ·A) of a token, or of several."""
        return np.asarray(np.exp(self.step[:, at, ..., None] * self.rate))

    def states(self, first: Array) -> Array:
        """The state before the first token, and behind each."""
        made = [first]
        for at in range(self.x.shape[1]):
            added = (self.step[:, at] * self.x[:, at])[..., None] * self.b[:, at, None]
            made.append(made[-1] * self.decay(at) + added)
        return np.stack(made, axis=1)

    def pieces(self, states: Array) -> Array:
        """Behind each piece: the product of the decays of its tokens, and the state."""
        tokens = self.x.shape[1]
        found = []
        for at in range(0, tokens, PIECE):
            end = min(at + PIECE, tokens)
            found.append(np.stack([self.decay(slice(at, end)).prod(axis=1), states[:, end]], axis=-2))
        return np.stack(found, axis=2)


@dataclass(frozen=True)
class SelectiveScanGradient(SelectiveScan):
    """The backward of `SelectiveScan`: the gradients of all operands of the scan, with its states made again.

    FLOPs: two matmuls for each of the forward; states have none.
    """

    runs: ClassVar[tuple[int, ...]] = (2,)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        own, y = inputs[1:9], inputs[9]
        scan, (value, slope) = _SelectiveScan.of(own), ACTIVATIONS["silu"]
        states = scan.states(np.zeros((*scan.x[:, 0].shape, scan.b.shape[-1])))
        dz, dy = inputs[0] * y * slope(own[2]), inputs[0] * value(own[2])
        dc = np.einsum("bti,btin->btn", dy, states[:, 1:])
        dx, d_step, db = dy * own[6], np.zeros_like(scan.step), np.zeros_like(scan.b)
        d_rate, d_state = np.zeros_like(scan.rate), np.zeros_like(states[:, 0])
        for at in reversed(range(scan.x.shape[1])):
            d_state = d_state + dy[:, at, :, None] * scan.c[:, at, None]
            into = np.einsum("bin,bn->bi", d_state, scan.b[:, at])
            dx[:, at] += into * scan.step[:, at]
            db[:, at] = np.einsum("bin,bi->bn", d_state, scan.step[:, at] * scan.x[:, at])
            d_exponent = d_state * states[:, at] * scan.decay(at)
            d_step[:, at] = into * scan.x[:, at] + (d_exponent * scan.rate).sum(axis=-1)
            d_rate += (d_exponent * scan.step[:, at, :, None]).sum(axis=0)
            d_state = d_state * scan.decay(at)
        d_dt = d_step / (1 + np.exp(-(own[1] + own[7])))
        over = (0, 1)
        return [dx, d_dt, dz, db, dc, d_rate * scan.rate, (dy * scan.x).sum(axis=over), d_dt.sum(axis=over)]


OPERATORS: tuple[type[Operator], ...] = (
    JoinPair,
    JoinShared,
    SelectiveScan,
    SelectiveScanGradient,
    SplitPair,
    SplitShared,
)
"""The operators of this module."""
