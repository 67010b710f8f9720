"""What a recording has of one rank, joined: ops of devices, the calls that launched them, operators, annotations.

A reader of a format adds spans to a `RecordedRank` as it reads them, in any order. A kernel is joined to the call that
launched it by its number, and the call to the operator around it on its thread, which holds for files of every age.
What a collective is comes from the kernel, or from the operators around the call, or else from names.
"""

import re
from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stagedb.runs.host_waits import program_before, synchronised, waiting_calls
from stagedb.runs.kernel_names import SEND_RECV, collective_kind, communication_kind
from stagedb.runs.nested_spans import innermost, parents
from stagedb.runs.rank_trace import (
    BACKGROUND,
    BACKWARD,
    CATEGORIES,
    FORWARD,
    HOST,
    NONE,
    OPTIMIZER,
    RECOMPUTE,
    UNKNOWN,
    Annotation,
    BackgroundOp,
    DeviceOps,
    Integers,
    ProcessGroup,
    RankTrace,
    RecordedCollective,
)

_ENGINE = "autograd::engine::evaluate_function"
_CHECKPOINT = "CheckpointFunctionBackward"


@dataclass
class SpanColumns:
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


@dataclass
class RecordedRank:
    """Spans of one rank. table: of names, each with its place. threads, streams: their places.

    background: work of threads that are not the program's. asking, waiting: how names of operators begin that ask for
    such work, and that return when it is done.
    """

    table: dict[str, int] = field(default_factory=dict)
    threads: dict[Hashable, int] = field(default_factory=dict)
    streams: dict[tuple[int, Hashable], int] = field(default_factory=dict)
    device: SpanColumns = field(default_factory=SpanColumns)
    calls: SpanColumns = field(default_factory=SpanColumns)
    host: SpanColumns = field(default_factory=SpanColumns)
    annotations: list[Annotation] = field(default_factory=list)
    background: list[BackgroundOp] = field(default_factory=list)
    asking: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    collectives: list[RecordedCollective] = field(default_factory=list)
    numbers: dict[RecordedCollective, int] = field(default_factory=dict)

    def add_op(
        self,
        name: str,
        times: tuple[int, int],
        stream: tuple[int, Hashable],
        category: int,
        correlation: int,
        size: int = NONE,
        collective: RecordedCollective | None = None,
    ) -> None:
        """An op of a device. times: start and end in ns. stream: device, stream. category: place in `CATEGORIES`.

        correlation: number of the call that launched it. size: bytes of a copy. Either is `NONE` if unknown.
        """
        self._add(self.device, name, times, self.streams.setdefault(stream, len(self.streams)))
        self.device.category.append(category)
        self.device.correlation.append(correlation)
        self.device.bytes.append(size)
        self.device.collective.append(self._place(collective))

    def add_call(self, name: str, times: tuple[int, int], thread: Hashable, correlation: int) -> None:
        """A call of a host that launches ops."""
        self._add(self.calls, name, times, self._thread(thread))
        self.calls.correlation.append(correlation)

    def add_operator(
        self, name: str, times: tuple[int, int], thread: Hashable, collective: RecordedCollective | None = None
    ) -> None:
        """An operator of a host."""
        self._add(self.host, name, times, self._thread(thread))
        self.host.collective.append(self._place(collective))

    def add_annotation(self, name: str, times: tuple[int, int], thread: Hashable) -> None:
        """A range that the program named."""
        self.annotations.append(Annotation(name, *times, self._thread(thread)))

    def _add(self, spans: SpanColumns, name: str, times: tuple[int, int], place: int) -> None:
        spans.start.append(times[0])
        spans.end.append(times[1])
        spans.place.append(place)
        spans.name.append(self.table.setdefault(name, len(self.table)))

    def _thread(self, thread: Hashable) -> int:
        return self.threads.setdefault(thread, len(self.threads))

    def _place(self, collective: RecordedCollective | None) -> int:
        """The place of a collective in `collectives`, or `NONE`."""
        if collective is None:
            return NONE
        place = self.numbers.setdefault(collective, len(self.collectives))
        if place == len(self.collectives):
            self.collectives.append(collective)
        return place

    def trace(
        self,
        digest: str,
        *,
        tool: str,
        rank: int | None = None,
        world: int | None = None,
        devices: tuple[str, ...] = (),
        base: int = 0,
        events: Mapping[str, int],
        left_out: tuple[str, ...] = (),
        process: int | None = None,
        groups: tuple[ProcessGroup, ...] = (),
    ) -> RankTrace | None:
        """What was read, joined; None if nothing took time. base: ns since 1970 from which times count."""
        ops = self._device_ops() if self.device.start else self._host_ops()
        if not len(ops):
            return None
        return RankTrace(
            rank=rank,
            world=world,
            digest=digest,
            tool=tool,
            devices=devices,
            streams=self._stream_names(),
            names=tuple(self.table),
            ops=_since_1970(ops, base),
            collectives=tuple(self.collectives),
            annotations=tuple(self.annotations),
            events=dict(sorted(events.items())),
            left_out=left_out,
            process=process,
            groups=groups,
        )

    def _stream_names(self) -> tuple[str, ...]:
        if not self.device.start:
            threads = [f"thread {place}" for place in range(len(self.threads))]
            return (*threads, *(f"background {place}" for place in range(len(self.streams))))
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
        asking, waiting = (
            np.array([name.startswith(words) for name in names] or [False])[host.column("name")]
            for words in (self.asking, self.waiting)
        )
        recorded = (host.column("collective") != NONE) | asking | waiting
        wrapper = np.array([name.startswith(_ENGINE) for name in names] or [False])[host.column("name")]
        # What contains a collective, or only waits, or calls the operators of a backward, is no op of its own.
        wrapper = wrapper | waiting
        for each in np.flatnonzero(recorded).tolist():
            up = int(above[each])
            while up != NONE:
                wrapper[up] = True
                up = int(above[up])
        parent = np.where(above == NONE, True, _taken(wrapper, above))
        workers = [self._thread(each.worker) for each in self.background if each.worker is not None]
        chosen = np.flatnonzero(parent & ~wrapper & (end > start) & ~np.isin(place, workers))
        device = SpanColumns()
        for name in ("start", "end", "place", "name", "collective"):
            setattr(device, name, array("q", host.column(name)[chosen].tolist()))
        device.category = array("q", [CATEGORIES.index(HOST)] * len(chosen))
        moments, threads = array("q", device.start), array("q", device.place)
        threads.extend([self._thread(each.thread) for each in self.background])
        for work in self.background:
            stream = self.streams.setdefault((0, work.stream), len(self.streams))
            self._add(device, work.name, work.times, len(self.threads) + stream)
            device.collective.append(self._place(work.collective))
            device.category.append(CATEGORIES.index(BACKGROUND))
            moments.append(work.moment)
        device.bytes = array("q", [NONE] * len(device.start))
        launches = np.array(moments, np.int64), np.array(threads, np.int64)
        return self._ops(device, *launches, device.column("collective"))

    def _ops(self, device: SpanColumns, moments: Integers, threads: Integers, recorded: Integers) -> DeviceOps:
        """Columns of ops. moments, threads: when and where each was launched. recorded: its own collective."""
        host, names = self.host, list(self.table)
        spans = host.column("start"), host.column("end"), host.column("place")
        above = parents(*spans)
        inner = innermost(*spans, moments, threads, above)
        backward = _autograd_phases(above, host.column("name"), names)
        steps, calls, others = _sorted_annotations(self.annotations)
        around = self._annotation_around(moments, threads, others)
        in_step = self._annotation_around(moments, threads, steps)
        numbers = np.array([_step_number(each.name) for each in self.annotations] or [NONE], np.int64)
        collective = np.where(recorded == NONE, self._inherited(inner, above), recorded)
        collective = self._by_name(device, collective, self._annotation_around(moments, threads, calls), names)
        order = np.lexsort((device.column("end"), device.column("start")))
        waits = np.array(waiting_calls(names) or [False])[self.calls.column("name")]
        calls_waiting = self.calls.column("start")[waits], self.calls.column("end")[waits]
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
            "annotation": around,
            "step": np.where(in_step == NONE, NONE, numbers[in_step]),
            "phase": self._phases(np.where(inner == NONE, NONE, _taken(backward, inner)), around),
        }
        found = {name: column[order] for name, column in columns.items()}
        # Places of ops are those after they were sorted.
        waited = synchronised(found["end"], found["launched"], calls_waiting)
        if self.background:
            waited = np.where(
                found["category"] == CATEGORIES.index(BACKGROUND),
                program_before(found["end"], found["stream"], found["launched"], threads[order]),
                waited,
            )
        return DeviceOps(**found, synchronised=waited)

    def _inherited(self, inner: Integers, above: Integers) -> Integers:
        """What the nearest operator around each call recorded of a collective."""
        own = self.host.column("collective").tolist()
        up = above.tolist()
        for place in np.argsort(self.host.column("start"), kind="stable").tolist():
            if own[place] == NONE and up[place] != NONE:
                own[place] = own[up[place]]
        return np.where(inner == NONE, NONE, _taken(np.array(own or [NONE], np.int64), inner))

    def _by_name(self, device: SpanColumns, collective: Integers, around: Integers, names: list[str]) -> Integers:
        """Collectives of ops by the names of their kernels, where nothing was recorded; no compute op has one."""
        kinds = [communication_kind(name) for name in names]
        found = collective.copy()
        for place, (name, category) in enumerate(zip(device.name, device.category, strict=True)):
            kind = kinds[name]
            if category != 0:
                found[place] = found[place] if CATEGORIES[category] in (HOST, BACKGROUND) else NONE
            elif kind is None:
                found[place] = NONE
            elif found[place] == NONE:
                if kind == SEND_RECV and around[place] != NONE:
                    kind = collective_kind(self.annotations[around[place]].name) or kind
                found[place] = self._place(RecordedCollective(kind))
        return found

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
        # A forward is what is no other phase, if anything is known of an op.
        nothing = (backward == NONE) & (around == NONE)
        return np.where(own != NONE, own, np.where(nothing, UNKNOWN, np.where(backward == NONE, FORWARD, backward)))


_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")


_OPTIMIZER_NAME = re.compile(r"^Optimizer\.step|\boptimizer(?:[_ ]step)?\b", re.IGNORECASE)
_BACKWARD_NAME = re.compile(r"\b(?:backward|bwd)\b|\([BW]\)$", re.IGNORECASE)


def _named_phase(annotation: str) -> int:
    """The phase that an annotation names, or `NONE`."""
    if _OPTIMIZER_NAME.search(annotation) and "zero_grad" not in annotation:
        return OPTIMIZER
    return BACKWARD if _BACKWARD_NAME.search(annotation) else NONE


def _step_number(name: str) -> int:
    found = _STEP.match(name)
    return NONE if found is None else int(found[1])


def _sorted_annotations(found: list[Annotation]) -> tuple[list[int], list[int], list[int]]:
    """The places of those of the profiler's steps, of collectives, and of the program."""
    steps = [place for place, each in enumerate(found) if _STEP.match(each.name)]
    calls = [place for place, each in enumerate(found) if ":" in each.name and collective_kind(each.name) is not None]
    taken = {*steps, *calls}
    return steps, calls, [place for place in range(len(found)) if place not in taken]


def _autograd_phases(above: Integers, name: Integers, names: list[str]) -> Integers:
    """For each operator the phase that it is in, by the calls of autograd around it."""
    engine = [each.startswith(_ENGINE) for each in names]
    again = [_CHECKPOINT in each for each in names]
    phase = [0] * len(above)
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
                phase[each] = phase[up[each]]
            if engine[own[each]]:
                phase[each] = RECOMPUTE if again[own[each]] else BACKWARD
            done[each] = True
    return np.array(phase, np.int64)


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
