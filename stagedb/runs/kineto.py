"""Traces of PyTorch's profiler (Kineto), from CUDA, ROCm and other devices, as one `RankTrace` a file.

A kernel is joined to the call that launched it by `correlation`, and the call to the operator around it on its thread,
which holds for files of every age. What a collective is comes from the kernel, or from the `record_param_comms` around
the call, or else from names. Times are exact: they are decimal numbers of microseconds, some since 1970.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from stagedb.errors import UsageError
from stagedb.inputs import open_regular
from stagedb.outputs import path_text
from stagedb.runs.event_stream import EventStream, TraceFileError
from stagedb.runs.gloo import CALL, EVENT, WAIT, HostCall, background_ops
from stagedb.runs.kernel_names import collective_kind
from stagedb.runs.process_groups import process_groups
from stagedb.runs.rank_trace import NONE, RankTrace, RecordedCollective
from stagedb.runs.recorded_rank import RecordedRank

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
    number: Scalar = msgspec.field(name="Record function id", default=None)


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: _Arguments | None = None


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
    before = 0
    for piece in stream.pieces():
        for number, event in enumerate(piece, before):
            if event is None:
                continue
            try:
                reading.take(event)
            except (OverflowError, ValueError, ArithmeticError) as error:
                stream.left_out.append((number, str(error)))
        before += len(piece)
        progress(stream.done)
    return reading.trace(path, digest, stream)


@dataclass
class _Reading:
    """What was read of a file. events: by category, how many. asked: calls that ask gloo for work, and its events."""

    rank: RecordedRank = field(default_factory=RecordedRank)
    events: Counter[str] = field(default_factory=Counter)
    asked: list[HostCall] = field(default_factory=list)

    def take(self, event: _Event) -> None:
        """Keep an event, if it is one of those that count. Raises ValueError for one without a time."""
        category = event.cat
        if event.ph != "X" or category is None:
            return
        self.events[category] += 1
        if category == "python_function":
            return
        thread = event.pid, event.tid
        if category in _DEVICE:
            args = event.args or _Arguments()
            device = _integer(args.device, _integer(event.pid, 0))
            self.rank.add_op(
                str(event.name),
                _times(event),
                (device, event.tid if args.stream is None else args.stream),
                _DEVICE[category],
                _integer(args.correlation, NONE),
                _integer(args.bytes, NONE),
                _recorded(args),
            )
        elif category in _CALLS:
            if event.args is not None:
                self.rank.add_call(str(event.name), _times(event), thread, _integer(event.args.correlation, NONE))
        elif category == "cpu_op":
            self._take_call(event, thread)
            self.rank.add_operator(str(event.name), _times(event), thread, _recorded(event.args))
        elif category == "user_annotation":
            self._take_call(event, thread)
            self.rank.add_annotation(str(event.name), _times(event), thread)

    def _take_call(self, event: _Event, thread: tuple[Scalar, Scalar]) -> None:
        if isinstance(event.name, str) and event.name.startswith((EVENT, CALL)):
            number = NONE if event.args is None else _integer(event.args.number, NONE)
            self.asked.append(HostCall(event.name, _times(event), thread, number))

    def trace(self, path: Path, digest: str, stream: EventStream[_Event]) -> RankTrace:
        """What was read, joined."""
        job = stream.top.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        left_out = [f"event {number}: {why}" for number, why in sorted(stream.left_out)[:_MOST_SHOWN]]
        if len(stream.left_out) > _MOST_SHOWN:
            left_out.append(f"{len(stream.left_out) - _MOST_SHOWN} further events")
        if stream.repaired:
            left_out.append("characters and numbers that JSON does not have were replaced")
        rank, world = _integer(job.get("rank"), NONE), _integer(job.get("world_size"), NONE)
        self.rank.background = background_ops(self.asked)
        if self.rank.background:
            self.rank.asking, self.rank.waiting = (CALL,), (WAIT,)
        found = self.rank.trace(
            digest,
            tool="kineto",
            rank=None if rank < 0 else rank,
            world=None if world < 1 else world,
            devices=_devices(stream.top.get("deviceProperties")),
            base=_integer(stream.top.get("baseTimeNanoseconds"), 0),
            events=self.events,
            left_out=tuple(left_out),
            process=_process(self.rank.threads),
            groups=process_groups(job.get("pg_config"), max(world, 0)),
        )
        if found is None:
            raise TraceFileError(
                f"the trace {path_text(path)} has no kernel, copy or operator that took time: record it with the "
                "activities CPU and CUDA"
            )
        return found


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


def _recorded(args: _Arguments | None) -> RecordedCollective | None:
    """What the arguments of an event record of a collective."""
    if args is None or args.collective is None:
        return None
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


def _process(threads: Iterable[Hashable]) -> int | None:
    """The process of the first thread."""
    return next((each[0] for each in threads if isinstance(each, tuple) and isinstance(each[0], int)), None)


def _devices(found: Any) -> tuple[str, ...]:
    rows = found if isinstance(found, list) else []
    return tuple(str(each["name"])[:100] for each in rows if isinstance(each, dict) and "name" in each)
