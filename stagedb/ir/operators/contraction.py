"""Contractions over named axes, and the sums that their gradients need."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from stagedb.ir.expressions import Expression, product
from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import Array, Labels, Operator, RankPlace, Size, arriving
from stagedb.workflows.training import INPUT_GRADIENT, WEIGHT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

# The cast of a matmul's operand to fp8 (Micikevicius et al. 2022): e4m3 for values, e5m2 for gradients.

E4M3, E5M2 = "fp8_e4m3", "fp8_e5m2"
"""Dtype classes of values and of gradients."""


@dataclass(frozen=True)
class Quantize(Operator):
    """A cast to fp8 with one scale a tensor. Its gradient is the tensor's own gradient, in the tensor's format.

    In numpy, which has no fp8, it is the identity.
    """

    kind: ClassVar[str] = "cast"

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        yield 0, arriving(grads)

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return [inputs[0]]


I_GRADIENT = INPUT_GRADIENT


def _product(labels: list[str], size: Size) -> Expression:
    return product(size(label) for label in labels)


@dataclass(frozen=True)
class Einsum(Operator):
    """`out = a · b (+ bias)`, summed over the labels that `out` does not have.

    Labels are the operands' axes, renamed where one axis has two roles (`kseq` for the keys' sequence). With a weight
    as second operand this is a linear layer: the recipe decides which gradient is issued first.

    In fp8 (Micikevicius et al. 2022; Transformer Engine, torchao) it reads e4m3 copies of both operands. The backward
    keeps the copy of the input, casts the output's gradient to e5m2 (a bias's gradient comes from the wide one), and
    casts the weight again: no framework keeps copies of weights.
    """

    a: Labels
    b: Labels
    out: Labels
    bias: bool = False

    kind: ClassVar[str] = "matmul"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    def _split(self) -> tuple[list[str], list[str], list[str], list[str]]:
        batch = [x for x in self.a if x in self.b and x in self.out]
        m = [x for x in self.a if x in self.out and x not in self.b]
        n = [x for x in self.b if x in self.out and x not in self.a]
        k = [x for x in self.a if x in self.b and x not in self.out]
        return batch, m, n, k

    def labels(
        self, inputs: tuple["Tensor", ...], outputs: tuple["Tensor", ...]
    ) -> tuple[tuple[Labels, ...], tuple[Labels, ...]]:
        return (self.a, self.b, *(t.axes for t in inputs[2:])), (self.out,)

    def flops(self, size: Size) -> Expression:
        """2·m·n·k: a multiply and an add each."""
        return 2 * product(self.dims(size))

    def dims(self, size: Size) -> tuple[Expression, ...]:
        """`[batch,] m, n, k`."""
        batch, m, n, k = self._split()
        rest = (_product(m, size), _product(n, size), _product(k, size))
        return (_product(batch, size), *rest) if batch else rest

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        dy = arriving(grads)
        a, b = op.inputs[:2]
        weight = tracer.whole(b)
        linear, fp8 = weight.role == "weight", weight is not b
        narrow = tracer.narrow(f"{op.name}.cast_gradient", dy, Quantize(), E5M2, I_GRADIENT) if fp8 else dy
        of_a, of_b = Einsum(self.out, self.b, self.a), Einsum(self.out, self.a, self.b)

        def input_gradient() -> "Tensor":
            da = tracer.gradient(a, f"{op.name}.input_gradient")
            again = tracer.narrow(f"{op.name}.cast_weight.again", weight, Quantize(), E4M3, I_GRADIENT) if fp8 else b
            tracer.emit(da.name, of_a, (narrow, again), da, template=I_GRADIENT)
            return da

        def other_gradient() -> "Tensor":
            db = tracer.gradient(b, f"{op.name}.{'weight' if linear else 'other'}_gradient")
            template = WEIGHT_GRADIENT if linear else I_GRADIENT
            tracer.emit(db.name, of_b, (narrow, a), db, template=template)
            return db

        # A bias of a batched matmul is added by another kernel: the order is that of one without.
        batched = any(label in self.a and label in self.b for label in self.out)
        if not linear or tracer.weight_gradient_first(self.bias and not batched):
            yield 1, other_gradient()
            yield 0, input_gradient()
        else:
            yield 0, input_gradient()
            yield 1, other_gradient()
        if self.bias:
            dbias = tracer.gradient(op.inputs[2], f"{op.name}.bias_gradient")
            # A bias for each index of a batched axis, as experts have, is no trailing part of the result.
            whole = self.out if dbias.axes != self.out[len(self.out) - len(dbias.axes) :] else ()
            tracer.emit(dbias.name, ReduceSum(dbias.axes, whole), (dy,), dbias, template=WEIGHT_GRADIENT)
            yield 2, dbias

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        letters = {label: chr(ord("a") + i) for i, label in enumerate(dict.fromkeys(self.a + self.b + self.out))}
        spec = ["".join(letters[x] for x in labels) for labels in (self.a, self.b, self.out)]
        out = np.einsum(f"{spec[0]},{spec[1]}->{spec[2]}", inputs[0], inputs[1])
        if self.bias and place.leader:
            out = out + _broadcast(inputs[2], self._bias_axes(), self.out)
        return [out]

    def _bias_axes(self) -> Labels:
        """The axes of the bias: those of the output that the weight has."""
        return tuple(label for label in self.out if label in self.b)


def _broadcast(values: Array, axes: Labels, over: Labels) -> Array:
    """Values of some axes, ready to be added to those of `over`."""
    sizes = iter(values.shape)
    return values.reshape([next(sizes) if axis in axes else 1 for axis in over])


@dataclass(frozen=True)
class ReduceSum(Operator):
    """The sum over every axis that `axes` does not name: the gradient of a broadcast.

    whole: the axes of the operand; empty: `axes` are its last ones.
    """

    axes: Labels
    whole: Labels = ()

    kind: ClassVar[str] = "reduce"

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        dy = inputs[0]
        if self.whole:
            return [dy.sum(axis=tuple(i for i, axis in enumerate(self.whole) if axis not in self.axes))]
        # A broadcast operand has the trailing axes of the value (bias) or lacks leading ones (positions).
        return [dy.sum(axis=tuple(range(dy.ndim - len(self.axes))))]
