"""The optimizer's step, known by its costs: it reads weights, gradients and moments and writes weights and moments."""

from dataclasses import dataclass
from typing import ClassVar

from stagedb.graph.operators._base import Operator


@dataclass(frozen=True)
class AdamW(Operator):
    """One fused step over all weights of a block (Loshchilov and Hutter 2019): two moments a weight."""

    kind: ClassVar[str] = "optimizer"
