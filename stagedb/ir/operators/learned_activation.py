"""Activations with learned numbers: xIELU (Huang and Schlag 2024, arXiv 2411.13010), as Apertus has it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

BETA, NEAR = 0.5, -1e-6


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _below(x: Array) -> Array:
    """`exp(min(x, NEAR)) - 1 - x`, what the negative side has in addition to its line."""
    return np.asarray(np.expm1(np.minimum(x, NEAR)) - x)


@dataclass(frozen=True)
class XIELU(Operator):
    """`a·x² + b·x` above 0 and `n·(exp(x) - 1 - x) + b·x` below, for learned `a` and `n`: softplus of the operands."""

    kind: ClassVar[str] = "activation"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        name = f"{op.name}.input_gradient"
        made = [tracer.gradient(x, f"{name}.{i}") for i, x in enumerate(op.inputs)]
        tracer.emit(name, XIELUGradient(), (arriving(grads), *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, above, below = inputs
        rising, falling = _softplus(above), BETA + _softplus(below)
        return [np.where(x > 0, rising * x * x, _below(x) * falling) + BETA * x]


@dataclass(frozen=True)
class XIELUGradient(Operator):
    """The backward of `XIELU`: the gradients of the input and of the two learned numbers."""

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, above, below = inputs
        rising, falling = _softplus(above), BETA + _softplus(below)
        slope = np.where(x < NEAR, np.exp(np.minimum(x, NEAR)) - 1, -1.0)
        dx = dy * (np.where(x > 0, 2 * rising * x, slope * falling) + BETA)
        of_above = (dy * np.where(x > 0, x * x, 0)).sum() / (1 + np.exp(-above))
        of_below = (dy * np.where(x > 0, 0, _below(x))).sum() / (1 + np.exp(-below))
        return [dx, of_above, of_below]
