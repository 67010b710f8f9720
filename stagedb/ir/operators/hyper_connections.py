"""Several residual streams: what a part reads of them, and how they are mixed and get its result.

Sources: Zhu et al. 2024 (hyper-connections), Xie et al. 2025 (arXiv 2512.24880: manifold-constrained), and the code of
DeepSeek V4. One kernel makes the weights of streams; its backward runs the rounds again, as the authors' kernels do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]

EPS = 1e-6
"""What is added to shares and to the sums that divide them."""

SPREAD = 2.0
"""The largest weight with which a stream gets a part's result."""


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _made(
    tracer: "Tracer", op: "Operation", operator: Operator, reads: tuple["Tensor", ...], to: tuple["Tensor", ...]
) -> Gradients:
    """Emit one operation for the gradients of all inputs `to`."""
    name = f"{op.name}.input_gradient"
    made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(to)]
    tracer.emit(name, operator, reads, *made, template=INPUT_GRADIENT)
    yield from enumerate(made)


@dataclass(frozen=True)
class CopyStreams(Operator):
    """Each stream begins as a copy: (batch, seq, hidden) to (batch, seq, streams, hidden)."""

    kind: ClassVar[str] = "copy"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from _made(tracer, op, SumStreams(), (arriving(grads),), op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.repeat(inputs[0][..., None, :], place.sizes["streams"], axis=-2)]


@dataclass(frozen=True)
class SumStreams(Operator):
    """The sum of all streams."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0].sum(axis=-2)]


@dataclass(frozen=True)
class AddToStreams(Operator):
    """Each stream plus the same value: (batch, seq, streams, hidden) and (batch, seq, hidden)."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dy = arriving(grads)
        yield 0, dy
        same = tracer.gradient(op.inputs[1], f"{op.name}.broadcast_gradient")
        tracer.emit(same.name, SumStreams(), (dy,), same, template=INPUT_GRADIENT)
        yield 1, same

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] + inputs[1][..., None, :]]


@dataclass(frozen=True)
class StreamGate(Operator):
    """The weight of each stream, for each token: `sigmoid(scale · x + base) + eps`.

    Reads the logits x (batch, seq, streams), the base (streams) and the scale (1).
    """

    kind: ClassVar[str] = "activation"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from _made(tracer, op, StreamGateGradient(), (arriving(grads), *op.inputs), op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, base, scale = inputs
        return [_sigmoid(x * scale + base) + EPS]


@dataclass(frozen=True)
class StreamGateGradient(Operator):
    """The backward of `StreamGate`: the gradients of its logits, its base and its scale.

    Reads the gradient of the gates and the forward's three operands. The gradient of the logits is (batch, seq,
    streams); those of the base (streams) and of the scale (1) are summed over all tokens.
    """

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, base, scale = inputs
        open_ = _sigmoid(x * scale + base)
        grad = dy * open_ * (1 - open_)
        return [grad * scale, _over_tokens(grad), (grad * x).sum().reshape(1)]


@dataclass(frozen=True)
class StreamWeights(Operator):
    """The weights of n streams around a part, a token, from n² + 2n logits, their base and three scales.

    They are the weights with which the part reads streams, those with which streams get its result, and a matrix that
    mixes them: shares by row, whose columns and rows are divided by their sums in turn, so that all sums come near to 1
    (Sinkhorn and Knopp 1967). The first round divides columns alone.
    """

    rounds: int

    kind: ClassVar[str] = "softmax"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        present = tuple(grad for grad in grads if grad is not None)
        if len(present) != len(op.outputs):
            raise TypeError("the backward of streams was asked for without the gradients of all weights")
        yield from _made(tracer, op, StreamWeightsGradient(self.rounds), (*present, *op.inputs), op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        (before, after, mixing), _ = _logits(place.sizes["streams"], *inputs)
        return [_sigmoid(before) + EPS, SPREAD * _sigmoid(after), _rounds(mixing, self.rounds)[-1][1]]


@dataclass(frozen=True)
class StreamWeightsGradient(Operator):
    """The backward of `StreamWeights`: the gradients of logits, base and scales. It runs the rounds again."""

    rounds: int

    kind: ClassVar[str] = "softmax"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        of_before, of_after, of_mixing, x, base, scale = inputs
        streams = place.sizes["streams"]
        (before, after, mixing), scales = _logits(streams, x, base, scale)
        opened = [_sigmoid(each) for each in (before, after)]
        slopes = [each * (1 - each) for each in opened]
        parts = [of_before * slopes[0], of_after * SPREAD * slopes[1], _back(of_mixing, mixing, self.rounds)]
        grad = np.concatenate([each.reshape(*x.shape[:-1], -1) for each in parts], axis=-1)
        products = _over_tokens(grad * x)
        ends = np.cumsum([0, streams, streams, streams * streams])
        of_scale = np.array([products[start:end].sum() for start, end in pairwise(ends)])
        return [grad * scales, _over_tokens(grad), of_scale]


def _over_tokens(values: Array) -> Array:
    """The sum over all but the last axis."""
    return np.asarray(values.sum(axis=tuple(range(values.ndim - 1))))


def _logits(streams: int, x: Array, base: Array, scale: Array) -> tuple[tuple[Array, Array, Array], Array]:
    """The logits of the three kinds of weights, scaled and moved, the last as a matrix; and the scale of each logit."""
    scales = np.repeat(scale, [streams, streams, streams * streams])
    moved = x * scales + base
    before, after, mixing = np.split(moved, [streams, 2 * streams], axis=-1)
    return (before, after, mixing.reshape(*x.shape[:-1], streams, streams)), scales


def _rounds(logits: Array, rounds: int) -> list[tuple[Array, Array, int]]:
    """Each division: its divisor, its result, and the axis whose sums it makes 1. The first is the softmax."""
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    total = shares.sum(axis=-1, keepdims=True)
    made = [(total, shares / total, -1)]
    matrix = made[0][1] + EPS
    for axis in (-2, *((-1, -2) * (rounds - 1))):
        total = matrix.sum(axis=axis, keepdims=True) + EPS
        matrix = matrix / total
        made.append((total, matrix, axis))
    return made


def _back(grad: Array, logits: Array, rounds: int) -> Array:
    """The gradient of the logits, from that of the mixing matrix: the rounds and the softmax in reverse."""
    (_, shares, _), *divisions = _rounds(logits, rounds)
    for total, result, axis in reversed(divisions):
        grad = (grad - (grad * result).sum(axis=axis, keepdims=True)) / total
    return np.asarray(shares * (grad - (grad * shares).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True)
class MergeStreams(Operator):
    """The weighted sum of streams: (batch, seq, streams, hidden) and (batch, seq, streams) to (batch, seq, hidden)."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from _made(tracer, op, MergeStreamsGradient(), (arriving(grads), *op.inputs), op.inputs)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, weights = inputs
        return [(x * weights[..., None]).sum(axis=-2)]


@dataclass(frozen=True)
class MergeStreamsGradient(Operator):
    """The backward of `MergeStreams`: the gradients of the streams and of their weights."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, weights = inputs
        return [dy[..., None, :] * weights[..., None], (dy[..., None, :] * x).sum(axis=-1)]


@dataclass(frozen=True)
class SpreadResult(Operator):
    """`streams + weights · result`: mixed streams, the result of a part, and the weight with which each stream gets it.

    (batch, seq, streams, hidden), (batch, seq, hidden), (batch, seq, streams).
    """

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dy, (mixed, result, weights) = arriving(grads), op.inputs
        made = _made(tracer, op, SpreadResultGradient(), (dy, result, weights), (result, weights))
        yield from ((index + 1, grad) for index, grad in made)
        yield op.inputs.index(mixed), dy

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        mixed, result, weights = inputs
        return [mixed + weights[..., None] * result[..., None, :]]


@dataclass(frozen=True)
class SpreadResultGradient(Operator):
    """The backward of `SpreadResult`: the gradients of the part's result and of the weights."""

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, result, weights = inputs
        return [(dy * weights[..., None]).sum(axis=-2), (dy * result[..., None, :]).sum(axis=-1)]


OPERATORS = (
    CopyStreams,
    MergeStreams,
    MergeStreamsGradient,
    SpreadResult,
    SpreadResultGradient,
    StreamGate,
    StreamGateGradient,
    StreamWeights,
    StreamWeightsGradient,
    AddToStreams,
    SumStreams,
)
"""The operators of several residual streams."""
