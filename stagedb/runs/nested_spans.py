"""Which spans of a thread a moment is inside: spans nest, as calls do."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.runs.rank_trace import NONE, Integers, Places, parts_of


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
        order, count = self.order, len(self.start)
        # `inside` has a candidate for each span: all spans between the candidate and the span end before the span
        # begins.
        inside = np.arange(-1, count - 1, dtype=np.int32)
        inside[np.flatnonzero(np.diff(self.thread[order], prepend=-1))] = NONE
        every = np.arange(count, dtype=np.int32)
        left = np.concatenate([every[:0], *(self._ended(inside, every[part]) for part in parts_of(count))])
        while len(left):
            inside[left] = inside[inside[left]]
            left = self._ended(inside, left)
        found = np.full(count, NONE, np.int32)
        within = inside != NONE
        found[order[within]] = order[inside[within]]
        return found

    def _ended(self, inside: Places, which: Places) -> Places:
        """Those of some spans that begin after the end of their candidate. inside, which: places in the order."""
        which = which[inside[which] != NONE]
        return which[self.end[self.order[inside[which]]] <= self.start[self.order[which]]]

    def around(self, moments: Integers, threads: "npt.NDArray[Any]") -> Places:
        """For each moment the innermost span around it on its thread, as a place, or `NONE`.

        moments: [ns]. threads: the thread of each, by its number.
        """
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
