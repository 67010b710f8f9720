"""What tensors and operations cost on one rank, as expressions of sizes, degrees and dtype widths."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import sympy

from stagedb.expressions import symbol
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.tensors import Operation, Tensor

WIDTHS: Mapping[str, sympy.Expr] = {
    **{name: symbol(f"e_{name}") for name in ("act", "param", "grad", "reduce", "opt", "logits")},
    "fp32": sympy.Integer(4),
    "fp8_e4m3": sympy.Integer(1),
    "fp8_e5m2": sympy.Integer(1),
    "int64": sympy.Integer(8),
    "bool": sympy.Integer(1),
}
"""Bytes an element of each dtype class."""


@lru_cache(maxsize=64)
def _at_least_one(size: sympy.Expr) -> sympy.Expr:
    # sympy compares its arguments by their assumptions, which takes it a millisecond.
    return sympy.Max(size, 1)


def _filled(layout: Layout, load: str) -> sympy.Expr:
    """Which part of the slots of this rank's experts has tokens: all of it, but where some experts are chosen more."""
    if layout.on("ep") != Partitioned("experts"):
        return symbol("load_all") / (symbol("E") * symbol("load_most"))
    here = symbol(load) - (1 if load == "load_here" else 0)
    return here * symbol("ep") / (symbol("E") * symbol("load_most"))


@dataclass(frozen=True)
class Sizes:
    """The global size of every named axis. Axes in `replicable` are repeated where a degree exceeds their size.

    Slots of experts are told as if all were as many as those of the expert that is chosen most; elements, bytes and
    FLOPs count those that have tokens alone.
    """

    axes: Mapping[str, sympy.Expr]
    replicable: frozenset[str] = frozenset()

    def local(self, axis: str, cuts: tuple[str, ...]) -> sympy.Expr:
        """This rank's part of an axis that the mesh axes `cuts` partition."""
        size = self.axes[axis]
        for mesh_axis in cuts:
            size = size / symbol(mesh_axis)
        return _at_least_one(size) if cuts and axis in self.replicable else size

    def shape(self, tensor: Tensor) -> tuple[sympy.Expr, ...]:
        """The global shape."""
        return tuple(self.axes[axis] for axis in tensor.axes)

    def local_shape(self, tensor: Tensor, layout: Layout) -> tuple[sympy.Expr, ...]:
        """This rank's shape."""
        return tuple(self.local(axis, layout.cuts(axis)) for axis in tensor.axes)

    def elements(self, tensor: Tensor, layout: Layout) -> sympy.Expr:
        """This rank's number of elements."""
        whole = sympy.Mul(*self.local_shape(tensor, layout))
        return whole * _filled(layout, "load_here") if "slots" in tensor.axes else whole

    def message(self, tensor: Tensor, layout: Layout) -> sympy.Expr:
        """Bytes of the tensor as an operand of a collective: where ranks have unequal parts, those of the largest."""
        if "slots" not in tensor.axes:
            return self.bytes(tensor, layout)
        return sympy.Mul(*self.local_shape(tensor, layout)) * _filled(layout, "load_top") * WIDTHS[tensor.dtype]

    def bytes(self, tensor: Tensor, layout: Layout) -> sympy.Expr:
        """This rank's bytes."""
        return self.elements(tensor, layout) * WIDTHS[tensor.dtype]


@dataclass(frozen=True)
class Cost:
    """FLOPs, bytes and dimensions of one operation on one rank."""

    flops: sympy.Expr
    bytes_read: sympy.Expr
    bytes_written: sympy.Expr
    dims: tuple[sympy.Expr, ...]


def cost(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Cost:
    """The costs of an operation whose tensors have these layouts."""
    cuts: dict[str, tuple[str, ...]] = {}
    for tensor in (*op.inputs, *op.outputs):
        for axis in tensor.axes:
            cuts[axis] = cuts.get(axis) or layouts[tensor.name].cuts(axis)

    def size(axis: str) -> sympy.Expr:
        return sizes.local(axis, cuts.get(axis, ()))

    slotted = next((layouts[t.name] for t in (*op.inputs, *op.outputs) if "slots" in t.axes), None)
    return Cost(
        op.operator.flops(size) * (1 if slotted is None else _filled(slotted, "load_here")),
        sympy.Add(*(sizes.bytes(t, layouts[t.name]) for t in op.inputs)),
        sympy.Add(*(sizes.bytes(t, layouts[t.name]) for t in op.outputs)),
        op.operator.dims(size),
    )
