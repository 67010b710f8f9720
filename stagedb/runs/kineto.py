"""Traces of PyTorch's profiler (Kineto), from CUDA, ROCm and other devices, as one `RankTrace` a file.

A kernel is joined to the call that launched it by `correlation`, and the call to the operator around it on its thread,
which holds for files of every age. What a collective is comes from the kernel, or from the `record_param_comms` around
the call, or else from names.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.event_stream import EventStream, TraceFileError
from stagedb.runs.kineto_events import (
    Arguments,
    DecimalEvent,
    Event,
    FloatEvent,
    Scalar,
    decimal_times,
    integer,
    integers,
    nanoseconds,
    recorded,
)
from stagedb.runs.rank_trace import NONE, Annotation, Integers, Places, RankTrace
from stagedb.runs.recorded_rank import RecordedRank

_DEVICE: Mapping[str | None, int] = {"kernel": 0, "mtia_ccp_events": 0, "gpu_memcpy": 1, "gpu_memset": 2}
"""Categories of what a device executes, with their places in `CATEGORIES`."""

_CALLS = ("cuda_runtime", "cuda_driver", "mtia_runtime", "xpu_runtime", "privateuse1_runtime")
"""Categories of the calls that launch it."""

_CALL, _OPERATOR, _ANNOTATION = 3, 4, 5
_KEPT: Mapping[str | None, int] = {
    **_DEVICE,
    **dict.fromkeys(_CALLS, _CALL),
    "cpu_op": _OPERATOR,
    "user_annotation": _ANNOTATION,
}
"""Categories of the events that count: those of devices, and what is done with the others."""

_NOTHING = Arguments()
_MOST_SHOWN = 5

Progress = Callable[[int], None]
"""Called with the bytes of the file that were read."""


def file_digest(path: Path) -> str:
    """sha256 of a file. Raises UsageError if it cannot be read."""
    try:
        digest = hashlib.sha256()
        with open_regular(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read the trace {path_text(path)}: {error.strerror or error}") from None


def read_kineto(path: Path, digest: str, progress: Progress = lambda done: None) -> RankTrace:
    """A trace of PyTorch's profiler: JSON, as it is or compressed with gzip.

    digest: of the file. Raises TraceFileError for what is no such trace, is damaged, or has nothing that took time.
    """
    stream: EventStream[Event] = EventStream(path, FloatEvent)
    reading = _Reading()
    before = 0
    for piece in stream.pieces():
        events = piece
        if stream.kind is FloatEvent and not reading.take(events):
            # The rest of such a file has such times, too.
            events = stream.again(DecimalEvent)
        if stream.kind is DecimalEvent:
            stream.left_out += reading.take_decimals(events, before)
        before += len(events)
        progress(stream.done)
    return reading.trace(path, digest, stream)


@dataclass
class _Reading:
    """What was read of a file. events: by category, how many."""

    rank: RecordedRank = field(default_factory=RecordedRank)
    events: Counter[str | None] = field(default_factory=Counter)
    streams: dict[tuple[Scalar, ...], int] = field(default_factory=dict)

    def take(self, events: Sequence[Event | None]) -> bool:
        """Keep the events that count; False, and none is kept, if their times are not those that floats hold."""
        spans = [event for event in events if event is not None and event.ph == "X"]
        kept: list[Any] = [event for event in spans if event.cat in _KEPT]
        start = nanoseconds([event.ts for event in kept])
        length = nanoseconds([0 if event.dur is None else event.dur for event in kept])
        if start is None or length is None or (length < 0).any():
            return False
        self.events.update([event.cat for event in spans])
        self._keep(kept, start, start + length)
        return True

    def take_decimals(self, events: Sequence[Event | None], before: int) -> list[tuple[int, str]]:
        """Keep the events that count. before: events before these. Returns those without a time: number and reason."""
        kept: list[Event] = []
        times: list[tuple[int, int]] = []
        left_out = []
        for number, event in enumerate(events, before):
            if not isinstance(event, DecimalEvent) or event.ph != "X":
                continue
            self.events[event.cat] += 1
            if event.cat not in _KEPT:
                continue
            try:
                times.append(decimal_times(event))
            except (OverflowError, ValueError, ArithmeticError) as error:
                left_out.append((number, str(error)))
            else:
                kept.append(event)
        columns = np.array(times, np.int64).reshape(-1, 2)
        self._keep(kept, columns[:, 0], columns[:, 1])
        return left_out

    def _keep(self, kept: Sequence[Event], start: Integers, end: Integers) -> None:
        """Add events to the columns of their categories. start, end: in ns."""
        rank, threads, table = self.rank, self.rank.threads, self.rank.table
        kinds = [_KEPT[event.cat] for event in kept]
        column = np.array(kinds, np.int8)
        pairs = list(zip(kept, kinds, strict=True))
        # Threads and names have their places in the order of the file.
        thread = np.array([NONE if kind < _CALL else threads[event.pid, event.tid] for event, kind in pairs], np.int32)
        name = np.array([table[_text(event.name)] for event in kept], np.int32)
        collective = np.full(len(kept), NONE, np.int32)
        for place, event in enumerate(kept):
            if (
                event.args is not None
                and event.args.collective is not None
                and kinds[place] != _CALL
                and kinds[place] != _ANNOTATION
            ):
                collective[place] = rank.place(recorded(event.args))
        which = np.flatnonzero(column < _CALL)
        args = [kept[place].args or _NOTHING for place in which.tolist()]
        rank.device.extend(
            start=start[which],
            end=end[which],
            place=np.array([self._stream(kept[place]) for place in which.tolist()], np.int32),
            name=name[which],
            category=column[which],
            correlation=integers([each.correlation for each in args]),
            bytes=integers([each.bytes for each in args]),
            collective=collective[which],
        )
        which = np.flatnonzero(column == _CALL)
        args = [kept[place].args or _NOTHING for place in which.tolist()]
        columns: dict[str, Integers | Places] = {"start": start, "end": end, "place": thread, "name": name}
        numbers = integers([each.correlation for each in args])
        rank.calls.extend(**{key: values[which] for key, values in columns.items()}, correlation=numbers)
        which = np.flatnonzero(column == _OPERATOR)
        columns["collective"] = collective
        rank.host.extend(**{key: values[which] for key, values in columns.items()})
        for place in np.flatnonzero(column == _ANNOTATION).tolist():
            times = int(start[place]), int(end[place])
            rank.annotations.append(Annotation(_text(kept[place].name), *times, int(thread[place])))

    def _stream(self, event: Event) -> int:
        """The place of the stream of an op."""
        args = event.args or _NOTHING
        key = args.device, args.stream, event.pid, event.tid
        place = self.streams.get(key)
        if place is None:
            device = integer(args.device, integer(event.pid, 0))
            place = self.rank.streams[device, event.tid if args.stream is None else args.stream]
            self.streams[key] = place
        return place

    def trace(self, path: Path, digest: str, stream: EventStream[Event]) -> RankTrace:
        """What was read, joined."""
        job = stream.top.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        left_out = [f"event {number}: {why}" for number, why in sorted(stream.left_out)[:_MOST_SHOWN]]
        if len(stream.left_out) > _MOST_SHOWN:
            left_out.append(f"{len(stream.left_out) - _MOST_SHOWN} further events")
        if stream.repaired:
            left_out.append("characters and numbers that JSON does not have were replaced")
        rank, world = integer(job.get("rank"), NONE), integer(job.get("world_size"), NONE)
        found = self.rank.trace(
            digest,
            tool="kineto",
            rank=None if rank < 0 else rank,
            world=None if world < 1 else world,
            devices=_devices(stream.top.get("deviceProperties")),
            base=integer(stream.top.get("baseTimeNanoseconds"), 0),
            events={each: count for each, count in self.events.items() if each is not None},
            left_out=tuple(left_out),
        )
        if found is None:
            raise TraceFileError(
                f"the trace {path_text(path)} has no kernel, copy or operator that took time: record it with the "
                "activities CPU and CUDA"
            )
        return found


def _text(name: Scalar) -> str:
    return name if type(name) is str else str(name)


def _devices(found: Any) -> tuple[str, ...]:
    rows = found if isinstance(found, list) else []
    return tuple(str(each["name"])[:100] for each in rows if isinstance(each, dict) and "name" in each)
