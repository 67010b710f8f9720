"""What a recording has of one rank, joined: ops, the calls that launched them, operators and annotations.

A kernel is joined to its call by its number, and the call to the operator around it on its thread, which holds for
files of every age. What a collective is comes from the kernel, or from the operators around the call, or else from
names.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stagedb.plans.request_batches import RequestBatch, engine_batch
from stagedb.runs.gradient_buckets import REDUCER, GradientBuckets, ReducedGradients
from stagedb.runs.kernel_names import EXCHANGES, LONGEST, PREPARING, SEND_RECV, collective_kind, communication_kind
from stagedb.runs.measured_path import next_of_stream
from stagedb.runs.module_paths import ENGINE, ModulePaths, inner_module, of_step_before
from stagedb.runs.rank_spans import NestedSpans, RankSpans, SpanColumns
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
    AllocatedMemory,
    Annotation,
    DeviceOps,
    Integers,
    Places,
    ProcessGroup,
    RankTrace,
    RecordedCollective,
)

# Where the host waited for its device: calls that return when an op has ended, and the launches after them.

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


# The iterations of an engine that serves, as a run has them: annotations with the requests of each.

_NAMED = re.compile(r"(?:execute_(?:\d+_)?context_\d+\(|step\[|prefill\[|decode\[)", re.ASCII)


@dataclass(frozen=True)
class EngineIteration:
    """One iteration. number: its place in the run, from 0. place: that of its annotation among those of its rank.

    batch: its requests; None if its name does not have all sums that an attention needs.
    """

    number: int
    place: int
    annotation: Annotation
    batch: RequestBatch | None

    @property
    def workflow(self) -> str | None:
        """The workflow of a plan that runs such a step.

        None if its requests are unknown, and for drafts of several lengths, or next to prompts, which no plan has.
        """
        if self.batch is None:
            return None
        prompts, answers = self.batch.prefill, self.batch.decode
        if answers.q == answers.n:
            return ("mixed" if answers.n else "prefill") if prompts.n else "decode"
        return None if prompts.n or answers.q**2 != answers.n * answers.qq else "speculative"


def engine_iterations(annotations: Sequence[Annotation]) -> tuple[EngineIteration, ...]:
    """The iterations among the annotations of a rank, by start; none in runs of other programs.

    An engine may name an iteration twice, one name around the other: the one with sums counts, or else the outer one.
    """
    named = [place for place, each in enumerate(annotations) if _NAMED.match(each.name)]
    found = [(place, engine_batch(annotations[place].name)) for place in named]
    detailed = [(place, batch) for place, batch in found if batch is not None]
    chosen = detailed or found
    apart = _without_nested(annotations, [place for place, _ in chosen])
    batches = dict(chosen)
    return tuple(
        EngineIteration(number, place, annotations[place], batches[place]) for number, place in enumerate(apart)
    )


def _without_nested(annotations: Sequence[Annotation], places: Iterable[int]) -> list[int]:
    """Those that no other one is around, by start; of copies on several threads the first."""
    kept: list[int] = []
    end = -1
    for place in sorted(places, key=lambda place: (annotations[place].start, -annotations[place].end)):
        if annotations[place].start >= end:
            kept.append(place)
            end = annotations[place].end
    return kept


_KERNEL, _HOST, _BACKGROUND = (CATEGORIES.index(each) for each in ("kernel", HOST, BACKGROUND))
_CHECKPOINT = "CheckpointFunctionBackward"
MULTIPLYING = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")
"""Begins of the names of operators that are ops of a host even where another operator calls them."""

_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")
_OPTIMIZER_NAME = re.compile(r"^Optimizer\.step|\boptimizer(?:[_ ]step)?\b", re.IGNORECASE)
_BACKWARD_NAME = re.compile(r"(?<![A-Za-z0-9])(?:backward|bwd)(?![A-Za-z0-9])|\([BW]\)$", re.IGNORECASE)
"""`FSDP::post_backward_reduce` is one, and the name of an operator such as `MulBackward0` is none."""


def device_ops(rank: RankSpans) -> DeviceOps:
    """The ops of devices, each joined to the call that launched it. The spans of its host are gone after that."""
    call = _by_number(rank.device.column("correlation"), rank.calls.column("correlation"))
    moments, threads = (_taken(rank.calls.column(name), call, NONE) for name in ("start", "place"))
    waits = _waits(rank)
    # The calls are joined already: the memory that they take is freed for the columns that follow.
    rank.calls = SpanColumns()
    columns = _LaunchedOps(rank, rank.device, _operators(rank), moments, threads).columns()
    rank.host = SpanColumns()
    return _ops(columns, waits)


def host_ops(rank: RankSpans) -> DeviceOps:
    """Operators that no other one called, where there is no device; collectives are in `record_param_comms`."""
    host, spans = rank.host, _operators(rank)
    asking, waiting = (
        _of_names([name.startswith(words) for name in rank.table], host.column("name")).astype(bool)
        for words in (rank.asking, rank.waiting)
    )
    # No ops of their own: operators around a collective or a matmul, those that only wait, and calls of a backward's
    # operators.
    wrapper = _of_names([name.startswith(ENGINE) for name in rank.table], host.column("name")).astype(bool) | waiting
    multiplies = _of_names([name.startswith(MULTIPLYING) for name in rank.table], host.column("name")).astype(bool)
    # An attention that calls matmuls is the op, not these. An operator that calls itself is a DTensor's wrapper, and no
    # op.
    above = _taken(host.column("name"), spans.above, NONE)
    multiplies &= ~_taken(multiplies, spans.above, False) | (above == host.column("name"))
    up = spans.above[(host.column("collective") != NONE) | asking | waiting | multiplies]
    while len(up := np.unique(up[up != NONE])):
        up = up[~wrapper[up] | (spans.above[up] != NONE)]
        wrapper[up] = True
        up = spans.above[up]
    parent = _taken(wrapper, spans.above, True)
    workers = [each.worker for each in rank.background if each.worker is not None]
    whole = parent & ~wrapper & (spans.end > spans.start) & ~np.isin(host.column("place"), workers)
    chosen = np.flatnonzero(whole)
    device = SpanColumns()
    device.extend(
        **{name: host.column(name)[chosen] for name in ("start", "end", "place", "name", "collective")},
        category=np.full(len(chosen), _HOST),
        bytes=np.full(len(chosen), NONE),
    )
    moments, threads = _with_background(rank, device)
    found = _ops(_LaunchedOps(rank, device, spans, moments, threads).columns(), _waits(rank))
    if not rank.background:
        return found
    order = np.lexsort((device.column("end"), device.column("start")))
    before = program_before(found.end, found.stream, found.launched, threads[order])
    return replace(found, synchronised=np.where(found.category == _BACKGROUND, before, found.synchronised))


def _with_background(rank: RankSpans, device: SpanColumns) -> tuple[Integers, Places]:
    """Add the work of other threads to operators of the program. Returns when and where each op was launched."""
    background = rank.background
    asked = np.array([each.moment for each in background], np.int64)
    moments = np.concatenate((device.column("start"), asked))
    callers = np.array([each.thread for each in background], np.int32)
    threads = np.concatenate((device.column("place"), callers))
    device.extend(
        start=np.array([each.start for each in background], np.int64),
        end=np.array([each.end for each in background], np.int64),
        place=np.array([len(rank.threads) + rank.streams[0, each.stream] for each in background], np.int64),
        name=np.array([rank.table[each.name] for each in background], np.int64),
        category=np.full(len(background), _BACKGROUND),
        bytes=np.full(len(background), NONE),
        collective=np.array([rank.place(each.collective) for each in background], np.int64),
    )
    return moments, threads


@dataclass
class _LaunchedOps:
    """When and where each op was launched. host: operators of the rank. moments: in ns. threads: places."""

    rank: RankSpans
    device: SpanColumns
    host: NestedSpans
    moments: Integers
    threads: Places
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = list(self.rank.table)

    def columns(self) -> "dict[str, npt.NDArray[Any]]":
        """Columns of the ops, by start."""
        device, rank = self.device, self.rank
        inner = self.host.around(self.moments, self.threads)
        phase = _of_names([_autograd_phase(name) for name in self.names], rank.host.column("name")).astype(np.int8)
        phase = self.host.inherited(phase, inner)
        collective = self._collectives(self.host.inherited(rank.host.column("collective"), inner))
        launcher = _taken(rank.host.column("name"), inner, NONE)
        shapes = self.host.inherited(rank.host.column("shapes"), inner)
        paths = ModulePaths(rank, self.host)
        gradients = GradientBuckets(rank, self.host, paths).found()
        module = paths.around(self.moments, self.threads, inner)
        collective, module = self._of_gradients(gradients, inner, collective, module)
        operator = _taken(rank.host.column("number"), inner, NONE)
        kinds = {name: _kind_of_annotation(name) for name in {each.name for each in rank.annotations}}
        around = self._annotations([place for place, each in enumerate(rank.annotations) if not kinds[each.name]])
        numbers = step_numbers(rank.annotations)
        in_step = self._annotations(list(numbers))
        phases = {name: _named_phase(name) for name in kinds}
        # A forward is what is no other phase, if anything is known of an op.
        otherwise = np.where((inner == NONE) & (around == NONE), UNKNOWN, FORWARD)
        phase = np.where(phase == NONE, otherwise, phase)
        named = _taken(np.array([phases[each.name] for each in rank.annotations], np.int8), around, NONE)
        by_place = np.array([numbers.get(place, NONE) for place in range(len(rank.annotations))], np.int64)
        step = _taken(by_place, in_step, NONE)
        columns: dict[str, npt.NDArray[Any]] = {
            "start": device.column("start"),
            "end": device.column("end"),
            "stream": device.column("place"),
            "name": device.column("name"),
            "category": device.column("category"),
            "bytes": device.column("bytes"),
            "collective": collective,
            "launched": self.moments,
            "launcher": launcher,
            "shapes": shapes,
            "module": module,
            "operator": operator,
            "annotation": around,
            "step": step,
            "phase": np.where(named != NONE, named, phase).astype(np.int8),
        }
        order = np.lexsort((columns["end"], columns["start"]))
        ordered = {name: column[order] for name, column in columns.items()}
        self._name_preparations(ordered)
        if rank.paths:
            self._repeat(ordered)
        return ordered

    def _repeat(self, ops: "dict[str, npt.NDArray[Any]]") -> None:
        """Give ops that were launched before the recording the modules and launchers of those that they repeat.

        ops: by start.
        """
        device, collective = ops["category"] < _HOST, ops["collective"] != NONE
        repeated = of_step_before(ops, np.flatnonzero(device & ~collective), np.flatnonzero(device & collective))
        there = np.flatnonzero(repeated != NONE)
        for column in ("module", "launcher"):
            ops[column][there] = ops[column][repeated[there]]
        numbers = list(self.rank.numbers)
        for op in there[collective[there]].tolist():
            weights = numbers[ops["collective"][repeated[op]]].gradients
            if weights:
                ops["collective"][op] = self.rank.place(replace(numbers[ops["collective"][op]], gradients=weights))

    def _collectives(self, inherited: Places) -> Places:
        """What each op recorded, or the operators around its launch, or else its name; no compute op is one."""
        own, category, name = (self.device.column(each) for each in ("collective", "category", "name"))
        kinds = [communication_kind(each) for each in self.names]
        communicates = _of_names([kind is not None for kind in kinds], name).astype(bool)
        kernel = category == _KERNEL
        found = np.where(
            (kernel & communicates) | np.isin(category, (_HOST, _BACKGROUND)),
            np.where(own == NONE, inherited, own),
            NONE,
        )
        left = np.flatnonzero(kernel & communicates & (found == NONE))
        annotations = self.rank.annotations
        chosen = [p for p, each in enumerate(annotations) if _kind_of_annotation(each.name) == _CALLS]
        around = self._annotations(chosen, left).tolist()
        for place, at, annotation in zip(left.tolist(), name[left].tolist(), around, strict=True):
            kind = kinds[at]
            if kind == SEND_RECV and annotation != NONE:
                kind = collective_kind(annotations[annotation].name) or kind
            found[place] = self.rank.place(None if kind is None else RecordedCollective(kind))
        return found

    def _name_preparations(self, columns: "dict[str, npt.NDArray[Any]]") -> None:
        """Give kernels that prepare either a dispatch or a combine the kind of that: of the next op of their stream."""
        names = [PREPARING.search(each, 0, LONGEST) is not None for each in self.names]
        prepares = _of_names(names, columns["name"]).astype(bool)
        if not prepares.any():
            return
        following = next_of_stream(columns["stream"])
        for op in np.flatnonzero(prepares & (following != NONE)).tolist():
            kind = communication_kind(self.names[columns["name"][following[op]]])
            if kind in EXCHANGES:
                columns["collective"][op] = self.rank.place(RecordedCollective(kind))

    def _of_gradients(
        self, gradients: ReducedGradients, inner: Places, collective: Places, module: Places
    ) -> tuple[Places, Places]:
        """Collectives and modules of ops with those of gradients. inner: the innermost operators around launches."""
        rank = self.rank
        rank.unknown_buckets = gradients.unknown
        own = self.host.inherited(gradients.module, inner)
        module = np.where(own == NONE, module, own)
        numbers = list(rank.numbers)
        bucket = self.host.inherited(gradients.bucket, inner)
        collective = collective.copy()
        # The module whose gradient completes a bucket is not that of the bucket.
        module[(bucket != NONE) & (collective != NONE)] = NONE
        for op in np.flatnonzero((bucket >= 0) & (collective != NONE)).tolist():
            weights = gradients.buckets[bucket[op]]
            collective[op] = rank.place(replace(numbers[collective[op]], gradients=weights))
            module[op] = rank.paths[path] if (path := inner_module([each for each, _ in weights])) else NONE
        return collective, module

    def _annotations(self, which: list[int], ops: Integers | None = None) -> Places:
        """The innermost of some annotations around each launch on its thread, or on any: a backward has its own."""
        chosen = [self.rank.annotations[place] for place in which]
        columns = (np.array([getattr(each, name) for each in chosen], np.int64) for name in ("start", "end", "thread"))
        start, end, thread = columns
        moments, threads = (column if ops is None else column[ops] for column in (self.moments, self.threads))
        found = NestedSpans(start, end, thread).around(moments, threads)
        left = np.flatnonzero((found == NONE) & (moments != NONE))
        found[left] = NestedSpans(start, end, np.zeros_like(thread)).around(moments[left], np.zeros_like(left))
        return _taken(np.array(which, np.int32), found, NONE)


_STEPS, _CALLS = 1, 2


def _operators(rank: RankSpans) -> NestedSpans:
    return NestedSpans(*(rank.host.column(name) for name in ("start", "end", "place")))


def _ops(columns: "dict[str, npt.NDArray[Any]]", waits: tuple[Integers, Integers]) -> DeviceOps:
    """Ops of their columns, and what the host had waited for. waits: what `_waits` returns."""
    # Places of ops are those after they were sorted.
    return DeviceOps(**columns, synchronised=synchronised(columns["end"], columns["launched"], waits))


def _waits(rank: RankSpans) -> tuple[Integers, Integers]:
    """When the host began to wait for its device, and until when."""
    waits = _of_names(waiting_calls(list(rank.table)), rank.calls.column("name")).astype(bool)
    return rank.calls.column("start")[waits], rank.calls.column("end")[waits]


def _kind_of_annotation(name: str) -> int:
    """Whether an annotation is one of the profiler's steps, of a collective, or of the program (0)."""
    if _STEP.match(name):
        return _STEPS
    return _CALLS if ":" in name and collective_kind(name) is not None else 0


def _autograd_phase(operator: str) -> int:
    """The phase in which what an operator calls is, if it is autograd's, or `NONE`."""
    if not operator.startswith(ENGINE):
        # DDP copies gradients out of their buckets at the end of a backward.
        return BACKWARD if operator.startswith(REDUCER) else NONE
    return RECOMPUTE if _CHECKPOINT in operator else BACKWARD


def _named_phase(annotation: str) -> int:
    """The phase that an annotation names, or `NONE`."""
    if _OPTIMIZER_NAME.search(annotation) and "zero_grad" not in annotation:
        return OPTIMIZER
    return BACKWARD if _BACKWARD_NAME.search(annotation) else NONE


def step_number(name: str) -> int | None:
    """The number of the profiler's step that an annotation is; None if it is none. name: of the annotation."""
    match = _STEP.match(name)
    return None if match is None else int(match[1])


def step_named(name: str) -> bool:
    """Whether an annotation is one of the profiler's steps. name: of the annotation."""
    return step_number(name) is not None


def step_numbers(annotations: Sequence[Annotation]) -> dict[int, int]:
    """The numbers of the steps of a rank, by the places of their annotations: those of the profiler, or else the places
    of an engine's iterations."""
    found = {place: step_number(each.name) for place, each in enumerate(annotations)}
    counted = {place: number for place, number in found.items() if number is not None}
    return counted or {each.place: each.number for each in engine_iterations(annotations)}


def _by_number(wanted: Integers, numbers: Integers) -> Integers:
    """The place of each wanted number in `numbers`, the first one, or `NONE`; `NONE` is found nowhere."""
    if not len(numbers):
        return np.full(len(wanted), NONE, np.int64)
    order = np.argsort(numbers, kind="stable")
    at = np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)
    place = order[at]
    return np.where((numbers[place] == wanted) & (wanted != NONE), place, NONE)


def _of_names(values: list[Any], names: Places) -> "npt.NDArray[Any]":
    """For each of some names, as places, its value."""
    return np.array(values or [0])[names]


def _taken(column: "npt.NDArray[Any]", places: Places, otherwise: int) -> "npt.NDArray[Any]":
    """Values at places, and another one where the place is `NONE`."""
    if not len(column):
        return np.full(len(places), otherwise, column.dtype)
    return np.where(places == NONE, np.array(otherwise, column.dtype), column[places])


# What a recording has of one rank, joined: ops of devices, the calls that launched them, operators, annotations.
#
# A reader of a format adds spans to a `RecordedRank` as it reads them, in any order; `joined_ops` joins them.

_UNKNOWN_BUCKETS = (
    "{:,} all-reduces of gradients have no modules: sizes or modules of gradients are not known, or not exactly one "
    "choice of them has the size of the bucket"
)


@dataclass
class RecordedRank(RankSpans):
    """Spans of one rank, which a reader adds one by one, or a column at a time."""

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
        """An op of a device.

        name: of the kernel or copy. times: start and end in ns. stream: device, stream. category: place in
        `CATEGORIES`.

        correlation: number of the call that launched it. size: bytes of a copy. Either is `NONE` if unknown.
        """
        self.device.add(
            start=times[0],
            end=times[1],
            place=self.streams[stream],
            name=self.table[name],
            category=category,
            correlation=correlation,
            bytes=size,
            collective=self.place(collective),
        )

    def add_call(self, name: str, times: tuple[int, int], thread: Hashable, correlation: int) -> None:
        """Add a call of a host that launches ops.

        name: of the call. times: start and end in ns. thread: any key of the thread. correlation: the number that its
        ops have, too.
        """
        place = self.threads[thread]
        self.calls.add(start=times[0], end=times[1], place=place, name=self.table[name], correlation=correlation)

    def add_operator(
        self, name: str, times: tuple[int, int], thread: Hashable, collective: RecordedCollective | None = None
    ) -> None:
        """Add an operator of a host, whose inputs have no known shapes.

        name: of the operator. times: start and end in ns. thread: any key of the thread. collective: what it records of
        one.
        """
        place, number = self.threads[thread], self.place(collective)
        columns = {
            "place": place,
            "name": self.table[name],
            "collective": number,
            "shapes": NONE,
            "number": NONE,
            "sequence": NONE,
        }
        self.host.add(start=times[0], end=times[1], **columns)

    def add_annotation(self, name: str, times: tuple[int, int], thread: Hashable) -> None:
        """Add a range that the program named.

        name: of the range. times: start and end in ns. thread: any key of the thread.
        """
        self.annotations.append(Annotation(name, *times, self.threads[thread]))

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
        numbered: bool = False,
        memory: tuple[AllocatedMemory, ...] = (),
    ) -> RankTrace | None:
        """What was read, joined; None if nothing took time.

        digest: of the file. tool: that wrote it. rank, world: of the job; None: unknown. devices: names of
        accelerators. base: ns since 1970 from which times count. events: their number by category. left_out: sentences
        on what was. process: the number of the host's. groups: of processes, by the file. numbered: whether collectives
        have their sequence numbers. memory: what was allocated.
        """
        ops = device_ops(self) if len(self.device) else host_ops(self)
        if not len(ops):
            return None
        base = _begin(ops, base)
        if self.unknown_buckets:
            left_out = (*left_out, _UNKNOWN_BUCKETS.format(self.unknown_buckets))
        return RankTrace(
            rank=rank,
            world=world,
            digest=digest,
            tool=tool,
            devices=devices,
            streams=self._stream_names(),
            names=tuple(self.table),
            ops=_since_1970(ops, base),
            collectives=tuple(self.numbers),
            annotations=tuple(self.annotations),
            events=dict(sorted(events.items())),
            left_out=left_out,
            process=process,
            groups=groups,
            shapes=tuple(self.shapes),
            modules=tuple(self.paths),
            numbered=numbered,
            memory=tuple(each.later(base) for each in memory),
        )

    def _stream_names(self) -> tuple[str, ...]:
        if not len(self.device):
            threads = [f"thread {place}" for place in range(len(self.threads))]
            return (*threads, *(f"background {place}" for place in range(len(self.streams))))
        several = len({device for device, _ in self.streams}) > 1
        return tuple(f"device {device} stream {name}" if several else f"stream {name}" for device, name in self.streams)


def _begin(ops: DeviceOps, base: int) -> int:
    """What is added to times, in ns: the base that a file names, unless its times are those since 1970 already."""
    return base if 0 < base < 1 << 62 and int(ops.start.min()) < base else 0


def _since_1970(ops: DeviceOps, base: int) -> DeviceOps:
    """Ops with times since 1970, where the file counts from a base, in ns."""
    if not base:
        return ops
    launched = np.where(ops.launched == NONE, NONE, ops.launched + base)
    return replace(ops, start=ops.start + base, end=ops.end + base, launched=launched)
