"""What FSDP gathers and reduces together."""

from dataclasses import dataclass

from stagedb.ir.facts import TensorFacts
from stagedb.memory.class_program import Item


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered, and whose gradients are reduced, together: those of a layer.

    position: of its block. depth: of a layer of multi-token prediction, which is a part of that block, from 1; 0 for
    others. experts: those of the layer, as a unit of their own.
    """

    position: int
    depth: int = 0
    experts: bool = False

    @classmethod
    def of_layer(cls, position: int, weight: TensorFacts, apart: bool) -> "Unit":
        """The FSDP unit of a layer's weight.

        position: of the layer. apart: the layer's experts are a unit of their own.
        """
        return cls(position, experts=apart and weight.experts)

    def has(self, item: Item) -> bool:
        """Whether an operator is one of the unit."""
        inside = item.bucket is None and item.position == self.position
        if self.experts:
            return inside and item.facts.experts is not None
        return inside and (not self.depth or (item.message == 0 and item.facts.depth == self.depth))
