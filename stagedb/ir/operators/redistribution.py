"""Operators that move a tensor from one layout to another on one mesh axis: a collective, or a local slice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from stagedb.collectives import ALL_TO_ALL, KINDS, CollectiveKind
from stagedb.ir.expressions import Expression, number, smallest, symbol
from stagedb.ir.facts import Tag
from stagedb.ir.operators._base import Array, Operator, RankPlace, arriving
from stagedb.workflows.training import INPUT_GRADIENT

if TYPE_CHECKING:
    from stagedb.ir.tensors import Operation, Tensor, Tracer

SLICE = "slice"
"""A rank takes its part of a whole tensor."""
SHARE = "share"
"""A share is what a rank takes of a whole tensor, so that the sum over ranks is the tensor."""
PAD = "pad"
"""A rank has its part of a tensor, and makes it a share: zeros are where the others have theirs."""


@dataclass(frozen=True)
class Redistribution(Operator):
    """`source` and `target`: the tensor axes partitioned before and after; None if it was or becomes whole.

    move: the name of a kind of collective, `SLICE`, `SHARE` or `PAD`.
    """

    move: str
    mesh_axis: str
    source: str | None = None
    target: str | None = None
    reduces: str = "sum"

    kind: ClassVar[str] = "redistribution"

    @property
    def collective(self) -> CollectiveKind | None:
        """The collective that it is; None for what a rank does alone."""
        return KINDS.get(self.move)


@dataclass(frozen=True)
class CopyGathered(Operator):
    """A copy of parts that ranks of a mesh axis have sent: a gather on an axis other than the first leaves them apart.

    Its gradient copies the part that remains.
    """

    mesh_axis: str

    kind: ClassVar[str] = "copy"
    sum_region: ClassVar[str | None] = "between"

    def present(self) -> Expression | None:
        return symbol(self.mesh_axis) - 1

    def gradient(
        self, tracer: "Tracer", op: "Operation", grads: tuple["Tensor | None", ...]
    ) -> Iterator[tuple[int, "Tensor"]]:
        grad = tracer.gradient(op.inputs[0], f"{op.name}.input_gradient")
        tracer.emit(grad.name, CopyGathered(self.mesh_axis), (arriving(grads),), grad, template=INPUT_GRADIENT)
        yield 0, grad

    def run(self, place: RankPlace, inputs: list[Array]) -> list[Array]:
        return inputs


@dataclass(frozen=True)
class Rotate(Operator):
    """Each member of the mesh axis sends its tensor to the next one: an exchange of a ring.

    The optional second operand is the tensor received in the turn before. last: the last turn sends, too. In the
    library the call is an all-to-all that sends everything to one member.
    """

    mesh_axis: str
    last: bool

    kind: ClassVar[str] = ALL_TO_ALL.name

    def present(self) -> Expression | None:
        return None if self.last else symbol(self.mesh_axis) - symbol("step")


@dataclass(frozen=True)
class Exchange(Operator):
    """Each member of a ring sends its tensor to one neighbour and receives from the other, without a collective.

    It represents a `Send` and a `Receive` until a block is laid out. Operands: the keys of the first turn, those
    received in the turn before, and (back) the sums of their gradients. Results: the received tensors. back: it goes
    against the order of ranks, all turns but the last send keys, and all turns but the first send sums. Otherwise every
    turn but the last sends keys.
    """

    mesh_axis: str
    back: bool = False

    kind: ClassVar[str] = "exchange"
    tags: ClassVar[frozenset[Tag]] = frozenset({Tag.SAVED})

    @property
    def distance(self) -> Expression:
        """The distance in ranks of cp from one member of the ring to the next."""
        return number(1) if self.mesh_axis == "cp" else symbol("cpa")

    def present(self) -> Expression | None:
        return None if self.back else symbol(self.mesh_axis) - symbol("step")

    def peer(self) -> Expression:
        """Ranks of cp from here to the other end, around the ring."""
        raise TypeError("an exchange has two ends")

    def message(self, tensors: Sequence[Expression]) -> Expression:
        """The size of a turn's message, given the sizes of keys and (back) of sums."""
        if not self.back:
            return tensors[0]
        step = symbol("step")
        return tensors[0] * smallest(symbol(self.mesh_axis) - step, 1) + tensors[-1] * smallest(step - 1, 1)


@dataclass(frozen=True)
class Send(Exchange):
    """One end of an exchange: it reads the message, and ends even if no rank receives it yet."""

    kind: ClassVar[str] = "send"

    def peer(self) -> Expression:
        return -self.distance if self.back else self.distance


@dataclass(frozen=True)
class Receive(Exchange):
    """The other end: it writes the message, and only its readers wait for it."""

    kind: ClassVar[str] = "recv"

    def peer(self) -> Expression:
        return self.distance if self.back else -self.distance
