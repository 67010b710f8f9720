"""What one rank computes and sends in a step: FLOPs by phase and kind, and counts of equal messages."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class CountedMessage(NamedTuple):
    """A kind of collective, or of one end of a send: `bytes_in` is this rank's operand, `bytes_out` its result."""

    phase: str
    kind: str
    axis: str
    dtype: str
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class Counts:
    """What one rank computes and sends in a step.

    flops: by phase, and matmul or attention. messages: how many of each kind and size.
    """

    flops: Mapping[tuple[str, str], int] = field(default_factory=dict)
    messages: Counter[CountedMessage] = field(default_factory=Counter)


class CountDifference(NamedTuple):
    """A quantity of a record with their value and ours. They agree within `bound`, a share of theirs (0: exactly)."""

    quantity: str
    theirs: int
    ours: int
    bound: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether both are the same, or differ by less than the bound."""
        return abs(self.ours - self.theirs) <= self.bound * self.theirs


def compare(theirs: Counts, ours: Counts) -> Iterator[CountDifference]:
    """Compare the counts of a record with ours: every quantity that either side has."""
    for phase, kind in sorted({*theirs.flops, *ours.flops}):
        key = (phase, kind)
        yield CountDifference(f"FLOPs {phase} {kind}", theirs.flops.get(key, 0), ours.flops.get(key, 0))
    for message in sorted({*theirs.messages, *ours.messages}):
        quantity = (
            f"{message.kind} {message.phase} {message.axis} {message.dtype} {message.bytes_in} -> {message.bytes_out} B"
        )
        yield CountDifference(quantity, theirs.messages[message], ours.messages[message])
