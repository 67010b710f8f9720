"""Collectives: a kind is one object, with all that differs from kind to kind.

A new kind is a `CollectiveKind` and its place in the tuple `KINDS`. Code asks the object and compares no names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "KINDS",
    "REDUCE_SCATTER",
    "SIMULATED",
    "CollectiveKind",
    "HeldAs",
    "exchanges",
    "gathers",
    "kind_between",
    "resizes",
    "scatters",
]

# What a kind of collective is.

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


# All kinds of collectives, and what operators of these kinds do, asked by the name of a kind.
#
# An operator's kind may be that of something that computes, which none of the questions is true of.


def _reduced(members: Sequence[int], size: Fraction) -> list[Step]:
    """Scattered from the inside out, reduced in the outermost dimension, and gathered on the way back."""
    last = len(members) - 1
    inwards = _scattered(members[:last], size)
    for count in members[:last]:
        size /= count
    found = [*inwards, (ALL_REDUCE, last, size)]
    for at in reversed(range(last)):
        found.append((ALL_GATHER, at, size))
        size *= members[at]
    return found


def _gathered(members: Sequence[int], size: Fraction) -> list[Step]:
    """From the outside in: what is gathered outside is all that the inner dimension passes on."""
    found: list[Step] = []
    for at in reversed(range(len(members))):
        found.append((ALL_GATHER, at, size))
        size *= members[at]
    return found


def _scattered(members: Sequence[int], size: Fraction) -> list[Step]:
    """From the inside out: the part that is left inside a dimension is all that the next one reduces."""
    found: list[Step] = []
    for at, count in enumerate(members):
        found.append((REDUCE_SCATTER, at, size))
        size /= count
    return found


def _exchanged(members: Sequence[int], size: Fraction) -> list[Step]:
    """Everything through each dimension."""
    return [(ALL_TO_ALL, at, size) for at in range(len(members))]


ALL_REDUCE = CollectiveKind(
    name="all_reduce",
    before=HeldAs.SHARE,
    after=HeldAs.WHOLE,
    passes=2,
    comm_type="ALL_REDUCE",
    steps=_reduced,
    simulated="all-reduce",
    tables=("all_reduce",),
)

ALL_GATHER = CollectiveKind(
    name="all_gather",
    before=HeldAs.PART,
    after=HeldAs.WHOLE,
    passes=1,
    comm_type="ALL_GATHER",
    steps=_gathered,
    simulated="all-gather",
    smallest=256,  # a part that is smaller than its number of chunks never ends in ASTRA-sim
    tables=("all_gather",),
)

REDUCE_SCATTER = CollectiveKind(
    name="reduce_scatter",
    before=HeldAs.SHARE,
    after=HeldAs.PART,
    passes=1,
    comm_type="REDUCE_SCATTER",
    steps=_scattered,
    simulated="reduce-scatter",
    tables=("reduce_scatter",),
)

ALL_TO_ALL = CollectiveKind(
    name="all_to_all",
    before=HeldAs.PART,
    after=HeldAs.PART,
    passes=1,
    comm_type="ALL_TO_ALL",
    steps=_exchanged,
    simulated="all-to-all",
    tables=("all_to_all", "alltoall"),
)

KINDS: Mapping[str, CollectiveKind] = {each.name: each for each in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)}
"""All kinds by name, in the order in which files and messages list them."""

SIMULATED: Mapping[str, CollectiveKind] = {each.simulated: each for each in KINDS.values() if each.simulated}
"""The kinds that simulators run, by their names there."""


def kind_between(before: HeldAs, after: HeldAs) -> CollectiveKind:
    """The kind of collective that leads from one state of a tensor to another. LookupError if there is none.

    before, after: what each member of the group has.
    """
    found = next((each for each in KINDS.values() if (each.before, each.after) == (before, after)), None)
    if found is None:
        raise LookupError(f"no collective makes a {after} of a {before}")
    return found


def gathers(kind: str) -> bool:
    """Whether operators of this kind concatenate the parts of a group's members, as an all-gather does."""
    return kind in KINDS and KINDS[kind].gathers


def scatters(kind: str) -> bool:
    """Whether operators of this kind give each member of a group its part of a sum."""
    return kind in KINDS and KINDS[kind].scatters


def exchanges(kind: str) -> bool:
    """Whether operators of this kind have something of its own for each other member of a group."""
    return kind in KINDS and KINDS[kind].exchanges


def resizes(kind: str) -> bool:
    """Whether operators of this kind give a member more or less than it passes in."""
    return kind in KINDS and KINDS[kind].resizes
