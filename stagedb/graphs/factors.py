"""Adafactor's matrices: the rows and columns of each weight as PyTorch has it.

`torch.optim.Adafactor` factors the last two dimensions of a parameter. Those of the graph's weights have names, and
those that a framework has as one dimension are several of them.
"""

from stagedb.errors import UsageError
from stagedb.graphs.block import LaidOut
from stagedb.graphs.sharing import of_experts
from stagedb.ir.operators import Adafactor
from stagedb.ir.tensors import Tensor
from stagedb.mentions import Word

_MATRICES = ("matmul", "embedding")
"""The kinds of operators that read a weight as a matrix."""


def factored(block: LaidOut, weight: Tensor) -> Adafactor:
    """The operator that updates a weight of a block by the means of its rows and columns; of a vector by its squares.

    UsageError for a weight that a strategy cuts over dp or cp, and for one of a shape that PyTorch may have otherwise.
    """
    check_whole(block, weight, "Adafactor")
    axes, rows = weight.axes, block.rows[weight.name]
    if of_experts(block.layouts[weight.name]) and len(axes) > 1:
        return Adafactor(axes[1:-1], axes[-1:], axes[:1]) if len(axes) > 2 else Adafactor(axes[:1], axes[1:])
    if rows == len(axes) and (len(axes) == 1 or weight.name.endswith(".bias")):
        return Adafactor()
    if rows < len(axes) and not _readers(block, weight).isdisjoint(_MATRICES):
        return Adafactor(axes[:rows], axes[rows:])
    raise UsageError(
        f"Adafactor keeps means of the last two dimensions of a parameter, and {weight.name} is neither a vector nor "
        f"of a linear layer or an embedding: take {Word('optimizer', 'adamw')}"
    )


def check_whole(block: LaidOut, weight: Tensor, name: str) -> None:
    """Raise UsageError for a weight that a strategy cuts over dp or cp. name: of an optimizer of whole weights."""
    cut = [axis for axis, _ in block.layouts[weight.name].placements if axis not in ("tp", "ep", "epn", "epr")]
    if cut:
        raise UsageError(
            f"{name} needs whole weights, and the strategy partitions {weight.name} over {cut[0]}: take "
            f"{Word('optimizer', 'adamw')}, or leave {cut[0]} out of the strategy's rule for this weight"
        )


def _readers(block: LaidOut, weight: Tensor) -> set[str]:
    """The kinds of operators that read a weight itself, or what is gathered or cast of it."""
    names, kinds = {weight.name}, set[str]()
    for op in block.operations:
        read = [tensor.name for tensor in op.inputs if tensor.name in names]
        if read and len(op.inputs) == 1:
            names |= {tensor.name for tensor in op.outputs}
        if read:
            kinds.add(op.operator.kind)
    return kinds
