"""What moves a tensor from one layout to another on one mesh axis: a collective, or a local slice."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import sympy

from stagedb.graph.operators._base import Operator
from stagedb.symbols import symbol

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


@dataclass(frozen=True)
class Rotate(Operator):
    """Each member of the mesh axis sends what it has to the next one: an exchange of a ring.

    Its second operand, if any, is what came in the turn before. last: the last turn sends, too. The library's call is
    an all-to-all in which all goes to one member.
    """

    mesh_axis: str
    last: bool

    kind: ClassVar[str] = "all_to_all"

    def present(self) -> sympy.Expr | None:
        return None if self.last else symbol(self.mesh_axis) - symbol("step")
