"""Bytes that an operator holds while it runs, in addition to its operands and results.

They are those of PyTorch's own kernels where an operator consists of several (recorded runs show them): the loss with
vocabulary-sized values, the gate of a gated feed-forward. A fused kernel has none.
"""

from collections.abc import Callable, Mapping

from stagedb.build.costs import CLASS_BYTES, Sizes
from stagedb.expressions import Expression, number, smallest, symbol, total
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import CrossEntropyGradient, GateGradient, Operator, RMSNormGradient, SumExp
from stagedb.ir.tensors import Operation

Of = Callable[[Operation, Sizes, Mapping[str, Layout]], Expression]


def temporary(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The most that it holds at once, in bytes on one rank."""
    rule = _RULES.get(type(op.operator))
    return number(0) if rule is None else rule(op, sizes, layouts)


def _several(cuts: tuple[str, ...]) -> Expression:
    """1 where several ranks share an axis, else 0."""
    return smallest(total(symbol(axis) - 1 for axis in cuts), 1)


def _loss_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The gradient with respect to log-probabilities; over a partitioned vocabulary their exponentials, too."""
    (out,) = op.outputs
    return sizes.bytes(out, layouts[out.name]) * (1 + _several(layouts[out.name].cuts("vocab")))


def _exponentials(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The exponentials that are summed; the loss of a whole vocabulary is one kernel."""
    (shifted,) = op.inputs
    return sizes.bytes(shifted, layouts[shifted.name]) * _several(layouts[shifted.name].cuts("vocab"))


def _gate_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Three values of the gate's size: its sigmoid, the activation and its slope (backward of x·sigmoid(x))."""
    dy = op.inputs[0]
    return 3 * sizes.bytes(dy, layouts[dy.name])


def _norm_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Three values of the input's size in fp32: the normalised input, the scaled gradient and their product."""
    x = op.inputs[1]
    return 3 * sizes.elements(x, layouts[x.name]) * CLASS_BYTES["fp32"]


_RULES: Mapping[type[Operator], Of] = {
    CrossEntropyGradient: _loss_gradient,
    SumExp: _exponentials,
    GateGradient: _gate_gradient,
    RMSNormGradient: _norm_gradient,
}
