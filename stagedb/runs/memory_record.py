"""Memory of a rank over a recording, as its allocators were seen: a bounded curve, its peak, and ends of phases."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

MOST_POINTS = 512
"""Points of a curve. With more events, the fullest moment of several consecutive ones represents them."""


@dataclass(frozen=True, slots=True)
class MemoryMoment:
    """A moment of the fullest step, with what is held then.

    moment: start, forward_end, backward_end, step_end, forward_peak, backward_peak, optimizer_peak or peak, as in the
    memory of a plan. bytes: allocated. time, until: ns since 1970 by the rank's clock, until the end of the operator.
    phase: forward, backward or optimizer. operator: the one that runs at a peak; None if none is around it.
    """

    moment: str
    bytes: int
    time: int
    until: int
    phase: str
    operator: str | None


@dataclass(frozen=True)
class AllocatedMemory:
    """Memory of a device, or of the host, over a recording.

    place: `device 0`, or `host`. absolute: whether bytes are all that the process holds; else they are those that were
    allocated since the recording began, less what was released of them. events: how many there are. time: ns since 1970
    by the rank's clock, ascending; allocated: bytes from then on, the peak exact; at most `MOST_POINTS`. reserved: the
    most that the allocator held of its device; None if unknown. step: number of the fullest step; None without steps.
    moments: of this step; the last one is its peak.
    """

    place: str
    absolute: bool
    events: int
    time: Integers
    allocated: Integers
    reserved: int | None
    step: int | None
    moments: tuple[MemoryMoment, ...]

    @property
    def peak(self) -> MemoryMoment:
        """The moment at which the most is allocated."""
        return self.moments[-1]

    def later(self, ns: int) -> "AllocatedMemory":
        """The memory with all times counted from another begin. ns: what is added to each time."""
        moments = tuple(replace(each, time=each.time + ns, until=each.until + ns) for each in self.moments)
        return replace(self, time=self.time + ns, moments=moments)
