"""Differential attention (Ye et al. 2024, arXiv 2410.05258): the difference of two attentions with the same values.

Heads of keys and values are in pairs: heads 2j and 2j + 1 are the two of pair j. The g queries of either are next to
each other, so that the 2g queries of a pair of K/V heads are next to each other too, and query i of the first K/V head
is a pair with query i of the second. A result has axes (batch, seq, head_pairs, pair_dim): half as many heads as there
are queries, each with values of twice the size of a head.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.facts import KEYS
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, arriving, joined_gradient, over
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


def first_lambda(layer: int) -> float:
    """The share of the second attention that its learned part is added to (equation 3 of the paper).

    layer: the number of the layer, from 0. Returns a number from 0.2 to 0.8.
    """
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


@dataclass(frozen=True)
class PairValues(Operator):
    """Values (batch, seq, kv_heads, head_dim) as those of two attentions: each K/V head of a pair has the values of the
    first head of its pair in the first attention, and those of the second head in the second.

    Where the results have the values of all positions, so has what it reads: a cache keeps each value once.
    """

    kind: ClassVar[str] = "copy"

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        made = tuple(t.axes for t in outputs)
        return tuple(over(KEYS, t.axes) if KEYS in made[0] else t.axes for t in inputs), made

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield from joined_gradient(tracer, op, PairValuesGradient(), grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [np.repeat(inputs[0][:, :, which::2], 2, axis=2) for which in (0, 1)]


@dataclass(frozen=True)
class PairValuesGradient(Operator):
    """The backward of `PairValues`: sums over the two K/V heads of a pair, of the gradients of either attention."""

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        sums = [each[:, :, ::2] + each[:, :, 1::2] for each in inputs]
        return [np.stack(sums, axis=3).reshape(inputs[0].shape)]


@dataclass(frozen=True)
class HeadDifference(Operator):
    """The results of the first query of each pair, minus λ times those of the second, for both attentions.

    `λ = exp(q1 · k1) - exp(q2 · k2) + first_lambda(layer)`. Reads the results of both attentions (batch, seq, heads,
    head_dim), and q1, k1, q2, k2 (head_dim). The result is (batch, seq, head_pairs, pair_dim).
    """

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        reads = (arriving(grads), *op.inputs)
        tracer.emit(name, HeadDifferenceGradient(), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        first, second, _ = _pairs(place, inputs)
        found = first - _lambda(place, inputs[2:]) * second
        return [found.reshape(*found.shape[:2], -1, found.shape[-1])]


@dataclass(frozen=True)
class HeadDifferenceGradient(Operator):
    """The backward of `HeadDifference`: the gradients of both attentions and of the four vectors of λ."""

    masks: ClassVar[bool] = True

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        _, second, shape = _pairs(place, inputs[1:])
        dy, (q1, k1, q2, k2) = inputs[0].reshape(second.shape), inputs[3:]
        both = np.stack([dy, -_lambda(place, inputs[3:]) * dy], axis=3)
        grads = [each.reshape(shape) for each in np.split(both, 2, axis=-1)]
        slope = -(dy * second).sum()
        grown, shrunk = slope * np.exp(q1 @ k1), -slope * np.exp(q2 @ k2)
        return [*grads, grown * k1, grown * q1, shrunk * k2, shrunk * q2]


def _lambda(place: RankPlace, vectors: list[Array]) -> float:
    q1, k1, q2, k2 = vectors
    return float(np.exp(q1 @ k1) - np.exp(q2 @ k2)) + first_lambda(place.layer)


def _pairs(place: RankPlace, inputs: list[Array]) -> tuple[Array, Array, tuple[int, ...]]:
    """The results of the first and of the second query of pairs, (batch, seq, pairs of K/V heads, queries, pair_dim);
    the shape of the result of one attention.
    """
    shape, each = inputs[0].shape, place.sizes["heads"] // place.sizes["kv_heads"]
    both = np.concatenate(inputs[:2], axis=-1).reshape(*shape[:2], -1, 2, each, 2 * shape[-1])
    return both[:, :, :, 0], both[:, :, :, 1], shape


@dataclass(frozen=True)
class LambdaFactor(Operator):
    """`(1 - first_lambda(layer)) · x`, which gives all layers results of the size of a usual attention's."""

    linear: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dx = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(dx.name, LambdaFactor(), (arriving(grads),), dx, template=INPUT_GRADIENT)
        yield 0, dx

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [(1 - first_lambda(place.layer)) * inputs[0]]


OPERATORS: tuple[type[Operator], ...] = (
    HeadDifference,
    HeadDifferenceGradient,
    LambdaFactor,
    PairValues,
    PairValuesGradient,
)
"""The operators of this module."""
