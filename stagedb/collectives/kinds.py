"""All kinds of collectives, and what operators of these kinds do, asked by the name of a kind.

An operator's kind may be that of something that computes, which none of the questions is true of.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from stagedb.collectives.kind import CollectiveKind, HeldAs, Step


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
