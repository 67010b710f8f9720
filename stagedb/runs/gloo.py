"""Collectives of gloo in PyTorch's profiles: what its threads run, and the calls of the program that asked for them.

A call such as `c10d::_allgather_base_` returns as soon as a thread of gloo has the work. That thread's `gloo:…` event
is the collective, from its begin to its end there; a message lasts until the program has waited for it. Both were
numbered when the call made them, so the call of an event is the one with the last number before the event's own. The
call is work of the program, and a wait is none: what runs after it waits for the end of the collective.
"""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from functools import lru_cache
from operator import attrgetter

import msgspec

from stagedb.runs.clocks import MESSAGES
from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.rank_trace import BackgroundOp, RecordedCollective

EVENT, CALL = "gloo:", "c10d::"

FUNCTIONAL = "_c10d_functional"
"""How names of operators begin that call those of c10d."""

WAIT = "_c10d_functional::wait_tensor"
"""The operator that returns when a collective has ended."""


class HostCall(msgspec.Struct, frozen=True, gc=False):
    """An event of gloo, or a call of c10d that asks for one.

    begin, end: in ns. thread: place of the one that it is on. number: its `Record function id`, -1 if it has none.
    """

    name: str
    begin: int
    end: int
    thread: int
    number: int


def background_ops(calls: Sequence[HostCall], threads: Sequence[Hashable]) -> list[BackgroundOp]:
    """What gloo ran, by begin.

    calls: all events of gloo and calls of c10d of a rank. threads: their keys, by place. The threads of what is
    returned are places, too.
    """
    events = sorted((each for each in calls if each.name.startswith(EVENT)), key=attrgetter("begin", "end"))
    asked = sorted((each for each in calls if each.name.startswith(CALL)), key=attrgetter("number"))
    numbers = [each.number for each in asked]
    # Threads are numbered as they are made, and each belongs to one group.
    by_number = sorted({each.thread for each in events}, key=lambda place: _by_number(threads[place]))
    workers = {thread: place for place, thread in enumerate(by_number)}
    streams: dict[tuple[int, str], tuple[int, str]] = {}
    found = []
    for event in events:
        before = bisect_left(numbers, event.number) - 1
        call = asked[before] if before >= 0 and numbers[before] >= 0 else event
        kind = kind_of_call(call.name) or kind_of_call(event.name) or event.name.removeprefix(EVENT)
        message = kind in MESSAGES
        recorded = RecordedCollective(kind, node=call.number, worker=None if message else workers[event.thread])
        key = event.thread, kind if message else ""
        # A message may be there before its event begins, but not before it was asked for.
        begin = min(event.begin, call.begin) if message else event.begin
        worker = None if message else event.thread
        stream = streams.setdefault(key, key)
        found.append(BackgroundOp(event.name, begin, event.end, stream, call.begin, call.thread, worker, recorded))
    return found


def _by_number(thread: Hashable) -> tuple[int, str]:
    """Threads by their numbers in the system."""
    number = thread[1] if isinstance(thread, tuple) else thread
    return (number, "") if isinstance(number, int) else (0, str(number))


@lru_cache(maxsize=1 << 12)
def kind_of_call(name: str) -> str | None:
    """The kind of collective or message that a call of c10d asks for, or an event of gloo is; None for others.

    name: as the profiler has it, `c10d::allreduce_` or `gloo:all_reduce`.
    """
    word = name.removeprefix(CALL).removeprefix(EVENT)
    # The name of a call that writes to its arguments ends in an underscore.
    return collective_kind(word.removesuffix("_"))
