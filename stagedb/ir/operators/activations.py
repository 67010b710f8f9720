"""Pointwise functions, each with its derivative: activations, and gates of two values."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _normal_cdf(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def _gelu_slope(x: Array) -> Array:
    return np.asarray(_normal_cdf(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _silu_slope(x: Array) -> Array:
    s = _sigmoid(x)
    return np.asarray(s * (1 + x * (1 - s)))


def _tanh_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _tanh_gelu_slope(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    steep = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return np.asarray(0.5 * (1 + np.tanh(inner)) + 0.5 * x * (1 - np.tanh(inner) ** 2) * steep)


def _quick_gelu_slope(x: Array) -> Array:
    s = _sigmoid(1.702 * x)
    return np.asarray(s * (1 + 1.702 * x * (1 - s)))


def _sqrt_softplus(x: Array) -> Array:
    return np.asarray(np.sqrt(np.logaddexp(0, x)))


ACTIVATIONS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "gelu": (lambda x: x * _normal_cdf(x), _gelu_slope),
    "silu": (lambda x: x * _sigmoid(x), _silu_slope),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0).astype(x.dtype)),
    "relu2": (lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0)),
    "gelu_tanh": (_tanh_gelu, _tanh_gelu_slope),
    "quick_gelu": (lambda x: x * _sigmoid(1.702 * x), _quick_gelu_slope),
    "softplus": (lambda x: np.logaddexp(0, x), _sigmoid),
    "sqrtsoftplus": (_sqrt_softplus, lambda x: _sigmoid(x) / (2 * _sqrt_softplus(x))),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * (1 - _sigmoid(x))),
}
"""Pointwise non-linearities by name: the function and its derivative. `gelu` is the exact one."""


def _clamped(gate: Array, up: Array) -> tuple[Array, Array]:
    return np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)


def _clamped_slopes(gate: Array, up: Array) -> tuple[Array, Array]:
    low, wide = _clamped(gate, up)
    of_gate = (wide + 1) * _quick_gelu_slope(low) * (gate <= LIMIT)
    return of_gate, low * _sigmoid(1.702 * low) * (np.abs(up) <= LIMIT)


def _clamped_gate(gate: Array, up: Array) -> Array:
    low, wide = _clamped(gate, up)
    return np.asarray((wide + 1) * low * _sigmoid(1.702 * low))


LIMIT = 7.0
"""The bound of gate and up in a `clamped_swiglu` (gpt-oss)."""

GATES: Mapping[str, tuple[Callable[[Array, Array], Array], Callable[[Array, Array], tuple[Array, Array]]]] = {
    "clamped_swiglu": (_clamped_gate, _clamped_slopes),
}
"""Functions of gate and up that are no product with an activation: the function and its two derivatives."""


def gate_value(function: str, gate: Array, up: Array) -> Array:
    """The value of a gate: one of `GATES`, or an activation of the gate times up.

    function: the name of either. gate, up: arrays of one shape.
    """
    return GATES[function][0](gate, up) if function in GATES else ACTIVATIONS[function][0](gate) * up


def gate_slopes(function: str, gate: Array, up: Array) -> tuple[Array, Array]:
    """The derivatives of `gate_value` by gate and by up.

    function: a name that `gate_value` takes. gate, up: arrays of one shape.
    """
    if function in GATES:
        return GATES[function][1](gate, up)
    return up * ACTIVATIONS[function][1](gate), ACTIVATIONS[function][0](gate)


# Activations with learned numbers: xIELU (Huang and Schlag 2024, arXiv 2411.13010), as Apertus has it.

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
