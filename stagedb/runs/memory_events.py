"""What PyTorch's profiler records of memory (`profile_memory=True`): an event for each allocation and each release.

An event has the bytes that its allocator has given out by then. That of a device counts all that the process holds. The
host's counts only what was allocated since the recording began, as do sums of events of profilers that have no total.
Events have the time of the host, which is ahead of its device.
"""

from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.runs.joined_ops import MULTIPLYING, step_number
from stagedb.runs.kineto_events import Arguments, Event, Scalar, integer, integers
from stagedb.runs.module_paths import ENGINE
from stagedb.runs.rank_spans import Numbering, RankSpans
from stagedb.runs.rank_trace import (
    BACKWARD,
    FORWARD,
    MOST_POINTS,
    NONE,
    OPTIMIZER,
    PHASES,
    AllocatedMemory,
    Integers,
    MemoryMoment,
)

# The moments of a step that the memory of a plan has, too: found in the spans of the host around its allocations.

_COMPILED = "Torch-Compiled Region"
_EVER = 1 << 62


class MemoryPhases:
    """Steps of a rank, and in each its backward: from one of autograd's nodes to the next, with no matmul between them.

    What follows the last backward of a step is its optimizer, and the rest its forward.
    """

    def __init__(self, rank: RankSpans) -> None:
        names, host = [*rank.table], rank.host
        begins, ends, name = (host.column(each) for each in ("start", "end", "name"))
        engine = np.array([each.startswith(ENGINE) for each in names] or [False])[name]
        forward = np.array([each.startswith((*MULTIPLYING, _COMPILED)) for each in names] or [False])[name]
        order = np.argsort(begins[engine], kind="stable")
        start, end = begins[engine][order], np.maximum.accumulate(ends[engine][order])
        starts = np.sort(begins[forward])
        if len(start):
            between = np.searchsorted(starts, start[1:]) - np.searchsorted(starts, end[:-1], side="right")
            first = np.concatenate(([True], between > 0))
            self.begin, self.end = start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)]
        else:
            self.begin, self.end = start, end
        numbered = ((step_number(each.name), each) for each in rank.annotations)
        self.steps = sorted({(each.start, each.end, number) for number, each in numbered if number is not None})

    def moments(
        self, time: Integers, total: Integers, before: int
    ) -> tuple[int | None, dict[str, tuple[int, int, str]]]:
        """The number of the step with the most bytes, and its moments: place among the events, time in ns, and phase.

        time: of events, ascending. total: bytes after each. before: bytes before the first one. A place of `NONE` is
        the time before all events.
        """
        spans = [(*np.searchsorted(time, each[:2]).tolist(), each) for each in self.steps]
        whole = 0, len(time), (-_EVER, _EVER, None)
        chosen = [each for each in spans if each[1] > each[0]] or [whole]
        first, last, (begin, end, number) = max(
            chosen, key=lambda each: (int(total[each[0] : each[1]].max()), -each[0])
        )
        stretches = [place for place, at in enumerate(self.begin.tolist()) if begin <= at < end]
        phase = np.full(last - first, FORWARD)
        found = {"start": (first - 1, int(time[first]) if number is None else begin, FORWARD)}
        if stretches:
            for place in stretches:
                phase[self._inside(time[first:last], place)] = BACKWARD
            forward_end, backward_end = int(self.begin[stretches[-1]]), int(self.end[stretches[-1]])
            phase[time[first:last] > backward_end] = OPTIMIZER
            found["forward_end"] = (int(np.searchsorted(time, forward_end)) - 1, forward_end, FORWARD)
            after = int(np.searchsorted(time, backward_end, side="right")) - 1
            found["backward_end"] = (after, backward_end, BACKWARD)
        found["step_end"] = (last - 1, int(time[last - 1]) if number is None else end, int(phase[-1]))
        for each in (FORWARD, BACKWARD, OPTIMIZER) if stretches else (FORWARD,):
            mine = first + np.flatnonzero(phase == each)
            if len(mine):
                at = int(mine[total[mine].argmax()])
                found[f"{PHASES[each]}_peak"] = (at, int(time[at]), each)
        at = first + int(total[first:last].argmax())
        found["peak"] = (at, int(time[at]), int(phase[at - first]))
        return number, {name: (max(place, NONE), ns, PHASES[of]) for name, (place, ns, of) in found.items()}

    def _inside(self, time: Integers, place: int) -> slice:
        begin, end = np.searchsorted(time, self.begin[place]), np.searchsorted(time, self.end[place], side="right")
        return slice(int(begin), int(end))


NAME = "[memory]"
"""The name of such an event."""

FAILED = "[OutOfMemory]"
"""The name of an event of an allocation for which a device had no room."""

_NAMES = frozenset((NAME, FAILED))

HOST_PLACE = "host"
_HOST_TYPE = 0
"""The number of the host among PyTorch's types of devices."""

_ALLOCATING = ("aten::empty", "aten::resize_", "[")
"""Begins of the names of operators that allocate for the one that calls them."""

_NOTHING = Arguments()
_COLUMNS = ("time", "bytes", "total", "reserved", "thread", "place")


def is_memory(event: Event) -> bool:
    """Whether an event is one of an allocator."""
    return event.ph == "i" and event.name in _NAMES


@dataclass
class MemoryEvents:
    """Events of allocators, as they are read. threads: as the file numbers them. places: device or host, each once.
    failed: by place, allocations that failed, with the bytes of the largest.
    """

    columns: "dict[str, array[int]]" = field(default_factory=lambda: {name: array("q") for name in _COLUMNS})
    threads: Numbering[Hashable] = field(default_factory=Numbering)
    places: Numbering[str] = field(default_factory=Numbering)
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, events: Sequence[Event | None], in_ns: Callable[[list[Any]], Integers | None]) -> bool:
        """Keep those of some events that are of allocators; False, and none is kept, if `in_ns` returns None."""
        # One comprehension in place of a call for each event: such calls would take as long as all the rest.
        found = [each for each in events if each is not None and each.ph == "i" and each.name in _NAMES]
        kept: list[Any] = [each for each in found if each.name == NAME]
        times = in_ns([event.ts for event in kept])
        if times is None:
            return False
        for each in found:
            if each.name == FAILED and each.args is not None:
                self._fail(each.args)
        if not kept:
            return True
        args = [event.args or _NOTHING for event in kept]
        known = {each: self._place(*each) for each in {(each.device_type, each.device_id) for each in args}}
        places = np.array([known[each.device_type, each.device_id] for each in args], np.int64)
        counts = (places != NONE) & np.array([each.size_changed not in (None, 0) for each in args])
        threads = [self.threads[event.pid, event.tid] for event in kept]
        columns = {
            "time": times,
            "bytes": integers([each.size_changed for each in args]),
            "total": integers([each.total_allocated for each in args]),
            "reserved": integers([each.total_reserved for each in args]),
            "thread": np.array(threads, np.int64),
            "place": places,
        }
        for name, column in columns.items():
            self.columns[name].frombytes(column[counts].astype(np.int64, copy=False).tobytes())
        return True

    def add(self, more: "MemoryEvents") -> None:
        """Add events that follow these."""
        places = {"thread": self.threads.of(more.threads), "place": self.places.of(more.places)}
        for name, column in more.columns.items():
            values = np.frombuffer(column, np.int64) if column else np.empty(0, np.int64)
            values = places[name][values].astype(np.int64) if name in places else values
            self.columns[name].frombytes(values.tobytes())
        for place, (count, most) in more.failed.items():
            before, size = self.failed.get(place, (0, 0))
            self.failed[place] = before + count, max(most, size)

    def _place(self, kind: Scalar, number: Scalar) -> int:
        """The place of a kind of devices, by PyTorch's number of it, and a device's number; `NONE` without a kind."""
        place = _place_of(kind, number)
        return NONE if place is None else self.places[place]

    def _fail(self, args: Arguments) -> None:
        place, size = _place_of(args.device_type, args.device_id), integer(args.size_changed, 0)
        if place is not None:
            count, most = self.failed.get(place, (0, 0))
            self.failed[place] = count + 1, max(most, size)

    def failures(self) -> Iterator[str]:
        """A sentence for each place where allocations failed."""
        for place, (count, most) in sorted(self.failed.items()):
            times = "once" if count == 1 else f"{count:,} times"
            yield f"{place} ran out of memory {times}, for an allocation of at most {most:,} bytes ({FAILED})"

    def over(self, rank: RankSpans) -> tuple[AllocatedMemory, ...]:
        """The memory of each device and of the host over the recording. rank: its spans, which name what ran when."""
        if not self.places:
            return ()
        columns = {name: np.frombuffer(column, np.int64) for name, column in self.columns.items()}
        threads = np.array([rank.threads.get(each, NONE) for each in self.threads], np.int64)
        columns["thread"] = threads[columns["thread"]]
        phases = MemoryPhases(rank)
        return tuple(
            _over(name, {key: column[columns["place"] == place] for key, column in columns.items()}, rank, phases)
            for name, place in sorted(self.places.items())
            if (columns["place"] == place).any()
        )


def _place_of(kind: Scalar, number: Scalar) -> str | None:
    device = integer(kind, NONE)
    if device < 0:
        return None
    return HOST_PLACE if device == _HOST_TYPE else f"device {max(integer(number, 0), 0)}"


def _over(name: str, columns: "dict[str, npt.NDArray[Any]]", rank: RankSpans, phases: MemoryPhases) -> AllocatedMemory:
    """The memory of one place. columns: its events, in the order of the file."""
    order = np.argsort(columns["time"], kind="stable")
    found = {key: column[order] for key, column in columns.items()}
    total, summed = found["total"], bool((found["total"] < 0).any())
    if summed:
        total = found["bytes"].cumsum()
    points = fullest_of_each(total, MOST_POINTS)
    before = int(total[0] - found["bytes"][0])
    step, moments = phases.moments(found["time"], total, before)
    return AllocatedMemory(
        place=name,
        absolute=name != HOST_PLACE and not summed,
        events=len(order),
        time=found["time"][points],
        allocated=total[points],
        reserved=None if summed or name == HOST_PLACE else int(found["reserved"].max()),
        step=step,
        moments=tuple(_described(moments, found, total, before, rank)),
    )


def _described(
    moments: "dict[str, tuple[int, int, str]]",
    found: "dict[str, npt.NDArray[Any]]",
    total: Integers,
    before: int,
    rank: RankSpans,
) -> Iterator[MemoryMoment]:
    """Moments with their bytes, and with the operator that runs at each."""
    names = [*rank.table]
    for name, (place, time, phase) in moments.items():
        operator, until = None, time
        if name.endswith("peak"):
            span = _around(time, int(found["thread"][place]), rank, names)
            if span is not None:
                operator, until = names[rank.host.column("name")[span]], int(rank.host.column("end")[span])
        held = before if place == NONE else int(total[place])
        yield MemoryMoment(name, held, time, until, phase, operator)


def _around(time: int, thread: int, rank: RankSpans, names: list[str]) -> int | None:
    """The innermost operator around a moment of a thread, or the one that it allocates for; None without one."""
    start, end, place = (rank.host.column(each) for each in ("start", "end", "place"))
    inside = np.flatnonzero((start <= time) & (end >= time) & (place == thread))
    inside = inside[np.lexsort((-end[inside], start[inside]))][::-1]
    for each in inside.tolist():
        if not names[rank.host.column("name")[each]].startswith(_ALLOCATING):
            return int(each)
    return int(inside[0]) if len(inside) else None


def fullest_of_each(levels: Integers, most: int) -> Integers:
    """Places of the fullest levels: one for each of at most `most` equal parts of all levels.

    The place of a part is that of its first level with most bytes.
    """
    size = -(-len(levels) // most)
    begins = range(0, len(levels), size)
    return np.array([begin + int(levels[begin : begin + size].argmax()) for begin in begins], np.int64)
