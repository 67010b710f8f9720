"""Which spans of a thread a moment is inside: spans nest, as calls do."""

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.runs.rank_trace import NONE, Integers, Places, rows_at


@dataclass(frozen=True)
class NestedSpans:
    """Spans of threads. start, end: in ns. thread: number of the one that each is on.

    A span that begins inside another one and ends after it counts as inside: clocks of profilers are not that exact.
    """

    start: Integers
    end: Integers
    thread: "npt.NDArray[Any]"

    @cached_property
    def order(self) -> Places:
        """Places by thread and start. If two begin together, the longer one contains the other one."""
        return np.lexsort((-self.end, self.start, self.thread)).astype(np.int32)

    @cached_property
    def above(self) -> Places:
        """For each span the innermost one of its thread that contains it, as a place, or `NONE`."""
        found = np.full(len(self.start), NONE, np.int32)
        # Under the spans of a thread is one that never ends.
        places, ends = [NONE], [np.inf]
        inside = array("i")
        at = None
        for place, begin, end, thread in rows_at(self.order, self.start, self.end, self.thread):
            if thread != at:
                at, places, ends = thread, [NONE], [np.inf]
            while ends[-1] <= begin:
                ends.pop()
                places.pop()
            inside.append(places[-1])
            places.append(place)
            ends.append(end)
        found[self.order] = inside
        return found

    def around(self, moments: Integers, threads: "npt.NDArray[Any]") -> Places:
        """For each moment, in ns, the innermost span around it on its thread, as a place, or `NONE`."""
        found = np.full(len(moments), NONE, np.int32)
        if not len(self.start) or not len(moments):
            return found
        thread = self.thread[self.order]
        for each in np.unique(threads).tolist():
            mine = self.order[slice(*np.searchsorted(thread, (each, each + 1)))]
            here = np.flatnonzero(threads == each)
            if len(mine):
                # The last span that began before is the innermost one, or is inside what has ended since.
                last = np.searchsorted(self.start[mine], moments[here], side="right") - 1
                found[here] = np.where(last < 0, NONE, mine[last])
        left = np.flatnonzero(found != NONE)
        while len(left):
            left = left[self.end[found[left]] < moments[left]]
            found[left] = self.above[found[left]]
            left = left[found[left] != NONE]
        return found

    def inherited(self, own: Places, spans: Places) -> Places:
        """For some spans what each has, or else the nearest one around it that has one, or `NONE`.

        own: what each of all spans has, or `NONE`. spans: places, or `NONE`.
        """
        found = np.full(len(spans), NONE, own.dtype)
        if not len(own) or (own == NONE).all():
            return found
        at = spans.copy()
        left = np.flatnonzero(at != NONE)
        while len(left):
            found[left] = own[at[left]]
            left = left[found[left] == NONE]
            at[left] = self.above[at[left]]
            left = left[at[left] != NONE]
        return found
