"""Muon's operators: a gradient becomes the average of itself, then a matrix with equal singular values, then a step.

Jordan et al. 2024. The matrices are those of linear layers inside layers, which are not as wide as a vocabulary, and in
some frameworks learned positions; AdamW updates all other weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stagedb.collectives import ALL_GATHER
from stagedb.errors import UsageError
from stagedb.graphs.block import LaidOut
from stagedb.graphs.sharing import of_experts
from stagedb.ir.layouts import Layout, Partitioned
from stagedb.ir.operators import (
    SLICE,
    Momentum,
    MuonUpdate,
    Operator,
    Orthogonalisation,
    PositionEmbedding,
    Redistribution,
)
from stagedb.ir.operators.optimizer import PACKED
from stagedb.ir.tensors import Operation, Tensor
from stagedb.mentions import Word
from stagedb.workflows.training import STEP

STATE = "momentum_buffer"
"""The word of its state, as in `torch.optim.Muon`."""


MOMENTUM, GATHER, ORTHOGONALISATION, CUT = CHAIN = ("momentum", "gather", "orthogonalisation", "slice")
"""The words of the operators of a matrix before its update, with which their names end."""


@dataclass(frozen=True)
class Muon:
    """How Muon runs.

    gathers: ranks of tp gather the matrices that they partition. splits: see `Orthogonalisation`. positions: the table
    of learned positions is a matrix of it.
    """

    gathers: bool
    splits: bool
    positions: bool = False


@dataclass
class _Chain:
    """The operators of one weight, in order. It adds the layouts of the tensors that it makes to `layouts`."""

    weight: Tensor
    layouts: dict[str, Layout]
    operations: list[Operation] = field(default_factory=list)

    def emit(self, word: str, operator: Operator, inputs: Iterable[Tensor], *outputs: Tensor) -> None:
        """Add an operator with a name that ends in `word`."""
        name = f"{self.weight.name}.{word}"
        self.operations.append(Operation(name, operator, tuple(inputs), outputs, "step", STEP, name))

    def made(self, word: str, dtype: str, layout: Layout) -> Tensor:
        """A new tensor of the weight's shape."""
        tensor = Tensor(f"{self.weight.name}.{word}", self.weight.axes, dtype, "gradient")
        self.layouts[tensor.name] = layout
        return tensor


def matrices(block: LaidOut, muon: Muon) -> frozenset[str]:
    """The weights of a block that are matrices of Muon, with gradients: those of linear layers, and learned positions.

    A matmul reads a weight itself, or what is gathered or cast of it. muon: how it runs.
    """
    sources = {weight.name: weight.name for weight in block.weights}
    read = set[str]()
    for op in block.operations:
        names = [sources[tensor.name] for tensor in op.inputs if tensor.name in sources]
        if op.operator.kind == "matmul" or (muon.positions and isinstance(op.operator, PositionEmbedding)):
            read |= {*names}
        elif len(op.inputs) == 1:
            sources |= dict.fromkeys((tensor.name for tensor in op.outputs), *names) if names else {}
    return frozenset(
        weight.name
        for weight in block.weights
        if weight.name in block.gradients and weight.name in read and _is_matrix(block, weight)
    )


def _is_matrix(block: LaidOut, weight: Tensor) -> bool:
    """Whether a weight is no bias, and not as wide as a vocabulary."""
    if of_experts(block.layouts[weight.name]):
        return len(weight.axes) > 2
    return block.rows[weight.name] < len(weight.axes) and "vocab" not in weight.axes


def muon_step(
    muon: Muon, block: LaidOut, weight: Tensor, gradient: Tensor, layouts: dict[str, Layout], master: Tensor
) -> tuple[list[Operation], Tensor]:
    """The operators that update one weight, and its state.

    gradient: reduced, in the weight's layout. layouts: those of the new tensors are added. master: the copy of the
    weight that is updated in its place, where there is one. UsageError for a matrix that a strategy cuts over other
    axes than tp, and for fused projections that are not split as queries, keys and values of one size.
    """
    chain, own = _Chain(weight, layouts), layouts[weight.name]
    _check_whole(weight, own)
    state = Tensor(f"{weight.name}.{STATE}", weight.axes, "opt", "optimizer_state")
    layouts[state.name] = own
    update = chain.made("direction", gradient.dtype, own)
    chain.emit(MOMENTUM, Momentum(), (gradient, state), update, state)
    cut = own.on("tp") if muon.gathers else None
    gathered = own.with_("tp", None) if isinstance(cut, Partitioned) else own
    if isinstance(cut, Partitioned):
        whole = chain.made("direction.whole", gradient.dtype, gathered)
        chain.emit(GATHER, Redistribution(ALL_GATHER.name, "tp", source=cut.axis), (update,), whole)
        update = whole
    made = chain.made("orthogonal", "bf16", gathered)
    chain.emit(ORTHOGONALISATION, _orthogonalisation(muon, block, weight), (update,), made)
    if isinstance(cut, Partitioned):
        part = chain.made("orthogonal.part", "bf16", own)
        chain.emit(CUT, Redistribution(SLICE, "tp", target=cut.axis), (made,), part)
        made = part
    chain.emit("optimizer", MuonUpdate(), (weight, made, master), weight, master)
    return chain.operations, state


def _check_whole(weight: Tensor, layout: Layout) -> None:
    cut = [axis for axis, _ in layout.placements if axis not in ("tp", "ep", "epn", "epr")]
    if cut:
        raise UsageError(
            f"Muon needs whole matrices, and the strategy partitions {weight.name} over {cut[0]}: take "
            f"{Word('optimizer', 'adamw')}, or leave {cut[0]} out of the strategy's rule for this weight"
        )


def _orthogonalisation(muon: Muon, block: LaidOut, weight: Tensor) -> Orthogonalisation:
    """How Muon makes a weight's matrices orthogonal: their axes, and how many there are (one for each expert)."""
    axes, rows = weight.axes, block.rows[weight.name]
    if of_experts(block.layouts[weight.name]):
        return Orthogonalisation(axes[1:-1], axes[-1:], axes[:1])
    fused = next((axis for axis in axes if axis.startswith(PACKED)), None)
    if muon.splits and fused not in (None, PACKED):
        raise UsageError(
            f"{weight.name} has queries, gates, keys or values of different sizes in one matrix, which Muon has to "
            f"split: take {Word('recipe', 'torch')}, where each is a matrix, or {Word('optimizer', 'adamw')}"
        )
    return Orthogonalisation(axes[:rows], axes[rows:], split=muon.splits and fused == PACKED)
