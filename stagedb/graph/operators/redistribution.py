"""What moves a tensor from one layout to another on one mesh axis: a collective, or a local slice."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from stagedb.graph.operators._base import Operator

Move = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "slice"]


@dataclass(frozen=True)
class Redistribution(Operator):
    """`source` and `target` are the tensor axes partitioned before and after; None where it was or becomes whole."""

    move: Move
    mesh_axis: str
    source: str | None = None
    target: str | None = None
    reduces: str = "sum"

    kind: ClassVar[str] = "redistribution"
