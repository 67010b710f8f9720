"""What a kind of collective is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

Size = TypeVar("Size")


class HeldAs(StrEnum):
    """What each member of a group has of a tensor, before a collective or after it."""

    SHARE = "share"  # a summand of the tensor, as large as the tensor
    PART = "part"  # a part of the tensor along one axis
    WHOLE = "whole"


Step = tuple["CollectiveKind", int, Fraction]
"""One step of a collective over several dimensions of a network: the collective of a row of members, the dimension as
an index of those that the group spans, and the bytes that a rank passes in."""


@dataclass(frozen=True)
class CollectiveKind:
    """A kind of collective.

    name: of the operators' `kind`. before, after: what a member passes in, and what it gets. passes: how often the
    buffer goes around the group. comm_type: its name in Chakra's schema. steps: the collectives that it runs over the
    dimensions of a network, innermost first, by the numbers of members along them and the bytes passed in. simulated:
    its name in files of simulators; None: they do not run it. smallest: bytes that a member must pass in so that it
    ends in a simulator. tables: its name in tables of measured latencies; empty: none has it.
    """

    name: str
    before: HeldAs
    after: HeldAs
    passes: int
    comm_type: str
    steps: Callable[[Sequence[int], Fraction], list[Step]]
    simulated: str | None = None
    smallest: int = 1
    tables: tuple[str, ...] = ()

    @property
    def reduces(self) -> bool:
        """Whether the collective adds up what the members pass in."""
        return self.before is HeldAs.SHARE

    @property
    def gathers(self) -> bool:
        """Whether the collective concatenates the members' parts, as an all-gather does."""
        return self.before is HeldAs.PART and self.after is HeldAs.WHOLE

    @property
    def scatters(self) -> bool:
        """Whether each member gets its part of a sum."""
        return self.reduces and self.after is HeldAs.PART

    @property
    def exchanges(self) -> bool:
        """Whether each member has something of its own for each other one."""
        return self.before is HeldAs.PART and self.after is HeldAs.PART

    @property
    def resizes(self) -> bool:
        """Whether a member gets more or less than it passes in."""
        return self.gathers or self.scatters

    def whole(self, size: int, members: int) -> int:
        """Bytes of the largest buffer of the collective, where a member passes in `size`.

        members: ranks of the group.
        """
        return size * members if self.gathers else size

    def sizes(self, part: Size, whole: Size) -> tuple[Size, Size]:
        """The sizes of a member's operand and of its result; one is a part of the other.

        part: the smaller size. whole: the larger one.
        """
        return (part, whole) if self.gathers else (whole, part)

    def messages(self, members: int) -> int:
        """How many messages a member sends: around a ring, or one to each other member. members: ranks of the group."""
        return self.passes * (members - 1)

    def message(self, size: Fraction, members: int) -> Fraction:
        """Bytes of each message of a member that passes in `size` bytes (`messages` has their number).

        members: ranks of the group.
        """
        return size if self.gathers else size / members

    def combine(self, held: "Sequence[Array]", axis: int | None) -> "Array":
        """The tensor, from what all members pass in. axis: the one that is cut before; None where none is."""
        import numpy as np

        if axis is None:
            total: Array = np.sum(held, axis=0)
            return total
        return np.concatenate(held, axis=axis)
