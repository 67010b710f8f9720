"""State-space layers (Dao and Gu 2024, Mamba-2): the short convolution, the scan in chunks, and the gated norm.

Heads are in groups, which share B and C. Axes: (batch, seq, scan_groups, rows). The rows of a group are its heads'
values, then B and C, each of the size of the state. A head's state is a matrix (scan_dim, scan_state).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, ceiling, number, product, total
from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import Array, Operator, RankPlace, Size, arriving, fused_gradient, joined_gradient
from stagedb.ir.operators.activations import ACTIVATIONS
from stagedb.ir.operators.latent import JoinLast
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


@dataclass(frozen=True)
class SplitParts(Operator):
    """The last axis in three parts, the axes `parts`, which are views of the whole."""

    parts: tuple[str, ...]

    kind: ClassVar[str] = "copy"
    views: ClassVar[tuple[int, ...]] = (0, 1, 2)

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, JoinLast(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        ends = np.cumsum([place.sizes[part] for part in self.parts[:-1]])
        return list(np.split(inputs[0], ends, axis=-1))


@dataclass(frozen=True)
class JoinParts(Operator):
    """Three tensors along their last axes `parts`; their gradients are views of that of the whole."""

    parts: tuple[str, ...]

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        name = f"{op.name}.input_gradient"
        tracer.emit(name, SplitParts(self.parts), (arriving(grads),), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.concatenate(inputs, axis=-1)]


@dataclass(frozen=True)
class ScaledParts(Operator):
    """The parts of the last axis, each times its factor: one kernel with a constant vector.

    parts: the axes that have their sizes; empty ones are equal parts of the rest.
    """

    parts: tuple[str, ...]
    factors: tuple[float, ...]

    linear: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        operator = ScaledParts(self.parts, self.factors)
        tracer.emit(grad.name, operator, (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        sizes = [place.sizes[part] if part else 0 for part in self.parts]
        rest = (inputs[0].shape[-1] - sum(sizes)) // max(self.parts.count(""), 1)
        return [inputs[0] * np.repeat(self.factors, [size or rest for size in sizes])]


class KeepsState(Operator):
    """An operator that passes something from token to token, which requests keep from step to step.

    With `keeps` its last result is that, a cache, which the kernel reads and writes. Its numpy meaning takes the one
    before as a last operand; without it the sequence begins.
    """

    keeps: bool

    def reads(self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
        return (*super().reads(inputs, outputs), *(outputs[-1:] if self.keeps else ()))


@dataclass(frozen=True)
class ShortConvolution(KeepsState):
    """Each channel of (batch, seq, groups, channels) convolved with its own `taps` last positions, then a function.

    function: one of `ACTIVATIONS`; empty: none.

    Operands: values, the weight (groups, channels, taps), and the bias (groups, channels) if there is one. One kernel,
    as in causal-conv1d, which keeps its input alone. FLOPs `2·b·s·channels·taps`. groups, channels, taps: axes;
    groups is empty where channels are in none. keeps: requests keep the last values (batch, taps, groups, channels).
    """

    function: str
    groups: str
    channels: str
    taps: str
    keeps: bool = False

    kind: ClassVar[str] = "convolution"

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """`batch, channels, seq, taps`."""
        channels = size(self.channels) * (size(self.groups) if self.groups else 1)
        return size("batch"), channels, size("seq"), size(self.taps)

    def flops(self, size: Size) -> Expression:
        batch, channels, seq, taps = self.dims(size)
        return 2 * batch * channels * seq * taps

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        operator = ShortConvolutionGradient(self.function, self.groups, self.channels, self.taps)
        name = f"{op.name}.input_gradient"
        tracer.emit(name, operator, (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        if not self.keeps:
            return [self._applied(_convolved(inputs))]
        new, taps = inputs[0], inputs[1].shape[-1]
        # Behind the weight a bias has the axes of a token, and the values of earlier tokens have all.
        given = len(inputs) > 2 and inputs[-1].ndim == new.ndim
        held = inputs[-1] if given else np.zeros((new.shape[0], taps, *new.shape[2:]))
        every = np.concatenate([held, new], axis=1)
        made = _convolved([every, *(inputs[1:-1] if given else inputs[1:])])[:, taps:]
        return [self._applied(made), every[:, -taps:]]

    def _applied(self, made: Array) -> Array:
        return np.asarray(ACTIVATIONS[self.function][0](made)) if self.function else made


def _convolved(inputs: list[Array]) -> Array:
    x, weight = inputs[:2]
    taps, made = weight.shape[-1], np.zeros_like(x)
    for tap in range(min(taps, x.shape[1])):
        made[:, tap:] += x[:, : x.shape[1] - tap] * weight[..., taps - 1 - tap]
    return made + inputs[2] if len(inputs) > 2 else made


@dataclass(frozen=True)
class ShortConvolutionGradient(ShortConvolution):
    """The backward of `ShortConvolution`: the gradients of values, weight and bias; the convolution is made again for
    the slope of a function.

    FLOPs `6·b·s·channels·taps`: two gradients, and the convolution; without a function `4·b·s·channels·taps`.
    """

    def flops(self, size: Size) -> Expression:
        return (3 if self.function else 2) * super().flops(size)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weight = inputs[1:3]
        dy = inputs[0] * ACTIVATIONS[self.function][1](_convolved(inputs[1:])) if self.function else inputs[0]
        taps, seq = weight.shape[-1], x.shape[1]
        dx, dw = np.zeros_like(x), np.zeros_like(weight)
        for tap in range(min(taps, seq)):
            dx[:, : seq - tap] += dy[:, tap:] * weight[..., taps - 1 - tap]
            dw[..., taps - 1 - tap] = (dy[:, tap:] * x[:, : seq - tap]).sum(axis=(0, 1))
        return [dx, dw, dy.sum(axis=(0, 1))][: len(inputs) - 1]


Matmul = tuple[Expression, Expression, Expression, Expression, Expression]
"""How often a matmul runs, then `[b, m, n, k]`."""


class ChunkedScan(KeepsState):
    """A recurrence over a sequence that is computed in chunks, by matmuls, or token by token, as chunks of one.

    `runs`: how often it computes each of its matmuls, in their order; empty: each once. `sums`: how many of its first
    matmuls transformers writes as sums of products, because their operands have decays of their own. one: the sequence
    is one token behind others, so that there are no chunks.
    """

    one: bool

    kind: ClassVar[str] = "scan"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})
    runs: ClassVar[tuple[int, ...]] = ()
    sums: ClassVar[int] = 0

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        """The matmuls of the forward. dims: those of the operator."""
        raise TypeError(f"{type(self).__name__} has no matmuls")

    def flops(self, size: Size) -> Expression:
        found = self.matmuls(self.dims(size))
        runs = self.runs or (1,) * len(found)
        return total(2 * each * product(matmul) for each, matmul in zip(runs, found, strict=True))


@dataclass(frozen=True)
class StateScan(ChunkedScan):
    """The recurrence of Mamba-2: `S = exp(Δ·A)·S + Δ·x·Bᵀ` and `y = S·C + D·x`.

    Operands: values, B and C in one tensor, as the convolution leaves them; dt (batch, seq, groups, heads); A_log, D
    and the bias of dt (groups, heads), where `A = -exp(A_log)`. Results: y (batch, seq, groups, values), and Δ·A summed
    from the beginning of each chunk, which the backward reads. Δ is `max(softplus(dt + bias), least)`.

    FLOPs are those of its five matmuls over chunks of `chunk` tokens, of which the last one is padded, for each head:
    scores `[Q, Q, N]`, their product with values `[Q, P, Q]`, the state of each chunk `[P, N, Q]`, states passed on
    `[c + 1, P·N, c + 1]`, and what they give to results `[Q, P, N]`. One token alone (`one`) has a product with its
    state, `[P, 1, N]`. keeps: requests keep states (batch, groups, heads, dim, state), in place of the sums.
    """

    chunk: int
    least: float = 0.0
    keeps: bool = False
    one: bool = False

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """Sequences of all heads, chunks, tokens of a chunk, values of a head, size of the state."""
        heads = size("batch") * size("scan_groups") * size("scan_heads")
        chunks = ceiling(size("seq") / self.chunk)
        return heads, chunks, number(self.chunk), size("scan_dim"), size("scan_state")

    def matmuls(self, dims: tuple[Expression, ...]) -> tuple[Matmul, ...]:
        heads, chunks, tokens, values, state = dims
        once, every = number(1), heads * chunks
        if self.one:
            return ((once, heads, values, once, state),)
        return (
            (once, every, tokens, tokens, state),
            (once, every, tokens, values, tokens),
            (once, every, values, state, tokens),
            (once, heads, chunks + 1, values * state, chunks + 1),
            (once, every, tokens, values, state),
        )

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from fused_gradient(tracer, op, StateScanGradient(self.chunk, self.least), grads[:1], op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        found = _Scan.of(place, inputs, self.least)
        y, state = np.zeros_like(found.x), inputs[5] if len(inputs) > 5 else np.zeros(found.state)
        for at in range(found.x.shape[1]):
            state = state * found.decay[:, at, ..., None, None] + found.added(at)
            y[:, at] = np.einsum("bghpn,bgn->bghp", state, found.c[:, at])
        y += found.x * inputs[3][..., None]
        return [y.reshape(*y.shape[:3], -1), state if self.keeps else found.summed(self.chunk)]


@dataclass(frozen=True)
class _Scan:
    """x: (batch, seq, groups, heads, dim). b, c: (batch, seq, groups, state). step: Δ. decay: exp(Δ·A). rate: A."""

    x: Array
    b: Array
    c: Array
    step: Array
    decay: Array
    rate: Array

    @classmethod
    def of(cls, place: RankPlace, inputs: list[Array], least: float) -> "_Scan":
        xbc, dt, a_log, _, bias = inputs[:5]
        values = place.sizes["scan_values"]
        x, b, c = np.split(xbc, (values, (xbc.shape[-1] + values) // 2), axis=-1)
        step, rate = np.maximum(np.logaddexp(0, dt + bias), least), -np.exp(a_log)
        return cls(x.reshape(*dt.shape, -1), b, c, step, np.exp(step * rate), rate)

    @property
    def state(self) -> tuple[int, ...]:
        return (self.x.shape[0], *self.x.shape[2:], self.b.shape[-1])

    def added(self, at: int) -> Array:
        """What a token adds to the states."""
        return np.asarray(np.einsum("bghp,bgn->bghpn", self.x[:, at] * self.step[:, at, ..., None], self.b[:, at]))

    def summed(self, chunk: int) -> Array:
        made = self.step * self.rate
        starts = range(0, made.shape[1], chunk)
        return np.concatenate([made[:, at : at + chunk].cumsum(axis=1) for at in starts], axis=1)


@dataclass(frozen=True)
class StateScanGradient(StateScan):
    """The backward of `StateScan`: the gradients of all operands of the scan, with its scores and states made again.

    FLOPs: two matmuls for each of the forward, and scores, states and their passing again (mamba_ssm,
    `_mamba_chunk_scan_combined_bwd`).
    """

    runs: ClassVar[tuple[int, ...]] = (3, 2, 3, 3, 2)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        own = inputs[1:6]
        found, dt, bias = _Scan.of(place, own, self.least), own[1], own[4]
        dy = inputs[0].reshape(found.x.shape)
        states = [np.zeros(found.state)]
        for at in range(found.x.shape[1]):
            states.append(states[-1] * found.decay[:, at, ..., None, None] + found.added(at))
        dx, db, dc = dy * own[3][..., None], np.zeros_like(found.b), np.zeros_like(found.c)
        d_step, d_rate, d_state = np.zeros_like(dt), np.zeros_like(found.rate), np.zeros(found.state)
        for at in reversed(range(found.x.shape[1])):
            dc[:, at] = np.einsum("bghpn,bghp->bgn", states[at + 1], dy[:, at])
            d_state = d_state + np.einsum("bghp,bgn->bghpn", dy[:, at], found.c[:, at])
            into = np.einsum("bghpn,bgn->bghp", d_state, found.b[:, at])
            dx[:, at] += into * found.step[:, at, ..., None]
            db[:, at] = np.einsum("bghpn,bghp->bgn", d_state, found.x[:, at] * found.step[:, at, ..., None])
            d_exponent = (d_state * states[at]).sum(axis=(-1, -2)) * found.decay[:, at]
            d_step[:, at] = (into * found.x[:, at]).sum(axis=-1) + d_exponent * found.rate
            d_rate += (d_exponent * found.step[:, at]).sum(axis=0)
            d_state = d_state * found.decay[:, at, ..., None, None]
        d_dt = d_step * (found.step > self.least) / (1 + np.exp(-(dt + bias)))
        dxbc = np.concatenate([dx.reshape(*dx.shape[:3], -1), db, dc], axis=-1)
        d_skip = (dy * found.x).sum(axis=(0, 1, -1))
        return [dxbc, d_dt, d_rate * found.rate, d_skip, d_dt.sum(axis=(0, 1))]


@dataclass(frozen=True)
class GatedNorm(Operator):
    """An RMSNorm of gated values, in one kernel: `norm(x · silu(gate))` over the last axis; outputs it and 1/rms.

    The weight has a row for each group. by_head: `norm(x) · silu(gate)`, head by head in the last axis, with one weight
    of the size of a head (Qwen3-Next). first: `norm(x) · silu(gate)` over the last axis. function:
    what gates pass in place of silu, one of `ACTIVATIONS`.
    """

    by_head: bool = False
    eps: float = 1e-5
    first: bool = False
    function: str = "silu"

    kind: ClassVar[str] = "norm"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), *op.inputs, op.outputs[1])
        name = f"{op.name}.input_gradient"
        operator = GatedNormGradient(self.by_head, first=self.first, function=self.function)
        tracer.emit(name, operator, reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, gate, weight = self._by_head(inputs[0], inputs[2]), self._by_head(inputs[1], inputs[2]), inputs[2]
        open_ = ACTIVATIONS[self.function][0](gate)
        normed = x if self._late else x * open_
        rstd = 1 / np.sqrt((normed**2).mean(axis=-1) + self.eps)
        y = normed * rstd[..., None] * weight
        return [(y * open_ if self._late else y).reshape(inputs[0].shape), rstd]

    @property
    def _late(self) -> bool:
        """Whether gates multiply what is normalised."""
        return self.by_head or self.first

    def _by_head(self, x: Array, weight: Array) -> Array:
        return x.reshape(*x.shape[:-1], -1, weight.shape[-1]) if self.by_head else x


@dataclass(frozen=True)
class GatedNormGradient(GatedNorm):
    """The backward of `GatedNorm`: the gradients of values, gate and weight of a gated norm, from 1/rms."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        *values, weight, rstd = inputs
        dy, x, gate = (self._by_head(each, weight) for each in values)
        value, slope = ACTIVATIONS[self.function]
        open_ = value(gate)
        normed = (x if self._late else x * open_) * rstd[..., None]
        into = dy * open_ if self._late else dy
        scaled = into * weight
        back = rstd[..., None] * (scaled - normed * (scaled * normed).mean(axis=-1, keepdims=True))
        dw = (into * normed).sum(axis=tuple(range(dy.ndim - weight.ndim)))
        made = (back, dy * normed * weight) if self._late else (back * open_, back * x)
        return [made[0].reshape(inputs[1].shape), (made[1] * slope(gate)).reshape(inputs[1].shape), dw]


OPERATORS: tuple[type[Operator], ...] = (
    GatedNorm,
    GatedNormGradient,
    JoinParts,
    ScaledParts,
    ShortConvolution,
    ShortConvolutionGradient,
    SplitParts,
    StateScan,
    StateScanGradient,
)
"""The operators of this module."""
