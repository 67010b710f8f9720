"""Traces of PyTorch's profiler (Kineto), from CUDA, ROCm and other devices, as one `RankTrace` a file.

A kernel is joined to the call that launched it by `correlation`, and the call to the operator around it on its thread,
which holds for files of every age. What a collective is comes from the kernel, or from the `record_param_comms` around
the call, or else from names.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import compress, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stagedb.copied_processes import copies
from stagedb.cores import usable_cores
from stagedb.errors import UsageError
from stagedb.files import open_regular, path_text, shown
from stagedb.runs.event_stream import Elsewhere, EventStream, Question, TraceFileError
from stagedb.runs.gloo import CALL, EVENT, WAIT, HostCall, background_ops
from stagedb.runs.joined_ops import RecordedRank
from stagedb.runs.kineto_events import (
    CALLS,
    COLLECTIVE_VALUES,
    KNOWN_DECIMAL_EVENTS,
    KNOWN_FLOAT_EVENTS,
    NO_SHAPES,
    NO_TIME,
    WITHOUT_OPS,
    Arguments,
    DecimalEvent,
    Event,
    FloatEvent,
    Scalar,
    decimal_nanoseconds,
    decimal_times,
    integer,
    integers,
    nanoseconds,
    recorded,
)
from stagedb.runs.memory_events import MemoryEvents, is_memory
from stagedb.runs.module_paths import PREFIX
from stagedb.runs.rank_spans import Numbering
from stagedb.runs.rank_trace import (
    CATEGORIES,
    NONE,
    Annotation,
    Integers,
    Places,
    RankTrace,
    input_shapes,
    process_groups,
)
from stagedb.shared_work import LOST

_ON_MTIA = "mtia_ccp_events"
_DEVICE: Mapping[str | None, int] = {
    "kernel": 0,
    _ON_MTIA: 0,
    "gpu_memcpy": 1,
    "gpu_memset": 2,
    "Kernel": 0,
    "Memcpy": 1,
    "Memset": 2,
}
"""Categories of what a device executes, with their places in `CATEGORIES`. Files from before 2022 have capitals."""

_CALLS = (*CALLS, "Runtime")
"""Categories of the calls that launch it, and that of files from before 2022."""

_CALL, _OPERATOR, _ANNOTATION, _PYTHON = range(len(CATEGORIES), len(CATEGORIES) + 4)
_KEPT_WITHOUT_PYTHON: Mapping[str | None, int] = {
    **{category: place + 1 for category, place in _DEVICE.items()},
    **dict.fromkeys(_CALLS, _CALL),
    "cpu_op": _OPERATOR,
    "Operator": _OPERATOR,
    "user_annotation": _ANNOTATION,
}
"""Categories of the events that count: those of devices, from 1 on, and what is done with the others."""

_CALLS_OF_PYTHON = "python_function"
_KEPT: Mapping[str | None, int] = {**_KEPT_WITHOUT_PYTHON, _CALLS_OF_PYTHON: _PYTHON}

_MOVES = "dma"
"""Begin of the names of what an MTIA copies; all that it does is of one category."""

_MARKS = ("event_wait", "event_record")
"""What streams of an MTIA do for each other: an op for neither, as the waits and marks of other devices are none."""

_NOTHING = Arguments()
_MOST_SHOWN = 5

LARGE_TEXT = 64 << 20
"""Bytes of a file's text after which the rest is read on several cores: less takes as long as their start."""

MOST_PROCESSES = 8
"""The process that cuts the text into pieces has enough to do for as many."""

EntryT = TypeVar("EntryT")

Chosen = npt.NDArray[np.bool_]
"""Which of some events."""

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


def read_kineto(
    path: Path, digest: str, progress: Progress = lambda done: None, processes: int | None = None
) -> RankTrace:
    """A trace of PyTorch's profiler: JSON, as it is or compressed with gzip.

    digest: of the file. processes: those that read a large file; None for one on each core, up to `MOST_PROCESSES`.
    Raises TraceFileError for what is no such trace, is damaged, or has nothing that took time.
    """
    stream: EventStream[Event] = EventStream(path, FloatEvent, KNOWN_FLOAT_EVENTS)
    reading = _Reading()
    count = min(usable_cores(), MOST_PROCESSES) if processes is None else processes
    with ExitStack() as others:
        for piece in stream.pieces():
            if stream.kind is FloatEvent and not reading.take(piece, nanoseconds):
                # The rest of such a file has such times, too.
                piece = stream.again(DecimalEvent, KNOWN_DECIMAL_EVENTS)
            if stream.kind is DecimalEvent and not reading.take(piece, decimal_nanoseconds):
                stream.left_out += reading.take_one_by_one(piece, stream.number)
            progress(stream.done)
            if count > 1 and stream.elsewhere is None and stream.offset >= LARGE_TEXT:
                found = others.enter_context(copies(partial(_plain, stream), count, lambda _: path_text(path), LOST))
                stream.elsewhere = Elsewhere(found, reading.add) if found.channels else None
                count = len(found.channels)
    progress(stream.done)
    return reading.trace(path, digest, stream)


def _plain(stream: EventStream[Event], question: Question) -> "tuple[int, _Reading] | None":
    """What is read of a piece in a copy of this process; None if a part of it is not as in most files."""
    _, piece, kind = question
    if stream.kind is not kind:
        stream.change(kind, KNOWN_DECIMAL_EVENTS)
    events = stream.whole(piece)
    found = _Reading()
    in_ns = nanoseconds if kind is FloatEvent else decimal_nanoseconds
    return (len(events), found) if events is not None and found.take(events, in_ns) else None


@dataclass
class _Reading:
    """What was read of a file.

    events: by category, how many. asked: calls that ask gloo for work, and its events. asking: places of their names,
    among as many names as were `looked_at`. recorded: places of collectives, by what events record. shapes: places of
    those that were read, by how the file writes them. numbered: whether operators have the numbers of execution traces;
    older files have the profiler's own, which may be equal. memory: what its allocators did.
    """

    rank: RecordedRank = field(default_factory=RecordedRank)
    events: Counter[str | None] = field(default_factory=Counter)
    streams: dict[tuple[Scalar, ...], int] = field(default_factory=dict)
    asked: list[HostCall] = field(default_factory=list)
    asking: set[int] = field(default_factory=set)
    looked_at: int = 0
    recorded: dict[tuple[Hashable, ...], int] = field(default_factory=dict)
    shapes: dict[bytes, int] = field(default_factory=dict)
    numbered: bool = True
    memory: MemoryEvents = field(default_factory=MemoryEvents)

    def take(self, events: Sequence[Event | None], in_ns: Callable[[list[Any]], Integers | None]) -> bool:
        """Keep the events that count; False, and none is kept, if `in_ns` returns None for their times."""
        spans = [event for event in events if event is not None and event.ph == "X"]
        categories = [event.cat for event in spans]
        wanted: list[int | None] = [*map(_KEPT.get, categories)]
        if _PYTHON in wanted:
            # Few of Python's calls are of modules, most of which have the same names: a call for each takes longer.
            modules = {*filter(_is_module, {span.name for span in spans if span.cat == _CALLS_OF_PYTHON})}
            wanted = [
                None if kind == _PYTHON and span.name not in modules else kind
                for kind, span in zip(wanted, spans, strict=True)
            ]
        if _ON_MTIA in categories:
            wanted = [*map(_kind, spans)]
        kept: list[Any] = [*compress(spans, wanted)]
        start = in_ns([event.ts for event in kept])
        length = in_ns([0 if event.dur is None else event.dur for event in kept])
        if start is None or length is None or (length < 0).any():
            return False
        if len(spans) < len(events) and not self.memory.take(events, in_ns):
            return False
        self.events.update(categories)
        self._keep(kept, [*filter(None, wanted)], start, start + length)
        return True

    def take_one_by_one(self, events: Sequence[Event | None], before: int) -> list[tuple[int, str]]:
        """Keep the events that count. before: events before these. Returns those without a time: number and reason."""
        kept: list[Event] = []
        kinds: list[int] = []
        times: list[tuple[int, int]] = []
        left_out = []
        for number, event in enumerate(events, before):
            if event is not None and is_memory(event) and not self.memory.take([event], decimal_nanoseconds):
                left_out.append((number, NO_TIME))
            if event is None or event.ph != "X":
                continue
            self.events[event.cat] += 1
            kind = _kind(event)
            if kind is None:
                continue
            try:
                times.append(decimal_times(event))
            except (OverflowError, ValueError, ArithmeticError) as error:
                left_out.append((number, str(error)))
            else:
                kept.append(event)
                kinds.append(kind)
        columns = np.array(times, np.int64).reshape(-1, 2)
        self._keep(kept, kinds, columns[:, 0], columns[:, 1])
        return left_out

    def _keep(self, kept: Sequence[Event], kinds: Sequence[int], start: Integers, end: Integers) -> None:
        """Add events to the columns of their categories. kinds: those of `_KEPT`. start, end: in ns."""
        kind = np.fromiter(kinds, np.int8, len(kinds))
        ops, calls, operators, modules = kind < _CALL, kind == _CALL, kind == _OPERATOR, kind == _PYTHON
        args = [_NOTHING if (found := event.args) is None else found for event in kept]
        columns = {"start": start, "end": end, "name": self._names(kept), "place": self._threads(kept, ~ops)}
        columns["collective"] = self._collectives(args, ops | operators)
        launching = ops | calls
        columns["correlation"] = np.full(len(kept), NONE, np.int64)
        columns["correlation"][launching] = integers([each.correlation for each in _chosen(args, launching)])
        self._keep_ops(kept, args, {"category": kind - 1, **columns}, ops)
        for spans, which, names, more in (
            (self.rank.calls, calls, ("start", "end", "place", "name", "correlation"), {}),
            (
                self.rank.host,
                operators,
                ("start", "end", "place", "name", "collective"),
                self._of_operators([*_chosen(args, operators)]),
            ),
            (self.rank.modules, modules, ("start", "end", "place", "name"), {}),
        ):
            spans.extend(**{name: columns[name][which] for name in names}, **more)
        self._keep_annotations(kept, columns, kind == _ANNOTATION)
        self._keep_asked(kept, args, columns)

    def _keep_annotations(self, kept: Sequence[Event], columns: "dict[str, npt.NDArray[Any]]", which: Chosen) -> None:
        names = [_text(event.name) for event in _chosen(kept, which)]
        places = (columns[name][which].tolist() for name in ("start", "end", "place"))
        self.rank.annotations += map(Annotation, names, *places)

    def _keep_asked(
        self, kept: Sequence[Event], args: Sequence[Arguments], columns: "dict[str, npt.NDArray[Any]]"
    ) -> None:
        """Add calls that ask gloo for work, and its events."""
        table = self.rank.table
        for name in islice(table, self.looked_at, None):
            if name.startswith((EVENT, CALL)):
                self.asking.add(table[name])
        self.looked_at = len(table)
        if not self.asking:
            return
        # What a device executes asks for nothing.
        which = np.isin(columns["name"], [*self.asking]) & (columns["place"] != NONE)
        names = [_text(event.name) for event in _chosen(kept, which)]
        places = (columns[name][which].tolist() for name in ("start", "end", "place"))
        numbers = integers([each.number for each in _chosen(args, which)]).tolist()
        self.asked += map(HostCall, names, *places, numbers)

    def _of_operators(self, args: list[Arguments]) -> "dict[str, npt.NDArray[Any]]":
        """Places of the shapes of operators' inputs, and the operators' numbers."""
        numbers = [each.number for each in args]
        if None in numbers:
            self.numbered = False
            numbers = [each.external if each.number is None else each.number for each in args]
        known = self.shapes
        texts = [b"" if (shapes := each.shapes) is NO_SHAPES else bytes(shapes) for each in args]
        for text in dict.fromkeys(texts):
            if text not in known:
                found = input_shapes(text)
                known[text] = NONE if found is None else self.rank.shapes[found]
        return {
            "shapes": np.fromiter(map(known.__getitem__, texts), np.int32, len(texts)),
            "number": integers(numbers),
            "sequence": integers([each.order for each in args]),
        }

    def _names(self, kept: Sequence[Event]) -> Places:
        """Places of names, which are in the order of the file."""
        # Most names are texts, and a call for each takes as long as the rest.
        names = [name if type(name := event.name) is str else _text(name) for event in kept]
        return np.fromiter(map(self.rank.table.__getitem__, names), np.int32, len(names))

    def _threads(self, kept: Sequence[Event], which: Chosen) -> Places:
        """Places of the threads of the events of a host, which are in the order of the file, too."""
        found = np.full(len(kept), NONE, np.int32)
        events = [*_chosen(kept, which)]
        # A list of tuples would take the collector of garbage as long as all the rest.
        keys = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        found[which] = np.fromiter(map(self.rank.threads.__getitem__, keys), np.int32, len(events))
        return found

    def _collectives(self, args: Sequence[Arguments], which: Chosen) -> Places:
        """Places of what some events record of a collective."""
        found = np.full(len(args), NONE, np.int32)
        there = np.flatnonzero(which)
        records = [each.collective is not None for each in _chosen(args, which)]
        for place in there[np.fromiter(records, np.bool_, len(records))].tolist():
            found[place] = self._place(args[place])
        return found

    def _place(self, args: Arguments) -> int:
        """The place of what arguments record of a collective."""
        if args.sequence is not None or type(args.ranks) is list:
            return self.rank.place(recorded(args))
        values = COLLECTIVE_VALUES(args)
        # Equal numbers of different types are written differently.
        key = (*values, *map(type, values))
        place = self.recorded.get(key)
        if place is None:
            place = self.recorded[key] = self.rank.place(recorded(args))
        return place

    def _keep_ops(
        self,
        kept: Sequence[Event],
        args: Sequence[Arguments],
        columns: "dict[str, npt.NDArray[Any]]",
        which: Chosen,
    ) -> None:
        """Add the ops of devices, which are some of the events."""
        found = {name: column[which] for name, column in columns.items()}
        events, args = [*_chosen(kept, which)], [*_chosen(args, which)]
        keys = (
            *([each.device for each in args], [each.stream for each in args]),
            *([event.pid for event in events], [event.tid for event in events]),
        )
        streams = self.streams
        for device, stream, process, thread in dict.fromkeys(zip(*keys, strict=True)):
            key = device, stream, process, thread
            if key not in streams:
                number = integer(device, integer(process, 0))
                streams[key] = self.rank.streams[number, thread if stream is None else stream]
        found["place"] = np.fromiter(map(streams.__getitem__, zip(*keys, strict=True)), np.int32, len(events))
        sizes = [each.bytes if each.moved is None else each.moved for each in args]
        self.rank.device.extend(**found, bytes=integers(sizes))

    def add(self, more: "_Reading") -> None:
        """Add what was read of the piece that follows, as if it was read here."""
        rank, other = self.rank, more.rank
        names, threads = rank.table.of(other.table), rank.threads.of(other.threads)
        columns = {
            "name": names,
            "place": threads,
            "collective": rank.numbers.of(other.numbers),
            "shapes": rank.shapes.of(other.shapes),
        }
        rank.device.add_all(other.device, {**columns, "place": rank.streams.of(other.streams)})
        for mine, theirs in ((rank.calls, other.calls), (rank.host, other.host), (rank.modules, other.modules)):
            mine.add_all(theirs, columns)
        thread = threads.tolist()
        rank.annotations += [
            Annotation(each.name, each.start, each.end, thread[each.thread]) for each in other.annotations
        ]
        self.asked += [
            HostCall(each.name, each.begin, each.end, thread[each.thread], each.number) for each in more.asked
        ]
        self.events.update(more.events)
        self.numbered = self.numbered and more.numbered
        self.memory.add(more.memory)

    def _unknown_categories(self) -> list[str]:
        """A sentence for each category of which it is not known whether its events are ops."""
        unknown = sorted({each for each in self.events if each is not None and each not in _KEPT} - WITHOUT_OPS)
        found = [
            f"{self.events[each]:,} event{'' if self.events[each] == 1 else 's'} of the unknown category {shown(each)}"
            for each in unknown[:_MOST_SHOWN]
        ]
        if len(unknown) > _MOST_SHOWN:
            found.append(f"{len(unknown) - _MOST_SHOWN} further categories")
        return found

    def trace(self, path: Path, digest: str, stream: EventStream[Event]) -> RankTrace:
        """What was read, joined. Raises TraceFileError for what is of several ranks, or has nothing that took time."""
        if _of_several_ranks(self.rank):
            raise TraceFileError(
                f"the trace {path_text(path)} was merged from those of several ranks: processes in it use the same "
                "numbers for different launches. Import the traces that it was made from instead, together"
            )
        job = stream.top.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        left_out = [f"event {number}: {why}" for number, why in sorted(stream.left_out)[:_MOST_SHOWN]]
        if len(stream.left_out) > _MOST_SHOWN:
            left_out.append(f"{len(stream.left_out) - _MOST_SHOWN} further events")
        if stream.repaired:
            left_out.append("characters and numbers that JSON does not have were replaced")
        left_out += self._unknown_categories()
        left_out += self.memory.failures()
        rank, world = integer(job.get("rank"), NONE), integer(job.get("world_size"), NONE)
        self.rank.background = background_ops(self.asked, [*self.rank.threads])
        if self.rank.background:
            self.rank.asking, self.rank.waiting = (CALL,), (WAIT,)
        memory = self.memory.over(self.rank)
        found = self.rank.trace(
            digest,
            tool="kineto",
            rank=None if rank < 0 else rank,
            world=None if world < 1 else world,
            devices=_devices(stream.top.get("deviceProperties")),
            base=integer(stream.top.get("baseTimeNanoseconds"), 0),
            events={each: count for each, count in self.events.items() if each is not None},
            left_out=tuple(left_out),
            process=_process(self.rank.threads),
            groups=process_groups(job.get("pg_config"), max(world, 0)),
            numbered=self.numbered,
            memory=memory,
        )
        if not self.events:
            raise TraceFileError(
                f"the trace {path_text(path)} cannot be imported: nothing in it is an event with a duration, as traces "
                "of PyTorch's profiler have. If it is no trace, take it out of the directory"
            )
        if found is None:
            raise TraceFileError(
                f"the trace {path_text(path)} has no kernel, copy or operator that took time: record it with the "
                "activities CPU and CUDA"
            )
        return found


def _kind(event: Event) -> int | None:
    """What is done with an event, as `_KEPT` has it. Of Python's calls those of modules count."""
    kind = _KEPT.get(event.cat)
    if kind == _PYTHON and not _is_module(event.name):
        return None
    if event.cat != _ON_MTIA or type(event.name) is not str:
        return kind
    if event.name in _MARKS:
        return None
    return _KEPT["gpu_memcpy"] if event.name.startswith(_MOVES) else kind


def _chosen(entries: Sequence[EntryT], which: Chosen) -> Iterator[EntryT]:
    """Those of some entries that are chosen."""
    return compress(entries, which.tolist())


def _of_several_ranks(rank: RecordedRank) -> bool:
    """Whether calls of different processes have one number: a process numbers its calls, each with another number."""
    # An MTIA records its half of a call too, as an event whose process is the number of the device: that is no process.
    devices = {number for number, _ in rank.streams}
    processes: Numbering[Hashable] = Numbering()
    of_threads = [key[0] if isinstance(key, tuple) else key for key in rank.threads]
    host = np.array([each not in devices for each in of_threads], np.bool_)
    process = np.array([processes[each] for each in of_threads], np.int32)[rank.calls.column("place")]
    chosen = host[rank.calls.column("place")]
    process, number = process[chosen], rank.calls.column("correlation")[chosen]
    if not len(process) or (process == process[0]).all():
        return False
    order = np.lexsort((process, number))
    process, number = process[order], number[order]
    return bool(((np.diff(number) == 0) & (np.diff(process) != 0) & (number[1:] != NONE)).any())


def _is_module(name: Scalar) -> bool:
    return type(name) is str and name.startswith(PREFIX)


def _text(name: Scalar) -> str:
    return name if type(name) is str else str(name)


def _process(threads: Iterable[Hashable]) -> int | None:
    """The process of the first thread."""
    return next((each[0] for each in threads if isinstance(each, tuple) and isinstance(each[0], int)), None)


def _devices(found: Any) -> tuple[str, ...]:
    rows = found if isinstance(found, list) else []
    return tuple(str(each["name"])[:100] for each in rows if isinstance(each, dict) and "name" in each)
