"""Bytes that an operator holds while it runs, in addition to its operands and results.

They are those of PyTorch's own kernels where an operator consists of several (recorded runs show them): the loss with
vocabulary-sized values, the gate of a gated feed-forward. A fused kernel has none.
"""

from collections.abc import Callable, Mapping

from stagedb.graphs.costs import CLASS_BYTES, Sizes
from stagedb.ir.expressions import Expression, largest, number, smallest, symbol, total
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import (
    CrossEntropyGradient,
    Gate,
    GateGradient,
    MeanSquare,
    MeanSquareGradient,
    Operator,
    Orthogonalisation,
    RingStepGradient,
    RMSNorm,
    RMSNormGradient,
    SumExp,
    SumProduct,
    WeightedSum,
    WeightedSumGradient,
)
from stagedb.ir.tensors import Operation

Of = Callable[[Operation, Sizes, Mapping[str, Layout]], Expression]


def temporary(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The most that an operation holds at once in addition to its operands and results: bytes on one rank.

    layouts: by name of a tensor, how ranks hold it.
    """
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


def _norm(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The scaled input in fp32; of an input in another format its copy in fp32, too."""
    x = op.inputs[0]
    copied = smallest(4 - CLASS_BYTES[x.dtype], 1)
    return sizes.elements(x, layouts[x.name]) * CLASS_BYTES["fp32"] * (1 + copied)


def _norm_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Four values of the input's size in fp32 and a mean for each row, less the input's gradient, which they make.

    The four are the normalised input, the scaled gradient, its part along the input, and their difference.
    """
    (x, rstd), dx = (op.inputs[1], op.inputs[3]), op.outputs[0]
    wide = 4 * sizes.elements(x, layouts[x.name]) * CLASS_BYTES["fp32"]
    return wide + sizes.bytes(rstd, layouts[rstd.name]) - sizes.bytes(dx, layouts[dx.name])


def _gate(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The activation of the gate, which is then multiplied."""
    (y,) = op.outputs
    return sizes.bytes(y, layouts[y.name])


def _as_first(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """A value of the first input's size: a square, or a product that is then summed."""
    x = op.inputs[0]
    return sizes.bytes(x, layouts[x.name])


def _as_values(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The product of gradients and values of a token's choices, which is summed to the gradient of weights."""
    values = op.inputs[1]
    return sizes.bytes(values, layouts[values.name])


def _square_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The gradient of the mean, as wide as the input, and the input to the power of one, and doubled."""
    x = op.inputs[1]
    return 3 * sizes.bytes(x, layouts[x.name])


def _ring_gradient(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """Bytes that one turn of a ring's backward holds, beyond the fp32 sums that it reads and those that it writes.

    From the second turn on (torch's `_templated_ring_attention_backward`) there are two moments, of which the larger
    counts. While the kernel runs: the sums of the turn before and the kernel's results of both turns; those of this one
    have half of a rank's rows. While the sums are sent, if half of the keys got gradients: the sums that came before,
    new ones of keys and values, and the results of the kernel. With three ranks or more keys are held three times;
    gathered keys have a packed copy.
    """
    step = op.operator
    if not isinstance(step, RingStepGradient) or step.back:
        return number(0)  # Transformer Engine adds in place
    q, of_keys = op.outputs[0], op.outputs[1]
    width = CLASS_BYTES[op.inputs[1].dtype]
    rows = sizes.elements(q, layouts[q.name]) * width
    keys = sizes.elements(of_keys, layouts[of_keys.name]) * width
    sums = sizes.bytes(of_keys, layouts[of_keys.name])
    packed = keys * (1 if step.gathered else smallest(symbol(step.axis) - 2, 1))
    if not step.balanced:
        return packed + sums + 2 * (rows + keys)
    running, sending = sums + rows + rows / 2 + 2 * keys, 2 * sums + rows + keys / 2
    return packed + largest(running, sending)


def _orthogonalisation(op: Operation, sizes: Sizes, layouts: Mapping[str, Layout]) -> Expression:
    """The matrix in bf16 of the step before, and two products of it with itself (`torch.optim.Muon`)."""
    (matrix,) = op.inputs
    step, layout = op.operator, layouts[matrix.name]
    if not isinstance(step, Orthogonalisation):
        return number(0)

    def size(axis: str) -> Expression:
        return sizes.local(axis, layout.cuts(axis))

    return CLASS_BYTES["bf16"] * (sizes.elements(matrix, layout) + step.grams(size))


_RULES: Mapping[type[Operator], Of] = {
    RingStepGradient: _ring_gradient,
    CrossEntropyGradient: _loss_gradient,
    SumExp: _exponentials,
    GateGradient: _gate_gradient,
    Gate: _gate,
    MeanSquare: _as_first,
    MeanSquareGradient: _square_gradient,
    RMSNorm: _norm,
    RMSNormGradient: _norm_gradient,
    SumProduct: _as_first,
    WeightedSum: _as_first,
    WeightedSumGradient: _as_values,
    Orthogonalisation: _orthogonalisation,
}
