"""Element-wise operators: residual additions, activations, gates, dropout, casts, and the primitives of eager norms."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.files import shown
from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.ir.operators.activations import ACTIVATIONS, gate_slopes, gate_value
from stagedb.ir.operators.contraction import ReduceSum
from stagedb.workflows.training import INPUT_GRADIENT, WEIGHT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

Gradients = Iterator[tuple[int, "Tensor"]]


def _one(tracer: "Tracer", op: "Operation", operator: Operator, inputs: tuple["Tensor", ...], index: int) -> "Tensor":
    """Emit the operator that makes the gradient of one input."""
    suffix = "input_gradient" if index == 0 else f"input_gradient.{index}"
    grad = tracer.gradient(op.inputs[index], f"{op.name}.{suffix}")
    tracer.emit(grad.name, operator, inputs, grad, template=INPUT_GRADIENT)
    return grad


@dataclass(frozen=True)
class Add(Operator):
    """The sum of tensors; one with fewer axes is broadcast over the leading ones."""

    linear: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dy = arriving(grads)
        for index, tensor in enumerate(op.inputs):
            if tensor.axes == op.outputs[0].axes:
                yield index, dy
                continue
            template = WEIGHT_GRADIENT if tensor.role == "weight" else INPUT_GRADIENT
            grad = tracer.gradient(tensor, f"{op.name}.broadcast_gradient.{index}")
            tracer.emit(grad.name, ReduceSum(tensor.axes), (dy,), grad, template=template)
            yield index, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [sum(inputs[1:], inputs[0])]


@dataclass(frozen=True)
class Cast(Operator):
    """A change of dtype."""

    kind: ClassVar[str] = "cast"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, Cast(), (arriving(grads),), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0]]


@dataclass(frozen=True)
class Activation(Operator):
    """A pointwise non-linearity.

    function: one of `ACTIVATIONS`. from_result: its backward reads its result, not its input (sigmoid alone).
    """

    function: str
    from_result: bool = False

    kind: ClassVar[str] = "activation"

    def __post_init__(self) -> None:
        if self.function not in ACTIVATIONS:
            raise ValueError(f"unknown activation {shown(self.function)}: known are {', '.join(ACTIVATIONS)}")
        if self.from_result and self.function != "sigmoid":
            raise ValueError(f"the slope of {self.function} does not follow from its result: only that of sigmoid does")

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        read = op.outputs[0] if self.from_result else op.inputs[0]
        operator = ActivationGradient(self.function, self.from_result)
        yield 0, _one(tracer, op, operator, (arriving(grads), read), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [ACTIVATIONS[self.function][0](inputs[0])]


@dataclass(frozen=True)
class ActivationGradient(Operator):
    """The backward of `Activation`: `dx = dy · f'(x)`, element by element.

    Reads dy and the forward's input x. function: the name of f, one of `ACTIVATIONS`. from_result: reads the forward's
    result y in place of x, from which sigmoid's slope follows: y · (1 - y).
    """

    function: str
    from_result: bool = False

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x = inputs
        if self.from_result:
            return [dy * x * (1 - x)]
        return [dy * ACTIVATIONS[self.function][1](x)]


@dataclass(frozen=True)
class Gate(Operator):
    """`f(gate) · up` (SwiGLU with silu), or one of `GATES`; one packed input has gate and up along its last axis."""

    function: str

    kind: ClassVar[str] = "activation"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dy = arriving(grads)
        made = [tracer.gradient(x, f"{op.name}.input_gradient.{i}") for i, x in enumerate(op.inputs)]
        name = f"{op.name}.input_gradient"
        tracer.emit(name, GateGradient(self.function), (dy, *op.inputs), *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        gate, up = inputs if len(inputs) == 2 else (inputs[0][..., 0], inputs[0][..., 1])
        return [gate_value(self.function, gate, up)]


@dataclass(frozen=True)
class GateGradient(Operator):
    """The backward of `Gate`: the gradients of gate and up (packed where the forward was)."""

    function: str

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy = inputs[0]
        packed = len(inputs) == 2
        gate, up = (inputs[1][..., 0], inputs[1][..., 1]) if packed else inputs[1:]
        of_gate, of_up = gate_slopes(self.function, gate, up)
        return [np.stack([dy * of_gate, dy * of_up], axis=-1)] if packed else [dy * of_gate, dy * of_up]


@dataclass(frozen=True)
class Multiple(Operator):
    """`y = factor · x`."""

    factor: float

    linear: ClassVar[bool] = True

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, Multiple(self.factor), (arriving(grads),), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0] * self.factor]


@dataclass(frozen=True)
class Softcap(Operator):
    """`y = cap · tanh(x / cap)` (Gemma 2)."""

    cap: float

    kind: ClassVar[str] = "activation"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, SoftcapGradient(self.cap), (arriving(grads), op.outputs[0]), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [self.cap * np.tanh(inputs[0] / self.cap)]


@dataclass(frozen=True)
class SoftcapGradient(Operator):
    """The backward of `Softcap`: `dx = dy · (1 - (y / cap)²)`."""

    cap: float

    kind: ClassVar[str] = "activation"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, y = inputs
        return [dy * (1 - (y / self.cap) ** 2)]


@dataclass(frozen=True)
class Dropout(Operator):
    """Zeroes elements with probability `p` and scales the rest; the second output is the mask.

    In numpy the mask is a fixed function of the element's global place, so that a partitioned run drops the same
    elements.
    """

    p: float

    kind: ClassVar[str] = "dropout"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, DropoutGradient(self.p), (arriving(grads), op.outputs[1]), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x = inputs[0]
        axes = [place.indices(axis) for axis in place.lengths][: x.ndim]
        place_of = sum(
            i.reshape([-1 if d == n else 1 for d in range(x.ndim)]) * prime
            for n, (i, prime) in enumerate(zip(axes, (7919, 104729, 1299709, 15485863), strict=False))
        )
        mask = (place_of * 2654435761 % 1000003) >= self.p * 1000003
        return [x * mask / (1 - self.p), np.asarray(mask)]


@dataclass(frozen=True)
class DropoutGradient(Operator):
    """The backward of `Dropout`: `dx = dy · mask / (1 - p)`."""

    p: float

    kind: ClassVar[str] = "dropout"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, mask = inputs
        return [dy * mask / (1 - self.p)]


@dataclass(frozen=True)
class Multiply(Operator):
    """The product of two tensors. One may lack axes of the other (a scale a token, a weight a channel)."""

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        dy = arriving(grads)
        whole = op.outputs[0].axes
        for index in (0, 1):
            tensor, other = op.inputs[index], op.inputs[1 - index]
            if tensor.axes == whole:
                yield index, _one(tracer, op, Multiply(), (dy, other), index)
                continue
            template = WEIGHT_GRADIENT if tensor.role == "weight" else INPUT_GRADIENT
            grad = tracer.gradient(tensor, f"{op.name}.broadcast_gradient.{index}")
            operator = SumProduct(whole, tensor.axes)
            tracer.emit(grad.name, operator, (dy, other), grad, template=template)
            yield index, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        a, b = sorted(inputs, key=lambda x: -x.ndim)
        # A per-token scale has the leading axes, a per-channel weight the trailing ones.
        return [a * (b[..., None] if b.ndim == a.ndim - 1 and b.shape == a.shape[:-1] else b)]


@dataclass(frozen=True)
class SumProduct(Operator):
    """The product of two tensors of axes `whole`, summed to `axes`: the gradient of a broadcast factor."""

    whole: tuple[str, ...]
    axes: tuple[str, ...]

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        product = inputs[0] * inputs[1]
        return [product.sum(axis=tuple(i for i, axis in enumerate(self.whole) if axis not in self.axes))]


@dataclass(frozen=True)
class MeanSquare(Operator):
    """The mean of squares over the last axis, or over the last ones, which are named. Ranks may hold parts of these."""

    over: tuple[str, ...] = ()

    kind: ClassVar[str] = "norm"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, MeanSquareGradient(self.over), (arriving(grads), op.inputs[0]), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        if not self.over:
            return [(inputs[0] ** 2).mean(axis=-1)]
        return [(inputs[0] ** 2).sum(axis=tuple(range(-len(self.over), 0))) / _elements(place, self.over)]


def _elements(place: RankPlace, axes: tuple[str, ...]) -> int:
    return math.prod(place.sizes[axis] for axis in axes)


@dataclass(frozen=True)
class MeanSquareGradient(Operator):
    """The backward of `MeanSquare`: `dx = dy · 2x / n`."""

    over: tuple[str, ...] = ()

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x = inputs
        count = _elements(place, self.over) if self.over else x.shape[-1]
        return [dy.reshape(*dy.shape, *(1,) * (x.ndim - dy.ndim)) * 2 * x / count]


@dataclass(frozen=True)
class NormScale(Operator):
    """`y = x · rstd · weight`, where a weight has the axes `over`, and rstd the others."""

    over: tuple[str, ...]

    kind: ClassVar[str] = "norm"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        name = f"{op.name}.input_gradient"
        words = ("input_gradient", "rstd_gradient", "weight_gradient")
        made = [tracer.gradient(x, f"{op.name}.{word}") for x, word in zip(op.inputs, words, strict=True)]
        reads = (arriving(grads), *op.inputs)
        tracer.emit(name, NormScaleGradient(self.over), reads, *made, template=INPUT_GRADIENT)
        yield from enumerate(made)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        x, rstd, weight = inputs
        return [x * _spread(rstd, x) * weight]


def _spread(values: Array, like: Array) -> Array:
    """Values of the leading axes, ready to be multiplied with a tensor of all."""
    return values.reshape(*values.shape, *(1,) * (like.ndim - values.ndim))


@dataclass(frozen=True)
class NormScaleGradient(Operator):
    """The backward of `NormScale`: the gradients of x, rstd and weight."""

    over: tuple[str, ...]

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, x, rstd, weight = inputs
        last = tuple(range(-len(self.over), 0))
        leading = tuple(range(x.ndim - len(self.over)))
        wide = _spread(rstd, x)
        return [dy * wide * weight, (dy * x * weight).sum(axis=last), (dy * x * wide).sum(axis=leading)]


@dataclass(frozen=True)
class Rsqrt(Operator):
    """`1 / sqrt(x + eps)`."""

    eps: float = 1e-5

    kind: ClassVar[str] = "norm"

    def gradient(self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]) -> Gradients:
        yield 0, _one(tracer, op, RsqrtGradient(), (arriving(grads), op.outputs[0]), 0)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [1 / np.sqrt(inputs[0] + self.eps)]


@dataclass(frozen=True)
class RsqrtGradient(Operator):
    """The backward of `Rsqrt`: `dx = -dy · y³ / 2`."""

    kind: ClassVar[str] = "norm"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy, y = inputs
        return [-dy * y**3 / 2]
