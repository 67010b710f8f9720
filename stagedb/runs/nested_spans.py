"""Which spans of a thread a moment is inside: spans nest, as calls do."""

import numpy as np

from stagedb.runs.rank_trace import NONE, Integers


def parents(start: Integers, end: Integers, thread: Integers) -> Integers:
    """For each span the innermost one of its thread that contains it, as a place, or `NONE`.

    A span that begins inside another one and ends after it counts as inside: clocks of profilers are not that exact.
    """
    found = np.full(len(start), NONE, np.int64)
    # If two begin together, the longer one contains the other one.
    order = np.lexsort((-end, start, thread))
    stack: list[int] = []
    at = None
    ends, threads = end.tolist(), thread.tolist()
    starts = start.tolist()
    for place in order.tolist():
        if threads[place] != at:
            at, stack = threads[place], []
        while stack and ends[stack[-1]] <= starts[place]:
            stack.pop()
        if stack:
            found[place] = stack[-1]
        stack.append(place)
    return found


def innermost(
    start: Integers, end: Integers, thread: Integers, moments: Integers, threads: Integers, above: Integers
) -> Integers:
    """For each moment the innermost span around it on its thread, as a place, or `NONE`.

    start, end, thread, above: of the spans; above: their `parents`. moments: in ns. threads: that of each moment.
    """
    found = np.full(len(moments), NONE, np.int64)
    if not len(start):
        return found
    order = np.lexsort((-end, start, thread))
    ends, up = end.tolist(), above.tolist()
    for each in np.unique(threads).tolist():
        mine = order[thread[order] == each]
        here = np.flatnonzero(threads == each)
        if not len(mine):
            continue
        # The last span that began before is the innermost one, or is inside what has ended since.
        last = np.searchsorted(start[mine], moments[here], side="right") - 1
        for place, before in zip(here.tolist(), last.tolist(), strict=True):
            span = int(mine[before]) if before >= 0 else NONE
            while span != NONE and ends[span] < moments[place]:
                span = up[span]
            found[place] = span
    return found
