"""The optimizer's step, represented by its costs: it reads gradients and its state and writes weights and its state."""

from dataclasses import dataclass
from typing import ClassVar

from stagedb.ir.operators._base import Operator


@dataclass(frozen=True)
class AdamW(Operator):
    """One fused step over all weights of a block (Loshchilov and Hutter 2019): two moments a weight.

    It updates the weights, or a master copy from which the weights are written.
    """

    kind: ClassVar[str] = "optimizer"
