"""What FSDP gathers and reduces together."""

from dataclasses import dataclass

from stagedb.memory.class_program import Item
from stagedb.models.further_tokens import depth_of


@dataclass(frozen=True)
class Unit:
    """Weights that are gathered, and whose gradients are reduced, together: those of a layer.

    position: of its block. depth: of a layer that predicts a further token, which is a part of that block, from 1; 0
    for others.
    """

    position: int
    depth: int = 0

    def has(self, item: Item) -> bool:
        """Whether an operator is one of the unit."""
        inside = item.bucket is None and item.position == self.position
        return inside and (not self.depth or (item.message == 0 and depth_of(item.op.name) == self.depth))
