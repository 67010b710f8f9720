"""Weights that each rank of dp updates whole: what an optimizer's operators cost by how many of them are a rank's own.

Megatron-Core 0.16.1, `LayerWiseDistributedOptimizer` in megatron/core/optimizer/layer_wise_optimizer.py. A weight is
one parameter, and that of the experts of a layer as many as a rank has experts. Which of them are a rank's own follows
from all weights of its stage (`stagedb.lowering.rank_classes`). Expressions have a symbol for each weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stagedb.graphs.block import LaidOut
from stagedb.graphs.costs import Sizes
from stagedb.graphs.muon import CHAIN
from stagedb.graphs.sharing import of_experts
from stagedb.ir.expressions import Expression, number, parse, product, smallest, symbol, total
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import Update
from stagedb.ir.symbolic_graph import SymOp
from stagedb.ir.tensors import Operation, Tensor

EXPERTS = "experts"
"""The axis of weights that have a matrix for each expert."""


def owned_symbol(block: int, order: int) -> str:
    """The symbol of how many parameters of a weight are a rank's own, and one more, because symbols are above 0.

    block: its place among the blocks of the graph. order: of the weight's registration in the block.
    """
    return f"owned_{block}_{order}"


def parameters_of(weight: Tensor, layout: Layout, sizes: Sizes) -> Expression:
    """How many parameters of the framework a weight is on one rank: one, or one of each expert.

    weight: of a block. layout: its layout. sizes: those of the block's axes.
    """
    return sizes.local(EXPERTS, layout.cuts(EXPERTS)) if of_experts(layout) else number(1)


@dataclass(frozen=True)
class SharedSizes(Sizes):
    """Sizes of what an update touches of each weight. shares: by weight and by gradient, the part that is its own."""

    shares: Mapping[str, Expression] = field(default_factory=dict)

    def elements(self, tensor: Tensor, layout: Layout) -> Expression:
        """Elements of a weight, or of a tensor that is named after one, that one rank updates."""
        origin = next(name for name in self.shares if tensor.name == name or tensor.name.startswith(f"{name}."))
        return super().elements(tensor, layout) * self.shares[origin]


@dataclass(frozen=True)
class OwnedLayers:
    """The weights of a block of which each rank of dp updates its own.

    counts: by weight, how many of its parameters are a rank's own. all_of: how many it has. sizes: of the block's axes.
    """

    block: LaidOut
    sizes: Sizes
    counts: Mapping[str, Expression]
    all_of: Mapping[str, Expression]

    @classmethod
    def of(cls, number: int, block: LaidOut, sizes: Sizes) -> "OwnedLayers":
        """Those of a block. number: its place among the blocks of the graph. sizes: of its axes."""
        counts = {each.name: symbol(owned_symbol(number, order)) - 1 for order, each in enumerate(block.weights)}
        all_of = {each.name: parameters_of(each, block.layouts[each.name], sizes) for each in block.weights}
        return cls(block, sizes, counts, all_of)

    def updated(self, op: Operation) -> tuple[str, ...]:
        """The weights that an operation updates, or makes something for in their update."""
        if not op.template.once:
            return ()
        if isinstance(op.operator, Update):
            return tuple(tensor.name for tensor in op.inputs if tensor.role == "weight")
        weight, _, word = op.name.rpartition(".")
        return (weight,) if weight in self.counts and word in CHAIN else ()

    def sizes_of(self, op: Operation) -> Sizes:
        """The sizes of an operation's tensors, as far as they are of weights of one's own.

        An operation of one weight of experts is over fewer experts. One of several weights touches parts of them.
        """
        weights = self.updated(op)
        if not weights:
            return self.sizes
        if len(weights) > 1:
            shares = {name: self.counts[name] / self.all_of[name] for name in weights}
            shares |= {grad.name: shares[name] for name, grad in self.block.gradients.items() if name in shares}
            return SharedSizes(self.sizes.axes, self.sizes.replicable, shares)
        layout = self.block.layouts[weights[0]]
        if not of_experts(layout):
            return self.sizes
        spread = product(symbol(axis) for axis in layout.cuts(EXPERTS))
        return Sizes({**self.sizes.axes, EXPERTS: self.counts[weights[0]] * spread}, self.sizes.replicable)

    def placed(self, op: Operation, row: SymOp) -> SymOp:
        """The row of an operation with the condition that some of what it updates is a rank's own."""
        weights = self.updated(op)
        if not weights:
            return row
        present = total(self.counts[name] for name in weights)
        return replace(row, present=str(present if row.present is None else smallest(parse(row.present), present)))
