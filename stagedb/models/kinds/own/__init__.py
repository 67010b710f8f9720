"""Own blocks: mixers and channel mixers that a file writes as einsums and operators over named axes.

`reader` makes an `OwnBlock` of a file or of a card's mapping, `shapes` finds the axes of every step and refuses what
has no meaning, and `part` writes the forward. Nothing of a file is run: a step names an operator of a fixed list.
"""

from stagedb.models.kinds.own.block import BlockParameter, BlockStep, OwnBlock
from stagedb.models.kinds.own.part import check_tp, part_of
from stagedb.models.kinds.own.reader import read_block, read_blocks
from stagedb.models.kinds.own.shapes import Shapes, shapes_of

__all__ = [
    "BlockParameter",
    "BlockStep",
    "OwnBlock",
    "Shapes",
    "check_tp",
    "part_of",
    "read_block",
    "read_blocks",
    "shapes_of",
]
