"""Where the host waited for its device: calls that return when an op has ended, and the launches after them."""

import re
from collections.abc import Sequence

import numpy as np

from stagedb.runs.rank_trace import NONE, Integers, Places

_BLOCKS = re.compile(r"Synchronize|^synchronize(?:Stream|Device|Event)|^(?:cuda|hip|cu)Memcpy(?!.*Async)")
"""Names of calls that wait. A copy that is not asynchronous does, too."""


def waiting_calls(names: Sequence[str]) -> "list[bool]":
    """By name of a call of the device's runtime, whether the host waits in such a call for its device."""
    return [_BLOCKS.search(name) is not None for name in names]


def synchronised(end: Integers, launched: Integers, waits: tuple[Integers, Integers]) -> Places:
    """For each op the one whose end the host had waited for last when it launched the op, as a place; or `NONE`.

    end, launched: ns, launched may be `NONE`. waits: starts and ends of the calls in which the host waits.
    A call that began after the last end of an op did not wait for it.
    """
    found = np.full(len(end), NONE, np.int32)
    begin, until = waits
    if not len(begin) or not len(end):
        return found
    by_end = np.argsort(end, kind="stable").astype(np.int32)
    before = np.searchsorted(end, until, side="right", sorter=by_end) - 1
    waited = (before >= 0) & (end[by_end[before]] >= begin)
    op, until = by_end[before[waited]], until[waited]
    order = np.argsort(until, kind="stable")
    op, until = op[order], until[order]
    last = np.searchsorted(until, launched, side="right") - 1
    there = (launched != NONE) & (last >= 0)
    found[there] = op[last[there]]
    return found


def program_before(end: Integers, stream: Integers, launched: Integers, threads: Integers) -> Integers:
    """For each op the one of a thread of the program that had ended last there when it was launched; or `NONE`.

    end: ns. stream: where each op ran; those of the program ran on their threads. launched, threads: when and on which
    thread it was launched.
    """
    found = np.full(len(end), NONE, np.int64)
    for thread in np.unique(threads[launched != NONE]).tolist():
        here, ran = np.flatnonzero(threads == thread), np.flatnonzero(stream == thread)
        ran = ran[np.argsort(end[ran], kind="stable")]
        last = np.searchsorted(end[ran], launched[here], side="right") - 1
        there = last >= 0
        found[here[there]] = ran[last[there]]
    return found
