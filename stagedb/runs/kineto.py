"""Traces of PyTorch's profiler (Kineto), from CUDA, ROCm and other devices, as one `RankTrace` a file.

A kernel is joined to the call that launched it by `correlation`, and the call to the operator around it on its thread,
which holds for files of every age. What a collective is comes from the kernel, or from the `record_param_comms` around
the call, or else from names. Times are exact: they are decimal numbers of microseconds, some since 1970.
"""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.event_stream import EventStream, TraceFileError
from stagedb.runs.kernel_names import SEND_RECV, collective_kind, communication_kind
from stagedb.runs.nested_spans import innermost, parents
from stagedb.runs.rank_trace import NONE, PHASES, Annotation, DeviceOps, Integers, RankTrace, RecordedCollective

Scalar = int | float | str | bool | None

_LONGEST = Decimal(9_000_000_000_000_000)
"""Microseconds: times of more do not fit into 64 bits as nanoseconds."""

_DEVICE = {"kernel": 0, "mtia_ccp_events": 0, "gpu_memcpy": 1, "gpu_memset": 2}
"""Categories of what a device executes, with their places in `CATEGORIES`."""

_CALLS = frozenset(("cuda_runtime", "cuda_driver", "mtia_runtime", "xpu_runtime", "privateuse1_runtime"))
"""Categories of the calls that launch it."""

_BACKWARD = "autograd::engine::evaluate_function"
_CHECKPOINT = "CheckpointFunctionBackward"
_RECORD = "record_param_comms"
_MOST_SHOWN = 5

Progress = Callable[[int], None]
"""Called with the bytes of the file that were read."""


class _Arguments(msgspec.Struct):
    """Arguments of an event that are read; profilers of different ages write numbers as texts, too."""

    correlation: Scalar = None
    external: Scalar = msgspec.field(name="External id", default=None)
    stream: Scalar = None
    device: Scalar = None
    bytes: Scalar = None
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    description: Scalar = msgspec.field(name="Process Group Description", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    first: Scalar = msgspec.field(name="Global rank start", default=None)
    stride: Scalar = msgspec.field(name="Global rank stride", default=None)
    size: Scalar = msgspec.field(name="Group size", default=None)
    dtype: Scalar = None
    sent: Scalar = msgspec.field(name="In msg nelems", default=None)
    received: Scalar = msgspec.field(name="Out msg nelems", default=None)
    sequence: Scalar = msgspec.field(name="Seq", default=None)
    source: Scalar = msgspec.field(name="Src Rank", default=None)
    target: Scalar = msgspec.field(name="Dst Rank", default=None)


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: _Arguments | None = None


@dataclass
class _Spans:
    """Columns of spans of a kind; place: thread or stream."""

    start: "array[int]" = field(default_factory=lambda: array("q"))
    end: "array[int]" = field(default_factory=lambda: array("q"))
    place: "array[int]" = field(default_factory=lambda: array("q"))
    name: "array[int]" = field(default_factory=lambda: array("q"))
    correlation: "array[int]" = field(default_factory=lambda: array("q"))
    collective: "array[int]" = field(default_factory=lambda: array("q"))
    bytes: "array[int]" = field(default_factory=lambda: array("q"))
    category: "array[int]" = field(default_factory=lambda: array("q"))

    def column(self, name: str) -> Integers:
        return np.frombuffer(getattr(self, name), np.int64) if getattr(self, name) else np.empty(0, np.int64)


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
    stream = EventStream(path, _Event)
    reading = _Reading()
    for piece in stream.pieces():
        for number, event in enumerate(piece):
            try:
                reading.take(event)
            except (OverflowError, ValueError, ArithmeticError) as error:
                stream.left_out.append((number, str(error)))
        progress(stream.done)
    return reading.trace(path, digest, stream)


@dataclass
class _Reading:
    """What was read of a file. table: of names, each with its place; places: of threads and of streams."""

    table: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[Scalar, Scalar], int] = field(default_factory=dict)
    streams: dict[tuple[int, Scalar], int] = field(default_factory=dict)
    device: _Spans = field(default_factory=_Spans)
    calls: _Spans = field(default_factory=_Spans)
    host: _Spans = field(default_factory=_Spans)
    annotations: list[Annotation] = field(default_factory=list)
    collectives: list[RecordedCollective] = field(default_factory=list)
    numbers: dict[RecordedCollective, int] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def take(self, event: _Event) -> None:
        """Keep an event, if it is one of those that count. Raises ValueError for one without a time."""
        category = event.cat
        if event.ph != "X" or category is None:
            return
        self.events[category] += 1
        if category == "python_function":
            return
        if category in _DEVICE:
            self._take_device(event, _DEVICE[category])
        elif category in _CALLS:
            if event.args is not None:
                self._span(self.calls, event, self._thread(event))
                self.calls.correlation.append(_integer(event.args.correlation, NONE))
        elif category == "cpu_op":
            self._span(self.host, event, self._thread(event))
            self.host.collective.append(self._collective(event.args))
        elif category == "user_annotation":
            start, end = _times(event)
            self.annotations.append(Annotation(str(event.name), start, end, self._thread(event)))

    def _take_device(self, event: _Event, category: int) -> None:
        args = event.args or _Arguments()
        device = _integer(args.device, _integer(event.pid, 0))
        key = device, event.tid if args.stream is None else args.stream
        self._span(self.device, event, self.streams.setdefault(key, len(self.streams)))
        self.device.category.append(category)
        self.device.correlation.append(_integer(args.correlation, NONE))
        self.device.bytes.append(_integer(args.bytes, NONE))
        self.device.collective.append(self._collective(args))

    def _span(self, spans: _Spans, event: _Event, place: int) -> None:
        start, end = _times(event)
        spans.start.append(start)
        spans.end.append(end)
        spans.place.append(place)
        spans.name.append(self.table.setdefault(str(event.name), len(self.table)))

    def _thread(self, event: _Event) -> int:
        return self.threads.setdefault((event.pid, event.tid), len(self.threads))

    def _collective(self, args: _Arguments | None) -> int:
        """The place of what is recorded of a collective in `collectives`, or `NONE`."""
        if args is None or args.collective is None:
            return NONE
        found = _recorded(args)
        place = self.numbers.setdefault(found, len(self.collectives))
        if place == len(self.collectives):
            self.collectives.append(found)
        return place

    def trace(self, path: Path, digest: str, stream: EventStream[_Event]) -> RankTrace:
        """What was read, joined."""
        base = _integer(stream.top.get("baseTimeNanoseconds"), 0)
        ops = self._device_ops() if self.device.start else self._host_ops()
        if not len(ops):
            raise TraceFileError(
                f"the trace {path_text(path)} has no kernel, copy or operator that took time: record it with the "
                "activities CPU and CUDA"
            )
        job = stream.top.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        left_out = [f"event {number}: {why}" for number, why in stream.left_out[:_MOST_SHOWN]]
        if len(stream.left_out) > _MOST_SHOWN:
            left_out.append(f"{len(stream.left_out) - _MOST_SHOWN} further events")
        if stream.repaired:
            left_out.append("characters and numbers that JSON does not have were replaced")
        rank, world = _integer(job.get("rank"), NONE), _integer(job.get("world_size"), NONE)
        return RankTrace(
            rank=None if rank < 0 else rank,
            world=None if world < 1 else world,
            digest=digest,
            devices=_devices(stream.top.get("deviceProperties")),
            streams=self._stream_names(),
            names=tuple(self.table),
            ops=_since_1970(ops, base),
            collectives=tuple(self.collectives),
            annotations=tuple(self.annotations),
            events=dict(sorted(self.events.items())),
            left_out=tuple(left_out),
        )

    def _stream_names(self) -> tuple[str, ...]:
        if not self.device.start:
            return tuple(f"thread {place}" for place in range(len(self.threads)))
        several = len({device for device, _ in self.streams}) > 1
        return tuple(f"device {device} stream {name}" if several else f"stream {name}" for device, name in self.streams)

    def _device_ops(self) -> DeviceOps:
        """The ops of devices, each joined to the call that launched it."""
        device, calls = self.device, self.calls
        call = _by_number(device.column("correlation"), calls.column("correlation"))
        there = call != NONE
        moments = np.where(there, _taken(calls.column("start"), call), NONE)
        threads = np.where(there, _taken(calls.column("place"), call), NONE)
        return self._ops(device, moments, threads, device.column("collective"))

    def _host_ops(self) -> DeviceOps:
        """Operators that no other one called, where there is no device; collectives are in `record_param_comms`."""
        host = self.host
        start, end, place = host.column("start"), host.column("end"), host.column("place")
        above, names = parents(start, end, place), list(self.table)
        recorded = host.column("collective") != NONE
        wrapper = np.array([name.startswith(_BACKWARD) for name in names] or [False])[host.column("name")]
        # What contains a collective, or only calls the operators of a backward, is no op of its own.
        wrapper = wrapper.copy()
        for each in np.flatnonzero(recorded).tolist():
            up = int(above[each])
            while up != NONE:
                wrapper[up] = True
                up = int(above[up])
        parent = np.where(above == NONE, True, _taken(wrapper, above))
        chosen = np.flatnonzero(parent & ~wrapper & (end > start))
        device = _Spans()
        for name in ("start", "end", "place", "name", "collective"):
            setattr(device, name, array("q", host.column(name)[chosen].tolist()))
        device.category = array("q", [3] * len(chosen))
        device.bytes = array("q", [NONE] * len(chosen))
        return self._ops(device, device.column("start"), device.column("place"), device.column("collective"))

    def _ops(self, device: _Spans, moments: Integers, threads: Integers, recorded: Integers) -> DeviceOps:
        """Columns of ops. moments, threads: when and where each was launched. recorded: its own collective."""
        host, names = self.host, list(self.table)
        spans = host.column("start"), host.column("end"), host.column("place")
        above = parents(*spans)
        inner = innermost(*spans, moments, threads, above)
        outer, backward = _outermost(above, host.column("name"), names)
        steps, calls, others = _sorted_annotations(self.annotations)
        around = self._annotation_around(moments, threads, others)
        in_step = self._annotation_around(moments, threads, steps)
        numbers = np.array([_step_number(each.name) for each in self.annotations] or [NONE], np.int64)
        collective = np.where(recorded == NONE, self._inherited(inner, above), recorded)
        collective = self._by_name(device, collective, self._annotation_around(moments, threads, calls), names)
        order = np.lexsort((device.column("end"), device.column("start")))
        columns = {
            "start": device.column("start"),
            "end": device.column("end"),
            "stream": device.column("place"),
            "name": device.column("name"),
            "category": device.column("category"),
            "bytes": device.column("bytes"),
            "collective": collective,
            "launched": moments,
            "launcher": np.where(inner == NONE, NONE, _taken(host.column("name"), inner)),
            "outer": np.where(inner == NONE, NONE, _taken(host.column("name"), _taken(outer, inner))),
            "annotation": around,
            "step": np.where(in_step == NONE, NONE, numbers[in_step]),
            "phase": self._phases(np.where(inner == NONE, 0, _taken(backward, inner)), around),
        }
        return DeviceOps(**{name: column[order] for name, column in columns.items()})

    def _inherited(self, inner: Integers, above: Integers) -> Integers:
        """What the nearest operator around each call recorded of a collective."""
        own = self.host.column("collective").tolist()
        up = above.tolist()
        for place in np.argsort(self.host.column("start"), kind="stable").tolist():
            if own[place] == NONE and up[place] != NONE:
                own[place] = own[up[place]]
        return np.where(inner == NONE, NONE, _taken(np.array(own or [NONE], np.int64), inner))

    def _by_name(self, device: _Spans, collective: Integers, around: Integers, names: list[str]) -> Integers:
        """Collectives of ops by the names of their kernels, where nothing was recorded; no compute op has one."""
        kinds = [communication_kind(name) for name in names]
        found = collective.copy()
        for place, (name, category) in enumerate(zip(device.name, device.category, strict=True)):
            kind = kinds[name]
            if category != 0:
                found[place] = found[place] if category == 3 else NONE
            elif kind is None:
                found[place] = NONE
            elif found[place] == NONE:
                if kind == SEND_RECV and around[place] != NONE:
                    kind = collective_kind(self.annotations[around[place]].name) or kind
                found[place] = self._place(RecordedCollective(kind))
        return found

    def _place(self, collective: RecordedCollective) -> int:
        place = self.numbers.setdefault(collective, len(self.collectives))
        if place == len(self.collectives):
            self.collectives.append(collective)
        return place

    def _annotation_around(self, moments: Integers, threads: Integers, which: list[int]) -> Integers:
        """The innermost of some annotations around each call on its thread, or on any other: a backward has its own."""
        chosen = [self.annotations[place] for place in which]
        start, end, thread = (
            np.array([getattr(each, name) for each in chosen], np.int64) for name in ("start", "end", "thread")
        )
        own = innermost(start, end, thread, moments, threads, parents(start, end, thread))
        one = np.zeros(len(start), np.int64)
        others = innermost(start, end, one, moments, np.zeros(len(moments), np.int64), parents(start, end, one))
        found = np.where(own != NONE, own, np.where(moments == NONE, NONE, others))
        return np.where(found == NONE, NONE, _taken(np.array(which, np.int64), found))

    def _phases(self, backward: Integers, around: Integers) -> Integers:
        named = np.array([_named_phase(each.name) for each in self.annotations] or [NONE], np.int64)
        own = np.where(around == NONE, NONE, named[around])
        return np.where(own == NONE, backward, own)


_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")


_OPTIMIZER = re.compile(r"^Optimizer\.step|\boptimizer(?:[_ ]step)?\b", re.IGNORECASE)
_BACKWARD_NAME = re.compile(r"\b(?:backward|bwd)\b|\([BW]\)$", re.IGNORECASE)


def _named_phase(annotation: str) -> int:
    """The phase that an annotation names, or `NONE`. A forward is what is no other one, as backwards run in it."""
    if _OPTIMIZER.search(annotation) and "zero_grad" not in annotation:
        return PHASES.index("optimizer")
    return PHASES.index("backward") if _BACKWARD_NAME.search(annotation) else NONE


def _step_number(name: str) -> int:
    found = _STEP.match(name)
    return NONE if found is None else int(found[1])


def _sorted_annotations(found: list[Annotation]) -> tuple[list[int], list[int], list[int]]:
    """The places of those of the profiler's steps, of collectives, and of the program."""
    steps = [place for place, each in enumerate(found) if _STEP.match(each.name)]
    calls = [place for place, each in enumerate(found) if ":" in each.name and collective_kind(each.name) is not None]
    taken = {*steps, *calls}
    return steps, calls, [place for place in range(len(found)) if place not in taken]


def _outermost(above: Integers, name: Integers, names: list[str]) -> tuple[Integers, Integers]:
    """For each operator the outermost one around it, and the phase that it is in by the autograd calls around it."""
    engine = [each.startswith(_BACKWARD) for each in names]
    again = [_CHECKPOINT in each for each in names]
    backward, recompute = PHASES.index("backward"), PHASES.index("recompute")
    outer, phase = list(range(len(above))), [0] * len(above)
    up, own = above.tolist(), name.tolist()
    done = [False] * len(above)
    for first in range(len(up)):
        path = []
        at = first
        while at != NONE and not done[at]:
            path.append(at)
            at = up[at]
        for each in reversed(path):
            if up[each] != NONE:
                outer[each], phase[each] = outer[up[each]], phase[up[each]]
            if engine[own[each]]:
                phase[each] = recompute if again[own[each]] else backward
            done[each] = True
    return np.array(outer, np.int64), np.array(phase, np.int64)


def _since_1970(ops: DeviceOps, base: int) -> DeviceOps:
    """Ops with times since 1970, where the file counts from a base, in ns, that it names."""
    if not 0 < base < 1 << 62 or int(ops.start.min()) >= base:
        return ops
    launched = np.where(ops.launched == NONE, NONE, ops.launched + base)
    return replace(ops, start=ops.start + base, end=ops.end + base, launched=launched)


def _by_number(wanted: Integers, numbers: Integers) -> Integers:
    """The place of each wanted number in `numbers`, the first one, or `NONE`; `NONE` is found nowhere."""
    if not len(numbers):
        return np.full(len(wanted), NONE, np.int64)
    order = np.argsort(numbers, kind="stable")
    at = np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)
    place = order[at]
    return np.where((numbers[place] == wanted) & (wanted != NONE), place, NONE)


def _taken(column: Any, places: Integers) -> Integers:
    """Values at places; any value where the place is `NONE`."""
    return column[places] if len(column) else np.full(len(places), NONE, np.int64)


def _times(event: _Event) -> tuple[int, int]:
    start, length = event.ts, event.dur or Decimal(0)
    if start is None or not -_LONGEST < start < _LONGEST or not 0 <= length < _LONGEST:
        raise ValueError("it has no time, or one that is not possible")
    begin = int(start * 1000)
    return begin, begin + int(length * 1000)


def _integer(value: Scalar, otherwise: int) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 19:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62:
        return value
    return otherwise


def _count(value: Scalar) -> int | None:
    found = _integer(value, NONE)
    return None if found < 0 else found


def _recorded(args: _Arguments) -> RecordedCollective:
    name = str(args.collective)
    kind = collective_kind(name) or name[:60]
    source, target = _count(args.source), _count(args.target)
    return RecordedCollective(
        kind,
        group="" if args.group is None else str(args.group),
        description="" if args.description in (None, "undefined") else str(args.description),
        ranks=_ranks(args),
        size=_count(args.size),
        dtype="" if args.dtype is None else str(args.dtype),
        sent=_count(args.sent),
        received=_count(args.received),
        sequence=_count(args.sequence),
        peer=target if kind == "send" else source if kind == "recv" else None,
    )


def _ranks(args: _Arguments) -> tuple[int, ...]:
    """The ranks of a group: from the list, unless it is cut, else from the first one, the stride and the size."""
    size, text = _count(args.size), args.ranks
    words = text if isinstance(text, list) else str(text or "").strip("[]() ").split(",")
    ranks = tuple(_integer(each.strip() if isinstance(each, str) else each, NONE) for each in words)
    if NONE not in ranks and (size is None or len(ranks) == size):
        return ranks
    first, stride = _count(args.first), _count(args.stride)
    if first is None or stride is None or size is None or not 0 < size <= 1 << 20:
        return ()
    return tuple(first + stride * each for each in range(size))


def _devices(found: Any) -> tuple[str, ...]:
    rows = found if isinstance(found, list) else []
    return tuple(str(each["name"])[:100] for each in rows if isinstance(each, dict) and "name" in each)
