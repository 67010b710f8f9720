"""What moves a tensor from one layout to another on one mesh axis: a collective, or a local slice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stagedb.expressions import Expression, number, smallest, symbol
from stagedb.ir.operators._base import Operator
from stagedb.ir.tags import Tag

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

    def present(self) -> Expression | None:
        return None if self.last else symbol(self.mesh_axis) - symbol("step")


@dataclass(frozen=True)
class Exchange(Operator):
    """Each member of a ring sends what it has to one neighbour and receives from the other, with no collective.

    It stands for a `Send` and a `Receive` until a block is laid out. Operands: the keys of the first turn, those that
    came in the turn before, and (back) the sums of their gradients; results: what comes of either. back: it goes
    against the order of ranks, all but the last turn send keys, and all but the first one sums; else every turn but
    the last sends keys.
    """

    mesh_axis: str
    back: bool = False

    kind: ClassVar[str] = "exchange"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    @property
    def distance(self) -> Expression:
        """How many ranks of cp lie from one member of the ring to the next."""
        return number(1) if self.mesh_axis == "cp" else symbol("cpa")

    def present(self) -> Expression | None:
        return None if self.back else symbol(self.mesh_axis) - symbol("step")

    def peer(self) -> Expression:
        """Ranks of cp from here to the other end, around the ring."""
        raise TypeError("an exchange has two ends")

    def message(self, tensors: Sequence[Expression]) -> Expression:
        """The size of what a turn sends, given those of keys and (back) of sums."""
        if not self.back:
            return tensors[0]
        step = symbol("step")
        return tensors[0] * smallest(symbol(self.mesh_axis) - step, 1) + tensors[-1] * smallest(step - 1, 1)


@dataclass(frozen=True)
class Send(Exchange):
    """One end of an exchange: it reads what goes, and ends though nobody receives it yet."""

    kind: ClassVar[str] = "send"

    def peer(self) -> Expression:
        return -self.distance if self.back else self.distance


@dataclass(frozen=True)
class Receive(Exchange):
    """The other end: it writes what comes, and nothing but its readers waits for it."""

    kind: ClassVar[str] = "recv"

    def peer(self) -> Expression:
        return self.distance if self.back else -self.distance
